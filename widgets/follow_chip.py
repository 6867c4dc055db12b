"""The chip in a chart's header that says: this stands still, and here it goes on."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QColor, QPainter, QPaintEvent

from widgets.buttons import TextButton
from widgets.panel import Panel
from widgets.text import text_width
from widgets.theme import font, px, theme


class FollowChip(TextButton):
    """Shown in ``panel``'s header while the user holds the charts where they are; a click lets them go."""

    def __init__(self, panel: Panel) -> None:
        super().__init__(parent=panel)
        self._panel = panel
        self._steps = panel.selection.visible
        self.hide()
        self.clicked.connect(self._let_go)
        self._steps.changed.connect(self._show)
        panel.set_corner(self)
        self.retranslate()
        self._show()

    def _let_go(self) -> None:
        self._steps.release()
        self._steps.follow_asked.emit()

    def retranslate(self) -> None:
        self.set_texts("", self.tr("Follow"), "accent")
        self.setToolTip(self.tr("The charts were moved and stand still. Click to let them go with the run again (or "
                                "double-click a chart, or press 0)."))
        self.resize(self.sizeHint())

    def _show(self) -> None:
        if self._steps.held == self.isHidden():
            self.setVisible(self._steps.held)
            self._panel.place_corner()

    def sizeHint(self) -> QSize:
        return QSize(round(text_width(self.texts[1], font(11, bold=True))) + px(30), px(22))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
            self._panel.place_corner()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_chip(painter, QColor(theme().accent))
