"""Run the workload that is shown again with other knobs: choose them, wait or cancel, and look at the comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QLabel, QProgressBar, QPushButton, QVBoxLayout, QWidget

from app.engine_texts import say
from app.jobs import Job
from engine.config import SCHEDULER_KNOBS
from engine.recorded_workload import RecordedWorkload, RerunError, WorkloadReader
from engine.trace.events import RunInfo
from engine.trace.knobs import KNOBS, Knob, KnobValue
from engine.trace.source import RunSource
from widgets.controls import Choice, Control, ToggleSwitch
from widgets.knob_texts import knob_text, knob_tooltip
from widgets.sliders import KnobSlider
from widgets.theme import themes

TICK_MS = 50
READ_S = 0.02
"""How long a tick may spend on reading the workload: the window goes on drawing meanwhile."""

Loader = Callable[[RunInfo, Job], Any]


def load_for(info: RunInfo, job: Job) -> Any:
    """The model of a recorded run, loaded in the job's thread with one core left to the window."""
    from engine.loaded_model import load_model
    from engine.worker import RunSpec

    return load_model(info, num_threads=RunSpec(watched=True).choose_threads(), progress=job.tell, cancel=job.cancel)


def knob_control(knob: Knob, value: KnobValue) -> Control:
    """A control for a knob that stands at ``value``, which is what a double click brings back."""
    knob = replace(knob, default=value)
    control: Control
    if knob.kind == "bool":
        control = ToggleSwitch(knob.name, bool(value))
    elif knob.kind == "choice":
        control = Choice(knob.name, [(c, c) for c in knob.choices], str(value), str(value))
    else:
        control = KnobSlider(knob, knob.name)
    control.setToolTip(knob_tooltip(KNOBS[knob.name]))
    return control


