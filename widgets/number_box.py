"""A spin box whose number stands as far from its edge as the text of other fields."""

from __future__ import annotations

from PySide6.QtWidgets import QSpinBox, QWidget

from widgets.theme import px, themes


class NumberBox(QSpinBox):
    """The style sheet does not reach the text in a spin box: its margin is set here."""

    def __init__(self, low: int, high: int, value: int | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setRange(low, high)
        self.setValue(low if value is None else value)
        self._restyle()
        themes.changed.connect(self._restyle)

    def _restyle(self) -> None:
        self.lineEdit().setTextMargins(px(7), 0, 0, 0)
