"""The life of every request as a bar in time: waiting, prefill chunk by chunk, decode, preempted, resumed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPen, QWheelEvent
from PySide6.QtWidgets import QToolTip, QWidget

from engine.trace.timeline import Span, Timeline, TimelineRow
from widgets.chart_keys import chart_key
from widgets.follow_chip import FollowChip
from widgets.painting import MARGIN, LegendItem, draw_text, format_int, format_ms, nice_ticks, text_width
from widgets.rows import RowsPanel
from widgets.theme import font, mix, px, theme, themes
from widgets.view import Selection, View
from widgets.visible_steps import Range, step_at_time, time_of

SPANS_S = (2, 4, 8, 15, 30, 60, 120, 300)
"""Seconds in sight while the view follows: the least of these that shows everyone alive from the beginning."""

MIN_SPAN_NS, MAX_SPAN_NS = 20_000_000, 3_600_000_000_000
ZOOM_PER_NOTCH = 1 / 0.85
AXIS = 18  # pixels of the time axis below the rows
NOT_FINISHED = np.iinfo(np.int64).max


class LifeIndex:
    """When every row of a timeline began and ended, as arrays, so that the rows of a stretch of time are found by
    comparison instead of by a walk over thousands of them."""

    def __init__(self) -> None:
        self._timeline: Timeline | None = None
        self._forgotten = 0
        self._count = 0
        self._arrival = np.empty(256, np.int64)
        self._finished = np.empty(256, np.int64)
        self._open: list[int] = []

    def update(self, timeline: Timeline) -> None:
        """Take in what has been appended since the last time."""
        if timeline is not self._timeline or timeline.forgotten != self._forgotten:
            self._timeline, self._forgotten = timeline, timeline.forgotten
            self._count, self._open = 0, []
        rows = timeline.rows
        if len(rows) > len(self._arrival):
            for name in ("_arrival", "_finished"):
                grown = np.empty(2 * len(rows), np.int64)
                grown[:self._count] = getattr(self, name)[:self._count]
                setattr(self, name, grown)
        for index in range(self._count, len(rows)):
            self._arrival[index] = rows[index].arrival_ns
            self._open.append(index)
        self._count = len(rows)
        still_open: list[int] = []
        for index in self._open:
            finished = rows[index].finished_ns
            self._finished[index] = finished if finished >= 0 else NOT_FINISHED
            if finished < 0:
                still_open.append(index)
        self._open = still_open

    def between(self, start_ns: float, end_ns: float) -> np.ndarray:
        """Indices of the rows that live at some time between the two, in order of arrival."""
        n = self._count
        return np.flatnonzero((self._arrival[:n] <= end_ns) & (self._finished[:n] >= start_ns))

    def living_at(self, time_ns: int) -> np.ndarray:
        n = self._count
        return np.flatnonzero((self._arrival[:n] <= time_ns) & (self._finished[:n] > time_ns))


@lru_cache(maxsize=256)
def _span_colours(_theme: str, kind: str, colour: int, faded: float) -> tuple[QColor, QColor | None]:
    """Fill and lower edge of a span. ``faded`` (0 to 1) is for what lies beyond the viewing step.

    All are opaque: Qt hands large translucent fills to threads. The first argument makes them one theme's own.
    """
    t = theme()
    if kind == "prefill":
        edge = None if t.is_dark else mix(t.request_edge(colour), t.panel, faded)
        return mix(t.request(colour), t.panel, faded), edge
    if kind == "decode":
        return mix(t.request(colour), t.panel, 0.5 + 0.35 * faded), None
    if kind == "waiting":
        return mix(mix(t.line, t.secondary, 0.3), t.panel, 0.7 * faded), None
    return mix(t.bad, t.panel, faded), None


class RequestTimeline(RowsPanel):
    """A Gantt chart of requests.

    The wheel zooms in time around the pointer; over the names, or with Shift, it scrolls the rows. A drag pans; a
    double click lets go. A click on a row selects its request, a click on the time axis asks for the step at that
    time.
    """

    ROW_HEIGHT = 15

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._view: View | None = None
        self._shown: tuple[object, ...] = ()
        self._lives = LifeIndex()
        self._rows: list[TimelineRow] = []
        self._start, self._end = 0.0, SPANS_S[0] * 1e9  # the stretch of time in sight
        self._span = SPANS_S[0] * 1e9
        self._placed: tuple[int, int] | None = None  # the timeline and the step that the stretch was chosen for
        self._auto_scroll = True
        self._drag: tuple[QPointF, float, float, float] | None = None
        self._dragged = False
        self._names = 32.0
        self._held_rows: tuple[object, ...] = ()  # what of the past the rows were chosen for
        self.chip = FollowChip(self)
        selection.visible.changed.connect(self._visible_changed)
        selection.changed.connect(self.update)
        themes.changed.connect(self.retranslate)  # the legend's colours
        self.retranslate()

    def retranslate(self) -> None:
        self.set_title(self.tr("Request timeline"))
        t = theme()
        self.set_legend((LegendItem(self.tr("waiting"), "line", t.secondary),
                         LegendItem(self.tr("prefill"), "fill", t.request_colours[0]),
                         LegendItem(self.tr("decode"), "faint", t.request_colours[0]),
                         LegendItem(self.tr("preempted"), "dash", t.bad)))
        self._show_counts()

    def _show_counts(self) -> None:
        if self._view is not None:
            state = self._view.state
            self.set_value(self.tr("{running} running · {waiting} waiting").format(
                running=len(state.running), waiting=len(state.waiting)),
                self.tr("{running} running").format(running=len(state.running)))

    # ---- showing --------------------------------------------------------------------------------------------------

    def show_view(self, view: View) -> None:
        shown = (id(view.timeline), view.series.n, view.state.step, view.following)
        if shown == self._shown:
            return
        self._view, self._shown = view, shown
        self._show_counts()
        self._lives.update(view.timeline)
        self._follow_view()
        self._choose_rows()
        self.update()

    def _visible_changed(self) -> None:
        if not self.selection.visible.held:
            self._auto_scroll = True
        if self._view is not None:
            self._follow_view()
            self._choose_rows()
            self.update()

    def _follow_view(self) -> None:
        """Choose the stretch in sight: what all charts show, or else one with the viewing step in it."""
        view = self._view
        if view is None or not view.series.n:
            return
        now, last = float(view.state.time_ns), float(view.timeline.end_ns)
        shared = self.selection.visible.range_at(view.state.step, int(view.series.step[0]))
        if shared is not None:
            self._start, self._end = time_of(view.series, shared[0] - 1), time_of(view.series, shared[1])
            self._end = max(self._end, self._start + MIN_SPAN_NS)
            self._placed = None
            return
        placed = id(view.timeline), view.state.step
        if not view.following and placed == self._placed:
            return  # new steps never move what stands still
        self._placed = placed
        self._fit_span(view)
        span = min(self._span, max(last * 1.02, 2e9))
        if view.following or last <= span:
            self._end = max(span, now + 0.02 * span)
            self._start = self._end - span
        elif not self._start <= now <= self._end or abs(self._end - self._start - span) > 1:
            self._start = max(0.0, now - 0.75 * span)
            self._end = self._start + span

    def _fit_span(self, view: View) -> None:
        living = self._lives.living_at(view.state.time_ns)
        if not len(living):
            return
        needed = 1.1 * (view.state.time_ns - view.timeline.rows[living[0]].arrival_ns)
        if not 0.3 * self._span <= needed <= self._span:
            self._span = 1e9 * next((s for s in SPANS_S if s * 1e9 >= needed), SPANS_S[-1])

    def _choose_rows(self) -> None:
        view = self._view
        if view is None:
            return
        if self.selection.visible.held and not self._look_at_what_is_held(view):
            return
        all_rows = view.timeline.rows
        indices = self._lives.between(self._start, self._end)
        self._rows = [all_rows[i] for i in indices]
        self.set_row_count(len(self._rows))
        if self._auto_scroll:
            living = self._lives.living_at(view.state.time_ns)
            if len(living):  # the oldest request that runs stands at the top: one that starves may be far above it
                running = set(view.state.running)
                top = next((i for i in living.tolist() if all_rows[i].request_id in running), living[0])
                self.scroll_to(float(np.searchsorted(indices, top)) * self.row_height)
            else:
                self.scroll_to(self.max_offset)

    def _look_at_what_is_held(self, view: View) -> bool:
        """The requests of a stretch long past may have to be read from the disk: once, not at every step. False when
        they are chosen already."""
        held = (id(view.timeline), view.timeline.forgotten, self._start, self._end)
        past = self._end < view.state.time_ns
        if past and held == self._held_rows:
            return False
        middle = self.step_at(self._plot_rect().center().x())
        if past and middle >= 0:
            view.timeline.look_at(middle)
            self._lives.update(view.timeline)
            held = (id(view.timeline), view.timeline.forgotten, self._start, self._end)
        self._held_rows = held
        return True

    # ---- geometry -------------------------------------------------------------------------------------------------

    def rows_area(self) -> QRectF:
        return super().rows_area().adjusted(0, 0, 0, -px(AXIS))

    def _plot_rect(self) -> QRectF:
        return self.rows_area().adjusted(self._names, 0, 0, 0)

    def x_of(self, time_ns: float) -> float:
        plot = self._plot_rect()
        return plot.left() + (time_ns - self._start) / (self._end - self._start) * plot.width()

    def time_at(self, x: float) -> float:
        """Run-clock nanoseconds at a horizontal position."""
        plot = self._plot_rect()
        return self._start + (x - plot.left()) / max(1.0, plot.width()) * (self._end - self._start)

    def step_at(self, x: float) -> int:
        """The step that was under way at a horizontal position, or the nearest; -1 when there is none."""
        series = self._view.series if self._view is not None else None
        if series is None or not series.n:
            return -1
        row = int(np.searchsorted(series.end_ns, self.time_at(x)))
        return int(series.step[min(row, series.n - 1)])

    def span_at(self, position: QPointF) -> tuple[TimelineRow, Span] | None:
        row = self.row_at(position)
        if row < 0 or position.x() < self._plot_rect().left():
            return None
        time_ns, slack = self.time_at(position.x()), 2 * (self._end - self._start) / max(1.0, self._plot_rect().width())
        inside = [s for s in self._rows[row].spans if s.start_ns - slack <= time_ns <= s.end_ns + slack]
        # The slack makes slivers easy to hit; what really covers the point comes first.
        return (self._rows[row], min(inside, key=lambda s: max(s.start_ns - time_ns, time_ns - s.end_ns, 0))) \
            if inside else None

    # ---- painting -------------------------------------------------------------------------------------------------

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        view, t = self._view, theme()
        if view is None or not view.timeline.rows:
            draw_text(painter, rect, self.tr("No requests yet"), colour=t.secondary,
                      align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)
            return
        small = font(11)
        rows = self.visible_rows()
        widest = max((text_width(self._rows[row].request_id, small) for row in rows), default=0.0)
        if not self._names - 16 <= widest + 10 <= self._names:
            self._names = 8.0 * -(-(widest + 10) // 8)
        plot = self._plot_rect()
        self._paint_axis(painter, plot)
        painter.setClipRect(self.rows_rect().adjusted(-MARGIN, 0, 0, 0))
        for row in rows:
            self._paint_row(painter, self._rows[row], self.row_rect(row), plot)
        painter.setClipping(False)
        now = self.x_of(view.state.time_ns)
        if not view.following and plot.left() <= now <= plot.right():
            painter.fillRect(QRectF(round(now), plot.top(), 1, plot.height()), QColor(t.text))
        self.paint_bar(painter)

    def _paint_axis(self, painter: QPainter, plot: QRectF) -> None:
        t = theme()
        span = (self._end - self._start) / 1e9
        ticks = nice_ticks(span, max(1, int(plot.width() // px(90))))
        step = ticks[1] if len(ticks) > 1 else span
        second = np.ceil(self._start / 1e9 / step) * step
        while second * 1e9 <= self._end:
            x = round(self.x_of(second * 1e9))
            painter.fillRect(QRectF(x, plot.top(), 1, plot.height()), mix(t.panel, t.line, 0.6))
            text = f"{second:.10g} s"
            width = text_width(text, font(11))
            if x + width / 2 <= plot.right() + 4:
                draw_text(painter, QRectF(x - width / 2, plot.bottom() + 2, width + 2, px(AXIS) - 2), text,
                          colour=t.secondary, text_font=font(11))
            second = round(second + step, 9)

    def _paint_row(self, painter: QPainter, row: TimelineRow, line: QRectF, plot: QRectF) -> None:
        t = theme()
        lit = row.request_id in (self.selection.request_id, self.selection.hovered_request)
        if lit:
            painter.fillRect(line.adjusted(-4, 0, 0, 0), mix(t.panel, t.accent, 0.24 if t.is_dark else 0.14)
                             if row.request_id == self.selection.request_id else t.hover)
        draw_text(painter, QRectF(line.left(), line.top(), self._names - 6, line.height()), row.request_id,
                  colour=t.text if lit else t.secondary, text_font=font(11))
        view = self._view
        assert view is not None
        now = float("inf") if view.following else float(view.state.time_ns)
        middle = round(line.center().y())
        left, right = plot.left(), plot.right()
        scale = plot.width() / (self._end - self._start)
        for span in row.spans:
            if span.end_ns < self._start or span.start_ns > self._end:
                continue
            for start, end, faded in ((span.start_ns, min(span.end_ns, now), 0.0),
                                      (max(span.start_ns, now), span.end_ns, 0.65)):
                if end > start or start == end == span.start_ns:
                    x0 = max(left, left + (start - self._start) * scale)
                    x1 = min(right, left + (end - self._start) * scale)
                    if x1 >= x0:
                        self._paint_span(painter, span.kind, row.colour, x0, x1, middle, faded)
                    if span.kind == "preempted" and start == span.start_ns >= self._start:
                        painter.fillRect(QRectF(x0 - 1, middle - px(6), 2, 2 * px(6)),
                                         _span_colours(t.name, "preempted", 0, faded)[0])

    @staticmethod
    def _paint_span(painter: QPainter, kind: str, colour: int, x0: float, x1: float, middle: int,
                    faded: float) -> None:
        width = max(1.0, x1 - x0)
        ink, edge = _span_colours(theme().name, kind, colour, faded)
        if kind == "prefill":
            gap = 1.0 if width >= 4 else 0.0  # so that chunk follows chunk visibly
            half = px(5)
            painter.fillRect(QRectF(x0, middle - half, width - gap, 2 * half), ink)
            if width >= 6 and edge is not None:
                painter.fillRect(QRectF(x0, middle + half - 1, width - gap, 1), edge)
        elif kind == "decode":
            half = px(3)
            painter.fillRect(QRectF(x0, middle - half, width, 2 * half), ink)
        elif kind == "waiting":
            painter.fillRect(QRectF(x0, middle - 1, width, 2), ink)
        else:
            painter.setPen(QPen(ink, 1, Qt.PenStyle.DotLine))
            painter.drawLine(QPointF(x0, middle), QPointF(x1, middle))

    # ---- the user -------------------------------------------------------------------------------------------------

    def current_row(self) -> int:
        wanted = self.selection.request_id
        return next((i for i, r in enumerate(self._rows) if r.request_id == wanted), -1) if wanted else -1

    def go_to_row(self, row: int) -> None:
        self._auto_scroll = False
        self.selection.select(request_id=self._rows[row].request_id)

    def row_hovered(self, row: int) -> None:
        self.selection.hover(request_id=self._rows[row].request_id if 0 <= row < len(self._rows) else None)

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta().y() or event.angleDelta().x()
        plot = self._plot_rect()
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier or event.position().x() < plot.left():
            self._auto_scroll = False
            self.scroll_to(self.offset - delta / 120 * 3 * self.row_height)
        elif abs(event.angleDelta().x()) > abs(event.angleDelta().y()):
            self.pan_by(-delta / 120 * 0.1)
        elif delta:
            self.zoom_by(delta / 120, event.position().x())
        event.accept()

    def steps_in_sight(self) -> Range | None:
        """The first and the last step that are shown; None while there is none."""
        if self._view is None or not self._view.series.n:
            return None
        series = self._view.series
        return step_at_time(series, self._start) + 1, step_at_time(series, self._end)

    def zoom_by(self, notches: float, x: float | None = None) -> None:
        """Less time (positive) or more; what is at ``x`` stays there, or else the viewing step."""
        view = self._view
        if view is None or not view.series.n:
            return
        now = float(view.state.time_ns)
        fixed = self.time_at(x) if x is not None else now if self._start <= now <= self._end else (
            self._start + self._end) / 2
        span = min(MAX_SPAN_NS, max(MIN_SPAN_NS, (self._end - self._start) * ZOOM_PER_NOTCH ** -notches))
        if view.following and not self.selection.visible.held:
            seen = self.steps_in_sight()
            assert seen is not None
            first, last = self._bounds()
            self.selection.visible.go_with_the_run(
                min(float(last - first), last - step_at_time(view.series, view.timeline.end_ns - span)))
            return
        share = (fixed - self._start) / (self._end - self._start)
        self._hold(fixed - share * span, fixed + (1 - share) * span)

    def pan_by(self, share: float) -> None:
        """Move by a share of what is in sight, towards the end of the run if positive."""
        if self._view is not None and self._view.series.n:
            shift = share * (self._end - self._start)
            self._hold(self._start + shift, self._end + shift, panned=True)

    def _hold(self, start: float, end: float, *, panned: bool = False) -> None:
        """Hold all charts at this stretch of time, or, at an end of the run, at one of the same length."""
        if self._view is None or not self._view.series.n:  # a drag may last longer than the run that it began in
            return
        series, (first, last) = self._view.series, self._bounds()
        if panned and not self.selection.visible.held and self._start <= series.start_ns[0] \
                and self._end >= series.end_ns[-1]:
            return  # all of the run is in sight: nothing to move
        length = end - start
        start = max(float(series.start_ns[0]), min(start, float(series.end_ns[-1]) - length))
        low, high = step_at_time(series, start) + 1, step_at_time(series, start + length)
        self.selection.visible.hold(low, high, first, last)
        if panned:
            self.selection.visible.panned.emit()

    def _bounds(self) -> tuple[int, int]:
        assert self._view is not None
        steps = self._view.series.step
        return int(steps[0]), int(steps[-1])

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not chart_key(self, event):
            super().keyPressEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        bar = self._bar()
        if event.button() == Qt.MouseButton.LeftButton and (bar.isEmpty() or event.position().x() < bar.left() - 2):
            self._drag = (event.position(), self._start, self._end, self.offset)
            self._dragged = False
        else:
            self._auto_scroll = False
            super().mousePressEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._drag is None:
            super().mouseMoveEvent(event)
            self._tell(event)
            return
        origin, start, end, offset = self._drag
        moved = event.position() - origin
        if not self._dragged and abs(moved.x()) + abs(moved.y()) < 5:
            return
        self._dragged = True
        self._auto_scroll = False
        shift = -moved.x() / max(1.0, self._plot_rect().width()) * (end - start)
        if abs(moved.x()) >= 5 or self.selection.visible.held:
            self._hold(start + shift, end + shift, panned=True)
        self.scroll_to(offset - moved.y())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        pressed, self._drag = self._drag is not None, None
        if not pressed or self._dragged:
            return
        if event.position().y() > self.rows_area().bottom():
            step = self.step_at(event.position().x())
            if step >= 0:
                self.selection.step_requested.emit(step)
            return
        row = self.row_at(event.position())
        self.selection.select(request_id=self._rows[row].request_id if row >= 0 else None)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self._auto_scroll = True
        self.selection.visible.release()
        self._visible_changed()

    def describe(self, row: TimelineRow, span: Span) -> str:
        """What the pointer tells of a span."""
        kind = {"waiting": self.tr("waiting"), "prefill": self.tr("prefill chunk"), "decode": self.tr("decode"),
                "preempted": self.tr("preempted")}[span.kind]
        steps = (self.tr("step {first}") if span.first_step == span.last_step
                 else self.tr("steps {first}–{last}")).format(first=format_int(span.first_step),
                                                              last=format_int(span.last_step))
        return f"{row.request_id} · {kind} · {format_ms((span.end_ns - span.start_ns) / 1e6)} · {steps}"

    def _tell(self, event: QMouseEvent) -> None:
        found = self.span_at(event.position())
        if found is not None:
            QToolTip.showText(event.globalPosition().toPoint(), self.describe(*found), self)
        elif event.position().y() > self.rows_area().bottom():
            step = self.step_at(event.position().x())
            text = self.tr("Click to look at step {step}").format(step=format_int(step)) if step >= 0 else ""
            QToolTip.showText(event.globalPosition().toPoint(), text, self)
        else:
            QToolTip.hideText()
