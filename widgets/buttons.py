"""Buttons and labels of the transport bar and the status strip, painted in the theme in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QFont, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QAbstractButton, QMenu, QSizePolicy, QWidget

from widgets.controls import paint_arrow
from widgets.painting import draw_focus_ring, draw_text, elide, text_width
from widgets.theme import font, px, theme, themes

Icon = Literal["first", "back", "play", "pause", "forward", "last", "record", "stop", "note", "edit", "delete"]


def paint_icon(painter: QPainter, icon: Icon, centre: QPointF, colour: QColor) -> None:
    """A 12-pixel icon around ``centre``, larger where type is."""
    painter.save()
    painter.translate(centre)
    painter.scale(themes.scale, themes.scale)
    _draw_icon(painter, icon, colour)
    painter.restore()


def _draw_icon(painter: QPainter, icon: Icon, colour: QColor) -> None:
    x = y = 0.0
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)

    def triangle(left: float, right: float) -> None:
        """Points from ``left`` (the base) to ``right`` (the tip), either way round."""
        painter.drawPolygon(QPolygonF([QPointF(x + left, y - 5), QPointF(x + right, y), QPointF(x + left, y + 5)]))

    if icon == "first":
        painter.drawRect(QRectF(x - 6, y - 5, 2, 10))
        triangle(5, -4)
    elif icon == "last":
        painter.drawRect(QRectF(x + 4, y - 5, 2, 10))
        triangle(-5, 4)
    elif icon == "back":
        triangle(4, -5)
    elif icon == "forward":
        triangle(-4, 5)
    elif icon == "play":
        painter.drawPolygon(QPolygonF([QPointF(x - 4, y - 6), QPointF(x + 6, y), QPointF(x - 4, y + 6)]))
    elif icon == "pause":
        painter.drawRect(QRectF(x - 5, y - 5, 3.5, 10))
        painter.drawRect(QRectF(x + 1.5, y - 5, 3.5, 10))
    elif icon == "note":
        painter.drawRect(QRectF(x - 5, y - 6, 1.6, 12))
        painter.drawPolygon(QPolygonF([QPointF(x - 4, y - 6), QPointF(x + 6, y - 2.5), QPointF(x - 4, y + 1)]))
    elif icon == "edit":
        painter.save()
        painter.rotate(45)
        painter.drawRect(QRectF(-1.8, -6.5, 3.6, 2.2))
        painter.drawRect(QRectF(-1.8, -3.4, 3.6, 6.2))
        painter.drawPolygon(QPolygonF([QPointF(-1.8, 3.8), QPointF(1.8, 3.8), QPointF(0, 7)]))
        painter.restore()
    elif icon == "delete":
        painter.setPen(QPen(colour, 1.6, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
        painter.drawLine(QPointF(-4, -4), QPointF(4, 4))
        painter.drawLine(QPointF(-4, 4), QPointF(4, -4))
    elif icon == "record":
        painter.drawEllipse(QPointF(x, y), 5, 5)
    else:
        painter.drawRoundedRect(QRectF(x - 4.5, y - 4.5, 9, 9), 1, 1)


class Button(QAbstractButton):
    """What the buttons share: hover, press, focus ring for the keyboard, repainting with the theme."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._ring = False
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        # Space belongs to play and pause everywhere: a click on a button must not make it answer Space as well.
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        themes.changed.connect(self.update)

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._ring = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        super().focusInEvent(event)

    def paint_ground(self, painter: QPainter, *, outlined: bool = True, filled: QColor | None = None) -> None:
        t = theme()
        area = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        ground = filled
        if ground is None and self.isEnabled():
            ground = t.pressed if self.isDown() else t.hover if self.underMouse() else None
        painter.setPen(QPen(t.outline, 1) if outlined and filled is None else Qt.PenStyle.NoPen)
        painter.setBrush(ground if ground is not None else Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(area, 5, 5)
        if self._ring and self.hasFocus():
            draw_focus_ring(painter, QRectF(self.rect()), 5)


class IconButton(Button):
    """A square button with an icon; a ``primary`` one is filled with the accent."""

    def __init__(self, icon: Icon, *, primary: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._icon, self._primary = icon, primary
        self._small = False

    def make_small(self) -> None:
        """For a place among lines of text: no outline either."""
        self._small = True
        self.updateGeometry()

    @property
    def icon_name(self) -> Icon:
        return self._icon

    def set_primary(self, primary: bool) -> None:
        if primary != self._primary:
            self._primary = primary
            self.update()

    def set_icon(self, icon: Icon) -> None:
        if icon != self._icon:
            self._icon = icon
            self.update()

    def setToolTip(self, text: str) -> None:
        """The first sentence is the accessible name, too: an icon has no other."""
        super().setToolTip(text)
        self.setAccessibleName(text.partition("\n")[0].partition(". ")[0])

    def sizeHint(self) -> QSize:
        return QSize(px(22), px(22)) if self._small else QSize(px(28), px(30))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        t = theme()
        filled = QColor(t.accent) if self._primary and self.isEnabled() else None
        self.paint_ground(painter, outlined=not self._small, filled=filled)
        ink = t.bad if self._icon in ("record", "stop") else t.text
        colour = QColor(t.on_accent if filled is not None else ink if self.isEnabled() else t.secondary)
        if not self.isEnabled():
            colour.setAlphaF(0.5)
        paint_icon(painter, self._icon, QRectF(self.rect()).center(), colour)


class TextButton(Button):
    """A button of one or two texts: a quiet one, then a bold one; ``arrow`` promises a menu."""

    def __init__(self, *, arrow: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._quiet = self._bold = ""
        self._arrow = arrow
        self._colour = "text"

    def set_texts(self, quiet: str, bold: str, colour: Literal["text", "warning", "bad", "accent"] = "text") -> None:
        if (quiet, bold, colour) != (self._quiet, self._bold, self._colour):
            self._quiet, self._bold, self._colour = quiet, bold, colour
            self.setAccessibleName(f"{quiet} {bold}".strip())
            self.updateGeometry()
            self.update()

    @property
    def texts(self) -> tuple[str, str]:
        return self._quiet, self._bold

    def sizeHint(self) -> QSize:
        quiet = text_width(self._quiet, font(12)) + (5 if self._quiet and self._bold else 0)
        width = quiet + text_width(self._bold, font(12, bold=True)) + (px(14) if self._arrow else 0)
        return QSize(round(width) + 14, px(30))

    def paint_chip(self, painter: QPainter, colour: QColor) -> None:
        """A pill with an arrow to the right end and the bold text, in place of the plain button."""
        area = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        t = theme()
        painter.setPen(QPen(colour, 1))
        painter.setBrush(t.pressed if self.isDown() else t.hover if self.underMouse() else QColor(t.panel))
        painter.drawRoundedRect(area, area.height() / 2, area.height() / 2)
        painter.save()
        painter.translate(px(14), area.center().y())
        painter.scale(0.7, 0.7)
        paint_icon(painter, "last", QPointF(0, 0), colour)
        painter.restore()
        draw_text(painter, area.adjusted(px(21), 0, -4, 0), self._bold, colour=colour, text_font=font(11, bold=True))
        if self._ring and self.hasFocus():
            draw_focus_ring(painter, QRectF(self.rect()), area.height() / 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        t = theme()
        self.paint_ground(painter, outlined=False)
        area = QRectF(self.rect()).adjusted(7, 0, -3, 0)
        colour = getattr(t, self._colour) if self.isEnabled() else t.secondary
        if self._quiet:
            area.setLeft(area.left() + draw_text(painter, area, self._quiet, colour=t.secondary) + 5)
        draw_text(painter, area, self._bold, colour=colour, text_font=font(12, bold=True))
        if self._arrow:
            paint_arrow(painter, QPointF(self.width() - px(11), self.height() / 2 + 0.5), QColor(colour))


class MenuButton(TextButton):
    """A text button that opens a menu of (value, text) pairs; None in between draws a line. Carries the value."""

    chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(arrow=True, parent=parent)
        self.options: list[tuple[object, str] | None] = []
        self.current: object = None
        self.clicked.connect(self._open)

    def set_options(self, options: Sequence[tuple[object, str] | None]) -> None:
        self.options = list(options)

    def build_menu(self) -> QMenu:
        menu = QMenu(self)
        for option in self.options:
            if option is None:
                menu.addSeparator()
                continue
            action = menu.addAction(option[1])
            action.setCheckable(True)
            action.setChecked(option[0] == self.current)
            action.triggered.connect(lambda _=False, value=option[0]: self.chosen.emit(value))
        return menu

    def _open(self) -> None:
        menu = self.build_menu()
        menu.exec(self.mapToGlobal(self.rect().bottomLeft()))
        menu.deleteLater()


class ElidedLabel(QWidget):
    """Pieces of text in a row, each bold or quiet. Where room is short it gives way, and elides at the right."""

    def __init__(self, parent: QWidget | None = None, *, align_right: bool = False, gives_way: bool = True) -> None:
        super().__init__(parent)
        self._pieces: list[tuple[str, bool]] = []
        self._align_right, self._gives_way = align_right, gives_way
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        themes.changed.connect(self.update)

    def set_pieces(self, pieces: Sequence[tuple[str, bool]]) -> None:
        """``(text, bold)`` pairs."""
        kept = [piece for piece in pieces if piece[0]]
        if kept == self._pieces:
            return
        before = self.sizeHint()
        self._pieces = kept
        self.setAccessibleName(" ".join(text for text, _ in kept))
        if self.sizeHint() != before:
            self.updateGeometry()
        self.update()

    @property
    def text(self) -> str:
        return " ".join(text for text, _ in self._pieces)

    def _font(self, bold: bool) -> QFont:
        return font(12, bold=bold)

    def sizeHint(self) -> QSize:
        width = sum(text_width(text, self._font(bold)) + 8 for text, bold in self._pieces)
        return QSize(max(0, round(width) - 8 + 2), 30)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 30) if self._gives_way else self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme()
        area = QRectF(self.rect())
        if self._align_right:
            area.setLeft(max(0.0, area.right() - self.sizeHint().width()))
        for text, bold in self._pieces:
            shown = elide(text, self._font(bold), area.width() + 1)
            if not shown:
                break
            used = draw_text(painter, area, shown, colour=t.text if bold else t.secondary, text_font=self._font(bold))
            area.setLeft(area.left() + used + 8)
            if shown != text:
                break


class Tabs(QWidget):
    """A row of words, one of them chosen. ``options`` are (value, text) pairs; Left and Right move while focused."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._options: list[tuple[str, str]] = []
        self._current = ""
        self._ring = False
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        themes.changed.connect(self._rescale)

    def _rescale(self) -> None:
        self.resize(self.sizeHint())
        self.updateGeometry()
        self.update()

    @property
    def current(self) -> str:
        return self._current

    def set_options(self, options: Sequence[tuple[str, str]], current: str) -> None:
        if (list(options), current) != (self._options, self._current):
            self._options, self._current = list(options), current
            self.setAccessibleDescription(dict(options).get(current, current))
            self._rescale()

    def choose(self, value: str) -> None:
        if value != self._current:
            self._current = value
            self.setAccessibleDescription(dict(self._options).get(value, value))
            self.update()
            self.chosen.emit(value)

    def _widths(self) -> list[float]:
        return [text_width(text, font(11, bold=True)) + 14 for _, text in self._options]

    def sizeHint(self) -> QSize:
        return QSize(round(sum(self._widths())), px(24))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        x = 0.0
        for (value, _), width in zip(self._options, self._widths(), strict=True):
            if x <= event.position().x() < x + width:
                self.choose(value)
            x += width

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            values = [value for value, _ in self._options]
            at = values.index(self._current) + (1 if event.key() == Qt.Key.Key_Right else -1)
            self.choose(values[at % len(values)])
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._ring = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        super().focusInEvent(event)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme()
        x = 0.0
        for (value, text), width in zip(self._options, self._widths(), strict=True):
            chosen = value == self._current
            draw_text(painter, QRectF(x, 0, width, self.height()), text, colour=t.text if chosen else t.secondary,
                      text_font=font(11, bold=chosen),
                      align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)
            if chosen:
                painter.fillRect(QRectF(x + 7, self.height() - 3, width - 14, 2), QColor(t.accent))
            x += width
        if self._ring and self.hasFocus():
            draw_focus_ring(painter, QRectF(self.rect()), 4)
