"""Tiles, grids and mosaics: what they show, where, and how little they repaint."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtGui import QColor

from engine.trace.state import NUM_COLOURS
from tests.widgets.scheduler_run import busy_run
from widgets.cells import CACHED, EVICTED, FLASH, FREE, GLOW, NULL, VOID, Grid, Mosaic, TileSet, blend
from widgets.theme import DARK, LIGHT

SIZES = [(1, 1, 0), (2, 1, 0), (3, 3, 0), (4, 4, 1), (6, 6, 1), (13, 13, 2), (32, 32, 4)]


def tiles_of(width: int, height: int, gap: int, look=DARK) -> TileSet:
    return TileSet(width, height, gap, gap, look)


def centre(tiles: TileSet, tile: int) -> str:
    y, x = (tiles.height - tiles.gap_y) // 2, (tiles.width - tiles.gap_x) // 2
    return QColor(int(tiles.tiles[tile, y, x])).name()


@pytest.mark.parametrize("look", [DARK, LIGHT], ids=lambda t: t.name)
@pytest.mark.parametrize(("width", "height", "gap"), SIZES[4:])
def test_a_full_block_shows_its_colour(qapp, width: int, height: int, gap: int, look) -> None:
    tiles = tiles_of(width, height, gap, look)
    for colour in range(NUM_COLOURS):
        for shared in (False, True):
            assert centre(tiles, tiles.owned(colour, shared, tiles.levels)) == look.request(colour).name()


@pytest.mark.parametrize("look", [DARK, LIGHT], ids=lambda t: t.name)
@pytest.mark.parametrize(("width", "height", "gap"), SIZES)
def test_states_differ_in_lightness_alone(qapp, width: int, height: int, gap: int, look) -> None:
    """In greys, too, owned, shared, cached, free and null are told apart, down to a single pixel."""
    tiles = tiles_of(width, height, gap, look)
    kinds = [FREE, CACHED, NULL, tiles.owned(0, False, tiles.levels), tiles.owned(0, True, tiles.levels)]
    channels = tiles.tiles[kinds].view(np.uint8).reshape(len(kinds), -1, 4).astype(int)
    grey = channels[:, :, 0] * 0.11 + channels[:, :, 1] * 0.59 + channels[:, :, 2] * 0.3
    for i in range(len(kinds)):
        for j in range(i):
            assert np.abs(grey[i] - grey[j]).max() > 4, (kinds[i], kinds[j])


def test_fill_rises_from_the_bottom(qapp) -> None:
    tiles = tiles_of(20, 20, 3)
    full = DARK.request(3).rgb()
    heights = [int((tiles.tiles[tiles.owned(3, False, level), :, 8] == full).sum()) for level in range(17)]
    assert heights == sorted(heights)
    assert heights[0] == 0
    assert heights[-1] == 17
    half = tiles.tiles[tiles.owned(3, False, 8), :17, 8] == full
    assert half[-1]
    assert not half[0]


def test_the_gap_is_the_panel_or_nothing(qapp) -> None:
    solid, clear = tiles_of(13, 13, 2), TileSet(13, 13, 2, 2, DARK, clear=True)
    for tile in (FREE, CACHED, NULL, GLOW, FLASH, EVICTED, solid.owned(5, True, 4)):
        for strip in (np.s_[tile, 11:], np.s_[tile, :, 11:]):
            assert set(solid.tiles[strip].ravel().tolist()) == {QColor(DARK.panel).rgb()}
            assert set(clear.tiles[strip].ravel().tolist()) == {0}
    assert not clear.tiles[VOID].any()


def test_indices_follow_the_state(qapp) -> None:
    state = busy_run().state_at(300)
    tiles = tiles_of(13, 13, 2)
    index = tiles.indices(state)
    assert index[0] == NULL
    assert len(index) == state.num_blocks
    for block in range(1, state.num_blocks):
        holders = state.holders.get(block, [])
        if holders:
            level = -(-int(state.fill[block]) * tiles.levels // state.block_size)
            assert index[block] == tiles.owned(state.requests[holders[0]].colour, len(holders) > 1, level)
        else:
            assert index[block] == (CACHED if state.block_hash[block] else FREE)
    some = np.array([1, 7, 30])
    assert tiles.indices(state, some).tolist() == index[some].tolist()


def test_blend_ends_where_it_should() -> None:
    a, b = np.full((2, 3, 3), 0xFF102030, np.uint32), np.full((2, 3, 3), 0xFFFFFFFF, np.uint32)
    mixed = blend(a, b, np.array([0.0, 1.0]))
    assert (mixed[0] == a[0]).all()
    assert (mixed[1] == b[1]).all()
    half = blend(a, b, np.array([0.5, 0.5]))
    assert QColor(int(half[0, 0, 0])).red() == pytest.approx((0x10 + 0xFF) / 2, abs=1)


@pytest.mark.parametrize("count", [8, 9, 100, 1024, 4096, 20_000, 65_536])
@pytest.mark.parametrize(("width", "height"), [(520, 330), (200, 90), (1100, 700)])
def test_grid_fits_and_finds(count: int, width: int, height: int) -> None:
    grid = Grid.fit(count, width, height, 32)
    assert grid.columns * grid.rows >= count
    if count * 2 <= width * height:
        assert grid.columns * grid.width - grid.gap_x <= width
        assert grid.rows * grid.height - grid.gap_y <= height
    for cell in {0, 1, count // 2, count - 1}:
        x, y, w, h = grid.rect(cell)
        assert grid.at(x, y) == cell
        assert grid.at(x + w - 0.01, y + h - 0.01) == cell
    assert grid.at(-1, 0) == grid.at(0, -1) == -1
    assert grid.at(grid.columns * grid.width, 0) == -1
    assert grid.at(0, grid.rows * grid.height) == -1


def test_mosaic_repaints_only_what_changed(qapp) -> None:
    grid = Grid.fit(50, 200, 80, 13)
    tiles = TileSet(grid.width, grid.height, grid.gap_x, grid.gap_y, DARK)
    mosaic = Mosaic(grid, tiles)
    index = np.full(50, FREE, np.int32)
    assert mosaic.show(index) == 50
    assert mosaic.show(index) == 0
    index[7] = tiles.owned(2, False, tiles.levels)
    assert mosaic.show(index) == 1
    x, y, _, _ = grid.rect(7)
    patch = mosaic.pixels[y:y + grid.height, x:x + grid.width]
    assert (patch == tiles.tiles[index[7]]).all()
    mosaic.overlay(np.array([7]), tiles.tiles[[GLOW]])
    assert (patch == tiles.tiles[GLOW]).all()
    assert mosaic.show(index) == 1  # the overlay is taken back
    assert (patch == tiles.tiles[index[7]]).all()
