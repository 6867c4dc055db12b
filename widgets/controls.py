"""Small controls of our own where Qt's look foreign in one theme or the other.

All of them follow the same manners: they emit only what the user did, never what the program set; the wheel turns
them only while they have the focus, so that scrolling a panel changes nothing; a double click brings the default back;
a number is clicked to type it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPointF, QRect, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFontMetrics,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
)
from PySide6.QtWidgets import QMenu, QSizePolicy, QWidget

from widgets.painting import draw_text, text_width
from widgets.theme import font, px, theme, themes

LINE = 20  # pixels of a control's line with label and value


WINDOW_KEYS = frozenset((Qt.Key.Key_Space, Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Home, Qt.Key.Key_End))
"""Keys that move the run, wherever the focus is."""


class Throttle(QObject):
    """Passes a value on at once, then at most one per interval, and always the last one."""

    passed = Signal(object)

    def __init__(self, interval_ms: int = 150, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(interval_ms)
        self._timer.timeout.connect(self._elapsed)
        self._waiting: list[Any] = []

    def push(self, value: Any) -> None:
        if self._timer.isActive():
            self._waiting = [value]
        else:
            self._timer.start()
            self.passed.emit(value)

    def _elapsed(self) -> None:
        if self._waiting:
            value = self._waiting.pop()
            self._timer.start()
            self.passed.emit(value)


class Control(QWidget):
    """What all controls share: a label on the left, repainting when the theme or the state changes, the focus ring."""

    value_changed = Signal(object)
    released = Signal()  # the user let go: the value stands

    def __init__(self, label: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._label = label
        self._ring = False
        self.setAccessibleName(label)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        themes.changed.connect(self.update)

    @property
    def label(self) -> str:
        return self._label

    def tell_value(self, text: str) -> None:
        """What a screen reader says beside the label."""
        self.setAccessibleDescription(text)

    def set_label(self, label: str) -> None:
        self._label = label
        self.setAccessibleName(label)
        self.update()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.EnabledChange:
            self.update()

    def focusInEvent(self, event: QFocusEvent) -> None:
        # A ring for those who came by keyboard, none for a click.
        if event.reason() not in (Qt.FocusReason.ActiveWindowFocusReason, Qt.FocusReason.PopupFocusReason):
            self._ring = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason,
                                            Qt.FocusReason.ShortcutFocusReason)
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """A control that was clicked leaves the keys that move the run to the window; one that was reached with Tab
        takes them. The subclasses answer in :meth:`key_pressed`."""
        if (not self._ring and event.key() in WINDOW_KEYS) or not self.key_pressed(event):
            event.ignore()

    def key_pressed(self, event: QKeyEvent) -> bool:
        """Answer a key; False if it means nothing here."""
        return False

    def sizeHint(self) -> QSize:
        return QSize(200, self.line_height() + 4)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, self.sizeHint().height())

    # ---- painting shared by the subclasses ------------------------------------------------------------------------

    def line_height(self) -> int:
        return max(px(LINE), QFontMetrics(font(12)).height() + 4)

    def colours(self) -> tuple[QColor, QColor, QColor]:
        """Text, accent and handle, dimmed while disabled."""
        t = theme()
        if not self.isEnabled():
            dim = QColor(t.secondary)
            return dim, dim, dim
        return QColor(t.text), QColor(t.accent), QColor(t.text)

    def paint_header(self, painter: QPainter, value: str, changed: bool, line: int | None = None) -> QRect:
        """Draw label and value; returns the value's rectangle, a little larger than its ink."""
        text, accent, _ = self.colours()
        height = line or self.line_height()
        painter.setFont(font(12, bold=True))
        width = painter.fontMetrics().horizontalAdvance(value)
        rect = QRect(self.width() - width - 2, 0, width + 2, height)
        painter.setPen(text)
        painter.drawText(rect, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, value)
        painter.setFont(font(12))
        room = rect.left() - 16
        shown = painter.fontMetrics().elidedText(self._label, Qt.TextElideMode.ElideRight, room)
        painter.drawText(QRect(0, 0, room, height), Qt.AlignmentFlag.AlignVCenter, shown)
        if changed:  # a small dot says: not the default
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(accent)
            right = min(painter.fontMetrics().horizontalAdvance(shown), room)
            painter.drawEllipse(QPointF(right + 7, height / 2), 2, 2)
        return rect.adjusted(-6, 0, 0, 0)

    def paint_focus(self, painter: QPainter, rect: QRectF, radius: float = 4) -> None:
        if self._ring and self.hasFocus():
            painter.setPen(QPen(QColor(theme().accent), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(rect.adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)


class ToggleSwitch(Control):
    """On or off: a pill with a handle. Click, Space or Enter turns it; Left and Right set it."""

    def __init__(self, label: str, default: bool, parent: QWidget | None = None) -> None:
        super().__init__(label, parent)
        self._default = self._on = default
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    @property
    def value(self) -> bool:
        return self._on

    def set_value(self, on: bool) -> None:
        if on != self._on:
            self._on = on
            self.tell_value(QCoreApplication.translate("Knobs", "on") if on
                            else QCoreApplication.translate("Knobs", "off"))
            self.update()

    def _turn(self, on: bool) -> None:
        if on != self._on:
            self.set_value(on)
            self.value_changed.emit(on)
            self.released.emit()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self.rect().contains(event.position().toPoint()):
            self._turn(not self._on)

    def key_pressed(self, event: QKeyEvent) -> bool:
        if event.key() in (Qt.Key.Key_Space, Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._turn(not self._on)
        elif event.key() in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self._turn(event.key() == Qt.Key.Key_Right)
        else:
            return False
        return True

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        t = theme()
        _, accent, _ = self.colours()
        self.paint_header(painter, " " * 8, self._on != self._default, self.height())
        width, height = px(30), px(16)
        pill = QRectF(self.width() - width, (self.height() - height) / 2, width, height)
        radius = height / 2
        painter.setPen(Qt.PenStyle.NoPen if self._on else QPen(QColor(t.secondary), 1))
        painter.setBrush(accent if self._on else QColor(t.field))
        painter.drawRoundedRect(pill if self._on else pill.adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(t.panel if self._on else t.secondary))
        painter.drawEllipse(QPointF(pill.right() - radius if self._on else pill.left() + radius, pill.center().y()),
                            radius - 2.5, radius - 2.5)
        self.paint_focus(painter, pill.adjusted(-3, -3, 0, 3).intersected(QRectF(self.rect())), 10)


class Choice(Control):
    """One of several: label on the left, the choice and a small arrow on the right. A click opens a menu.

    A ``boxed`` one looks like a field and leaves its label to the tooltip.
    ``options`` are (value, text) pairs; ``value_changed`` carries the value. Up and Down go through them.
    """

    def __init__(self, label: str, options: Sequence[tuple[str, str]], current: str, default: str | None = None,
                 parent: QWidget | None = None, *, boxed: bool = False) -> None:
        super().__init__(label, parent)
        self._boxed = boxed
        self._options = list(options)
        self._current, self._default = current, default
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    @property
    def value(self) -> str:
        return self._current

    @property
    def options(self) -> list[tuple[str, str]]:
        return list(self._options)

    def set_options(self, options: Sequence[tuple[str, str]], current: str) -> None:
        self._options, self._current = list(options), current
        self.tell_value(self.text())
        self.update()

    def set_value(self, value: str) -> None:
        if value != self._current:
            self._current = value
            self.tell_value(self.text())
            self.update()

    def text(self) -> str:
        return next((text for value, text in self._options if value == self._current), self._current)

    def _turn(self, value: str) -> None:
        if value != self._current:
            self.set_value(value)
            self.value_changed.emit(value)
            self.released.emit()

    def build_menu(self) -> QMenu:
        return option_menu(self, self._options, self._current, self._turn)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self._options:
            self._open()

    def _open(self) -> None:
        menu = self.build_menu()
        corner = self.mapToGlobal(self.rect().bottomRight())
        corner.setX(corner.x() - menu.sizeHint().width())
        menu.exec(corner)
        menu.deleteLater()

    def key_pressed(self, event: QKeyEvent) -> bool:
        values = [value for value, _ in self._options]
        if event.key() in (Qt.Key.Key_Space, Qt.Key.Key_Return, Qt.Key.Key_Enter) and values:
            self._open()
        elif event.key() in (Qt.Key.Key_Up, Qt.Key.Key_Down) and values:
            at = values.index(self._current) if self._current in values else 0
            self._turn(values[min(len(values) - 1, max(0, at + (1 if event.key() == Qt.Key.Key_Down else -1)))])
        else:
            return False
        return True

    def sizeHint(self) -> QSize:
        return QSize(200, self.line_height() + (10 if self._boxed else 4))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        text, accent, _ = self.colours()
        strong, plain = font(12, bold=True), font(12)
        area = QRectF(self.rect())
        if self._boxed:
            t = theme()
            painter.setPen(QPen(t.outline, 1))
            painter.setBrush(t.hover if self.underMouse() and self.isEnabled() else QColor(t.field))
            painter.drawRoundedRect(area.adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)
            area.adjust(10, 0, -10, 0)
        paint_arrow(painter, QPointF(area.right() - 4, area.center().y() + 0.5), text)
        label_width = 0.0 if self._boxed else text_width(self._label, plain) + 24
        value = QRectF(area.left() + label_width, area.top(), area.width() - label_width - 14, area.height())
        right, left = (Qt.AlignmentFlag.AlignRight, Qt.AlignmentFlag.AlignLeft)
        draw_text(painter, value, self.text(), colour=text, text_font=strong,
                  align=(left if self._boxed else right) | Qt.AlignmentFlag.AlignVCenter)
        if not self._boxed:
            width = draw_text(painter, area, self._label, colour=text, text_font=plain)
            if self._default is not None and self._current != self._default:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(accent)
                painter.drawEllipse(QPointF(width + 7, self.height() / 2), 2, 2)
        self.paint_focus(painter, QRectF(self.rect()))


def paint_arrow(painter: QPainter, centre: QPointF, colour: QColor) -> None:
    """A small triangle that points down: here a menu opens."""
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    x, y = centre.x(), centre.y()
    half = px(4)
    painter.drawPolygon([QPointF(x - half, y - half / 2), QPointF(x + half, y - half / 2), QPointF(x, y + half * 0.75)])


def option_menu(parent: QWidget, options: Sequence[tuple[str, str]], current: str,
                chosen: Callable[[str], None]) -> QMenu:
    """A menu of (value, text) pairs with the current one ticked; calls ``chosen(value)``."""
    menu = QMenu(parent)
    for value, text in options:
        action = menu.addAction(text)
        action.setCheckable(True)
        action.setChecked(value == current)
        action.triggered.connect(lambda _=False, v=value: chosen(v))
    return menu
