"""What the keys do in a chart, and in the window when no chart has the focus."""

from __future__ import annotations

from typing import Protocol

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent

from widgets.view import Selection

PAN_SHARE = 0.1
"""Of the steps in sight, for a key pressed once."""


class Chart(Protocol):
    """A panel with a stretch of the run in sight."""

    selection: Selection

    def zoom_by(self, notches: float) -> None:
        """Fewer steps (positive) or more."""

    def pan_by(self, share: float) -> None:
        """Move by this share of what is in sight, towards the end of the run if positive."""


def chart_key(chart: Chart, event: QKeyEvent) -> bool:
    """Do what a key asks of ``chart``: + and - zoom, Ctrl+Left and Ctrl+Right pan, 0 lets go. False for other keys."""
    control = bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)
    if control and event.key() in (Qt.Key.Key_Left, Qt.Key.Key_Right):
        chart.pan_by(PAN_SHARE if event.key() == Qt.Key.Key_Right else -PAN_SHARE)
    elif control or event.modifiers() & Qt.KeyboardModifier.AltModifier:
        return False
    elif event.text() in ("+", "="):
        chart.zoom_by(1)
    elif event.text() == "-":
        chart.zoom_by(-1)
    elif event.text() == "0":
        chart.selection.visible.release()
    else:
        return False
    return True
