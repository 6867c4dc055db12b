"""Latency, throughput, KV use and queues as curves over the run, up to and beyond the viewing step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, QTimer
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QResizeEvent, QShowEvent, QWheelEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from engine.trace.metrics import MARK_KINDS, StepSeries
from widgets.buttons import Tabs
from widgets.chart_keys import chart_key
from widgets.chart_parts import NO_TICKS, Axis, EndLabels, downsample
from widgets.follow_chip import FollowChip
from widgets.painting import MARGIN, Panel, draw_text, elide, format_int, format_ms, format_number, header, text_width
from widgets.theme import font, mix, px, theme, themes, with_alpha
from widgets.view import Selection, View
from widgets.visible_steps import Range, step_at_time, time_of

REDRAW_INTERVAL_S = 0.2
WINDOW_STEPS = 600
"""Steps in sight unless the user zooms."""

ZOOM_PER_NOTCH = 1.25
NOTHING = (1.0, 0.0)
MAX_KNOB_LINES = 16
AXIS_WIDTH = 50
HEADROOM = 1.22
"""The y axis reaches this much higher than the data: room for the unit and for the labels of knob changes."""

UNIT_FROM = 90
"""The unit stands above the ticks of a plot of this height or more."""

LOG_FROM, LOG_UNTIL = 10.0, 6.0
"""TTFT can dwarf ITL: from this ratio on the axis turns logarithmic, below the second one it turns back."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve of a chart: its name, its values for rows ``first:end`` of a series, its colour in the theme."""

    name: str
    values: np.ndarray
    colour: str


