"""Run the workload that is shown again with other knobs: choose them, wait or cancel, and look at the comparison."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.engine_texts import say
from app.jobs import Job
from app.task_view import TaskView
from app.tasks import Going, Report, Task, in_thread
from engine.config import rerun_knobs
from engine.recorded_workload import RecordedWorkload, RerunError, WorkloadReader
from engine.trace.events import RunInfo
from engine.trace.knobs import KNOBS, Knob, KnobValue
from engine.trace.source import Notice, RunSource
from widgets.controls import Choice, Control, ToggleSwitch
from widgets.knob_texts import knob_text, knob_tooltip
from widgets.sliders import KnobSlider
from widgets.theme import px, themes

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


def reading(source: RunSource, text: str) -> Going[RecordedWorkload]:
    """A task, or the beginning of one: read the workload of ``source``. Raises
    :class:`~engine.recorded_workload.RerunError`."""
    reader = WorkloadReader(source)
    while not reader.update(READ_S):
        yield Report(text, reader.share)
    return reader.workload()


class RerunDialog(QDialog):
    """``on_done(path, notes)`` is called with the new recording. ``load`` loads the model.

    ``begin(task)`` says whether the run may start now, ``keep`` is given its thread, ``on_end`` the dialog at its end.
    ``keep_prompts()`` says whether the new recording holds what prompts say.
    """

    def __init__(self, parent: QWidget, source: RunSource, path: Path, on_done: Callable[[Path, list[str]], None], *,
                 begin: Callable[[Task], bool], keep: Callable[[threading.Thread], object],
                 load: Loader = load_for, on_end: Callable[[RerunDialog], None] | None = None,
                 keep_prompts: Callable[[], bool] = lambda: True) -> None:
        super().__init__(parent)
        self._keep_prompts = keep_prompts
        self._source, self._path, self._on_done, self._load, self._on_end = source, path, on_done, load, on_end
        self._begin, self._keep = begin, keep
        self.task = Task(self)
        self.task.done.connect(self._finish)
        self.task.failed.connect(lambda failure: self._end(lambda: say(failure), "bad"))
        self.task.cancelled.connect(lambda: self._end(lambda: self.tr("Cancelled: nothing was kept.")))
        self.finished.connect(self._close_down)
        self.recorded = {name: source.info.knobs.get(name, KNOBS[name].default)
                         for name in rerun_knobs(source.info.machine.device)}
        self.values = dict(self.recorded)
        self.controls: dict[str, Control] = {}
        self.about, self.changed = QLabel(), QLabel()
        self.view = TaskView(self.task, self, self._fit)
        self.run_button, self.close_button = QPushButton(), QPushButton()
        self._build()
        self.retranslate()
        themes.changed.connect(self.update)

    @property
    def busy(self) -> bool:
        return self.task.busy

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
        for index, name in enumerate(self.recorded):
            control = knob_control(KNOBS[name], self.recorded[name])
            if isinstance(control, KnobSlider):
                control.set_value(self.recorded[name])
            control.value_changed.connect(lambda value, name=name: self.turn(name, value))
            self.controls[name] = control
            half = (len(self.recorded) + 1) // 2
            grid.addWidget(control, index % half, index // half)
        grid.setColumnStretch(0, 1)
        grid.setColumnStretch(1, 1)
        column.addLayout(grid)
        self.changed.setWordWrap(True)
        self.changed.setProperty("role", "value")
        column.addWidget(self.changed)
        column.addWidget(self.view.bar)
        column.addWidget(self.view.line)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(self.close_button)
        buttons.addWidget(self.run_button)
        self.run_button.setDefault(True)
        self.run_button.clicked.connect(self.start)
        self.close_button.clicked.connect(self.reject)
        column.addLayout(buttons)
        self.setMinimumWidth(px(640))

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
        if not self._begin(self.task):
            self.view.say(lambda: self.tr("Another run is being timed, and two at once would slow one another down. "
                                          "Run this one when that is done."), "warning")
            return
        self.task.start(self._going())
        self._set_busy(True)
        self.view.begin()

    def _going(self) -> Going[Any]:
        changes, path, load, prompt_text = self.changes, self._path, self._load, self._keep_prompts()
        workload = yield from reading(self._source, self.tr("Reading the workload"))

        def work(job: Job) -> Any:
            from engine.rerun import RerunProgress, rerun

            def tell(report: RerunProgress) -> None:
                job.tell(f"{report.requests}/{report.all_requests}", report.fraction)

            model = load(workload.info, job)
            job.tell("", 0.0)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as failure:
                raise RerunError(Notice("{path} cannot be written: {reason}.", path=path.parent,
                                        reason=failure.strerror or failure)) from None
            return rerun(workload, changes, path, model, prompt_text=prompt_text, progress=tell, cancel=job.cancel)

        return (yield from in_thread(work, self._describe, self._keep))

    def _describe(self, job: Job) -> str:
        if job.cancel.is_set():
            return self.tr("Cancelling")
        done, slash, of = job.stage.partition("/")
        return self.tr("{done} of {all} requests done").format(done=done, all=of) if slash else say(job.stage)

    def _finish(self, result: Any) -> None:
        self._set_busy(False)
        self._on_done(result.path, result.notes)
        self.accept()

    def _end(self, text: Callable[[], str], role: str = "secondary") -> None:
        self._set_busy(False)
        self.view.say(text, role)

    def _set_busy(self, busy: bool) -> None:
        for control in self.controls.values():
            control.setEnabled(not busy)
        self.run_button.setEnabled(not busy)
        self.close_button.setText(self.tr("Cancel") if busy else self.tr("Close"))

    def _fit(self) -> None:
        """Grow by what has come to be shown; left to itself the dialog squeezes the sliders."""
        column = self.layout()
        if column is not None:
            column.activate()
            needed = max(column.totalHeightForWidth(self.width()), column.totalMinimumSize().height())
            if needed > self.height():
                self.resize(self.width(), needed)

    # ---- Qt ------------------------------------------------------------------------------------------------------

    def reject(self) -> None:
        """Escape, and the button: first what runs, then the dialog."""
        if self.busy:
            self.task.cancel()
        else:
            super().reject()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()

    def closeEvent(self, event: QCloseEvent) -> None:
        self.task.close()
        super().closeEvent(event)

    def _close_down(self) -> None:
        """It is closed, however that came: now it may go."""
        if self._on_end is not None:
            self._on_end(self)
        self.deleteLater()


def _text(value: KnobValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
