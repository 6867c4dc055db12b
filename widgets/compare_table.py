"""The figures of two runs side by side, with what changed in words: which way, by how much, for better or worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPolygonF
from PySide6.QtWidgets import QWidget

from widgets.compare_charts import run_colour
from widgets.painting import Panel, draw_text
from widgets.text import text_width
from widgets.theme import font, theme, with_alpha
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


class ChangeTable(Panel):
    """As many rows as fit, the most important first. An arrow and a colour repeat what the words say."""

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self.rows: Sequence[ChangeRow] = ()
        self.retranslate()

    def retranslate(self) -> None:
        self.set_title(self.tr("What changed"))

    def set_rows(self, rows: Sequence[ChangeRow]) -> None:
        if list(rows) != list(self.rows):
            self.rows = rows
            self.setAccessibleDescription("; ".join(f"{r.name}: {r.words}" for r in rows))
            self.update()

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        if not self.rows:
            return
        height = min(24.0, max(16.0, rect.height() / (len(self.rows) + 1)))
        names = max(text_width(r.name, font(12)) for r in self.rows) + 16
        figures = max(56.0, max(max(text_width(r.first, font(12)), text_width(r.second, font(12, bold=True)))
                                for r in self.rows) + 12)
        names = min(names, max(60.0, rect.width() - 2 * figures - 96))
        y = rect.top()
        for second, title in enumerate((self.tr("first"), self.tr("second"))):
            draw_text(painter, QRectF(rect.left() + names + second * figures, y, figures - 6, height), title,
                      colour=run_colour(bool(second)), text_font=font(11, bold=True), align=RIGHT)
        for row in self.rows[:max(1, int(rect.height() / height) - 1)]:
            y += height
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

    def _paint_arrow(self, painter: QPainter, x: float, y: float, direction: int, colour: QColor) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawPolygon(QPolygonF([QRectF(x - 4, y + 3 * direction, 0, 0).topLeft(),
                                       QRectF(x + 4, y + 3 * direction, 0, 0).topLeft(),
                                       QRectF(x, y - 4 * direction, 0, 0).topLeft()]))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
