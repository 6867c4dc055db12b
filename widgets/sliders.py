"""Number controls: a knob on a slider, and a smallest-largest pair on one track."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QLineEdit, QToolTip, QWidget

from engine.trace.knobs import Knob, KnobError, KnobValue
from widgets.controls import Control
from widgets.scale import Scale
from widgets.theme import font, px, theme

TRACK = 16  # pixels of the line with the slider, below the header line
HANDLE = 6  # radius


class _NumberControl(Control):
    """A header line with a value that can be typed, and a track below. The subclasses say what stands on the track."""

    def __init__(self, label: str, parent: QWidget | None = None) -> None:
        super().__init__(label, parent)
        self._value_rect = QRect()
        self._editor: QLineEdit | None = None
        self._dragging = False
        self._grip = 0.0  # how far off the handle's centre it is held
        self.setMouseTracking(True)

    def sizeHint(self) -> QSize:
        return QSize(200, self.line_height() + px(TRACK))

    @property
    def dragging(self) -> bool:
        return self._dragging

    # Told by the subclasses
    def text(self) -> str:
        raise NotImplementedError

    def _accept_text(self, text: str) -> None:
        """Set what was typed, emitting; raises KnobError."""
        raise NotImplementedError

    def reset(self) -> None:
        """Back to the default, as if the user had moved it there."""
        raise NotImplementedError

    def _drag_to(self, x: float, begins: bool) -> None:
        raise NotImplementedError

    def _step(self, steps: int) -> None:
        raise NotImplementedError

    def _to_end(self, at_maximum: bool) -> None:
        raise NotImplementedError

    # ---- the user -------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return super().mousePressEvent(event)
        if event.position().y() < self.line_height():
            return None  # the header: a click on the number (see release) types, a double click resets
        self._dragging = True
        self._drag_to(event.position().x(), True)
        return None

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._dragging:
            self._drag_to(event.position().x(), False)
        over_number = self._value_rect.contains(event.position().toPoint())
        self.setCursor(Qt.CursorShape.IBeamCursor if over_number and not self._dragging
                       else Qt.CursorShape.ArrowCursor)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._dragging:
            self._dragging = False
            self.released.emit()
        elif event.button() == Qt.MouseButton.LeftButton and self._value_rect.contains(event.position().toPoint()):
            self.edit()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._dragging = False
        self.reset()
        self.released.emit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        if not self.hasFocus() or not self.isEnabled():
            event.ignore()  # the panel scrolls instead
            return
        delta = event.angleDelta().y()
        if delta:
            self._step(1 if delta > 0 else -1)
            self.released.emit()
        event.accept()

    def key_pressed(self, event: QKeyEvent) -> bool:
        key = event.key()
        steps = {Qt.Key.Key_Right: 1, Qt.Key.Key_Up: 1, Qt.Key.Key_Left: -1, Qt.Key.Key_Down: -1,
                 Qt.Key.Key_PageUp: 8, Qt.Key.Key_PageDown: -8}
        if key in steps:
            self._step(steps[Qt.Key(key)])
        elif key in (Qt.Key.Key_Home, Qt.Key.Key_End):
            self._to_end(key == Qt.Key.Key_End)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) or (event.text().isdigit() and not event.modifiers()):
            self.edit(event.text() if event.text().isdigit() else None)
            return True
        elif key in (Qt.Key.Key_Backspace, Qt.Key.Key_Delete):
            self.reset()
        else:
            return False
        self.released.emit()
        return True

    # ---- exact entry ----------------------------------------------------------------------------------------------

    def edit(self, begin_with: str | None = None) -> None:
        """Put an entry field over the number."""
        if self._editor is not None:
            return
        editor = QLineEdit(begin_with or self.text(), self)
        editor.setFont(font(12, bold=True))
        editor.setAlignment(Qt.AlignmentFlag.AlignRight)
        editor.setFrame(False)
        editor.setStyleSheet("QLineEdit { border: none; padding: 0; min-height: 0; font-weight: 600; }"
                             f"QLineEdit[invalid=\"true\"] {{ color: {theme().bad}; }}")
        width = max(px(72), self._value_rect.width() + 16)
        editor.setGeometry(self.width() - width, 0, width, self.line_height())
        if begin_with is None:
            editor.selectAll()
        editor.returnPressed.connect(self._commit_edit)
        editor.installEventFilter(self)
        self._editor = editor
        editor.show()
        editor.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._editor and self._editor is not None:
            if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
                if event.key() == Qt.Key.Key_Escape:
                    self._close_edit()
                    self.setFocus()
                    return True
            elif event.type() == QEvent.Type.FocusOut:
                self._commit_edit(leaving=True)
        return super().eventFilter(watched, event)

    def _commit_edit(self, leaving: bool = False) -> None:
        editor = self._editor
        if editor is None:
            return
        try:
            if editor.text() != self.text():
                self._accept_text(editor.text())
                self.released.emit()
        except KnobError:
            if not leaving:  # say why and let the user mend it
                editor.setProperty("invalid", True)
                editor.style().unpolish(editor)
                editor.style().polish(editor)
                editor.selectAll()
                QToolTip.showText(editor.mapToGlobal(editor.rect().bottomLeft()), self.wanted_text(), editor)
                return
        self._close_edit()
        if not leaving:
            self.setFocus()

    def wanted_text(self) -> str:
        """What can be typed here."""
        raise NotImplementedError

    def _close_edit(self) -> None:
        editor, self._editor = self._editor, None
        if editor is not None:
            editor.removeEventFilter(self)
            editor.hide()
            editor.deleteLater()
        self.update()

    # ---- the track ------------------------------------------------------------------------------------------------

    def _x(self, position: float) -> float:
        return px(HANDLE) + position * (self.width() - 2 * px(HANDLE))

    def _position(self, x: float) -> float:
        return (x - px(HANDLE)) / max(1, self.width() - 2 * px(HANDLE))

    def _paint_track(self, painter: QPainter, start: float, end: float, handles: Sequence[float]) -> None:
        t = theme()
        _, accent, handle = self.colours()
        y = self.line_height() + px(TRACK) / 2 - 1
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(t.line))
        half = px(2)
        painter.drawRoundedRect(QRectF(0, y - half, self.width(), 2 * half), half, half)
        painter.setBrush(accent)
        left = 0.0 if start <= 0 else self._x(start)
        painter.drawRoundedRect(QRectF(left, y - half, self._x(end) - left, 2 * half), half, half)
        for position in handles:
            painter.setPen(QPen(QColor(t.panel), 2))
            painter.setBrush(handle)
            painter.drawEllipse(QPointF(self._x(position), y), px(HANDLE), px(HANDLE))
            if self._ring and self.hasFocus():
                painter.setPen(QPen(QColor(t.accent), 1.5))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawEllipse(QPointF(self._x(position), y), px(HANDLE) + 1, px(HANDLE) + 1)


class KnobSlider(_NumberControl):
    """A number knob: label, value, track. ``value_changed`` carries the value in the knob's own type."""

    def __init__(self, knob: Knob, label: str, parent: QWidget | None = None) -> None:
        super().__init__(label, parent)
        self.knob = knob
        self.scale = Scale(knob)
        self._value: KnobValue = knob.default

    @property
    def value(self) -> KnobValue:
        return self._value

    def set_value(self, value: KnobValue) -> None:
        if value != self._value:
            self._value = value
            self.tell_value(self.text())
            self.update()

    def text(self) -> str:
        return self.scale.format(self._value)

    def reset(self) -> None:
        self._turn(self.knob.default)

    def _turn(self, value: KnobValue) -> None:
        if value != self._value:
            self.set_value(value)
            self.value_changed.emit(value)

    def wanted_text(self) -> str:
        return self.scale.wanted()

    def _accept_text(self, text: str) -> None:
        self._turn(self.scale.parse(text))

    def _drag_to(self, x: float, begins: bool) -> None:
        handle = self._x(self.scale.position(float(self._value)))
        if begins:
            # Gripping the handle off its centre must not move it.
            self._grip = x - handle if abs(x - handle) <= px(HANDLE) + 2 else 0.0
            if self._grip:
                return
        self._turn(self.scale.value(self._position(x - self._grip)))

    def _step(self, steps: int) -> None:
        self._turn(self.scale.stepped(float(self._value), steps))

    def _to_end(self, at_maximum: bool) -> None:
        self._turn(self.scale.value(1.0 if at_maximum else 0.0))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._value_rect = self.paint_header(painter, "" if self._editor else self.text(),
                                              self._value != self.knob.default)
        position = self.scale.position(float(self._value))
        self._paint_track(painter, 0.0, position, [position])


