"""Small marks: hatching, legend samples, status signs, focus rings, and the curve that joins two places.

Rectangles are in logical pixels; what is kept as a picture is made for the device's pixel ratio. Fill large areas
with opaque colours: Qt hands tall translucent fills to threads, and waking those can cost more than a whole frame.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QPainter, QPainterPath, QPen, QPixmap, QPolygonF

from widgets.theme import RADIUS, ink_on, mix, theme, with_alpha

Swatch = Literal["fill", "faint", "ring", "hatch", "outline", "line", "dash"]


@lru_cache(maxsize=64)
def _hatch(rgba: int, spacing: int, ratio: float) -> QBrush:
    side = round(spacing * ratio)
    tile = QPixmap(side, side)
    tile.fill(Qt.GlobalColor.transparent)
    painter = QPainter(tile)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(QColor.fromRgba(rgba), max(1.0, ratio)))
    for shift in (-side, 0, side):  # three strokes, so that the tile's corners join without gaps
        painter.drawLine(QPointF(shift - 1, side + 1), QPointF(shift + side + 1, -1))
    painter.end()
    tile.setDevicePixelRatio(ratio)
    return QBrush(tile)


def hatch_brush(colour: QColor | str, spacing: int = 4, ratio: float = 1.0) -> QBrush:
    """Diagonal hatching, lines ``spacing`` logical pixels apart, on nothing. ``ratio`` is the device pixel ratio."""
    return _hatch(QColor(colour).rgba(), spacing, ratio)


def fill_hatched(painter: QPainter, rect: QRectF, colour: QColor | str, spacing: int = 4) -> None:
    """Fill ``rect`` with hatching."""
    painter.fillRect(rect, hatch_brush(colour, spacing, painter.device().devicePixelRatioF()))


def draw_swatch(painter: QPainter, rect: QRectF, kind: Swatch, colour: QColor | str) -> None:
    """A legend's sample or a list's mark: the same look as the thing that it stands for."""
    colour = QColor(colour)
    box = rect.adjusted(0.5, 0.5, -0.5, -0.5)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    if kind in ("line", "dash"):
        pen = QPen(colour, 2, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap)
        if kind == "dash":
            pen.setDashPattern([1.5, 1.0])
        painter.setPen(pen)
        painter.drawLine(QPointF(rect.left(), rect.center().y()), QPointF(rect.right(), rect.center().y()))
    else:
        if kind == "hatch":
            painter.setBrush(hatch_brush(colour, 4, painter.device().devicePixelRatioF()))
            painter.setPen(QPen(with_alpha(colour, 0.5), 1))
        elif kind == "outline":
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(colour, 1))
        elif kind == "faint":
            painter.setBrush(with_alpha(colour, 0.3))
            painter.setPen(QPen(colour, 1))
        else:
            painter.setBrush(colour)
            painter.setPen(QPen(mix(colour, theme().text, 0.0 if theme().is_dark else 0.28), 1))
        painter.drawRoundedRect(box, 2, 2)
        if kind == "ring":
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(QColor(theme().text), 1.6))
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), 2, 2)
    painter.restore()


Status = Literal["good", "warning", "bad", "info"]


def status_colour(status: Status) -> QColor:
    t = theme()
    return QColor({"good": t.good, "warning": t.warning, "bad": t.bad, "info": t.accent}[status])


def draw_status(painter: QPainter, rect: QRectF, status: Status) -> None:
    """A status mark that needs no colour to be read: disc with a tick, triangle with "!", square with a cross, "i"."""
    side = min(rect.width(), rect.height())
    box = QRectF(rect.center().x() - side / 2, rect.center().y() - side / 2, side, side)
    fill = status_colour(status)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(fill)
    ink = QPen(ink_on(fill), max(1.2, side / 9), Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap)

    def at(x: float, y: float) -> QPointF:
        return QPointF(box.left() + x * side, box.top() + y * side)

    if status == "warning":
        painter.drawPolygon(QPolygonF([at(0.5, 0.02), at(1.0, 0.95), at(0.0, 0.95)]))
        painter.setPen(ink)
        painter.drawLine(at(0.5, 0.38), at(0.5, 0.62))
        painter.drawPoint(at(0.5, 0.8))
    elif status == "bad":
        painter.drawRoundedRect(box, side / 6, side / 6)
        painter.setPen(ink)
        painter.drawLine(at(0.3, 0.3), at(0.7, 0.7))
        painter.drawLine(at(0.3, 0.7), at(0.7, 0.3))
    else:
        painter.drawEllipse(box)
        painter.setPen(ink)
        if status == "good":
            painter.drawPolyline(QPolygonF([at(0.28, 0.52), at(0.44, 0.68), at(0.73, 0.35)]))
        else:
            painter.drawPoint(at(0.5, 0.28))
            painter.drawLine(at(0.5, 0.48), at(0.5, 0.75))
    painter.restore()


def draw_focus_ring(painter: QPainter, rect: QRectF, radius: float = RADIUS) -> None:
    """Two pixels of accent, just inside ``rect``: where the keyboard is."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(QColor(theme().accent), 2))
    painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), radius, radius)
    painter.restore()


def link_path(start: QPointF, end: QPointF) -> QPainterPath:
    """The curve that joins two places: it leaves and arrives level."""
    path = QPainterPath(start)
    bend = max(24.0, abs(end.x() - start.x()) * 0.5)
    path.cubicTo(QPointF(start.x() + bend, start.y()), QPointF(end.x() - bend, end.y()), end)
    return path
