"""The block table, on runs of the real scheduler: pixels, pointing, keys, motion, and how little it repaints."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtTest import QTest

from engine.trace.pool_state import Touch
from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.block_rows import MORE, NOTHING, Rows, fill_row
from widgets.block_table import BlockTable
from widgets.painting import Motion
from widgets.theme import theme, themes
from widgets.view import Selection, View


class Watched(BlockTable):
    paints = 0

    def paint_content(self, painter: QPainter, rect) -> None:
        self.paints += 1
        super().paint_content(painter, rect)


@pytest.fixture
def still(monkeypatch):
    """Nothing moves."""
    monkeypatch.setattr(Motion, "enabled", False)


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [1000.0]
    monkeypatch.setattr(Motion, "now", staticmethod(lambda: now[0]))
    return now


@pytest.fixture
def panel(qtbot):
    widget = Watched(Selection())
    qtbot.addWidget(widget)
    widget.resize(852, 392)
    widget.show()
    yield widget
    themes.set("dark")


def shown(panel: BlockTable, step: int | None = None, run=None) -> View:
    view = view_at(run or busy_run(), step)
    panel.show_view(view)
    panel.grab()
    return view


def pixel(image: QImage, point: QPointF) -> QColor:
    return image.pixelColor(round(point.x()), round(point.y()))


def test_every_full_block_has_its_owners_colour(panel, still) -> None:
    for name in ("dark", "light"):
        themes.set(name)
        view = shown(panel, 300)
        image = panel.grab().toImage()
        full = [b for b in view.state.holders if view.state.fill[b] == view.state.block_size]
        assert len(full) > 50
        for block in full:
            colour = theme().request(int(view.state.owner_colour[block]))
            assert pixel(image, panel._pool_cell(block).center()) == colour


def test_rows_show_the_tables_in_order(panel, still) -> None:
    view = shown(panel, 300)
    image = panel.grab().toImage()
    names = [r.request_id for r in panel._rows.requests]
    assert names == [*view.state.running, *view.state.waiting][:len(names)]
    for row, name in enumerate(view.state.running[:len(names)]):
        table = view.state.requests[name].blocks
        assert panel._rows.blocks[row, 0] == table[0]
        last = table[0]
        assert pixel(image, panel._table_cell(row, 0).center()) == theme().request(int(view.state.owner_colour[last]))


def test_header_counts_blocks(panel, still) -> None:
    view = shown(panel, 300)
    used, usable = view.state.num_used_blocks, view.state.num_blocks - 1
    assert panel.value == f"{used} / {usable} blocks · {100 * used / usable:.1f}%"
    assert panel.accessibleName()
    assert panel.accessibleDescription() == panel.value


def test_pointing_at_cells_and_rows(panel, still) -> None:
    view = shown(panel, 300)
    for block in (0, 1, 100, view.state.num_blocks - 1):
        assert panel.hit(panel._pool_cell(block).center()) == (None, block)
    first = panel._rows.requests[0].request_id
    assert panel.hit(panel._table_cell(0, 2).center()) == (first, int(panel._rows.blocks[0, 2]))
    assert panel.hit(panel._row_rect(1).topLeft() + QPointF(2, 4)) == (panel._rows.requests[1].request_id, None)
    assert panel.hit(QPointF(5, 5)) == (None, None)
    assert panel.hit(QPointF(panel.width() - 1, panel.height() - 1)) == (None, None)


def test_hover_and_click_go_to_the_selection(panel, still) -> None:
    shown(panel, 300)
    row = panel._table_cell(0, 1).center().toPoint()
    request, block = panel.hit(QPointF(row))
    QTest.mouseMove(panel, row)
    assert (panel.selection.hovered_request, panel.selection.hovered_block) == (request, block)
    QTest.mouseClick(panel, Qt.MouseButton.LeftButton, pos=row)
    assert (panel.selection.request_id, panel.selection.block) == (request, block)
    cell = panel._pool_cell(5).center().toPoint()
    QTest.mouseClick(panel, Qt.MouseButton.LeftButton, pos=cell)
    assert (panel.selection.request_id, panel.selection.block) == (None, 5)
    QTest.mouseClick(panel, Qt.MouseButton.LeftButton, pos=QPoint(5, 5))
    assert (panel.selection.request_id, panel.selection.block) == (None, None)


def test_both_sides_light_up(panel, still) -> None:
    view = shown(panel, 300)
    block = view.state.requests[view.state.running[0]].blocks[0]
    before = panel.grab().toImage()
    panel.selection.hover(block=block)
    after = panel.grab().toImage()
    corner = panel._pool_cell(block).topLeft() - QPointF(1, 1)
    assert pixel(after, corner) != pixel(before, corner)
    places = panel._rows.places_of(block)
    assert places
    for place in places:
        edge = panel._table_cell(*place).topLeft() - QPointF(1, 1)
        assert pixel(after, edge) != pixel(before, edge)
    start, end = panel._pool_cell(block), panel._table_cell(*places[0])
    middle = [(x, y) for x in range(round(start.right()) + 4, round(end.left()) - 4)
              for y in range(round(min(start.top(), end.top())), round(max(start.bottom(), end.bottom())))]
    assert any(before.pixel(x, y) != after.pixel(x, y) for x, y in middle)  # the curve between them


def test_a_hovered_request_dims_the_rest(panel, still) -> None:
    view = shown(panel, 300)
    own = view.state.requests[view.state.running[1]].blocks
    other = next(b for b in view.state.holders if b not in own and view.state.fill[b] == view.state.block_size)
    panel.selection.hover(request_id=view.state.running[1])
    image = panel.grab().toImage()
    colour = theme().request(int(view.state.owner_colour[other]))
    assert pixel(image, panel._pool_cell(other).center()) != colour
    colour = theme().request(int(view.state.owner_colour[own[0]]))
    assert pixel(image, panel._pool_cell(own[0]).center()) == colour
    panel.selection.hover()
    image = panel.grab().toImage()
    assert pixel(image, panel._pool_cell(other).center()) == theme().request(int(view.state.owner_colour[other]))


def test_arrows_move_the_selected_block_and_escape_clears(panel, still) -> None:
    shown(panel, 300)
    columns = panel._pool.grid.columns
    panel.selection.select(block=columns + 3)
    for key, wanted in ((Qt.Key.Key_Right, columns + 4), (Qt.Key.Key_Up, 4), (Qt.Key.Key_Up, 4),
                        (Qt.Key.Key_Left, 3), (Qt.Key.Key_Down, columns + 3)):
        QTest.keyClick(panel, key)
        assert panel.selection.block == wanted
    QTest.keyClick(panel, Qt.Key.Key_Escape)
    assert panel.selection.block is None


def test_tooltips_tell_the_truth(panel, still) -> None:
    view = shown(panel, 300)
    state = view.state
    shared = next(b for b, h in state.holders.items() if len(h) > 1)
    text = panel.tooltip_at(panel._pool_cell(shared).center())
    assert state.holders[shared][0] in text
    assert f"{int(state.block_hash[shared]):016x}" in text
    assert f"shared by {len(state.holders[shared])} requests" in text
    queue = state.free_queue()
    for place in (0, len(queue) - 1):
        text = panel.tooltip_at(panel._pool_cell(queue[place]).center())
        assert f"place {place + 1:,} of {len(queue):,}" in text
    assert "null block" in panel.tooltip_at(panel._pool_cell(0).center())
    row = panel.tooltip_at(panel._row_rect(0).topLeft() + QPointF(2, 4))
    assert panel._rows.requests[0].request_id in row
    assert panel.tooltip_at(QPointF(3, 3)) == ""


def test_nothing_changed_nothing_painted(panel, still, qtbot) -> None:
    qtbot.waitExposed(panel)
    view = view_at(busy_run(), 300)
    panel.show_view(view)
    qtbot.waitUntil(lambda: panel.paints > 0)
    qtbot.wait(20)
    before = panel.paints
    for _ in range(5):
        panel.show_view(view)
        panel.selection.hover()
    qtbot.wait(50)
    assert panel.paints == before
    panel.show_view(view_at(busy_run(), 301))
    qtbot.waitUntil(lambda: panel.paints == before + 1)


def test_the_picture_is_right_after_small_steps_and_jumps(panel, qtbot, still) -> None:
    """Drawn over what was there or from nothing: the same picture, forwards, backwards and after a jump."""
    fresh = BlockTable(Selection())
    qtbot.addWidget(fresh)
    fresh.resize(panel.size())
    for step in (200, 201, 202, 205, 204, 90, 399):
        shown(panel, step)
        fresh._pool = fresh._tables = None
        fresh._laid_out_for = ()
        shown(fresh, step)
        assert panel.grab().toImage() == fresh.grab().toImage(), step


def test_motion_starts_shows_and_ends(panel, clock) -> None:
    run = busy_run()
    step = next(s for s in range(50, 400) if run.events(s).preempted)
    view = view_at(run, step)
    view.shown_at = clock[0]
    panel.show_view(view)
    assert panel.is_animating()
    pictures = []
    for later in (0.0, 0.06, 0.12, 0.251):
        clock[0] = view.shown_at + later
        pictures.append(panel.grab().toImage())
    assert not panel.is_animating()
    assert all(a != b for a, b in pairwise(pictures))
    clock[0] = view.shown_at + 0.06  # a pure function of time: the same moment, the same picture
    assert panel.grab().toImage() == pictures[1]
    Motion.enabled, enabled = False, Motion.enabled
    try:
        assert panel.grab().toImage() == pictures[-1]
    finally:
        Motion.enabled = enabled


def test_a_preempted_block_flashes(panel, clock) -> None:
    run = busy_run()
    for step in range(50, 400):
        if run.events(step).preempted:
            view = view_at(run, step)
            lost = np.flatnonzero((view.state.touch == Touch.PREEMPTED) & (view.state.touch_step == step)
                                  & (view.state.ref_count == 0))
            if len(lost):
                break
    view.shown_at = clock[0]
    panel.show_view(view)
    image = panel.grab().toImage()
    cell = panel._pool_cell(int(lost[0]))
    assert pixel(image, cell.center() + QPointF(cell.width() * 0.3, 0)) == QColor(theme().bad)


def test_touches_of_skipped_steps_move_too(panel, clock) -> None:
    run = busy_run()
    first = view_at(run, 100)
    first.shown_at = clock[0]
    panel.show_view(first)
    clock[0] += 1
    later = view_at(run, 104)
    later.shown_at = clock[0]
    panel.show_view(later)
    touched = np.flatnonzero(later.state.touch_step > 100)
    assert set(panel._motion.moving(clock[0]).tolist()) == set(touched.tolist())


def test_a_new_pool_is_laid_out_anew(panel, still) -> None:
    shown(panel, 300)
    run = make_run(40, num_blocks=500, knob_at={30: ("num_blocks", 90)}, long_every=0)
    shown(panel, 20, run)
    assert panel._pool.grid.count == 500
    shown(panel, 35, run)
    assert panel._pool.grid.count == 90
    assert panel.hit(panel._pool_cell(89).center()) == (None, 89)


def test_wheel_scrolls_rows_and_selection_brings_into_sight(panel, still) -> None:
    run = make_run(120, rate=0.9, max_num_seqs=64, long_every=0)
    view = shown(panel, None, run)
    names = [*view.state.running, *view.state.waiting]
    assert len(names) > len(panel._rows.requests)
    panel._scroll = 5
    panel.update()
    panel.grab()
    assert panel._rows.requests[0].request_id == names[5]
    panel.selection.select(request_id=names[-1])
    panel.grab()
    assert panel._rows.row_of(names[-1]) >= 0


@pytest.mark.parametrize(("width", "height"), [(852, 392), (360, 260), (300, 160), (1400, 900)])
@pytest.mark.parametrize("num_blocks", [16, 1024, 65_536])
def test_all_sizes(panel, still, num_blocks: int, width: int, height: int) -> None:
    run = make_run(12, num_blocks=num_blocks, long_every=0)
    panel.resize(width, height)
    shown(panel, None, run)
    grid = panel._pool.grid
    assert grid.count == num_blocks
    cell = panel._pool_cell(num_blocks - 1)
    assert panel.hit(cell.center()) == (None, num_blocks - 1)
    assert panel._tables_area.left() > panel._pool_cell(min(num_blocks, grid.columns) - 1).right()
    assert panel._tables_area.width() > 60
    assert cell.bottom() <= panel.content_rect().bottom() - 16


def test_65536_blocks_stay_quick(panel, still) -> None:
    run = make_run(20, num_blocks=65_536, rate=0.9)
    states = [view_at(run, step) for step in range(10, 20)]
    shown(panel, 9, run)
    target = QImage(panel.size(), QImage.Format.Format_RGB32)
    times = []
    for view in states:
        start = time.thread_time()
        panel.show_view(view)
        panel.render(target, QPoint())
        times.append(time.thread_time() - start)
    assert sorted(times)[len(times) // 2] < 0.025  # some milliseconds, with room for a busy machine


def test_long_tables_show_head_and_tail() -> None:
    row = np.full(10, NOTHING, np.int32)
    fill_row(row, list(range(100, 107)))
    assert row.tolist() == [*range(100, 107), NOTHING, NOTHING, NOTHING]
    row = np.full(10, NOTHING, np.int32)
    fill_row(row, list(range(100, 150)))
    assert row.tolist() == [100, 101, 102, 103, 104, 105, MORE, 147, 148, 149]
    for columns in range(1, 6):
        row = np.full(columns, NOTHING, np.int32)
        fill_row(row, list(range(20)))
        assert row[-1] == 19
    assert Rows().row_of("r1") == -1


def test_motion_that_no_row_shows(panel, clock) -> None:
    """A block that nobody holds any more moves in the pool alone."""
    run = busy_run()
    step = next(s for s in range(50, 400) if run.events(s).finished)
    view = view_at(run, step)
    view.shown_at = clock[0]
    view.state.touch_step[:] = -1
    block = view.state.free_queue()[-1]
    view.state.touch_step[block], view.state.touch[block] = step, Touch.FREED
    panel.show_view(view)
    assert panel.is_animating()
    moving = panel.grab().toImage()
    clock[0] += 1
    cell = panel._pool_cell(block).center()
    assert pixel(moving, cell) != pixel(panel.grab().toImage(), cell)
