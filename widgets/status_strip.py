"""The strip at the bottom of the window: a few figures, each a quiet word and a bold value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QEvent, QObject, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from widgets.painting import draw_text, text_width
from widgets.theme import font, px, theme, themes

GAP = 20


@dataclass(frozen=True, slots=True)
class StatusItem:
    """``label`` before and ``note`` after the bold ``value``; any of them may be empty."""

    label: str
    value: str = ""
    note: str = ""
    tooltip: str = ""
    level: Literal["", "warning", "bad", "good"] = ""


class StatusStrip(QWidget):
    """Items from the left and, with precedence where room is short, items at the right. Nothing in it acts."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.installEventFilter(self)
        self._left: tuple[StatusItem, ...] = ()
        self._right: tuple[StatusItem, ...] = ()
        self._widths: dict[str, int] = {}  # by label: figures that grow and shrink must not shake the row
        self._places: list[tuple[QRectF, StatusItem]] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        themes.changed.connect(self.update)

    def set_items(self, left: Sequence[StatusItem], right: Sequence[StatusItem] = ()) -> None:
        """Show these items; nothing is painted again if they are the same as before."""
        if (tuple(left), tuple(right)) != (self._left, self._right):
            self._left, self._right = tuple(left), tuple(right)
            self.setAccessibleName(", ".join(f"{i.label} {i.value} {i.note}".strip() for i in (*left, *right)))
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(800, px(28))

    def minimumSizeHint(self) -> QSize:
        return QSize(100, px(28))

    def shown_items(self) -> list[StatusItem]:
        """The items that found room when the strip was last painted."""
        return [item for _, item in self._places]

    def _width(self, item: StatusItem) -> int:
        plain, strong = font(11), font(11, bold=True)
        parts = [(item.label, plain), (item.value, strong), (item.note, plain)]
        width = sum(text_width(text, f) + 4 for text, f in parts if text) - 4
        wanted = 8 * math.ceil(width / 8)
        kept = self._widths.get(item.label, 0)
        if not kept - 16 <= wanted <= kept:
            kept = self._widths[item.label] = wanted
        return kept

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self._places = []
        x = float(self.width()) - 4
        for item in reversed(self._right):
            width = min(self._width(item), x - 4)
            if width < 24:
                break
            x -= width
            self._paint_item(painter, item, QRectF(x, 0, width, self.height()))
            x -= GAP
        limit, x = x, 4.0
        for item in self._left:
            width = self._width(item)
            if x + width > limit:
                break
            self._paint_item(painter, item, QRectF(x, 0, width, self.height()))
            x += width + GAP

    def _paint_item(self, painter: QPainter, item: StatusItem, place: QRectF) -> None:
        t = theme()
        self._places.append((place, item))
        colour = getattr(t, item.level) if item.level else t.text
        x = place.left()
        for text, ink, bold in ((item.label, t.secondary, False), (item.value, colour, True),
                                (item.note, t.secondary, False)):
            if text and x < place.right():
                x += 4 + draw_text(painter, QRectF(x, 0, place.right() - x, place.height()), text, colour=ink,
                                   text_font=font(11, bold=bold), mode=Qt.TextElideMode.ElideMiddle)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        # Not event(): below a Python override of that, an exception in any other handler can end the program.
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            tip = next((i.tooltip for place, i in self._places if place.contains(QPointF(event.pos()))), "")
            QToolTip.showText(event.globalPos(), tip, self)
            return True
        return False