class RangePair(_NumberControl):
    """Two knobs, smallest and largest, on one track. ``value_changed`` carries ``(knob name, value)``.

    Neither handle passes the other. The arrow keys move the handle moved last, and Tab goes on as usual.
    """

    def __init__(self, low: Knob, high: Knob, label: str, parent: QWidget | None = None) -> None:
        super().__init__(label, parent)
        self.knobs = (low, high)
        self.scale = Scale(low)
        self._values: list[KnobValue] = [low.default, high.default]
        self._active = 1

    @property
    def value(self) -> tuple[KnobValue, KnobValue]:
        return self._values[0], self._values[1]

    def set_value(self, name: str, value: KnobValue) -> None:
        index = 0 if name == self.knobs[0].name else 1
        if value != self._values[index]:
            self._values[index] = value
            self.tell_value(self.text())
            self.update()

    def text(self) -> str:
        return f"{self.scale.format(self._values[0])}–{self.scale.format(self._values[1])}"

    def reset(self) -> None:
        high = self.knobs[1]
        order = (1, 0) if float(high.default) >= float(self._values[0]) else (0, 1)
        for index in order:
            self._set(index, self.knobs[index].default)

    def _set(self, index: int, value: KnobValue) -> None:
        if value != self._values[index]:
            self._values[index] = value
            self.update()
            self.value_changed.emit((self.knobs[index].name, value))

    def _turn(self, value: KnobValue) -> None:
        """Move the active handle, but not past the other."""
        other = self._values[1 - self._active]
        bounded = min(float(value), float(other)) if self._active == 0 else max(float(value), float(other))
        self._set(self._active, int(bounded) if self.scale.is_int else bounded)

    def wanted_text(self) -> str:
        return QCoreApplication.translate("Knobs", "{number}, or two of them: {low}-{high}").format(
            number=self.scale.wanted(), low=self.knobs[0].default, high=self.knobs[1].default)

    def _accept_text(self, text: str) -> None:
        parts = [p for p in text.replace("–", "-").replace("…", "-").split("-") if p.strip()]
        if not 1 <= len(parts) <= 2:
            low = self.knobs[0]
            raise KnobError(f"{self._label}: {text!r} is not a range such as {low.default}-{self.knobs[1].default}")
        values = [self.scale.parse(part) for part in parts]
        first, last = min(values, key=float), max(values, key=float)
        if float(first) > float(self._values[1]):
            self._set(1, last)
            self._set(0, first)
        else:
            self._set(0, first)
            self._set(1, last)

    def _drag_to(self, x: float, begins: bool) -> None:
        xs = [self._x(self.scale.position(float(v))) for v in self._values]
        if begins:
            # The nearer handle; where both stand together, the one that can go there.
            nearer = [abs(x - xs[0]), abs(x - xs[1])]
            self._active = int(x >= xs[1]) if nearer[0] == nearer[1] else nearer.index(min(nearer))
            offset = x - xs[self._active]
            self._grip = offset if abs(offset) <= px(HANDLE) + 2 else 0.0
            if self._grip:
                return
        self._turn(self.scale.value(self._position(x - self._grip)))

    def _step(self, steps: int) -> None:
        self._turn(self.scale.stepped(float(self._values[self._active]), steps))

    def _to_end(self, at_maximum: bool) -> None:
        self._turn(self.scale.value(1.0 if at_maximum else 0.0))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        defaults = [k.default for k in self.knobs]
        self._value_rect = self.paint_header(painter, "" if self._editor else self.text(), self._values != defaults)
        low, high = (self.scale.position(float(v)) for v in self._values)
        self._paint_track(painter, low, high, [low, high])
