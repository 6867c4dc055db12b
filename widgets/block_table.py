"""The block table: the physical pool at the left, every request's table at the right, and what joins them."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
from PySide6.QtCore import QEvent, QObject, QPointF, QRect, QRectF, QSize, QSizeF, Qt
from PySide6.QtGui import (
    QColor,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPaintEngine,
    QPainter,
    QPen,
    QPixmap,
    QWheelEvent,
)
from PySide6.QtWidgets import QToolTip, QWidget

from engine.trace.state import EngineState, RequestView
from widgets.block_motion import BlockMotion
from widgets.block_rows import Rows
from widgets.block_tooltips import block_tooltip, request_tooltip
from widgets.cells import VOID, Grid, Mosaic, TileSet
from widgets.painting import (
    MARGIN,
    LegendItem,
    Motion,
    Panel,
    draw_swatch,
    draw_text,
    format_int,
    format_percent,
    link_path,
    text_width,
)
from widgets.theme import font, mix, px, theme, themes
from widgets.view import Selection, View

_FOOTER = 22
_LARGEST_CELL = 44
_MOST_LINKS = 24
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class BlockTable(Panel):
    """One cell a physical block, one row a request; hover or click either and both light up.

    Arrow keys move the selected block through the pool, Escape clears the selection, the wheel scrolls the rows.
    """

    whole_legend = True

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self.installEventFilter(self)
        self._view: View | None = None
        self._seen: tuple[object, ...] = ()
        self._motion = BlockMotion()
        self._rows = Rows()
        self._scroll = 0
        self._laid_out_for: tuple[object, ...] = ()
        self._tables_seen: tuple[object, ...] = ()
        self._pool: Mosaic | None = None
        self._tables: Mosaic | None = None
        self._index = np.empty(0, np.int32)
        self._index_of: tuple[object, ...] = ()
        self._ground: QPixmap | None = None
        self._ground_shows: tuple[object, ...] = ()
        self._texts = 0  # how often the language changed
        self._pool_at = self._tables_at = QPointF()
        self._tables_area = QRectF()
        self._label_width = 0.0
        self._row_height = 1.0
        self._ratio = 1.0
        self._squeeze = 1.0  # less than 1 where there are more blocks than pixels: then several share one
        self.setMouseTracking(True)
        self.setMinimumSize(300, 160)
        selection.changed.connect(self._selection_changed)
        themes.changed.connect(self._update_header)
        self.retranslate()

    def sizeHint(self) -> QSize:
        return QSize(860, 392)

    def retranslate(self) -> None:
        self._texts += 1
        self.set_title(self.tr("Block table"))
        self.setWhatsThis(self.tr("The pool of KV blocks, and the block table of every request."))
        self._update_header()

    # ---- what is shown -------------------------------------------------------------------------------------------

    def show_view(self, view: View) -> None:
        seen = (view.state.info, view.state.step, view.shown_at)
        if self._view is not None and seen == self._seen and view.state is self._view.state:
            self._view = view
            return
        self._view, self._seen = view, seen
        self._motion.track(view)
        self._moving = bool(len(self._motion.moving(Motion.now())))
        self._update_header()
        self.update()

    def _update_header(self) -> None:
        t = theme()
        self.set_legend((
            LegendItem(self.tr("owner"), "fill", t.request(0).name()),
            LegendItem(self.tr("shared"), "ring", t.request(0).name()),
            LegendItem(self.tr("cached, free"), "hatch", t.secondary),
            LegendItem(self.tr("free"), "outline", t.outline.name()),
        ))
        if self._view is not None:
            state = self._view.state
            self.set_value(self.tr("{used} / {usable} blocks · {percent}").format(
                used=format_int(state.num_used_blocks), usable=format_int(state.num_blocks - 1),
                percent=format_percent(state.kv_usage)))

    def _selection_changed(self) -> None:
        request_id = self.selection.request_id
        if self._view is not None and request_id is not None and self._rows.row_of(request_id) < 0:
            self._bring_into_sight(request_id)
        self.update()

    def _bring_into_sight(self, request_id: str) -> None:
        assert self._view is not None
        names = [*self._view.state.running, *self._view.state.waiting]
        if request_id in names:
            self._scroll = max(0, names.index(request_id) - len(self._rows.requests) // 2)

    # ---- layout --------------------------------------------------------------------------------------------------

    def _lay_out(self, state: EngineState, rect: QRectF) -> None:
        """Fit the pool and the rows into ``rect``; makes new tiles only when sizes, theme or pixel ratio change."""
        ratio = self.devicePixelRatioF()
        total = len(state.running) + len(state.waiting)
        room = rect.height() - px(_FOOTER)
        row_height = max(float(px(15)), min(float(px(28)), room // max(1, total)))
        rows = max(1, int(room // row_height))
        # Of those that will be shown, not of those that are: a view may stay for long.
        first = max(0, min(self._scroll, total - rows))
        shown = islice(chain(state.running, state.waiting), first, first + rows)
        longest = max((text_width(name, font(12)) for name in shown), default=24.0)
        label = min(-(-longest // 16) * 16 + 8, rect.width() * 0.12 + px(16))
        key = (rect.width(), rect.height(), ratio, state.num_blocks, theme().name, themes.scale, row_height, label)
        if key != self._laid_out_for:
            self._laid_out_for = key
            self._ratio, self._row_height, self._label_width = ratio, row_height, label
            share = 0.62 if state.num_blocks < 16_384 or rect.width() < 480 else 0.72
            largest = int(px(_LARGEST_CELL) * ratio)
            grid = Grid.fit(state.num_blocks, int(rect.width() * share * ratio), int(room * ratio), largest)
            self._pool = Mosaic(grid, TileSet(grid.width, grid.height, grid.gap_x, grid.gap_y, theme()))
            self._pool_at = QPointF(round(rect.left() * ratio) / ratio, round(rect.top() * ratio) / ratio)
            self._squeeze = min(1.0, room * ratio / (grid.rows * grid.height - grid.gap_y))
            used = (grid.columns * grid.width - grid.gap_x) / ratio
            left = rect.left() + used + 2 * MARGIN
            self._tables_area = QRectF(left, rect.top(), rect.right() - left, room)
            self._tables = None
        self._lay_out_rows(state, rows)

    def _lay_out_rows(self, state: EngineState, rows: int) -> None:
        ratio, area = self._ratio, self._tables_area
        assert self._pool is not None
        size = int(min(max(self._pool.grid.width, 9 * ratio), px(16) * ratio, self._row_height * ratio - 3))
        count_width = text_width("0,000", font(11)) + 4
        columns = max(1, int((area.width() - self._label_width - count_width - 6) * ratio) // size)
        seen = (self._seen, self._scroll, rows, columns, self._laid_out_for)
        if seen == self._tables_seen:
            return
        self._tables_seen = seen
        self._rows = Rows.lay_out(state, self._scroll, rows, columns)
        self._scroll = self._rows.first
        height = int(self._row_height * ratio)
        grid = Grid(rows * columns, columns, size, height, max(1, round(size * 0.14)), height - size)
        if self._tables is None or self._tables.grid != grid:
            tiles = TileSet(grid.width, grid.height, grid.gap_x, grid.gap_y + grid.gap_x, theme(), clear=True)
            self._tables = Mosaic(grid, tiles)
            inset = (height - size + grid.gap_x) // 2
            self._tables_at = QPointF(round((area.left() + self._label_width) * ratio) / ratio,
                                      (round(area.top() * ratio) + inset) / ratio)

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint_ground(self, painter: QPainter, dirty: QRect) -> None:
        """All that stands still from one step to the next is painted once: in most frames only blocks move."""
        rect, ratio = self.content_rect(), self.devicePixelRatioF()
        ready = self._ready(rect)
        if ready:
            assert self._view is not None
            self._lay_out(self._view.state, rect)
        if painter.paintEngine().type() == QPaintEngine.Type.SVG:  # where text is to stay text
            self._paint_still(painter, rect, ready)
            return
        key = (self.size(), ratio, theme().name, themes.scale, self._texts, self.value, self._seen, self._scroll,
               self.selection.request_id, self.selection.hovered_request)
        if self._ground is None or self._ground.size() != self.size() * ratio:
            self._ground = QPixmap(self.size() * ratio)
            self._ground.setDevicePixelRatio(ratio)
            self._ground_shows = ()
        if key != self._ground_shows:
            self._ground_shows = key
            onto = QPainter(self._ground)
            self._paint_still(onto, rect, ready)
            onto.end()
        painter.drawPixmap(0, 0, self._ground)

    def _paint_still(self, painter: QPainter, rect: QRectF, ready: bool) -> None:
        super().paint_ground(painter, self.rect())
        if ready:
            assert self._view is not None
            self._paint_row_grounds(painter)
            self._paint_row_texts(painter)
            self._paint_footer(painter, self._view.state, rect)

    def _ready(self, rect: QRectF) -> bool:
        return self._view is not None and rect.height() >= 2 * px(_FOOTER) and rect.width() > 0

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        if self._view is None:
            draw_text(painter, rect, self.tr("No run yet: start a scenario or open a recording in the File menu"),
                      colour=theme().secondary, align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)
        if not self._ready(rect):
            return
        assert self._view is not None
        state, now = self._view.state, Motion.now()
        moving = self._motion.moving(now)
        moving = moving[moving < state.num_blocks]
        self._moving = bool(len(moving))
        self._paint_pool(painter, state, moving, now)
        self._paint_tables(painter, state, moving, now)
        self._paint_lit(painter, state)

    def _paint_pool(self, painter: QPainter, state: EngineState, moving: np.ndarray, now: float) -> None:
        pool = self._pool
        assert pool is not None
        hovered = self.selection.hovered_request if self.selection.hovered_block is None else None
        shows = (self._seen, self._laid_out_for, hovered)
        if shows != self._index_of:
            self._index_of, self._index = shows, self._pool_index(pool.tiles, state, hovered)
        index = self._index
        pool.show(index)
        if len(moving):
            pool.overlay(moving, self._motion.pictures(pool.tiles, index[moving], moving, now))
        image = pool.image(self._ratio)
        if self._squeeze == 1.0:
            painter.drawImage(self._pool_at, image)
        else:
            size = image.deviceIndependentSize()
            painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
            painter.drawImage(QRectF(self._pool_at, QSizeF(size.width(), size.height() * self._squeeze)), image)

    @staticmethod
    def _pool_index(tiles: TileSet, state: EngineState, hovered: str | None) -> np.ndarray:
        """The tile of every block; while a request is hovered over, those of all others are the dim ones."""
        index = tiles.indices(state)
        request = state.requests.get(hovered or "")
        if request is not None and request.blocks:
            own = np.zeros(len(index), bool)
            own[request.blocks] = True
            index[~own] += tiles.count
        return index

    def _paint_tables(self, painter: QPainter, state: EngineState, moving: np.ndarray, now: float) -> None:
        tables, rows = self._tables, self._rows
        assert tables is not None
        index = np.full(tables.grid.count, VOID, np.int32)
        ids = rows.blocks.ravel()
        there = np.flatnonzero(ids >= 0)
        index[there] = tables.tiles.indices(state, ids[there])
        tables.show(index)
        if len(moving):
            hit = there[np.isin(ids[there], moving)]
            tables.overlay(hit, self._motion.pictures(tables.tiles, index[hit], ids[hit], now))
        if len(rows.requests):
            painter.drawImage(self._tables_at, tables.image(self._ratio))

    def _row_rect(self, row: int) -> QRectF:
        area = self._tables_area
        height = int(self._row_height * self._ratio) / self._ratio
        return QRectF(area.left(), area.top() + row * height, area.width(), height)

    def _paint_row_grounds(self, painter: QPainter) -> None:
        t = theme()
        for request_id, ground in ((self.selection.request_id, mix(t.panel, t.accent, 0.16)),
                                   (self.selection.hovered_request, t.hover)):
            row = self._rows.row_of(request_id)
            if row >= 0:
                painter.fillRect(self._row_rect(row).adjusted(-6, 0, 0, 0), ground)

    def _paint_row_texts(self, painter: QPainter) -> None:
        t = theme()
        names, small = font(12), font(11)
        for row, request in enumerate(self._rows.requests):
            line = self._row_rect(row)
            running = request.status == "running"
            draw_text(painter, QRectF(line.left(), line.top(), self._label_width - 6, line.height()),
                      request.request_id, colour=t.text if running else t.secondary, text_font=names)
            if running:
                draw_text(painter, line, format_int(len(request.blocks)), colour=t.secondary, text_font=small,
                          align=_RIGHT)
                more = int(self._rows.more[row])
                if more >= 0:
                    cell = self._table_cell(row, more)
                    draw_text(painter, cell.adjusted(-2, 0, 2, 0), "…", colour=t.secondary, text_font=small,
                              align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)
            else:
                left = line.left() + self._label_width
                side = px(10)
                draw_swatch(painter, QRectF(round(left), round(line.center().y()) - side // 2, side, side), "outline",
                            t.request_text(request.colour))
                place = QRectF(left + side + 6, line.top(), line.right() - left - side - 6, line.height())
                texts = self._waiting_texts(request)
                text = next((text for text in texts if text_width(text, small) <= place.width()), texts[-1])
                draw_text(painter, place, text, colour=t.secondary, text_font=small)
        self._paint_scroll_mark(painter)

    def _waiting_texts(self, request: RequestView) -> tuple[str, str]:
        """What a request waits with, and the same in fewer words."""
        count = format_int(request.num_tokens)
        if request.status == "preempted":
            return (self.tr("preempted, {n} tokens to recompute").format(n=count),
                    self.tr("preempted, {n} tokens").format(n=count))
        return self.tr("waiting, {n} tokens").format(n=count), self.tr("waiting")

    def _paint_scroll_mark(self, painter: QPainter) -> None:
        shown, total = len(self._rows.requests), self._rows.total
        if shown < total:
            area = self._tables_area
            track = QRectF(area.right() + 4, area.top(), 4, area.height())
            length = max(16.0, track.height() * shown / total)
            top = track.top() + (track.height() - length) * self._rows.first / (total - shown)
            # Opaque: Qt hands tall translucent fills to threads, and waking those costs more than the whole frame.
            mark = QRectF(track.left(), top, track.width(), length).toRect()
            painter.fillRect(mark, mix(theme().panel, theme().secondary, 0.5))

    def _paint_footer(self, painter: QPainter, state: EngineState, rect: QRectF) -> None:
        t, small = theme(), font(11)
        line = QRectF(rect.left(), rect.bottom() - px(_FOOTER) + 6, rect.width(), px(_FOOTER) - 6)
        hidden = self.hidden_legend()
        if hidden and rect.width() < px(480):  # no room for words about words: the legend is worth more
            self._paint_legend(painter, line, hidden)
            return
        left = QRectF(line.left(), line.top(), self._tables_area.left() - line.left() - MARGIN, line.height())
        if self._squeeze == 1.0:
            text = self.tr("physical pool · 1 cell = 1 block of {n} tokens").format(n=state.block_size)
        else:
            text = self.tr("physical pool · several blocks share a pixel")
        draw_text(painter, left, text, colour=t.secondary, text_font=small)
        rows, right = self._rows, line
        right.setLeft(self._tables_area.left())
        if len(rows.requests) < rows.total:
            text = self.tr("requests {first}–{last} of {total} · wheel scrolls").format(
                first=rows.first + 1, last=rows.first + len(rows.requests), total=rows.total)
        else:
            text = self.tr("logical order per request")
        draw_text(painter, right, text, colour=t.secondary, text_font=small)

    # ---- what is lit ---------------------------------------------------------------------------------------------

    def _pool_cell(self, block: int) -> QRectF:
        assert self._pool is not None
        x, y, width, height = (v / self._ratio for v in self._pool.grid.rect(block))
        return QRectF(self._pool_at.x() + x, self._pool_at.y() + y * self._squeeze, width, height * self._squeeze)

    def _table_cell(self, row: int, column: int) -> QRectF:
        assert self._tables is not None
        grid = self._tables.grid
        x, y, width, _ = (v / self._ratio for v in grid.rect(row * grid.columns + column))
        return QRectF(self._tables_at.x() + x, self._tables_at.y() + y, width, width)

    def _paint_lit(self, painter: QPainter, state: EngineState) -> None:
        """Outline what is selected and what is hovered over, and join the two sides."""
        t, selection = theme(), self.selection
        hovering = selection.hovered_request is not None or selection.hovered_block is not None
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._light(painter, state, selection.request_id, selection.block, QColor(t.accent), link=not hovering)
        if hovering:
            self._light(painter, state, selection.hovered_request, selection.hovered_block, QColor(t.text), link=True)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def _light(self, painter: QPainter, state: EngineState, request_id: str | None, block: int | None,
               colour: QColor, *, link: bool) -> None:
        request = state.requests.get(request_id or "")
        if block is not None and not 0 <= block < state.num_blocks:
            block = None
        if block is None and (request is None or not request.blocks):
            return
        painter.setBrush(Qt.BrushStyle.NoBrush)
        if block is None:
            assert request is not None
            painter.setPen(QPen(colour, 1.4))
            painter.drawRects([self._pool_cell(b).adjusted(-0.5, -0.5, 0.5, 0.5) for b in request.blocks[:2048]])
            anchor = request.blocks[-1]  # where it writes
            own = self._rows.row_of(request_id)
            ends = [self._row_rect(own).adjusted(-5, 0, 0, 0)] if own >= 0 else []
        else:
            anchor = block
            places = self._rows.places_of(block)
            ends = [self._table_cell(*place) for place in places]
            painter.setPen(QPen(colour, 2))
            painter.drawRects([cell.adjusted(-1.5, -1.5, 1.5, 1.5) for cell in (self._pool_cell(block), *ends)])
            if len(places) > 3:  # so many lines would cross out the names: they end before them
                ends = [self._row_rect(row).adjusted(-5, 0, 0, 0) for row, _ in places]
        if link:
            painter.setPen(QPen(QColor(theme().accent), 1.2, Qt.PenStyle.DashLine))
            cell = self._pool_cell(anchor)
            for end in ends[:_MOST_LINKS]:
                painter.drawPath(link_path(QPointF(cell.right() + 1, cell.center().y()),
                                           QPointF(end.left() - 1, end.center().y())))

    # ---- pointing ------------------------------------------------------------------------------------------------

    def hit(self, position: QPointF) -> tuple[str | None, int | None]:
        """The request and the block under a point: the block alone over the pool, (None, None) over neither."""
        if self._view is None or self._pool is None or self._tables is None:
            return None, None
        inside = (position - self._pool_at) * self._ratio
        block = self._pool.grid.at(inside.x(), inside.y() / self._squeeze)
        if block >= 0:
            return None, block
        area = self._tables_area
        if not area.adjusted(-6, 0, 0, 0).contains(position):
            return None, None
        row = int((position.y() - area.top()) / self._row_rect(0).height())
        if not 0 <= row < len(self._rows.requests):
            return None, None
        request_id = self._rows.requests[row].request_id
        column = int((position.x() - self._tables_at.x()) * self._ratio // self._tables.grid.width)
        if 0 <= column < self._rows.blocks.shape[1] and position.x() >= self._tables_at.x():
            there = int(self._rows.blocks[row, column])
            if there >= 0:
                return request_id, there
        return request_id, None

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        request_id, block = self.hit(event.position())
        self.selection.hover(request_id=request_id, block=block)

    def leaveEvent(self, event: QEvent) -> None:
        self.selection.hover()
        super().leaveEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            request_id, block = self.hit(event.position())
            self.selection.select(request_id=request_id, block=block)
        else:
            super().mousePressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        rows = -event.angleDelta().y() / 40.0
        before = self._scroll
        limit = max(0, self._rows.total - len(self._rows.requests))
        self._scroll = max(0, min(limit, self._scroll + (int(rows) or (1 if rows > 0 else -1 if rows < 0 else 0))))
        if self._scroll != before:
            self.update()
        event.accept()

    def tooltip_at(self, position: QPointF) -> str:
        """Rich text about the block or the request at a point, "" where there is neither."""
        request_id, block = self.hit(position)
        if self._view is None:
            return ""
        if block is not None:
            return block_tooltip(self._view.state, block)
        request = self._view.state.requests.get(request_id or "")
        return request_tooltip(request) if request is not None else ""

    # ---- keys ----------------------------------------------------------------------------------------------------

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        # Not event(): below a Python override of that, an exception in any other handler can end the program.
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            text = self.tooltip_at(QPointF(event.pos()))
            if text:
                QToolTip.showText(event.globalPos(), text, self)
            else:
                QToolTip.hideText()
            return True
        if (event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent)
                and self.selection.block is not None and event.key() in (*_MOVES, Qt.Key.Key_Escape)):
            event.accept()  # while a block is selected these keys move it, whatever the window does with them
            return True
        return False

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = Qt.Key(event.key())
        if key == Qt.Key.Key_Escape and (self.selection.block, self.selection.request_id) != (None, None):
            self.selection.select()
        elif key in _MOVES and self._view is not None and self._pool is not None and not event.modifiers() & (
                Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier):
            across, down = _MOVES[key]
            block = self.selection.block
            step = across + down * self._pool.grid.columns
            target = 0 if block is None else block + step
            if 0 <= target < self._view.state.num_blocks:
                self.selection.select(block=target)
        else:
            super().keyPressEvent(event)


_MOVES = {Qt.Key.Key_Left: (-1, 0), Qt.Key.Key_Right: (1, 0), Qt.Key.Key_Up: (0, -1), Qt.Key.Key_Down: (0, 1)}
