"""Charts of two runs on one pair of axes: distributions, curves over the run, and what changed for each request.

The first run is a solid line in the accent colour, the second a dashed one in the warning colour, everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPen, QPolygonF, QResizeEvent
from PySide6.QtWidgets import QWidget

from widgets.buttons import Tabs
from widgets.painting import MARGIN, Panel, draw_swatch, draw_text, format_ms, format_number, header, nice_ticks
from widgets.text import text_width, title_font
from widgets.theme import font, theme, with_alpha
from widgets.view import Selection

AXIS = 54
"""Width of the labels of the y axis."""

FOOT = 18
LEGEND = 18
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
CENTRE = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter


def run_colour(second: bool) -> QColor:
    return QColor(theme().warning if second else theme().accent)


def run_pen(second: bool) -> QPen:
    pen = QPen(run_colour(second), 1.6)
    if second:
        pen.setDashPattern([4, 2])
    return pen


class ComparedChart(Panel):
    """A chart with tabs in its header and the two runs' names above the plot."""

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self.tabs = Tabs(self)
        self.tabs.chosen.connect(lambda _: self.update())
        self.names = ("A", "B")
        self._heading = ""

    def set_names(self, first: str, second: str) -> None:
        self.names = first, second
        self.update()

    def set_tabs(self, heading: str, options: Sequence[tuple[str, str]]) -> None:
        self._heading = heading
        known = [value for value, _ in options]
        self.tabs.set_options(options, self.tabs.current if self.tabs.current in known else known[0])
        self._place()

    def _place(self) -> None:
        self.tabs.move(self.width() - MARGIN + 6 - self.tabs.width(), 6)
        # Where there is no room for both, the tabs say what the chart shows.
        room = self.tabs.x() - 2 * MARGIN
        self.set_title(self._heading if text_width(self._heading.upper(), title_font()) <= room else "")
        self.setAccessibleName(self._heading)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._place()
        super().resizeEvent(event)

    def paint_names(self, painter: QPainter, rect: QRectF) -> None:
        """The legend, in the first line of ``rect``."""
        x = rect.left() + min(AXIS, rect.width() / 6)
        room = (rect.right() - x) / 2
        for second, name in enumerate(self.names):
            draw_swatch(painter, QRectF(x, rect.top() + 4, 14, 8), "dash" if second else "line",
                        run_colour(bool(second)))
            used = draw_text(painter, QRectF(x + 20, rect.top(), room - 30, 16), name, colour=theme().secondary,
                             text_font=font(11))
            x += 20 + used + 16

    def plot_rect(self, rect: QRectF) -> QRectF:
        return rect.adjusted(AXIS, LEGEND, -4, -FOOT)

    def paint_y(self, painter: QPainter, plot: QRectF, ticks: Sequence[tuple[float, str]]) -> None:
        """Lines and labels at shares 0 to 1 of the plot's height."""
        t = theme()
        for share, label in ticks:
            y = plot.bottom() - share * plot.height()
            painter.fillRect(QRectF(plot.left(), round(y), plot.width(), 1), with_alpha(t.line, 0.8))
            draw_text(painter, QRectF(plot.left() - AXIS, y - 8, AXIS - 6, 16), label, colour=t.secondary,
                      text_font=font(11), align=RIGHT)

    def paint_x(self, painter: QPainter, plot: QRectF, ticks: Sequence[tuple[float, str]]) -> None:
        t = theme()
        free = plot.left() - AXIS
        for share, label in ticks:
            width = text_width(label, font(11)) + 10
            x = min(max(plot.left() + share * plot.width() - width / 2, plot.left() - 12), plot.right() - width + 8)
            if x >= free:
                draw_text(painter, QRectF(x, plot.bottom() + 3, width, 16), label, colour=t.secondary,
                          text_font=font(11), align=CENTRE)
                free = x + width

    def paint_nothing(self, painter: QPainter, rect: QRectF, text: str) -> None:
        draw_text(painter, rect, text, colour=theme().secondary, text_font=font(12), align=CENTRE)


