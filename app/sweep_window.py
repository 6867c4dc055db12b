"""A window of its own: one knob or two over ranges, every setting a run, and what each one gave."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QGridLayout,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QSplitter,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.compare_window import figure_text
from app.engine_texts import say
from app.jobs import Job
from app.layouts import size_on_screen
from app.rerun_dialog import Loader, load_for, reading
from app.task_view import TaskView
from app.tasks import Going, Task, in_thread
from engine.compare import METRICS
from engine.config import rerun_knobs
from engine.recorded_workload import RecordedWorkload, RerunError
from engine.scenario_run import ScenarioRun
from engine.sweep import SweepProgress, run_sweep
from engine.sweep_file import RecordedRun, SavedSweep
from engine.sweep_grid import SweepAxis, SweepPoint, grid, pareto_front, parse_axis
from engine.trace.knobs import KNOBS, KnobError
from engine.trace.reader import open_recording
from engine.trace.source import Notice, RunSource
from widgets.knob_texts import knob_tooltip
from widgets.number_box import NumberBox
from widgets.sweep_chart import SettingPoint, SweepChart
from widgets.theme import px, themes
from widgets.view import Selection

COLUMNS = ("output_tokens_per_s", "itl_p50_ms", "itl_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "kv_use", "preemptions",
           "hit_tokens")
THIS_RUN, SAVED_RUN = "this run", "saved run"
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter

SUGGESTED = {"max_num_batched_tokens": "64..1024", "max_num_seqs": "2..32", "num_blocks": "128..1024:4",
             "block_size": "8..64", "long_prefill_token_threshold": "0, 64, 128, 256", "watermark": "0..0.2",
             "arrival_rate": "1..8:4", "common_prefix": "0..1:3"}


class SweepWindow(QWidget):
    """Sweeps the workload of ``source`` (if there is one) or of a scenario into a folder below ``folder``.

    ``path`` is where ``source`` is kept, None for a live run. ``on_open(path)`` shows a point's recording. ``load``
    loads the model. ``begin(task)`` says whether a sweep may start now, ``keep`` is given its thread, ``on_end`` the
    window at its end. ``keep_prompts()`` says whether the points' recordings hold what prompts say.
    """

    def __init__(self, source: RunSource | None, path: Path | None, scenarios: Sequence[tuple[str, str]], folder: Path,
                 on_open: Callable[[Path], object], parent: QWidget | None = None, *, begin: Callable[[Task], bool],
                 keep: Callable[[threading.Thread], object], model: str | None = None, load: Loader = load_for,
                 on_end: Callable[[SweepWindow], None] | None = None,
                 keep_prompts: Callable[[], bool] = lambda: True) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setObjectName("sweep")
        self._source, self._path, self._folder, self._on_open, self._load = source, path, folder, on_open, load
        self._model = model or ""
        self._keep_prompts = keep_prompts
        self._begin, self._keep, self._on_end = begin, keep, on_end
        self.task = Task(self)
        self.view = TaskView(self.task, self)
        self.task.told.connect(lambda _: self._show_new())
        self.task.done.connect(lambda _: self._end())
        self.task.failed.connect(lambda failure: self._end(failure))
        self.task.cancelled.connect(lambda: self._end(cancelled=True))
        self._done: deque[SweepPoint] = deque()  # from the job's thread
        self.sweep: SavedSweep | None = None
        """What the table shows; its recordings are in ``folder``."""
        self.folder: Path | None = None
        self._saved: RecordedRun | ScenarioRun | None = None
        self._wrong = ""  # with what is to be varied
        self._scenarios = list(scenarios)
        self._build()
        self.retranslate()
        self._restyle()
        themes.changed.connect(self._restyle)

    @property
    def points(self) -> list[SweepPoint]:
        return self.sweep.points if self.sweep is not None else []

    # ---- building ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.workload_label, self.requests_label = QLabel(), QLabel()
        self.workload = QComboBox()
        self.requests = NumberBox(1, 10_000, 40)
        self.knobs = QComboBox(), QComboBox()
        self.ranges = QLineEdit(), QLineEdit()
        self.knob_labels = QLabel(), QLabel()
        self.count = QLabel()
        self.run_button = QPushButton()
        self.run_button.setDefault(True)

        form = QGridLayout()
        form.setHorizontalSpacing(8)
        form.setVerticalSpacing(8)
        form.addWidget(self.workload_label, 0, 0)
        form.addWidget(self.workload, 0, 1)
        form.addWidget(self.requests_label, 0, 2)
        form.addWidget(self.requests, 0, 3)
        for row in range(2):
            form.addWidget(self.knob_labels[row], row + 1, 0)
            form.addWidget(self.knobs[row], row + 1, 1)
            form.addWidget(self.ranges[row], row + 1, 2, 1, 2)
            self.knobs[row].currentIndexChanged.connect(lambda _, r=row: self._knob_chosen(r))
            self.ranges[row].textChanged.connect(self._check)
            self.ranges[row].returnPressed.connect(lambda: None if self.busy else self.toggle())
            self.ranges[row].setMinimumWidth(px(220))
        form.addWidget(self.count, 1, 4)
        form.addWidget(self.run_button, 2, 4, Qt.AlignmentFlag.AlignLeft)
        form.setColumnStretch(4, 1)
        self.workload.currentIndexChanged.connect(self._workload_chosen)
        self.run_button.clicked.connect(self.toggle)
        for label in (self.workload_label, self.requests_label, *self.knob_labels, self.count):
            label.setProperty("role", "secondary")

        self.table = QTableWidget(0, len(COLUMNS) + 2)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setShowGrid(False)
        self.table.verticalHeader().hide()
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.table.horizontalHeader().setStretchLastSection(True)
        self.table.itemSelectionChanged.connect(self._row_selected)
        self.table.cellDoubleClicked.connect(lambda row, _: self.open_point(row))
        selection = Selection()
        selection.setParent(self)
        self.chart = SweepChart(selection)
        self.chart.chosen.connect(self.table.selectRow)
        self.chart.opened.connect(self.open_point)
        self.open_button, self.rest_button = QPushButton(), QPushButton()
        self.rest_button.clicked.connect(self.go_on)
        self.open_button.clicked.connect(lambda: self.open_point(self.table.currentRow()))
        self.open_button.setEnabled(False)

        split = QSplitter(Qt.Orientation.Vertical)
        split.addWidget(self.chart)
        split.addWidget(self.table)
        split.setSizes([360, 280])
        split.setChildrenCollapsible(False)
        foot = QHBoxLayout()
        foot.addWidget(self.view.line, 1)
        foot.addStretch(0)
        foot.addWidget(self.rest_button)
        foot.addWidget(self.open_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 16, 16, 12)
        column.setSpacing(8)
        column.addLayout(form)
        column.addWidget(self.view.bar)
        column.addWidget(split, 1)
        column.addLayout(foot)
        self.setMinimumSize(720, 520)
        self.resize(size_on_screen(self, 1040, 760))

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Sweep – Cutaway"))
        self.workload_label.setText(self.tr("Workload"))
        self.requests_label.setText(self.tr("requests"))
        self.knob_labels[0].setText(self.tr("Vary"))
        self.knob_labels[1].setText(self.tr("and"))
        chosen = self.workload.currentData()
        self.workload.blockSignals(True)
        self.workload.clear()
        if self._source is not None:
            self.workload.addItem(self.tr("the run that is shown"), THIS_RUN)
        if isinstance(self._saved, RecordedRun):
            name = self._saved.path.stem if self._saved.path is not None else self._saved.created
            self.workload.addItem(self.tr("the recording {name}").format(name=name), SAVED_RUN)
        for name, title in self._scenarios:
            self.workload.addItem(self.tr("scenario: {title}").format(title=title), name)
        self.workload.setCurrentIndex(max(0, self.workload.findData(chosen)))
        self.workload.blockSignals(False)
        tip = self.tr("A,B,C or LOW..HIGH or LOW..HIGH:COUNT")
        for edit in self.ranges:
            edit.setToolTip(tip)
            edit.setPlaceholderText(tip)
        self.open_button.setText(self.tr("Open the recording"))
        self.run_button.setText(self.tr("Cancel") if self.busy else self.tr("Run"))
        names = [self.tr("throughput"), "ITL p50", "ITL p99", "TTFT p50", "TTFT p99", self.tr("KV use"),
                 self.tr("preemptions"), self.tr("prefix hits")]
        self.table.setHorizontalHeaderLabels([self.tr("setting"), *names, ""])
        for index in range(1, len(COLUMNS) + 1):
            header = self.table.horizontalHeaderItem(index)
            assert header is not None
            header.setTextAlignment(RIGHT)
        first = self.table.horizontalHeaderItem(0)
        assert first is not None
        first.setTextAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self._workload_chosen()
        self._show_points()
        self._show_rest()

    def _restyle(self) -> None:
        self.setStyleSheet(f"#sweep {{ background: {themes.current.background}; }}")
        self.table.verticalHeader().setDefaultSectionSize(px(26))

    @property
    def busy(self) -> bool:
        return self.task.busy

    # ---- what is to be run ---------------------------------------------------------------------------------------

    def _workload_chosen(self) -> None:
        recorded = self.workload.currentData() in (THIS_RUN, SAVED_RUN)
        for widget in (self.requests_label, self.requests):
            widget.setVisible(not recorded)
        device = self._source.info.machine.device if self._source is not None and recorded else "cpu"
        names = [n for n, k in KNOBS.items() if n in rerun_knobs(device) or (not recorded and k.group == "workload")]
        for row, box in enumerate(self.knobs):
            chosen = box.currentData() if box.count() else ("max_num_batched_tokens", "")[row]
            box.blockSignals(True)
            box.clear()
            if row == 1:
                box.addItem(self.tr("nothing else"), "")
            for name in names:
                box.addItem(name, name)
                box.setItemData(box.count() - 1, knob_tooltip(KNOBS[name]), Qt.ItemDataRole.ToolTipRole)
            at = box.findData(chosen)
            box.setCurrentIndex(max(0, at))
            box.blockSignals(False)
            if at < 0 or not self.ranges[row].text():
                self._knob_chosen(row)
        self._check()

    def _knob_chosen(self, row: int) -> None:
        name = self.knobs[row].currentData()
        self.ranges[row].setVisible(bool(name))
        if name:
            knob = KNOBS[name]
            self.ranges[row].setText(SUGGESTED.get(name) or ("on, off" if knob.kind == "bool" else
                                                             ", ".join(knob.choices)))
        self._check()

    def axes(self) -> list[SweepAxis]:
        """What is to be varied. Raises :class:`KnobError`."""
        return [parse_axis(f"{box.currentData()}={edit.text()}")
                for box, edit in zip(self.knobs, self.ranges, strict=True) if box.currentData()]

    def _check(self) -> bool:
        """Say how many runs that makes, or what is wrong with it."""
        try:
            count = len(grid(self.axes()))
        except KnobError as refusal:
            self.count.setText("")
            self._wrong = str(refusal)
            self.view.say(lambda: self._wrong, "bad")
            self.run_button.setEnabled(self.busy)
            return False
        self.count.setText(self.tr("{count} runs").format(count=count))
        self.run_button.setEnabled(True)
        if self._wrong:
            self._wrong = ""
            self.view.say(str)
        return True

    # ---- running -------------------------------------------------------------------------------------------------

    def toggle(self) -> None:
        """Start, or cancel what runs: what is done stays."""
        if self.busy:
            self.task.cancel()
        elif self._check():
            self.start()

    def start(self) -> None:
        """Begin a new sweep, in a folder of its own."""
        if not self._may_begin():
            return
        self.folder = self._folder / f"sweep-{datetime.now():%Y%m%d-%H%M%S}"
        chosen, source = self.workload.currentData(), self._source
        self.sweep = None
        if chosen == SAVED_RUN and isinstance(self._saved, RecordedRun):
            self.sweep = SavedSweep(self.axes(), self._saved)
        elif chosen == THIS_RUN and source is not None:
            self.sweep = SavedSweep(self.axes(), RecordedRun(self._path, source.info.created))
        else:
            dtype = source.info.model.dtype if source is not None else "bfloat16"
            model = self._model or (source.info.model.name if source is not None else "")
            self.sweep = SavedSweep(self.axes(), ScenarioRun(str(chosen), requests=self.requests.value(), model=model,
                                                             dtype=dtype or "bfloat16"))
        self._run(self.sweep, self.folder)

    def go_on(self) -> None:
        """Run what a sweep that was ended early has left, in its folder."""
        if self.sweep is not None and self.folder is not None and not self.busy and self._may_begin():
            self._run(self.sweep, self.folder)

    def _may_begin(self) -> bool:
        if self._begin(self.task):
            return True
        self.view.say(lambda: self.tr("Another run is being timed, and two at once would slow one another down. Run "
                                      "this one when that is done."), "warning")
        return False

    def _run(self, sweep: SavedSweep, folder: Path) -> None:
        self._done.clear()
        self.task.start(self._going(sweep, folder))
        self._set_busy(True)
        self.view.begin()
        self._show_points()

    def _going(self, sweep: SavedSweep, folder: Path) -> Going[Any]:
        load, done, prompt_text = self._load, self._done, self._keep_prompts()
        workload: RecordedWorkload | ScenarioRun
        if isinstance(sweep.workload, RecordedRun):
            workload = yield from self._read(sweep.workload)
            info = workload.info
        else:
            workload = sweep.workload
            info = workload.info()
        there = SavedSweep(sweep.axes, sweep.workload, sweep.fixed, list(sweep.points))

        def work(job: Job) -> Any:
            def tell(report: SweepProgress) -> None:
                job.tell(f"{min(report.points + 1, report.all_points)}/{report.all_points}", report.fraction)

            return run_sweep(there, workload, folder, load(info, job), prompt_text=prompt_text, on_point=done.append,
                             progress=tell, cancel=job.cancel)

        try:
            yield from in_thread(work, self._describe, self._keep)
        finally:
            self._take_points(sweep)

    def _read(self, run: RecordedRun) -> Going[RecordedWorkload]:
        """The workload of the run that is shown, or of the recording that a sweep tells of."""
        text, source = self.tr("Reading the workload"), self._source
        if source is not None and (run.path is None or run.path == self._path) and source.info.created == run.created:
            return (yield from reading(source, text))
        if run.path is None:
            raise RerunError(Notice("The run that was swept was not recorded: the sweep cannot be gone on with."))
        recording = open_recording(run.path)
        try:
            if recording.info.created != run.created:
                raise RerunError(Notice("{path} is another run than the one that was swept.", path=run.path))
            return (yield from reading(recording, text))
        finally:
            recording.close()

    def _describe(self, job: Job) -> str:
        if job.cancel.is_set():
            return self.tr("Cancelling: what is done stays")
        point, slash, of = job.stage.partition("/")
        return self.tr("Run {number} of {all}").format(number=point, all=of) if slash else say(job.stage)

    def _take_points(self, sweep: SavedSweep) -> None:
        while self._done:
            sweep.points.append(self._done.popleft())

    def _show_new(self) -> None:
        if self._done and self.sweep is not None:
            self._take_points(self.sweep)
            self._show_points()

    def _end(self, failure: Exception | None = None, cancelled: bool = False) -> None:
        def text() -> str:
            if failure is not None:
                return say(failure)
            where = self.tr("The recordings are in {folder}.").format(folder=self.folder) if self.points else ""
            return " ".join(filter(None, (self.tr("Cancelled.") if cancelled else "", where)))

        self._set_busy(False)
        self._show_points()
        self.view.say(text, "bad" if failure is not None else "secondary")

    def _set_busy(self, busy: bool) -> None:
        for widget in (self.workload, self.requests, *self.knobs, *self.ranges):
            widget.setEnabled(not busy)
        self.run_button.setText(self.tr("Cancel") if busy else self.tr("Run"))
        self.run_button.setEnabled(True)
        self._show_rest()

    # ---- a sweep that was run before -----------------------------------------------------------------------------

    def show_saved(self, sweep: SavedSweep, folder: Path) -> None:
        """Show a sweep that was kept in ``folder``; what it has not run can be gone on with."""
        self.sweep, self.folder = sweep, folder
        self._saved = sweep.workload
        if isinstance(sweep.workload, ScenarioRun):
            self.requests.setValue(sweep.workload.requests)
            if sweep.workload.scenario not in dict(self._scenarios):
                self._scenarios.append((sweep.workload.scenario, Path(sweep.workload.scenario).stem))
        self.retranslate()
        of = SAVED_RUN if isinstance(sweep.workload, RecordedRun) else sweep.workload.scenario
        self.workload.setCurrentIndex(max(0, self.workload.findData(of)))
        for row in range(2):
            axis = sweep.axes[row] if row < len(sweep.axes) else None
            self.knobs[row].setCurrentIndex(max(0, self.knobs[row].findData(axis.knob if axis else "")))
            if axis is not None:
                self.ranges[row].setText(axis.text)
        self._end()
        if sweep.lost:
            self.view.say(lambda: self.tr("Recordings that are no longer in {folder}: {count}. Their figures are shown "
                                          "all the same.").format(count=sweep.lost, folder=folder), "warning")

    def _show_rest(self) -> None:
        rest = self.sweep.rest if self.sweep is not None else 0
        self.rest_button.setVisible(bool(rest) and not self.busy)
        self.rest_button.setText(self.tr("Run the {count} that are left").format(count=rest))

    # ---- what came of it -----------------------------------------------------------------------------------------

    def _show_points(self) -> None:
        front = pareto_front(self.points)
        nan = float("nan")
        self.chart.set_points([SettingPoint(
            _short_name(p), p.metrics.get("output_tokens_per_s", nan), p.metrics.get("itl_p99_ms", nan),
            p.metrics.get("ttft_p99_ms", nan), best) for p, best in zip(self.points, front, strict=True)])
        self.table.setRowCount(len(self.points))
        for row, (point, best) in enumerate(zip(self.points, front, strict=True)):
            note = point.error or (self.tr("best") if best else "")
            cells = [point.name] + [figure_text(name, METRICS[name][0], point.metrics.get(name, nan))
                                    for name in COLUMNS] + [note]
            for column, text in enumerate(cells):
                item = QTableWidgetItem(text)
                if 0 < column <= len(COLUMNS):
                    item.setTextAlignment(RIGHT)
                font = item.font()
                font.setBold(best and column == 0)
                item.setFont(font)
                if column == len(cells) - 1:
                    item.setToolTip(text)
                self.table.setItem(row, column, item)

    def _row_selected(self) -> None:
        rows = {index.row() for index in self.table.selectedIndexes()}
        row = rows.pop() if rows else -1
        self.chart.set_chosen(row)
        self.open_button.setEnabled(0 <= row < len(self.points) and self.points[row].path is not None)

    def open_point(self, index: int) -> None:
        if 0 <= index < len(self.points) and (path := self.points[index].path) is not None:
            self._on_open(path)

    # ---- Qt ------------------------------------------------------------------------------------------------------

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()

    def closeEvent(self, event: QCloseEvent) -> None:
        self.task.close()
        if self._on_end is not None:
            self._on_end(self)
        super().closeEvent(event)


def _short_name(point: SweepPoint) -> str:
    """The values alone: the axes say of what."""
    return point.name if len(point.knobs) == 1 else ", ".join(
        part.partition("=")[2] for part in point.name.split(", "))