class RerunDialog(QDialog):
    """``on_done(path, notes)`` is called with the new recording. ``load`` loads the model."""

    def __init__(self, parent: QWidget, source: RunSource, path: Path, on_done: Callable[[Path, list[str]], None], *,
                 load: Loader = load_for, on_end: Callable[[RerunDialog], None] | None = None,
                 on_busy: Callable[[bool], None] | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._source, self._path, self._on_done, self._load, self._on_end = source, path, on_done, load, on_end
        self._on_busy = on_busy
        self._reader: WorkloadReader | None = None
        self._job: Job | None = None
        self.recorded = {name: source.info.knobs.get(name, KNOBS[name].default) for name in SCHEDULER_KNOBS}
        self.values = dict(self.recorded)
        self.controls: dict[str, Control] = {}
        self.about, self.changed, self.status = QLabel(), QLabel(), QLabel()
        self.progress = QProgressBar()
        self.run_button, self.close_button = QPushButton(), QPushButton()
        self._build()
        self.retranslate()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._look)
        themes.changed.connect(self.update)

    @property
    def busy(self) -> bool:
        return self._reader is not None or self._job is not None

    @property
    def job(self) -> Job | None:
        return self._job

    # ---- building ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(12)
        self.about.setWordWrap(True)
        self.about.setProperty("role", "secondary")
        column.addWidget(self.about)
        grid = QGridLayout()
        grid.setHorizontalSpacing(32)
        grid.setVerticalSpacing(8)
        for index, name in enumerate(SCHEDULER_KNOBS):
            control = knob_control(KNOBS[name], self.recorded[name])
            if isinstance(control, KnobSlider):
                control.set_value(self.recorded[name])
            control.value_changed.connect(lambda value, name=name: self.turn(name, value))
            self.controls[name] = control
            half = (len(SCHEDULER_KNOBS) + 1) // 2
            grid.addWidget(control, index % half, index // half)
        grid.setColumnStretch(0, 1)
        grid.setColumnStretch(1, 1)
        column.addLayout(grid)
        self.changed.setWordWrap(True)
        self.changed.setProperty("role", "value")
        column.addWidget(self.changed)
        self.progress.setTextVisible(False)
        self.progress.setFixedHeight(6)
        self.progress.hide()
        self.status.setWordWrap(True)
        self.status.hide()
        column.addWidget(self.progress)
        column.addWidget(self.status)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(self.close_button)
        buttons.addWidget(self.run_button)
        self.run_button.setDefault(True)
        self.run_button.clicked.connect(self.start)
        self.close_button.clicked.connect(self._cancel)
        column.addLayout(buttons)
        self.setMinimumWidth(640)

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Run the same workload with other knobs"))
        self.about.setText(self.tr(
            "Every request arrives as it was recorded and gets the tokens that it got; the forward passes are done and "
            "timed anew, without waiting where nothing runs. A live run is paused meanwhile. Then both runs are shown "
            "side by side."))
        for name, control in self.controls.items():
            control.setToolTip(knob_tooltip(KNOBS[name]))
            control.set_label(knob_text(name).label)
        self.run_button.setText(self.tr("Run"))
        self.close_button.setText(self.tr("Cancel") if self.busy else self.tr("Close"))
        self._show_changed()

    def turn(self, name: str, value: KnobValue) -> None:
        self.values[name] = value
        self._show_changed()

    @property
    def changes(self) -> dict[str, KnobValue]:
        return {name: value for name, value in self.values.items() if value != self.recorded[name]}

    def _show_changed(self) -> None:
        changes = self.changes
        if changes:
            self.changed.setText(" · ".join(f"{name} {_text(self.recorded[name])} → {_text(value)}"
                                            for name, value in changes.items()))
        else:
            self.changed.setText(self.tr("No knob differs: every decision will be repeated, and only times are new."))

    # ---- running -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the workload, then run it."""
        try:
            self._reader = WorkloadReader(self._source)
        except RerunError as refusal:
            self._fail(refusal)
            return
        self._set_busy(True)
        self._tell(self.tr("Reading the workload"), 0.0)
        self._timer.start(TICK_MS)

    def _run(self, workload: RecordedWorkload) -> None:
        changes, path, load = self.changes, self._path, self._load

        def work(job: Job) -> Any:
            from engine.rerun import RerunProgress, rerun

            def tell(report: RerunProgress) -> None:
                job.tell(f"{report.requests}/{report.all_requests}", report.fraction)

            model = load(workload.info, job)
            job.tell("", 0.0)
            path.parent.mkdir(parents=True, exist_ok=True)
            return rerun(workload, changes, path, model, progress=tell, cancel=job.cancel)

        self._job = Job(work)
        self._job.start()

    def _look(self) -> None:
        try:
            if self._reader is not None:
                if not self._reader.update(READ_S):
                    self._tell(self.tr("Reading the workload"), self._reader.share)
                    return
                workload, self._reader = self._reader.workload(), None
                self._run(workload)
        except RerunError as refusal:
            self._reader = None
            self._fail(refusal)
            return
        job = self._job
        if job is None:
            return
        if job.is_alive():
            done, slash, of = job.stage.partition("/")
            text = (self.tr("{done} of {all} requests done").format(done=done, all=of) if slash else say(job.stage))
            self._tell(self.tr("Cancelling") if job.cancel.is_set() else text, job.fraction)
            return
        self._job = None
        self._set_busy(False)
        if job.failure is not None:
            self._fail(job.failure)
        elif job.result is None:
            self.status.setText(self.tr("Cancelled: nothing was kept."))
        else:
            self._on_done(job.result.path, job.result.notes)
            self.close()

    def _tell(self, text: str, fraction: float | None) -> None:
        self.status.setText(text)
        self.progress.setRange(0, 0 if fraction is None else 1000)
        self.progress.setValue(int(1000 * (fraction or 0.0)))

    def _fail(self, failure: Exception) -> None:
        self._set_busy(False)
        self.status.setText(say(failure))
        self.status.setProperty("role", "bad")
        self.status.style().polish(self.status)
        self.status.show()

    def _set_busy(self, busy: bool) -> None:
        for control in self.controls.values():
            control.setEnabled(not busy)
        self.run_button.setEnabled(not busy)
        self.progress.setVisible(busy)
        self.status.show()
        self.status.setProperty("role", "")
        self.status.style().polish(self.status)
        self.close_button.setText(self.tr("Cancel") if busy else self.tr("Close"))
        if not busy:
            self._timer.stop()
        if self._on_busy is not None:
            self._on_busy(busy)

    def _cancel(self) -> None:
        if self._reader is not None:
            self._reader = None
            self._set_busy(False)
            self.status.setText(self.tr("Cancelled: nothing was kept."))
        elif self._job is not None:
            self._job.cancel.set()
        else:
            self.close()

    # ---- Qt ------------------------------------------------------------------------------------------------------

    def reject(self) -> None:
        self.close()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()

    def closeEvent(self, event: QCloseEvent) -> None:
        self._timer.stop()
        self._reader = None
        if self._job is not None:
            self._job.cancel.set()
            if self._on_busy is not None:
                self._on_busy(False)
        if self._on_end is not None:
            self._on_end(self)
        super().closeEvent(event)


def _text(value: KnobValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