class DistributionChart(ComparedChart):
    """TTFT or ITL of both runs: the share of measurements (up) that took at most so long (across, logarithmic)."""

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._values: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.retranslate()

    def retranslate(self) -> None:
        self.set_tabs(self.tr("Distribution"), [("itl", "ITL"), ("ttft", "TTFT")])

    def set_values(self, ttft_ms: tuple[np.ndarray, np.ndarray], itl_ms: tuple[np.ndarray, np.ndarray]) -> None:
        """Milliseconds of the first and the second run, in any order."""
        self._values = {"ttft": (np.sort(ttft_ms[0]), np.sort(ttft_ms[1])),
                        "itl": (np.sort(itl_ms[0]), np.sort(itl_ms[1]))}
        self.update()

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        both = self._values.get(self.tabs.current, (np.empty(0), np.empty(0)))
        known = [values for values in both if len(values)]
        self.paint_names(painter, rect)
        plot = self.plot_rect(rect)
        if not known:
            self.paint_nothing(painter, plot, self.tr("nothing measured yet"))
            return
        low = math.log10(max(1e-3, min(float(v[0]) for v in known))) - 0.02
        high = math.log10(max(1e-3, max(float(v[-1]) for v in known))) + 0.02
        high = max(high, low + 0.3)
        self.paint_y(painter, plot, [(0.0, "0%"), (0.5, "50%"), (1.0, "100%")])
        ticks = [e + math.log10(m) for e in range(math.floor(low), math.ceil(high) + 1)
                 for m in ((1, 3) if high - low > 0.8 else (1, 2, 3, 5))]
        self.paint_x(painter, plot, [((v - low) / (high - low), _ms(10 ** v)) for v in ticks if low <= v <= high])
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        shares = np.linspace(0, 1, max(2, int(plot.width() / 2)))
        for second, values in enumerate(both):
            if not len(values):
                continue
            at = np.minimum((shares * len(values)).astype(int), len(values) - 1)
            across = plot.left() + (np.log10(np.maximum(values[at], 1e-3)) - low) / (high - low) * plot.width()
            up = plot.bottom() - shares * plot.height()
            painter.setPen(run_pen(bool(second)))
            painter.drawPolyline(QPolygonF([QPointF(x, y) for x, y in zip(across.tolist(), up.tolist(), strict=True)]))
            painter.setPen(QPen(QColor(theme().panel), 1))
            painter.setBrush(run_colour(bool(second)))
            for share in (0.5, 0.99):
                index = max(0, -(-len(values) * int(100 * share) // 100) - 1)
                x = plot.left() + (math.log10(max(1e-3, float(values[index]))) - low) / (high - low) * plot.width()
                painter.drawEllipse(QPointF(x, plot.bottom() - share * plot.height()), 4, 4)
            painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _ms(value: float) -> str:
    return f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"


@dataclass(frozen=True, slots=True)
class Curves:
    """One figure of both runs over the alignment's positions, as shares of 100 or as counts; NaN once a run is over."""

    first: np.ndarray
    second: np.ndarray
    percent: bool


class CurvesChart(ComparedChart):
    """Budget use, KV use and the queue of both runs, over the steps as they are aligned. A click goes there."""

    position_requested = Signal(int)

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._curves: dict[str, Curves] = {}
        self._count = 0
        self._position = 0
        self.retranslate()

    def retranslate(self) -> None:
        self.set_tabs(self.tr("Over the run"), [("budget", self.tr("Budget use")), ("kv", self.tr("KV use")),
                                                ("waiting", self.tr("Waiting"))])

    def set_curves(self, curves: dict[str, Curves]) -> None:
        """Under the names "budget", "kv" and "waiting"; all of one length."""
        self._curves = curves
        self._count = max((len(c.first) for c in curves.values()), default=0)
        self.update()

    def set_position(self, position: int) -> None:
        if position != self._position:
            self._position = position
            self.update()

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        curves = self._curves.get(self.tabs.current)
        self.paint_names(painter, rect)
        plot = self.plot_rect(rect)
        if curves is None or not self._count:
            self.paint_nothing(painter, plot, self.tr("nothing measured yet"))
            return
        top = 100.0 if curves.percent else max(1.0, float(np.nanmax(curves.first)), float(np.nanmax(curves.second)))
        ticks = nice_ticks(top, max(2, int(plot.height() // 36)))
        unit = "%" if curves.percent else ""
        self.paint_y(painter, plot, [(v / top, f"{format_number(v, 0)}{unit}") for v in ticks])
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        bins = min(self._count, max(2, int(plot.width() / 2)))
        starts = np.arange(bins) * self._count // bins
        counts = np.diff(np.append(starts, self._count))
        across = plot.left() + (np.arange(bins) + 0.5) / bins * plot.width()
        for second, values in enumerate((curves.first, curves.second)):
            mean = np.add.reduceat(values.astype(float), starts) / counts
            up = plot.bottom() - mean / top * plot.height()
            there = ~np.isnan(up)
            painter.setPen(run_pen(bool(second)))
            painter.drawPolyline(QPolygonF([QPointF(x, y) for x, y in zip(across[there].tolist(), up[there].tolist(),
                                                                          strict=True)]))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        x = plot.left() + (self._position + 0.5) / self._count * plot.width()
        painter.fillRect(QRectF(round(x), plot.top(), 1, plot.height()), QColor(theme().text))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._ask(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._ask(event)

    def _ask(self, event: QMouseEvent) -> None:
        plot = self.plot_rect(self.content_rect())
        if self._count and plot.width() > 0 and event.position().y() > header():
            share = min(max((event.position().x() - plot.left()) / plot.width(), 0.0), 1.0)
            self.position_requested.emit(min(self._count - 1, int(share * self._count)))


@dataclass(frozen=True, slots=True)
class RequestChange:
    """How much longer a request took in the second run, in milliseconds; NaN where it was not measured in both."""

    request_id: str
    ttft_ms: float
    itl_ms: float
    e2e_ms: float


class DeltaChart(ComparedChart):
    """One bar a request, in the order of arrival: up (red) took longer, down (green) was quicker.

    A click chooses the request.
    """

    request_chosen = Signal(str)

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._changes: Sequence[RequestChange] = ()
        self._hovered = -1
        self.chosen = ""
        self.setMouseTracking(True)
        self.retranslate()

    def retranslate(self) -> None:
        self.set_tabs(self.tr("Per request"), [("ttft_ms", "TTFT"), ("itl_ms", "ITL"), ("e2e_ms", "E2E")])

    def set_changes(self, changes: Sequence[RequestChange]) -> None:
        self._changes = changes
        self._hovered = -1
        self.update()

    def set_chosen(self, request_id: str) -> None:
        self.chosen = request_id
        self.update()

    def describe(self, index: int) -> str:
        """What stands above the bars: the request under the pointer, or how many are better and worse."""
        if 0 <= index < len(self._changes):
            change = self._changes[index]
            value = float(getattr(change, self.tabs.current))
            text = "–" if math.isnan(value) else f"{'+' if value >= 0 else '−'}{format_ms(abs(value))}"
            return f"{change.request_id}: {text}"
        values = self._values()
        return self.tr("{better} quicker, {worse} slower").format(
            better=int((values < 0).sum()), worse=int((values > 0).sum()))

    def _values(self) -> np.ndarray:
        return np.array([getattr(c, self.tabs.current) for c in self._changes], float)

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        values = self._values()
        plot = self.plot_rect(rect)
        if not len(values) or np.isnan(values).all():
            self.paint_nothing(painter, rect, self.tr("no request was measured in both runs"))
            return
        head = QRectF(rect.left() + AXIS, rect.top(), rect.width() - AXIS, 16)
        draw_text(painter, head, self.describe(self._hovered),
                  colour=t.text if self._hovered >= 0 else t.secondary, text_font=font(11))
        high, low = max(0.0, float(np.nanmax(values))), min(0.0, float(np.nanmin(values)))
        span = max(high - low, 1e-3)
        zero = plot.bottom() + low / span * plot.height()
        ticks = {0.0: "0"} | {v: f"{'+' if v > 0 else '−'}{format_ms(abs(v))}" for v in (high, low) if v}
        shown = [v for v in ticks if v == 0 or abs(v) / span * plot.height() > 16]
        self.paint_y(painter, plot, [((v - low) / span, ticks[v]) for v in shown])
        width = plot.width() / len(values)
        bad, good = QColor(t.bad), QColor(t.good)
        gap = 1.0 if width >= 4 else 0.0
        for index in np.flatnonzero(~np.isnan(values)).tolist():
            value = float(values[index])
            height = abs(value) / span * plot.height()
            top = zero - height if value > 0 else zero
            bar = QRectF(plot.left() + index * width, top, max(1.0, width - gap), max(1.0, height))
            chosen = self._changes[index].request_id == self.chosen
            painter.fillRect(bar, QColor(t.text) if chosen or index == self._hovered else bad if value > 0 else good)
        painter.fillRect(QRectF(plot.left(), round(zero), plot.width(), 1), QColor(t.secondary))
        self.paint_x(painter, plot, [(0.0, self._changes[0].request_id), (1.0, self._changes[-1].request_id)])

    def _index_at(self, event: QMouseEvent) -> int:
        plot = self.plot_rect(self.content_rect())
        if not self._changes or event.position().y() < header() or plot.width() <= 0:
            return -1
        index = int((event.position().x() - plot.left()) / plot.width() * len(self._changes))
        return index if plot.left() <= event.position().x() and index < len(self._changes) else -1

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        index = self._index_at(event)
        if index != self._hovered:
            self._hovered = index
            self.update()

    def leaveEvent(self, event: object) -> None:
        self._hovered = -1
        self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self._index_at(event)
        if index >= 0:
            self.request_chosen.emit(self._changes[index].request_id)
