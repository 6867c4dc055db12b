"""A window of its own: two runs side by side, their steps in step with one another, and what differs.

The runs are looked at through the same panels as in the main window. One slider moves both: by the number of the step,
by the time on the runs' clocks, or by how far one request has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QEvent, QSize, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QKeyEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QSlider, QSplitter, QVBoxLayout, QWidget

from app.engine_texts import say
from app.layouts import size_on_screen
from app.session import Session
from engine.align import Alignment, by_request, by_step, by_time
from engine.compare import COUNTS, Change, Comparison, RequestDelta
from engine.trace.knobs import KnobValue
from engine.trace.reader import RecordingError
from engine.trace.source import Notice, RunSource
from widgets.block_table import BlockTable
from widgets.buttons import ElidedLabel, IconButton, Tabs
from widgets.compare_charts import Curves, CurvesChart, DeltaChart, DistributionChart, RequestChange, run_colour
from widgets.compare_table import ChangeRow, ChangeTable
from widgets.numbers import format_int, format_ms, format_number
from widgets.theme import px, themes
from widgets.token_budget import TokenBudget
from widgets.view import Selection

TICK_MS = 33
GATHER_S, GATHER_PLAYING_S = 0.02, 0.006
"""How long a tick may spend on taking in steps for the figures of requests."""

REFRESH_S = 0.7
REFRESH_SHARE = 0.1
"""Figures are computed anew at most so often, and for at most this share of the time."""

DRAWN_VALUES = 400_000
"""Of more measurements than that, a distribution is drawn from every so-manieth."""

TABLE, CHART = 440, 160
"""The least widths: in a narrower table the verdicts are cut off."""

POSITIONS_PER_S = 20.0
EDGE = 8


class Side:
    """One of the two runs, with its panels."""

    def __init__(self, source: RunSource, name: str) -> None:
        self.source, self.name = source, name
        self.selection = Selection()
        self.session = Session(source, live=False)
        self.block_table = BlockTable(self.selection)
        self.token_budget = TokenBudget(self.selection)
        self.mark, self.heading = QFrame(), ElidedLabel()
        self.mark.setFixedSize(16, 4)

    def show(self, step: int, now: float) -> None:
        """Show the run at ``step``."""
        if step < 0:
            return
        if self.session.time.step != step:
            self.session.seek(step)
        if self.session.advance(now) and self.session.view is not None:
            self.block_table.show_view(self.session.view)
            self.token_budget.show_view(self.session.view)

    def frame(self) -> None:
        for panel in (self.block_table, self.token_budget):
            if panel.is_animating():
                panel.update()


class CompareWindow(QWidget):
    """Compares ``first`` and ``second``, which stay open until the window calls ``on_end``."""

    def __init__(self, first: RunSource, second: RunSource, names: tuple[str, str], parent: QWidget | None = None, *,
                 notes: tuple[str, ...] = (), on_end: Callable[[CompareWindow], None] | None = None) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setObjectName("compare")
        self.comparison = Comparison(first, second)
        self.sides = Side(first, names[0]), Side(second, names[1])
        self.request: RequestDelta | None = None
        self.alignment = Alignment(np.empty(0), np.empty(0))
        self.position = 0
        self.playing = False
        self._notes = notes
        self._on_end = on_end
        self._played = 0.0  # what of a position is owed, in positions or nanoseconds
        self._last_tick = time.perf_counter()
        self._lengths = (-1, -1)
        self._gathered = False
        self._next_refresh = 0.0
        self._others: tuple[dict[str, str], dict[str, str]] = ({}, {})  # a request's name in the other run
        self._deltas: list[RequestDelta] = []
        selection = Selection()
        for shared in (selection, *(side.selection for side in self.sides)):
            shared.setParent(self)  # with the window goes what is connected, and what that holds on to
        self.table, self.distribution = ChangeTable(selection), DistributionChart(selection)
        self.curves, self.delta_chart = CurvesChart(selection), DeltaChart(selection)
        self.play_button, self.back_button, self.on_button = IconButton("play", primary=True), IconButton("back"), \
            IconButton("forward")
        self.sync = Tabs()
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.where = QLabel()
        self.note = QLabel()
        self._build()
        self._connect()
        self.retranslate()
        self._restyle()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.tick)
        self._timer.start(TICK_MS)
        self.realign()

    # ---- building ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(EDGE)
        for widget in (self.back_button, self.play_button, self.on_button):
            top.addWidget(widget)
        self.where.setMinimumWidth(px(220))
        self.sync_label = QLabel()
        self.sync_label.setProperty("role", "secondary")
        top.addWidget(self.slider, 1)
        top.addWidget(self.where)
        top.addWidget(self.sync_label)
        top.addWidget(self.sync)

        pair = QWidget()
        grid = QGridLayout(pair)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(EDGE)
        for column, side in enumerate(self.sides):
            head = QHBoxLayout()
            head.setContentsMargins(4, 0, 0, 0)
            head.addWidget(side.mark)
            head.addWidget(side.heading, 1)
            grid.addLayout(head, 0, column)
            grid.addWidget(side.block_table, 1, column)
            grid.addWidget(side.token_budget, 2, column)
            grid.setColumnStretch(column, 1)
        grid.setRowStretch(1, 3)
        grid.setRowStretch(2, 2)

        below = QSplitter(Qt.Orientation.Horizontal)
        for panel, share in ((self.table, 6), (self.distribution, 3), (self.curves, 3), (self.delta_chart, 3)):
            panel.setMinimumWidth(px(TABLE if panel is self.table else CHART))
            below.addWidget(panel)
            below.setStretchFactor(below.count() - 1, share)
        below.setChildrenCollapsible(False)
        below.setSizes([600, 280, 280, 280])

        split = QSplitter(Qt.Orientation.Vertical)
        split.addWidget(pair)
        split.addWidget(below)
        split.setStretchFactor(0, 3)
        split.setStretchFactor(1, 2)
        split.setChildrenCollapsible(False)
        split.setSizes([540, 300])

        self.note.setProperty("role", "warning")
        self.note.setWordWrap(True)
        column_ = QVBoxLayout(self)
        column_.setContentsMargins(EDGE, EDGE, EDGE, EDGE)
        column_.setSpacing(EDGE)
        column_.addLayout(top)
        column_.addWidget(self.note)
        column_.addWidget(split, 1)
        self.setMinimumSize(960, 600)
        self.resize(size_on_screen(self, 1440, 900))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setFocus()  # else the first button has it, and Space steps back instead of playing

    def _connect(self) -> None:
        self.play_button.clicked.connect(self.toggle_play)
        self.back_button.clicked.connect(lambda: self.move_by(-1))
        self.on_button.clicked.connect(lambda: self.move_by(1))
        self.slider.valueChanged.connect(self.go_to)
        self.curves.position_requested.connect(self.go_to)
        self.sync.chosen.connect(lambda _: self._reading(self.realign))
        self.delta_chart.request_chosen.connect(lambda name: self._reading(lambda: self.choose_request(name)))
        for index, side in enumerate(self.sides):
            side.selection.changed.connect(lambda i=index: self._share_selection(i))
            side.selection.step_requested.connect(lambda step, i=index: self._seek_side(i, step))
        themes.changed.connect(self._restyle)

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("{first} and {second} – Cutaway").format(first=self.sides[0].name,
                                                                             second=self.sides[1].name))
        self.sync_label.setText(self.tr("together by"))
        self._name_syncs(self.sync.current or "time")
        self.play_button.setToolTip(self.tr("Play both, or pause (Space)"))
        self.back_button.setToolTip(self.tr("One step back (←)"))
        self.on_button.setToolTip(self.tr("One step on (→)"))
        self.sync.setToolTip(self.tr("What puts the two runs side by side: the number of the step, the time on the "
                                     "runs' clocks, or how far one request has come"))
        self._show_notes()
        for chart in (self.distribution, self.curves):
            chart.set_names(self.tr("first"), self.tr("second"))
        knobs = self.comparison.knobs()
        for index, side in enumerate(self.sides):
            pieces = [(side.name, True)]
            pieces += [(f"{name} {_knob_text((mine, theirs)[index])}", False) for name, mine, theirs in knobs]
            if not knobs:
                pieces.append((self.tr("the same knobs"), False))
            side.heading.set_pieces(pieces)
        self._refresh()

    def _show_notes(self) -> None:
        self.note.setText(" ".join(map(say, self._notes)))
        self.note.setVisible(bool(self._notes))

    def _name_syncs(self, current: str) -> None:
        request = (self.tr("Request {request}").format(request=self.request.first.request_id) if self.request
                   else self.tr("Request"))
        self.sync.set_options([("step", self.tr("Step")), ("time", self.tr("Time")), ("request", request)], current)
        self.sync.updateGeometry()

    def _restyle(self) -> None:
        self.setStyleSheet(f"#compare {{ background: {themes.current.background}; }}")
        for index, side in enumerate(self.sides):
            side.mark.setStyleSheet(f"background: {run_colour(bool(index)).name()}; border-radius: 2px;")

    def sizeHint(self) -> QSize:
        return QSize(1440, 900)

    # ---- moving --------------------------------------------------------------------------------------------------

    def realign(self) -> None:
        """Align anew, and stay at the first run's step."""
        step = self.alignment.steps(self.position)[0]
        first, second = self.comparison.first, self.comparison.second
        self._lengths = first.series.n, second.series.n
        how = self.sync.current
        if how == "request" and self.request is None and self._deltas:
            self.request = max(self._deltas, key=lambda d: d.first.output_tokens)
            self.delta_chart.set_chosen(self.request.first.request_id)
            self._name_syncs(how)
        if how == "request" and self.request is None:  # there is none in both
            how = "time"
            self._name_syncs(how)
        if how == "request" and self.request is not None:
            self.alignment = by_request(first, second, self.request.first, self.request.second)
        elif how == "step":
            self.alignment = by_step(first, second)
        else:
            self.alignment = by_time(first, second)
        self.slider.blockSignals(True)
        self.slider.setRange(0, max(0, len(self.alignment) - 1))
        self.slider.blockSignals(False)
        self._show_curves()
        self.position = -1
        self.go_to(self.alignment.position_of(step) if step >= 0 else 0)

    def choose_request(self, request_id: str) -> None:
        """Select a request in both runs and go by its progress."""
        found = next((d for d in self._deltas if d.first.request_id == request_id), None)
        if found is None:
            return
        self.request = found
        self.delta_chart.set_chosen(request_id)
        for side, figures in zip(self.sides, (found.first, found.second), strict=True):
            side.selection.select(request_id=figures.request_id)
        self._name_syncs("request")
        self.realign()
        self.go_to(0)

    def go_to(self, position: int) -> None:
        position = max(0, min(position, len(self.alignment) - 1))
        if position == self.position:
            return
        self.position = position
        self.slider.blockSignals(True)
        self.slider.setValue(position)
        self.slider.blockSignals(False)
        self.curves.set_position(position)
        self._show()

    def move_by(self, count: int) -> None:
        self.playing = False
        self.go_to(self.position + count)
        self._show_playing()

    def toggle_play(self) -> None:
        if not self.playing and self.position >= len(self.alignment) - 1:
            self.go_to(0)
        self.playing = not self.playing
        self._played = 0.0
        self._show_playing()

    def _show_playing(self) -> None:
        self.play_button.set_icon("pause" if self.playing else "play")

    def _seek_side(self, index: int, step: int) -> None:
        steps = self.alignment.second if index else self.alignment.first
        if len(steps):
            self.go_to(min(int(np.searchsorted(steps, step)), len(steps) - 1))

    def _share_selection(self, index: int) -> None:
        """What is chosen or hovered over in one run lights up in the other, if it is the same request there."""
        mine, other = self.sides[index].selection, self.sides[1 - index].selection
        names = self._others[index]
        other.select(request_id=names.get(mine.request_id or ""))
        other.hover(request_id=names.get(mine.hovered_request or ""))

    def _show(self) -> None:
        now = time.perf_counter()
        steps = self.alignment.steps(self.position)
        for side, step in zip(self.sides, steps, strict=True):
            side.show(step, now)
        times = [_seconds(side.source, step) for side, step in zip(self.sides, steps, strict=True)]
        self.where.setText(self.tr("step {a} · {b}   {s} s · {t} s").format(
            a=format_int(max(0, steps[0])), b=format_int(max(0, steps[1])), s=f"{times[0]:.2f}", t=f"{times[1]:.2f}"))

    # ---- as time passes ------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Play on, take in what is new, and let panels move."""
        self._reading(self._go_on)

    def _reading(self, act: Callable[[], object]) -> None:
        """Do what reads the recordings; damage that is found on the way ends the comparison; what was read stays."""
        try:
            act()
        except (RecordingError, OSError, IndexError) as failure:
            self._timer.stop()
            self.playing = False
            self._show_playing()
            said = failure.args[0] if isinstance(failure, RecordingError) else str(failure)
            self._notes = (*self._notes, Notice("The comparison ends here: {problem}", problem=said))
            self._show_notes()

    def _go_on(self) -> None:
        now = time.perf_counter()
        elapsed, self._last_tick = now - self._last_tick, now
        if self.playing:
            self._play_on(elapsed)
        for side in self.sides:
            side.frame()
        lengths = self.comparison.first.series.n, self.comparison.second.series.n
        grown = lengths != self._lengths
        if not self._gathered or grown:
            gathered, before = self.comparison.update(GATHER_PLAYING_S if self.playing else GATHER_S), self._gathered
            self._gathered = gathered
            if now > self._next_refresh or (gathered and not before):
                self._refresh()
                if grown:
                    self.realign()
                cost = time.perf_counter() - now
                self._next_refresh = now + max(REFRESH_S, cost / REFRESH_SHARE)
            else:
                self._gathered = False  # what has come is not shown yet

    def _play_on(self, elapsed: float) -> None:
        last = len(self.alignment) - 1
        times = self.alignment.times
        if times is not None:  # the runs' clocks go by as they did
            self._played += elapsed * 1e9
            at = int(times[self.position]) + self._played
            target = int(np.searchsorted(times, at, "right")) - 1
            if target > self.position:
                self._played = at - int(times[target])
        else:
            self._played += elapsed * POSITIONS_PER_S
            target = self.position + int(self._played)
            self._played -= int(self._played)
        if target > self.position:
            self.go_to(min(target, last))
        if self.position >= last:
            self.playing = False
            self._show_playing()

    def _refresh(self) -> None:
        self._deltas = self.comparison.deltas()
        names = [(d.first.request_id, d.second.request_id) for d in self._deltas]
        self._others = dict(names), {other: name for name, other in names}
        first, second = self.comparison.first.series, self.comparison.second.series
        self.table.set_rows([self._row(change) for change in self.comparison.changes()])
        only_first, only_second = (len(f.requests) - len(self._deltas) for f in self.comparison.figures)
        note = self.tr("{count} requests in both").format(count=format_int(len(self._deltas)))
        if only_first or only_second:
            note = self.tr("{count} requests in both, {first} and {second} in one").format(
                count=format_int(len(self._deltas)), first=only_first, second=only_second)
        if not self._gathered and self.comparison.share < 1:
            note = self.tr("reading… {percent}%").format(percent=int(100 * self.comparison.share))
        self.table.set_note(note)
        self.distribution.set_values((_drawn_ms(first.ttft_ns), _drawn_ms(second.ttft_ns)),
                                     (_drawn_ms(first.itl_ns), _drawn_ms(second.itl_ns)))
        self.delta_chart.set_changes([RequestChange(d.first.request_id, d.change("ttft_ms"), d.change("itl_ms"),
                                                    d.change("e2e_ms")) for d in self._deltas])

    def _show_curves(self) -> None:
        if not len(self.alignment) or not all(self._lengths):
            self.curves.set_curves({})
            return
        rows: list[dict[str, np.ndarray]] = []
        for source, steps in ((self.comparison.first, self.alignment.first),
                              (self.comparison.second, self.alignment.second)):
            series = source.series
            at = np.clip(np.searchsorted(series.step, steps), 0, series.n - 1)
            tokens = series.decode_tokens[at] + series.prefill_tokens[at]
            # A run that is over stays at its last step, and has no figures any more.
            over = np.concatenate(([False], (steps[1:] == steps[:-1]) & (steps[1:] == source.last_step)))
            rows.append({name: np.where(over, np.nan, values) for name, values in (
                ("budget", 100 * tokens / np.maximum(1, series.budget[at])),
                ("kv", 100 * series.used_blocks[at] / np.maximum(1, series.usable_blocks[at])),
                ("waiting", series.waiting[at]))})
        self.curves.set_curves({name: Curves(rows[0][name], rows[1][name], name != "waiting") for name in rows[0]})

    def _row(self, change: Change) -> ChangeRow:
        direction = {"lower": -1, "higher": 1}.get(change.direction, 0)
        return ChangeRow(self._metric_name(change.metric), figure_text(change.metric, change.unit, change.first),
                         figure_text(change.metric, change.unit, change.second), say(change.words()), change.verdict,
                         direction)

    def _metric_name(self, metric: str) -> str:
        return {
            "ttft_p50_ms": "TTFT p50", "ttft_p99_ms": "TTFT p99", "itl_p50_ms": "ITL p50", "itl_p99_ms": "ITL p99",
            "output_tokens_per_s": self.tr("throughput"), "seconds": self.tr("duration"), "steps": self.tr("steps"),
            "budget_use": self.tr("budget use"), "kv_use": self.tr("KV use"), "kv_use_max": self.tr("KV use, most"),
            "hit_tokens": self.tr("prefix-hit tokens"), "preemptions": self.tr("preemptions"),
            "evictions": self.tr("evicted blocks"),
        }.get(metric, metric)

    # ---- Qt ------------------------------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        count = 10 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1
        if event.key() == Qt.Key.Key_Space:
            self.toggle_play()
        elif event.key() in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self.move_by(count if event.key() == Qt.Key.Key_Right else -count)
        elif event.key() == Qt.Key.Key_Home:
            self.go_to(0)
        elif event.key() == Qt.Key.Key_End:
            self.go_to(len(self.alignment) - 1)
        else:
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()

    def closeEvent(self, event: QCloseEvent) -> None:
        self._timer.stop()
        if self._on_end is not None:
            self._on_end(self)
        super().closeEvent(event)


def _seconds(run: RunSource, step: int) -> float:
    """On the run's clock, at the end of a step; 0 where there is none."""
    at = run.series.index_of(step) if step >= 0 else -1
    return int(run.series.end_ns[at]) / 1e9 if at >= 0 else 0.0


def _drawn_ms(values_ns: np.ndarray) -> np.ndarray:
    """Milliseconds of the latencies that are drawn."""
    return values_ns[::max(1, len(values_ns) // DRAWN_VALUES)] / 1e6


def figure_text(metric: str, unit: str, value: float) -> str:
    """A figure of :data:`engine.compare.METRICS` with its unit."""
    if value != value:
        return "–"
    if unit == "ms":
        return format_ms(value)
    if metric in COUNTS:
        return format_int(value)
    return f"{format_number(value)}{'' if unit == '%' else ' '}{unit}"


def _knob_text(value: KnobValue | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