class LatencyPanel(Panel):
    """Four charts on one time axis, one at a time. The wheel zooms, a drag pans, a click asks for the step under the
    pointer, a double click lets go."""

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._view: View | None = None
        self._drawn: tuple[object, ...] = ()
        self._drawn_at = 0.0
        self._range = NOTHING  # in sight, in the unit of the x axis
        self._placed: tuple[int, int] | None = None  # the series and the step that the range was chosen for
        self._pressed: tuple[float, Range, float] | None = None  # x in pixels, steps in sight, pixels a unit
        self._dragging = False
        self._log = False
        self.redraws = 0
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.timeout.connect(self._redraw)

        self._axis, self._x_axis = Axis("left"), Axis("bottom")
        self.plot = pg.PlotWidget(axisItems={"left": self._axis, "bottom": self._x_axis})
        self._box = self.plot.getViewBox()
        self._box.setMouseEnabled(x=False, y=False)
        self._box.setMenuEnabled(False)
        self._box.setDefaultPadding(0.0)
        self.plot.hideButtons()
        self.plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the panel has it
        self.plot.setFrameShape(self.plot.Shape.NoFrame)
        self.plot.setMinimumSize(60, 40)
        self.plot.viewport().installEventFilter(self)
        self._curves = [pg.PlotCurveItem(connect="finite", antialias=True) for _ in range(3)]
        self._future = [pg.PlotCurveItem(connect="finite", antialias=True) for _ in range(3)]  # paler
        self._cursor = pg.InfiniteLine(angle=90)
        self._cursor.setZValue(11)
        self._knob_lines = [pg.InfiniteLine(angle=90) for _ in range(MAX_KNOB_LINES)]
        self._knob_labels = [pg.TextItem(anchor=(0, 0)) for _ in range(MAX_KNOB_LINES)]
        for item in (*self._curves, *self._future, self._cursor, *self._knob_lines, *self._knob_labels):
            self._box.addItem(item, ignoreBounds=True)
        for label in self._knob_labels:
            label.setZValue(12)
        self._labels = EndLabels()
        self._unit = QLabel(self.plot)  # above the ticks
        self._unit.setProperty("role", "secondary")
        self._unit.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._unit.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)

        self._row = row = QHBoxLayout(self)
        row.setSpacing(0)
        row.addWidget(self.plot, 1)
        row.addWidget(self._labels)
        self.rescale()
        self._show_plot(False)
        self.tabs, self.x_tabs = Tabs(self), Tabs(self)
        self.tabs.chosen.connect(lambda _: self._redraw(force=True))
        self.x_tabs.chosen.connect(lambda _: self._change_unit())
        self.chip = FollowChip(self)
        selection.visible.changed.connect(self._redraw_soon)
        themes.changed.connect(self._restyle)
        self.retranslate()
        self._restyle()

    def rescale(self) -> None:
        self._row.setContentsMargins(MARGIN, header(), MARGIN, MARGIN - 4)
        self._axis.setWidth(px(AXIS_WIDTH))
        self._x_axis.setHeight(px(20))
        self._unit.setStyleSheet(f"font-size: {px(11)}px")
        self._unit.setGeometry(0, 0, px(AXIS_WIDTH) - 2, px(14))

    def retranslate(self) -> None:
        self.set_title(self.tr("Latency"))
        self.tabs.set_options([("latency", self.tr("latency")), ("throughput", self.tr("tok/s")), ("kv", "KV"),
                               ("queue", self.tr("queue"))], self.tabs.current or "latency")
        self.tabs.setToolTip(self.tr(
            "TTFT and ITL (rolling, in ms), throughput (output tokens a second), KV use (share of the pool's blocks "
            "that requests hold), and how many requests run and wait."))
        self.x_tabs.set_options([("step", self.tr("step")), ("time", "s")], self.x_tabs.current or "step")
        self.x_tabs.setToolTip(self.tr("The x axis: engine steps, or seconds on the run's clock (pauses left out)."))
        self.tabs.setAccessibleName(self.tr("Chart"))
        self.x_tabs.setAccessibleName(self.tr("x axis"))
        self._place_tabs()
        self._redraw(force=True)

    # ---- when to draw ---------------------------------------------------------------------------------------------

    def show_view(self, view: View) -> None:
        if self._view is None or view.series is not self._view.series:
            self._range = NOTHING  # another run
        self._view = view
        if self.isVisible() and not self._soon.isActive():
            wait = self._drawn_at + REDRAW_INTERVAL_S - time.perf_counter()
            if wait <= 0:
                self._redraw()
            else:
                self._soon.start(int(wait * 1000) + 1)

    def show_now(self) -> None:
        if self._soon.isActive():
            self._soon.stop()
            self._redraw()

    def fail(self, failure: Exception) -> None:
        self._show_plot(False)
        super().fail(failure)

    def recover(self) -> None:
        super().recover()
        self._drawn = ()

    def _show_plot(self, shown: bool) -> None:
        """Without a plot there is a line that says why."""
        self.plot.setVisible(shown)
        self._labels.setVisible(shown)

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        if self.plot.isHidden():
            draw_text(painter, rect, self.tr("No step yet"), colour=theme().secondary,
                      align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._redraw()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_tabs()
        if self.isVisible():
            self._soon.start(0)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.ApplicationPaletteChange:
            self._restyle()

    def _redraw_soon(self) -> None:
        self._soon.start(0)

    def _change_unit(self) -> None:
        self._range = NOTHING  # it was in the other unit
        self._redraw(force=True)

    def place_corner(self) -> None:
        super().place_corner()
        if hasattr(self, "chip"):  # not before there are tabs to make room
            self._place_tabs()

    def _place_tabs(self) -> None:
        right = self.width() - MARGIN + 6 - self.corner_width
        title = text_width(self.title.upper(), font(11, bold=True)) + 3 * MARGIN
        self.x_tabs.setVisible(right + MARGIN >= title + self.tabs.width() + self.x_tabs.width() + MARGIN)
        self.tabs.setVisible(right + MARGIN >= title + self.tabs.width())
        for tabs in (self.x_tabs, self.tabs):
            if tabs.isHidden():
                continue
            tabs.resize(tabs.sizeHint())
            tabs.move(round(right - tabs.width()), (header() - tabs.height()) // 2)
            right -= tabs.width() + 12
        self._header_room = right - MARGIN

    # ---- what to draw ---------------------------------------------------------------------------------------------

    def _curves_of(self, series: StepSeries, rows: slice) -> list[Curve]:
        t = theme()
        if self.tabs.current == "throughput":
            return [Curve(self.tr("output"), series.tokens_per_s[rows], t.accent)]
        if self.tabs.current == "kv":
            share = 100.0 * series.used_blocks[rows] / np.maximum(1, series.usable_blocks[rows])
            return [Curve(self.tr("KV use"), share, t.accent)]
        if self.tabs.current == "queue":
            return [Curve(self.tr("running"), series.running[rows].astype(float), t.good),
                    Curve(self.tr("waiting"), series.waiting[rows].astype(float), t.warning)]
        return [Curve("TTFT p50", series.ttft_p50_ms[rows], t.good),
                Curve("ITL p99", series.itl_p99_ms[rows], t.warning),
                Curve("ITL p50", series.itl_p50_ms[rows], t.accent)]

    def _value_text(self, value: float) -> str:
        tab = self.tabs.current
        if np.isnan(value):
            return "–"
        if tab == "latency":
            return format_ms(value)
        if tab == "throughput":
            return self.tr("{rate} tok/s").format(rate=format_number(value, 0))
        return f"{value:.1f}%" if tab == "kv" else format_int(value)

    def _x_of(self, series: StepSeries, rows: slice) -> np.ndarray:
        if self.x_tabs.current == "time":
            return series.end_ns[rows] / 1e9
        return series.step[rows].astype(float)

    def _row_from(self, series: StepSeries, x: float) -> int:
        """The first row at or after ``x``, found in the series' own integers: a long run is not converted for it."""
        if self.x_tabs.current == "time":
            return int(np.searchsorted(series.end_ns, np.int64(x * 1e9)))
        return int(np.searchsorted(series.step, np.int32(np.clip(np.ceil(x), -1, 2**31 - 1))))

    def _visible_range(self, x_first: float, x_last: float, x_now: float, series: StepSeries) -> tuple[float, float]:
        """The part of the x axis in sight, in its own unit."""
        assert self._view is not None
        shared = self.selection.visible.range_at(self._view.state.step, int(series.step[0]))
        if shared is not None:
            self._placed = None
            low, high = (time_of(series, s) / 1e9 if self.x_tabs.current == "time" else s for s in shared)
            return low, max(high, low + 1e-3)
        low, high = self._range
        if not self._view.following and self._placed == (id(series), self._view.state.step) and high > low:
            return low, high  # new steps never move what stands still
        self._placed = id(series), self._view.state.step
        rows = series.n
        if rows <= WINDOW_STEPS:
            return x_first, max(x_last, x_first + 1e-3)
        if self._view.following:
            row = series.index_of(self._view.state.step)
            first = max(0, row - WINDOW_STEPS)
            return float(self._x_of(series, slice(first, first + 1))[0]), x_now
        if low <= x_now <= high and low >= x_first:
            return low, high  # the cursor moves inside a window that stands still
        span = (x_last - x_first) * WINDOW_STEPS / rows
        low = min(max(x_first, x_now - 0.75 * span), x_last - span)
        return low, low + span

    def _redraw(self, force: bool = False) -> None:
        view = self._view
        if view is None or self.failure or not self.isVisible():
            return
        series, step = view.series, view.state.step
        if self._key(series, step) == self._drawn and not force:
            return
        self._drawn_at = time.perf_counter()
        self.redraws += 1
        try:
            self._show_plot(series.n > 0)
            if series.n:
                self._draw(view, series, step)
            else:
                self.set_value("")
        except Exception as failure:  # it may be a timer's call, which nobody would hear of
            self.fail(failure)
        self._drawn = self._key(series, step)

    def _key(self, series: StepSeries, step: int) -> tuple[object, ...]:
        """What the picture depends on."""
        return (id(series), series.n, step, self.tabs.current, self.x_tabs.current, self._range,
                self.selection.visible.range_at(step, 0), self.plot.width(), self.plot.height(), theme().name)

    def _draw(self, view: View, series: StepSeries, step: int) -> None:
        now_row = max(0, series.index_of(step))
        x_first, x_now, x_last = (float(self._x_of(series, slice(row, row + 1))[0])
                                  for row in (0, now_row, series.n - 1))
        low, high = self._visible_range(x_first, x_last, x_now, series)
        self._range = (low, high)
        first = max(0, self._row_from(series, low) - 1)
        end = min(series.n, self._row_from(series, high) + 2)
        rows = slice(first, max(end, first + 1))
        x = self._x_of(series, rows)
        curves = self._curves_of(series, rows)

        top, bottom = self._scale_y(curves)
        buckets = max(50, self.plot.width() - px(AXIS_WIDTH))
        split = len(x) if view.following else max(1, int(np.searchsorted(x, x_now, "right")))
        for index, (item, future) in enumerate(zip(self._curves, self._future, strict=True)):
            item.setVisible(index < len(curves))
            future.setVisible(index < len(curves) and split < len(x))
            if index >= len(curves):
                continue
            y, colour = self._to_axis(curves[index].values), curves[index].colour
            item.setData(*downsample(x[:split], y[:split], buckets))
            item.setPen(pg.mkPen(colour, width=1))
            if split < len(x):
                future.setData(*downsample(x[split - 1:], y[split - 1:], buckets))
                future.setPen(pg.mkPen(mix(colour, theme().panel, 0.65), width=1))
        self._unit.setText({"latency": self.tr("log") if self._log else "ms", "throughput": self.tr("tok/s"),
                            "kv": "%", "queue": self.tr("requests")}[self.tabs.current])
        self._unit.setVisible(self.plot.height() >= px(UNIT_FROM))  # lower down it would stand on the topmost tick
        self._axis.log = self._log
        measured = any(np.isfinite(curve.values).any() for curve in curves)
        self._axis.limit = bottom + (top - bottom) / HEADROOM if measured else NO_TICKS
        self._box.setRange(xRange=(low, high), yRange=(bottom, top), padding=0)
        self._axis.picture = self._x_axis.picture = None

        self._cursor.setVisible(not view.following)
        self._cursor.setPos(x_now)
        self._draw_knobs(series, low, high, top)
        self._draw_labels(series, now_row)

    def _to_axis(self, values: np.ndarray) -> np.ndarray:
        if not self._log:
            return values
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(values > 0, np.log10(values), np.nan)

    def _scale_y(self, curves: list[Curve]) -> tuple[float, float]:
        """Top and bottom of the y axis, in its own (perhaps logarithmic) unit; decides on the logarithm."""
        finite = [c.values[np.isfinite(c.values)] for c in curves]
        most = max((float(v.max()) for v in finite if len(v)), default=1.0)
        if self.tabs.current == "latency" and all(len(v) for v in finite):
            ratio = most / max(1e-3, float(np.median(finite[2])))
            self._log = ratio > (LOG_UNTIL if self._log else LOG_FROM)
        else:
            self._log = False
        if self._log:
            least = min(float(v[v > 0].min()) for v in finite if (v > 0).any())
            bottom, top = np.floor(np.log10(least) * 4) / 4, np.log10(most)
            return float(bottom + HEADROOM * (top - bottom)), float(bottom)
        return (100.0 if self.tabs.current == "kv" else max(most, 1e-3)) * HEADROOM, 0.0

    def _draw_knobs(self, series: StepSeries, low: float, high: float, top: float) -> None:
        marks = series.marks
        rows = np.flatnonzero(marks.kinds == MARK_KINDS.index("knob"))
        places = [(self._x_at(series, int(marks.steps[row])), int(row)) for row in rows[-200:]]
        shown = [(x, row) for x, row in places if low <= x <= high][-MAX_KNOB_LINES:]
        pixels = max(1, self.plot.width() - px(AXIS_WIDTH)) / max(1e-9, high - low)
        free_from = float("inf")  # from the right: the newest label is sure to be shown
        for index in range(MAX_KNOB_LINES - 1, -1, -1):
            line, label = self._knob_lines[index], self._knob_labels[index]
            if index >= len(shown):
                line.setVisible(False)
                label.setVisible(False)
                continue
            x, row = shown[index]
            at = (x - low) * pixels
            room = (high - low) * pixels
            text, width = marks[row].label, text_width(marks[row].label, font(11)) + 8
            to_left = at + width > room and at > room / 2  # near the right edge the label stands left of its line
            if width > (at if to_left else room - at):
                width = at if to_left else room - at
                name, _, change = text.partition(" ")  # the values matter more than the end of the name
                text = f"{elide(name, font(11), width - 12 - text_width(change, font(11)))} {change}".strip()
            start = at - width if to_left else at
            fits = width > 60 and start + width <= free_from
            if fits:
                free_from = start
            line.setPos(x)
            line.setVisible(True)
            label.setAnchor((1 if to_left else 0, 0))
            label.setText(text, color=theme().accent)
            label.setPos(x, top)
            label.setVisible(bool(fits))

    def _x_at(self, series: StepSeries, step: int) -> float:
        if self.x_tabs.current != "time":
            return float(step)
        row = max(0, series.index_of(step))
        return float(series.start_ns[row]) / 1e9

    def _draw_labels(self, series: StepSeries, row: int) -> None:
        values = self._curves_of(series, slice(row, row + 1))
        area = self._box.sceneBoundingRect()
        labels = []
        for curve in values:
            value = float(curve.values[0])
            at = float(self._to_axis(np.array([value]))[0])
            y = self._box.mapViewToScene(QPointF(0, at)).y() if np.isfinite(at) else area.bottom()
            labels.append((y, curve.name, self._value_text(value), QColor(curve.colour)))
        self._labels.x_unit = (self.x_tabs.current == "time" and "s") or self.tr("step")
        self._labels.x_unit_y = area.bottom() + px(11)
        if self._labels.set_labels(labels, 0.0, area.bottom()):
            self._soon.start(0)
        ttft, p99 = float(series.ttft_p50_ms[row]), float(series.itl_p99_ms[row])
        headline = f"TTFT p50 {format_ms(ttft)} · ITL p99 {format_ms(p99)}"
        room = self._header_room - text_width(self.title.upper(), font(11, bold=True)) - 3 * MARGIN
        self.set_value(headline if text_width(headline, font(12, bold=True)) <= room else "")

    # ---- the user -------------------------------------------------------------------------------------------------

    def steps_in_sight(self) -> Range | None:
        """The first and the last step that are shown; None while there is none."""
        if self._view is None or not self._view.series.n:
            return None
        shared = self.selection.visible.range_at(self._view.state.step, int(self._view.series.step[0]))
        return shared or (self._step_at(self._range[0]), self._step_at(self._range[1]))

    def _step_at(self, x: float) -> float:
        assert self._view is not None
        series = self._view.series
        if self.x_tabs.current == "time":
            return step_at_time(series, x * 1e9)
        return min(max(x, float(series.step[0])), float(series.step[-1]))

    def _x_under(self, pixel: float) -> float:
        """The place on the x axis below a pixel of the plot."""
        low, high = self._range
        return low + (pixel - px(AXIS_WIDTH)) / max(1, self.plot.width() - px(AXIS_WIDTH)) * (high - low)

    def eventFilter(self, watched: object, event: QEvent) -> bool:
        kind = event.type()
        if kind == QEvent.Type.Wheel and isinstance(event, QWheelEvent):
            self._wheel(event)
        elif not isinstance(event, QMouseEvent):
            return False
        elif kind == QEvent.Type.MouseButtonDblClick:
            self.selection.visible.release()
        elif event.button() == Qt.MouseButton.LeftButton and kind == QEvent.Type.MouseButtonPress:
            self.setFocus(Qt.FocusReason.MouseFocusReason)
            seen = self.steps_in_sight()
            pixels = max(1, self.plot.width() - px(AXIS_WIDTH)) / max(1e-9, self._range[1] - self._range[0])
            self._pressed = (event.position().x(), seen, pixels) if seen is not None else None
            self._dragging = False
        elif kind == QEvent.Type.MouseMove and self._pressed is not None:
            self._drag(event.position().x())
        elif kind == QEvent.Type.MouseButtonRelease and self._pressed is not None:
            self._pressed = None
            self.plot.viewport().unsetCursor()
            x = event.position().x()
            if not self._dragging and x >= px(AXIS_WIDTH) and self._view is not None and self._view.series.n:
                self.selection.step_requested.emit(round(self._step_at(self._x_under(x))))
        else:
            return False
        return True

    def _drag(self, x: float) -> None:
        assert self._pressed is not None
        start, seen, pixels = self._pressed
        if not self._dragging and abs(x - start) < 4:
            return
        if self._view is None or not self._view.series.n:  # a drag may last longer than the run that it began in
            return
        if not self._dragging:
            self._dragging = True
            self.plot.viewport().setCursor(Qt.CursorShape.ClosedHandCursor)
        series, move = self._view.series, (start - x) / pixels
        if self.x_tabs.current == "time":  # the middle goes along with the pointer, however long the steps are there
            middle = (seen[0] + seen[1]) / 2
            move = step_at_time(series, time_of(series, middle) + move * 1e9) - middle
        self.selection.visible.pan(seen, move, *self._bounds())

    def _wheel(self, event: QWheelEvent) -> None:
        delta, seen = event.angleDelta(), self.steps_in_sight()
        if seen is not None and abs(delta.x()) > abs(delta.y()):
            self.selection.visible.pan(seen, -delta.x() / 120 * 0.1 * (seen[1] - seen[0]), *self._bounds())
        elif delta.y():
            self.zoom_by(delta.y() / 120, self._x_under(event.position().x()))
        event.accept()

    def zoom_by(self, notches: float, x: float | None = None) -> None:
        """Fewer steps (positive) or more; what is at ``x`` on the axis, or else the viewing step, stays there."""
        view, seen = self._view, self.steps_in_sight()
        if view is None or seen is None:
            return
        step = float(view.state.step)
        at = self._step_at(x) if x is not None else step if seen[0] <= step <= seen[1] else sum(seen) / 2
        first, last = self._bounds()
        self.selection.visible.zoom(seen, ZOOM_PER_NOTCH ** notches, at, following=view.following, first=first,
                                    last=last)

    def pan_by(self, share: float) -> None:
        """Move by a share of what is in sight, towards the end of the run if positive."""
        seen = self.steps_in_sight()
        if seen is not None:
            self.selection.visible.pan(seen, share * (seen[1] - seen[0]), *self._bounds())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not chart_key(self, event):
            super().keyPressEvent(event)

    def _bounds(self) -> tuple[int, int]:
        assert self._view is not None
        steps = self._view.series.step
        return int(steps[0]), int(steps[-1])

    # ---- looks ----------------------------------------------------------------------------------------------------

    def _restyle(self) -> None:
        t = theme()
        self.plot.setBackground(QColor(t.panel))
        for axis in (self._axis, self._x_axis):
            axis.setPen(pg.mkPen(None))
            axis.setTextPen(QColor(t.secondary))
            axis.setTickFont(font(11))
            axis.setStyle(tickLength=0, autoExpandTextSpace=False, autoReduceTextSpace=False)
        self._axis.setGrid(False)
        self.plot.showGrid(y=True, alpha=0.12)
        self._axis.setTickPen(pg.mkPen(mix(t.line, t.text, 0.3), width=1))
        self._cursor.setPen(pg.mkPen(t.text, width=1))
        for line, label in zip(self._knob_lines, self._knob_labels, strict=True):
            line.setPen(pg.mkPen(with_alpha(t.accent, 0.8), width=1))
            label.setFont(font(11))
        self._labels.update()
        self._redraw(force=True)
