"""The figures of two runs side by side, with what changed in words: which way, by how much, for better or worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPolygonF
from PySide6.QtWidgets import QWidget

from widgets.compare_charts import run_colour
from widgets.painting import draw_text
from widgets.rows import RowsPanel
from widgets.text import text_width
from widgets.theme import font, px, theme, with_alpha
from widgets.view import Selection

RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One figure, ready to read. ``direction`` is 1 for higher, -1 for lower, 0 for neither."""

    name: str
    first: str
    second: str
    words: str
    verdict: Literal["better", "worse", ""]
    direction: int


class ChangeTable(RowsPanel):
    """The most important rows first; they move together as far as can be read, and beyond that they scroll.

    An arrow and a colour repeat what the words say.
    """

    ROW_HEIGHT, LOWEST = 24, 17

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self.rows: Sequence[ChangeRow] = ()
        self.retranslate()

    def retranslate(self) -> None:
        self.set_title(self.tr("What changed"))

    def set_rows(self, rows: Sequence[ChangeRow]) -> None:
        if list(rows) != list(self.rows):
            self.rows = rows
            self.set_row_count(len(rows))
            self.setAccessibleDescription("; ".join(f"{r.name}: {r.words}" for r in rows))
            self.update()

    @property
    def row_height(self) -> int:
        room = super().rows_area().height()
        return int(min(px(self.ROW_HEIGHT), max(px(self.LOWEST), room // (len(self.rows) + 1))))

    def rows_area(self) -> QRectF:
        return super().rows_area().adjusted(0, self.row_height, 0, 0)

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        if not self.rows:
            return
        height = self.row_height
        names = max(text_width(r.name, font(12)) for r in self.rows) + 10
        figures = max(56.0, max(max(text_width(r.first, font(12)), text_width(r.second, font(12, bold=True)))
                                for r in self.rows) + 12)
        names = min(names, max(60.0, rect.width() - 2 * figures - 96))
        for second, title in enumerate((self.tr("first"), self.tr("second"))):
            draw_text(painter, QRectF(rect.left() + names + second * figures, rect.top(), figures - 6, height), title,
                      colour=run_colour(bool(second)), text_font=font(11, bold=True), align=RIGHT)
        for index in self.visible_rows():
            row, y = self.rows[index], self.row_rect(index).top()
            painter.fillRect(QRectF(rect.left(), round(y), rect.width(), 1), with_alpha(t.line, 0.6))
            draw_text(painter, QRectF(rect.left(), y, names - 8, height), row.name, colour=t.secondary)
            x = rect.left() + names
            draw_text(painter, QRectF(x, y, figures - 6, height), row.first, align=RIGHT)
            draw_text(painter, QRectF(x + figures, y, figures - 6, height), row.second, text_font=font(12, bold=True),
                      align=RIGHT)
            x += 2 * figures + 8
            colour = QColor({"better": t.good, "worse": t.bad}.get(row.verdict, t.secondary))
            if row.direction:
                self._paint_arrow(painter, x + 4, y + height / 2, row.direction, colour)
            draw_text(painter, QRectF(x + 14, y, rect.right() - x - 14, height), row.words, colour=colour)
        self.paint_bar(painter)

    def _paint_arrow(self, painter: QPainter, x: float, y: float, direction: int, colour: QColor) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawPolygon(QPolygonF([QRectF(x - 4, y + 3 * direction, 0, 0).topLeft(),
                                       QRectF(x + 4, y + 3 * direction, 0, 0).topLeft(),
                                       QRectF(x, y - 4 * direction, 0, 0).topLeft()]))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
