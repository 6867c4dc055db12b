"""The pictures of KV blocks, made by numpy: thousands of cells cost a frame what a few dozen would by QPainter.

A :class:`TileSet` holds one small picture for every look that a block can have. A picture of many blocks is then one
gather: ``tiles[index]``, with an index computed from the state's arrays. :class:`Grid` says where each cell is, and
which cell is under a point, by arithmetic alone. Sizes here are device pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QImage, QPainter, QPen

from engine.trace.state import NUM_COLOURS, EngineState
from widgets.theme import Theme, mix, with_alpha

VOID, FREE, CACHED, NULL, GLOW, FLASH, EVICTED = range(7)
"""The looks that are nobody's: no block at all, free, cached but free, the null block, and three for motion."""

_OWNED = 7
_MAX_LEVELS = 16


class TileSet:
    """Pictures of blocks, ``width`` by ``height`` device pixels, of which the last ``gap_x`` columns and ``gap_y`` rows
    are the space between cells.

    ``tiles`` is uint32[2 * count, height, width]; tile ``count + i`` is tile ``i`` dimmed. What is not cell is the
    panel's colour, or with ``clear`` nothing at all, so that a ground painted before shows through.
    """

    def __init__(self, width: int, height: int, gap_x: int, gap_y: int, look: Theme, *, clear: bool = False) -> None:
        self.width, self.height, self.gap_x, self.gap_y, self.look = width, height, gap_x, gap_y, look
        self.levels = max(1, min(_MAX_LEVELS, height - gap_y))
        self.count = _OWNED + NUM_COLOURS * 2 * (self.levels + 1)
        self.tiles = np.empty((2 * self.count, height, width), np.uint32)
        self.format = QImage.Format.Format_ARGB32_Premultiplied if clear else QImage.Format.Format_RGB32
        self.ground = 0 if clear else QColor(look.panel).rgb()
        sheet = QImage(width, height * self.count, self.format)
        sheet.fill(self.ground)
        painter = QPainter(sheet)
        for kind in range(1, _OWNED):
            self._paint_plain(painter, kind, self._body(kind))
        for colour in range(NUM_COLOURS):
            for shared in (False, True):
                for level in range(self.levels + 1):
                    kind = self.owned(colour, shared, level)
                    self._paint_owned(painter, self._body(kind), colour, shared, level)
        painter.end()
        pixels = np.frombuffer(sheet.constBits(), np.uint32).reshape(self.count, height, width)
        self.tiles[:self.count] = pixels
        veil = np.full_like(pixels, self.ground)
        self.tiles[self.count:] = blend(pixels, veil, np.full(self.count, 0.62, np.float32))

    def owned(self, colour: int, shared: bool, level: int) -> int:
        """The tile of a block in use that is ``level`` of :attr:`levels` full."""
        return _OWNED + ((colour * 2 + shared) * (self.levels + 1)) + level

    def indices(self, state: EngineState, blocks: np.ndarray | None = None) -> np.ndarray:
        """The tile of each of ``blocks``, or of every block of the pool: int32, one each."""
        fill, owner, references, hashes = state.fill, state.owner_colour, state.ref_count, state.block_hash
        if blocks is not None:
            fill, owner, references, hashes = fill[blocks], owner[blocks], references[blocks], hashes[blocks]
        size = max(1, state.block_size)
        level = np.minimum((fill * self.levels + (size - 1)) // size, self.levels)
        index = (owner.astype(np.int32) * 2 + (references > 1)) * (self.levels + 1) + level + _OWNED
        free = np.flatnonzero(owner < 0)
        index[free] = np.where(hashes[free] != 0, CACHED, FREE)
        if blocks is None:
            index[0] = NULL
        return index.astype(np.int32, copy=False)

    # ---- painting a tile -----------------------------------------------------------------------------------------

    def _body(self, kind: int) -> QRectF:
        return QRectF(0, kind * self.height, self.width - self.gap_x, self.height - self.gap_y)

    def _paint_plain(self, painter: QPainter, kind: int, body: QRectF) -> None:
        look = self.look
        small = min(body.width(), body.height()) < 4
        quiet = mix(look.panel, look.secondary, 0.5)
        if kind == FREE:
            if small:
                painter.fillRect(body, mix(look.panel, look.line, 0.6))
            else:
                self._outline(painter, body, look.outline)
        elif kind in (CACHED, EVICTED):
            stroke = mix(look.panel, look.secondary, 0.62) if kind == CACHED else QColor(look.bad)
            if small:
                painter.fillRect(body, quiet if kind == CACHED else stroke)
            else:
                self._outline(painter, body, mix(look.panel, stroke, 0.28))
                self._hatch(painter, body, stroke)
        elif kind == NULL:
            if small:
                painter.fillRect(body, QColor(look.text))
            else:
                self._cross(painter, body)
        else:
            painter.fillRect(body, QColor(look.text if kind == GLOW else look.bad))
            if kind == FLASH and not small:  # some requests are reddish too
                self._strike(painter, body, QColor(look.panel))

    def _paint_owned(self, painter: QPainter, body: QRectF, colour: int, shared: bool, level: int) -> None:
        look = self.look
        full = look.request(colour)
        side = min(body.width(), body.height())
        if side < 3:  # too small for anything but a colour
            fill = mix(look.panel, full, 0.4 + 0.6 * level / self.levels)
            painter.fillRect(body, mix(fill, look.text, 0.5) if shared else fill)
            return
        inside = body
        if shared:
            ring = max(1, round(min(side / 8, 1 + side / 20)))
            painter.fillRect(body, QColor(look.text))
            inside = body.adjusted(ring, ring, -ring, -ring)
            if side >= 9:  # a line of ground between ring and fill, so that the ring reads as one
                painter.fillRect(inside, QColor(look.panel))
                inside = inside.adjusted(1, 1, -1, -1)
        painter.fillRect(inside, mix(look.panel, full, 0.34))
        top = inside.bottom() - round(inside.height() * level / self.levels)
        painter.fillRect(QRectF(inside.left(), top, inside.width(), inside.bottom() - top), full)
        if not shared and side >= 5 and not look.is_dark:
            self._outline(painter, body, mix(look.panel, look.request_edge(colour), 0.75))

    @staticmethod
    def _outline(painter: QPainter, body: QRectF, colour: QColor) -> None:
        painter.setPen(QPen(colour, 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(body.adjusted(0.5, 0.5, -0.5, -0.5))

    @staticmethod
    def _hatch(painter: QPainter, body: QRectF, colour: QColor) -> None:
        painter.save()
        painter.setClipRect(body)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        side = body.width()
        painter.setPen(QPen(colour, max(1.0, min(side / 11, 1 + side / 40))))
        spacing = max(2.5, min(side / 3, 3.5 + side / 10))
        shift = -side + spacing / 2
        while shift < side + body.height():
            painter.drawLine(QPointF(body.left() + shift, body.bottom() + 1),
                             QPointF(body.left() + shift + body.height() + 2, body.top() - 1))
            shift += spacing
        painter.restore()

    def _cross(self, painter: QPainter, body: QRectF) -> None:
        self._outline(painter, body, mix(self.look.panel, self.look.secondary, 0.5))
        self._strike(painter, body, with_alpha(self.look.text, 0.85))

    @staticmethod
    def _strike(painter: QPainter, body: QRectF, colour: QColor) -> None:
        painter.save()
        painter.setClipRect(body)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(colour, max(1.0, min(body.width() / 10, 1 + body.width() / 40))))
        painter.drawLine(body.topLeft(), body.bottomRight())
        painter.drawLine(body.topRight(), body.bottomLeft())
        painter.restore()


def blend(base: np.ndarray, other: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Mix pictures: ``base`` and ``other`` uint32[k, h, w], ``strength`` float[k] is the share of ``other``."""
    share = np.round(np.clip(strength, 0.0, 1.0) * 256).astype(np.uint16)[:, None, None, None]
    a = np.ascontiguousarray(base).view(np.uint8).reshape(*base.shape, 4).astype(np.uint16)
    b = np.ascontiguousarray(other).view(np.uint8).reshape(*other.shape, 4).astype(np.uint16)
    mixed = ((a * (256 - share) + b * share) >> 8).astype(np.uint8)
    return mixed.reshape(*base.shape[:-1], -1).view(np.uint32)


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells in rows, from the top left; sizes in device pixels, ``width`` and ``height`` with the gap."""

    count: int
    columns: int
    width: int
    height: int
    gap_x: int
    gap_y: int

    @property
    def rows(self) -> int:
        return -(-self.count // self.columns)

    def rect(self, cell: int) -> tuple[int, int, int, int]:
        """Left, top, width and height of a cell, without the gap."""
        row, column = divmod(cell, self.columns)
        return column * self.width, row * self.height, self.width - self.gap_x, self.height - self.gap_y

    def at(self, x: float, y: float) -> int:
        """The cell under a point, -1 for none. The gap right of and below a cell belongs to it."""
        column, row = int(x // self.width), int(y // self.height)
        cell = row * self.columns + column
        return cell if 0 <= column < self.columns and row >= 0 and cell < self.count else -1

    @classmethod
    def fit(cls, count: int, width: int, height: int, largest: int) -> Grid:
        """The largest cells, at most ``largest``, with which ``count`` of them fit into ``width`` by ``height``.

        Cells are square as long as they are of 4 pixels or more; smaller ones may be half as high as wide, because a
        whole pixel more or less is too much there. Should even 1 by 1 not fit, the grid is taller than the space.
        """
        width, height = max(1, width), max(1, height)
        for size in range(largest, 0, -1):
            for tall in ((size,) if size >= 4 else (size, size - 1)):
                if tall < 1 or width < size:
                    continue
                # Cells without a gap beside them may use the gap's pixel too; hence "+ gap".
                gap = _gap(size)
                columns = (width + gap) // size
                rows = (height + gap) // tall
                if columns * rows >= count:
                    if size < largest:  # the space is full: no wider than it takes with the height used
                        columns = -(-count // rows)
                    return cls(count, min(columns, count), size, tall, gap, gap)
        return cls(count, width, 1, 1, 0, 0)


class Mosaic:
    """A picture of a grid's cells that repaints only the cells whose tile changed."""

    def __init__(self, grid: Grid, tiles: TileSet) -> None:
        self.grid, self.tiles = grid, tiles
        self.pixels = np.full((grid.rows * grid.height, grid.columns * grid.width), tiles.ground, np.uint32)
        self._cells = self.pixels.reshape(grid.rows, grid.height, grid.columns, grid.width).transpose(0, 2, 1, 3)
        self._shown = np.full(grid.count, VOID, np.int32)

    def show(self, index: np.ndarray) -> int:
        """Show tile ``index[i]`` (int32[count]) in cell ``i``; returns how many cells that changed."""
        changed = np.flatnonzero(self._shown != index)
        if len(changed):
            self._put(changed, self.tiles.tiles[index[changed]])
            self._shown[changed] = index[changed]
        return len(changed)

    def overlay(self, cells: np.ndarray, pictures: np.ndarray) -> None:
        """Put pictures uint32[k, height, width] into cells until the next :meth:`show`."""
        self._put(cells, pictures)
        self._shown[cells] = -1

    def _put(self, cells: np.ndarray, pictures: np.ndarray) -> None:
        rows, columns = np.divmod(cells, self.grid.columns)
        self._cells[rows, columns] = pictures

    def image(self, ratio: float) -> QImage:
        """The picture, sharing memory with :attr:`pixels`: paint it at once, do not keep it."""
        height, width = self.pixels.shape
        image = QImage(self.pixels.data, width, height, 4 * width, self.tiles.format)
        image.setDevicePixelRatio(ratio)
        return image


def _gap(size: int) -> int:
    return 0 if size < 4 else max(1, round(size * 0.14))
