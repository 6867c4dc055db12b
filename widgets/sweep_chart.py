"""Throughput against latency, one point a setting; those that no other setting beats are filled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPen
from PySide6.QtWidgets import QWidget

from widgets.compare_charts import AXIS, CENTRE, FOOT, LEGEND, RIGHT, ComparedChart
from widgets.painting import draw_swatch, draw_text, format_ms, format_number, nice_ticks
from widgets.text import text_width
from widgets.theme import font, theme, with_alpha
from widgets.view import Selection

HIT = 12.0
"""A click that is so near to a point means it, in pixels."""


@dataclass(frozen=True, slots=True)
class SettingPoint:
    """One setting that was run: NaN where nothing was measured. ``best`` marks the Pareto front."""

    label: str
    tokens_per_s: float
    itl_p99_ms: float
    ttft_p99_ms: float
    best: bool


class SweepChart(ComparedChart):
    """Up is more throughput, right is more latency: the best settings are at the upper left.

    ``chosen`` carries the index of a point that was clicked, ``opened`` of one that was double-clicked.
    """

    chosen = Signal(int)
    opened = Signal(int)

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._points: Sequence[SettingPoint] = ()
        self._chosen = self._hovered = -1
        self.setMouseTracking(True)
        self.setMinimumHeight(180)
        self.retranslate()

    def retranslate(self) -> None:
        self.set_tabs(self.tr("Throughput and latency"), [("itl_p99_ms", "ITL p99"), ("ttft_p99_ms", "TTFT p99")])

    def plot_rect(self, rect: QRectF) -> QRectF:
        return super().plot_rect(rect).adjusted(0, 8, 0, 0)

    def set_points(self, points: Sequence[SettingPoint]) -> None:
        self._points = points
        self._hovered = -1
        self.update()

    def set_chosen(self, index: int) -> None:
        if index != self._chosen:
            self._chosen = index
            self.update()

    def places(self, plot: QRectF) -> list[QPointF | None]:
        """Where each point is drawn; None for one that has not been measured."""
        shown = [(getattr(p, self.tabs.current), p.tokens_per_s) for p in self._points]
        known = [xy for xy in shown if not any(map(math.isnan, xy))]
        if not known:
            return [None] * len(shown)
        low_x, high_x = _range([x for x, _ in known])
        low_y, high_y = _range([y for _, y in known])
        return [None if any(map(math.isnan, (x, y))) else
                QPointF(plot.left() + (x - low_x) / (high_x - low_x) * plot.width(),
                        plot.bottom() - (y - low_y) / (high_y - low_y) * plot.height()) for x, y in shown]

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        plot = self.plot_rect(rect)
        places = self.places(plot)
        known = [index for index, place in enumerate(places) if place is not None]
        if not known:
            self.paint_nothing(painter, rect, self.tr("no point has been run yet"))
            return
        self._paint_axes(painter, plot, known)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for index in sorted(known, key=lambda i: (self._points[i].best, i in (self._chosen, self._hovered))):
            place, point = places[index], self._points[index]
            assert place is not None
            colour = QColor(t.accent if point.best else t.secondary)
            painter.setPen(QPen(colour, 1.6))
            painter.setBrush(colour if point.best else QColor(t.panel))
            painter.drawEllipse(place, 5.5, 5.5)
            if index in (self._chosen, self._hovered):
                painter.setPen(QPen(QColor(t.text), 1.5))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawEllipse(place, 9, 9)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        self._paint_labels(painter, plot, places)

    def _paint_axes(self, painter: QPainter, plot: QRectF, known: Sequence[int]) -> None:
        t = theme()
        low_x, high_x = _range([getattr(self._points[i], self.tabs.current) for i in known])
        low_y, high_y = _range([self._points[i].tokens_per_s for i in known])
        self.paint_y(painter, plot, [((v - low_y) / (high_y - low_y), format_number(v, 1))
                                     for v in _ticks(low_y, high_y, max(2, int(plot.height() // 48)))])
        self.paint_x(painter, plot, [((v - low_x) / (high_x - low_x), format_ms(v))
                                     for v in _ticks(low_x, high_x, max(2, int(plot.width() // 110)))])
        top = QRectF(plot.left() - AXIS, plot.top() - LEGEND - 8, plot.width() + AXIS, 16)
        draw_text(painter, QRectF(top.left(), top.top(), AXIS - 6, 16), "tok/s", colour=t.secondary,
                  text_font=font(11), align=RIGHT)
        x = plot.left()
        for kind, colour, text in (("fill", t.accent, self.tr("no other is better in all (Pareto front)")),
                                   ("outline", t.secondary, self.tr("another one is better"))):
            draw_swatch(painter, QRectF(x, top.top() + 3, 10, 10), kind, colour)  # type: ignore[arg-type]
            x += 16 + draw_text(painter, QRectF(x + 16, top.top(), plot.right() - x - 16, 16), text,
                                colour=t.secondary, text_font=font(11)) + 16

    def _paint_labels(self, painter: QPainter, plot: QRectF, places: Sequence[QPointF | None]) -> None:
        """Names of the chosen and the best points, where they cover neither a point nor one another."""
        t = theme()
        taken = [QRectF(p.x() - 7, p.y() - 7, 14, 14) for p in places if p is not None]
        first = [i for i in (self._hovered, self._chosen) if 0 <= i < len(places)]
        for index in dict.fromkeys([*first, *(i for i, p in enumerate(self._points) if p.best)]):
            place = places[index]
            if place is None:
                continue
            label = self._points[index].label
            width = text_width(label, font(11)) + 4
            boxes = [QRectF(x, place.y() + dy, width, 14) for dy in (-7, -23, 9)
                     for x in ((place.x() + 12, place.x() - 12 - width) if dy == -7 else (place.x() - width / 2,))]
            for box in boxes:
                area = plot.adjusted(-AXIS, -LEGEND + 16, 4, FOOT)
                if area.contains(box) and not any(box.intersects(other) for other in taken):
                    taken.append(box)
                    painter.fillRect(box, with_alpha(t.panel, 0.8))
                    draw_text(painter, box, label, colour=t.text if index in first else t.secondary,
                              text_font=font(11), align=CENTRE)
                    break

    def _nearest(self, event: QMouseEvent) -> int:
        at = event.position()
        best, found = HIT, -1
        for index, place in enumerate(self.places(self.plot_rect(self.content_rect()))):
            if place is not None and (distance := math.hypot(place.x() - at.x(), place.y() - at.y())) < best:
                best, found = distance, index
        return found

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self._nearest(event)
        if index != self._hovered:
            self._hovered = index
            self.setCursor(Qt.CursorShape.PointingHandCursor if index >= 0 else Qt.CursorShape.ArrowCursor)
            self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self._nearest(event)
        if index >= 0:
            self.chosen.emit(index)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        index = self._nearest(event)
        if index >= 0:
            self.opened.emit(index)


def _ticks(low: float, high: float, at_most: int) -> list[float]:
    """Round values from ``low`` to ``high``."""
    step = nice_ticks(high - low, at_most)[1]
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From a little below to a little above, and never nothing."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.12, abs(high) * 0.02, 1e-6)
    return max(0.0, low - room), high + room
