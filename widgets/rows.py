"""A panel of equal rows of which only the visible ones are painted: scrolling by wheel, keys and a thin bar."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QWheelEvent
from PySide6.QtWidgets import QWidget

from widgets.painting import MARGIN, Panel
from widgets.theme import mix, px, theme
from widgets.view import Selection

BAR = 6  # width of the scroll bar, in the panel's right margin


class RowsPanel(Panel):
    """The subclass says how many rows there are (:meth:`set_row_count`), paints them (:meth:`paint_content`, from
    ``first_row`` on) and hears of the pointer (:meth:`row_hovered`, :meth:`row_clicked`)."""

    ROW_HEIGHT = 24

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._count = 0
        self._offset = 0.0  # pixels scrolled away at the top; what is shown is that in whole rows
        self._grip: float | None = None  # while the bar is dragged: pointer to its top
        self.setMouseTracking(True)

    # ---- geometry -------------------------------------------------------------------------------------------------

    @property
    def row_height(self) -> int:
        return px(self.ROW_HEIGHT)

    def rescale(self) -> None:
        self.set_row_count(self._count)

    @property
    def row_count(self) -> int:
        return self._count

    def set_row_count(self, count: int) -> None:
        self._count = count
        self._offset = min(self._offset, self.max_offset)

    def rows_area(self) -> QRectF:
        """The room that there is for rows."""
        return self.content_rect().adjusted(0, 0, 0, MARGIN - 4)

    def rows_rect(self) -> QRectF:
        """The part of it that whole rows fill: none is ever cut."""
        area = self.rows_area()
        area.setHeight(max(0, area.height() // self.row_height) * self.row_height)
        return area

    @property
    def max_offset(self) -> float:
        return max(0.0, self._count * self.row_height - self.rows_rect().height())

    @property
    def offset(self) -> float:
        """Pixels scrolled away at the top: whole rows, also while a touch pad moves by single pixels."""
        return self.row_height * round(min(self._offset, self.max_offset) / self.row_height)

    def scroll_to(self, offset: float) -> None:
        before = self.offset
        self._offset = min(self.max_offset, max(0.0, offset))
        if self.offset != before:
            self.update()

    def reveal(self, row: int) -> None:
        """Scroll just as far as needed to show ``row`` whole."""
        top, height = row * self.row_height, self.rows_rect().height()
        if top < self.offset:
            self.scroll_to(top)
        elif top + self.row_height > self.offset + height:
            self.scroll_to(top + self.row_height - height)

    def visible_rows(self) -> range:
        """The rows that can be seen."""
        rect = self.rows_rect()
        first = int(self.offset // self.row_height)
        return range(first, min(self._count, first + int(rect.height() // self.row_height)))

    def row_rect(self, row: int) -> QRectF:
        rect = self.rows_rect()
        return QRectF(rect.left(), rect.top() + row * self.row_height - self.offset, rect.width(), self.row_height)

    def row_at(self, position: QPointF) -> int:
        """The row under a point, or -1."""
        rect = self.rows_rect()
        if not rect.adjusted(-MARGIN, 0, MARGIN, 0).contains(position):
            return -1
        row = int((position.y() - rect.top() + self.offset) // self.row_height)
        return row if 0 <= row < self._count else -1

    def _bar(self) -> QRectF:
        """The scroll bar's handle; empty when everything fits."""
        limit = self.max_offset
        if limit <= 0:
            return QRectF()
        rect = self.rows_rect()
        height = max(24.0, rect.height() * rect.height() / (self._count * self.row_height))
        top = rect.top() + (rect.height() - height) * self.offset / limit
        return QRectF(self.width() - BAR - 3, top, BAR, height)

    def paint_bar(self, painter: QPainter) -> None:
        bar = self._bar()
        if bar.isEmpty():
            return
        t = theme()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(mix(t.panel, t.secondary, 0.6 if self._grip is not None else 0.35))
        painter.drawRoundedRect(bar, BAR / 2, BAR / 2)
        painter.restore()

    # ---- for the subclass -----------------------------------------------------------------------------------------

    def row_hovered(self, row: int) -> None:
        """The pointer is over ``row`` (-1: over none)."""

    def row_clicked(self, row: int, position: QPointF) -> None:
        """``row`` was clicked (-1: the space below the rows)."""

    def current_row(self) -> int:
        """The row that Up and Down start from, or -1."""
        return -1

    def go_to_row(self, row: int) -> None:
        """Up and Down reached ``row``."""

    # ---- the user -------------------------------------------------------------------------------------------------

    def wheelEvent(self, event: QWheelEvent) -> None:
        pixels = event.pixelDelta().y() or event.angleDelta().y() / 120 * 3 * self.row_height
        before = self.offset
        self.scroll_to(self._offset - pixels)
        if self.offset != before:
            self.row_hovered(self.row_at(event.position()))
        event.accept()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        page = max(1, int(self.rows_rect().height() // self.row_height) - 1)
        moves = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1, Qt.Key.Key_PageUp: -page, Qt.Key.Key_PageDown: page}
        if event.key() in moves and self._count and not event.modifiers():
            row = self.current_row()
            row = 0 if row < 0 else min(self._count - 1, max(0, row + moves[Qt.Key(event.key())]))
            self.go_to_row(row)
            self.reveal(row)
        else:
            super().keyPressEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return super().mousePressEvent(event)
        bar = self._bar()
        if not bar.isEmpty() and event.position().x() >= bar.left() - 2:
            inside = bar.contains(bar.center().x(), event.position().y())
            self._grip = event.position().y() - bar.top() if inside else bar.height() / 2
            self._drag_bar(event.position().y())
        elif self.rows_rect().adjusted(-MARGIN, 0, MARGIN, MARGIN).contains(event.position()):
            self.row_clicked(self.row_at(event.position()), event.position())
        return None

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._grip is not None:
            self._drag_bar(event.position().y())
        else:
            self.row_hovered(self.row_at(event.position()))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._grip is not None:
            self._grip = None
            self.update()

    def leaveEvent(self, event: object) -> None:
        self.row_hovered(-1)

    def _drag_bar(self, y: float) -> None:
        rect, bar = self.rows_rect(), self._bar()
        room = rect.height() - bar.height()
        if room > 0 and self._grip is not None:
            self.scroll_to((y - self._grip - rect.top()) / room * self.max_offset)
