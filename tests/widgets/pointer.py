"""Moving the pointer over a widget, by an event of its own.

`qtbot.mouseMove` moves the pointer of the screen; whether an event comes of that depends on where it was before and on
what else the machine does.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QWidget


def hover(widget: QWidget, position: QPoint | QPointF) -> None:
    """The pointer comes to ``position`` (in the widget) with no button pressed."""
    where = QPointF(position)
    none = Qt.MouseButton.NoButton
    QApplication.sendEvent(widget, QMouseEvent(QEvent.Type.MouseMove, where, widget.mapToGlobal(where), none, none,
                                               Qt.KeyboardModifier.NoModifier))
