"""A window of its own: one knob or two over ranges, every setting a run, and what each one gave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QGridLayout,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QLineEdit,
    QProgressBar,
    QPushButton,
    QSpinBox,
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
from app.rerun_dialog import READ_S, TICK_MS, Loader, load_for
from engine.compare import METRICS
from engine.config import SCHEDULER_KNOBS
from engine.recorded_workload import RecordedWorkload, RerunError, WorkloadReader
from engine.scenario_run import ScenarioRun
from engine.sweep import SweepAxis, SweepPoint, SweepProgress, grid, pareto_front, parse_axis, run_sweep
from engine.trace.knobs import KNOBS, KnobError
from engine.trace.source import RunSource
from widgets.knob_texts import knob_tooltip
from widgets.sweep_chart import SettingPoint, SweepChart
from widgets.theme import themes
from widgets.view import Selection

COLUMNS = ("output_tokens_per_s", "itl_p50_ms", "itl_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "kv_use", "preemptions",
           "hit_tokens")
THIS_RUN = "this run"
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter

SUGGESTED = {"max_num_batched_tokens": "64..1024", "max_num_seqs": "2..32", "num_blocks": "128..1024:4",
             "block_size": "8..64", "long_prefill_token_threshold": "0, 64, 128, 256", "watermark": "0..0.2",
             "arrival_rate": "1..8:4", "common_prefix": "0..1:3"}


class SweepWindow(QWidget):
    """Sweeps the workload of ``source`` (if there is one) or of a scenario into a folder below ``folder``.

    ``on_open(path)`` shows a point's recording. ``load`` loads the model.
    """

    def __init__(self, source: RunSource | None, scenarios: Sequence[tuple[str, str]], folder: Path,
                 on_open: Callable[[Path], object], parent: QWidget | None = None, *, model: str | None = None,
                 load: Loader = load_for, on_close: Callable[[SweepWindow], None] | None = None,
                 on_busy: Callable[[bool], None] | None = None) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setObjectName("sweep")
        self._source, self._folder, self._on_open, self._load = source, folder, on_open, load
        self._model = model or ""
        self._on_close, self._on_busy = on_close, on_busy
        self._reader: WorkloadReader | None = None
        self._job: Job | None = None
        self._done: deque[SweepPoint] = deque()  # from the job's thread
        self._axes: list[SweepAxis] = []
        self.points: list[SweepPoint] = []
        self._scenarios = list(scenarios)
        self._build()
        self.retranslate()
        self._restyle()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._look)
        themes.changed.connect(self._restyle)

    @property
    def job(self) -> Job | None:
        return self._job

    # ---- building ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.workload_label, self.requests_label = QLabel(), QLabel()
        self.workload = QComboBox()
        self.requests = QSpinBox()
        self.requests.setRange(1, 10_000)
        self.requests.setValue(40)
        self.knobs = QComboBox(), QComboBox()
        self.ranges = QLineEdit(), QLineEdit()
        self.knob_labels = QLabel(), QLabel()
        self.count = QLabel()
        self.run_button = QPushButton()
        self.run_button.setDefault(True)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setFixedHeight(6)
        self.progress.hide()
        self.status = QLabel()
        self.status.setWordWrap(True)

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
            self.ranges[row].setMinimumWidth(220)
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
        self.table.verticalHeader().setDefaultSectionSize(26)
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.table.horizontalHeader().setStretchLastSection(True)
        self.table.itemSelectionChanged.connect(self._row_selected)
        self.table.cellDoubleClicked.connect(lambda row, _: self.open_point(row))
        self.chart = SweepChart(Selection())
        self.chart.chosen.connect(self.table.selectRow)
        self.chart.opened.connect(self.open_point)
        self.open_button = QPushButton()
        self.open_button.clicked.connect(lambda: self.open_point(self.table.currentRow()))
        self.open_button.setEnabled(False)

        split = QSplitter(Qt.Orientation.Vertical)
        split.addWidget(self.chart)
        split.addWidget(self.table)
        split.setSizes([360, 280])
        split.setChildrenCollapsible(False)
        foot = QHBoxLayout()
        foot.addWidget(self.status, 1)
        foot.addWidget(self.open_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 16, 16, 12)
        column.setSpacing(8)
        column.addLayout(form)
        column.addWidget(self.progress)
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

    def _restyle(self) -> None:
        self.setStyleSheet(f"#sweep {{ background: {themes.current.background}; }}")

    @property
    def busy(self) -> bool:
        return self._reader is not None or self._job is not None

    # ---- what is to be run ---------------------------------------------------------------------------------------

    def _workload_chosen(self) -> None:
        recorded = self.workload.currentData() == THIS_RUN
        self.requests.setEnabled(not recorded and not self.busy)
        names = [n for n, k in KNOBS.items() if n in SCHEDULER_KNOBS or (not recorded and k.group == "workload")]
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
            self._say(str(refusal), "bad")
            self.run_button.setEnabled(self.busy)
            return False
        self.count.setText(self.tr("{count} runs").format(count=count))
        self.run_button.setEnabled(True)
        if self.status.property("role") == "bad":
            self._say("")
        return True

    # ---- running -------------------------------------------------------------------------------------------------

    def toggle(self) -> None:
        """Start, or cancel what runs: what is done stays."""
        if self._job is not None:
            self._job.cancel.set()
        elif self._reader is not None:
            self._reader = None
            self._end(self.tr("Cancelled."))
        elif self._check():
            self.start()

    def start(self) -> None:
        self._axes = self.axes()
        self.points = []
        self._done.clear()
        self._show_points()
        name = self.workload.currentData()
        try:
            if name == THIS_RUN and self._source is not None:
                self._reader = WorkloadReader(self._source)
            else:
                dtype = self._source.info.model.dtype if self._source is not None else "bfloat16"
                model = self._model or (self._source.info.model.name if self._source is not None else "")
                self._run(ScenarioRun(str(name), requests=self.requests.value(), model=model,
                                      dtype=dtype or "bfloat16"))
        except RerunError as refusal:
            self._say(say(refusal), "bad")
            return
        self._set_busy(True)
        self._timer.start(TICK_MS)

    def _run(self, workload: RecordedWorkload | ScenarioRun) -> None:
        axes, load, done = self._axes, self._load, self._done
        folder = self._folder / f"sweep-{datetime.now():%Y%m%d-%H%M%S}"
        info = workload.info if isinstance(workload, RecordedWorkload) else workload.info()

        def work(job: Job) -> Any:
            def tell(report: SweepProgress) -> None:
                job.tell(f"{min(report.points + 1, report.all_points)}/{report.all_points}", report.fraction)

            return run_sweep(workload, axes, folder, load(info, job), on_point=done.append, progress=tell,
                             cancel=job.cancel)

        self.folder = folder
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
            self._end(say(refusal), "bad")
            return
        job = self._job
        if job is None:
            return
        alive = job.is_alive()  # before the points: none comes afterwards
        if self._done:
            while self._done:
                self.points.append(self._done.popleft())
            self._show_points()
        if alive:
            point, slash, of = job.stage.partition("/")
            text = self.tr("Run {number} of {all}").format(number=point, all=of) if slash else say(job.stage)
            self._tell(self.tr("Cancelling: what is done stays") if job.cancel.is_set() else text, job.fraction)
            return
        self._job = None
        where = self.tr("The recordings are in {folder}.").format(folder=self.folder) if self.points else ""
        if job.failure is not None:
            self._end(say(job.failure), "bad")
        elif job.result is None:
            self._end(" ".join((self.tr("Cancelled."), where)))
        else:
            self._end(where)

    def _tell(self, text: str, fraction: float | None) -> None:
        self._say(text)
        self.progress.setRange(0, 0 if fraction is None else 1000)
        self.progress.setValue(int(1000 * (fraction or 0.0)))

    def _say(self, text: str, role: str = "secondary") -> None:
        self.status.setText(text)
        if self.status.property("role") != role:
            self.status.setProperty("role", role)
            self.status.style().polish(self.status)

    def _end(self, text: str, role: str = "secondary") -> None:
        self._timer.stop()
        self._set_busy(False)
        self._say(text, role)

    def _set_busy(self, busy: bool) -> None:
        for widget in (self.workload, *self.knobs, *self.ranges):
            widget.setEnabled(not busy)
        self.requests.setEnabled(not busy and self.workload.currentData() != THIS_RUN)
        self.progress.setVisible(busy)
        self.run_button.setText(self.tr("Cancel") if busy else self.tr("Run"))
        self.run_button.setEnabled(True)
        if self._on_busy is not None:
            self._on_busy(busy)

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
        self._timer.stop()
        self._reader = None
        if self._job is not None:
            self._job.cancel.set()
            if self._on_busy is not None:
                self._on_busy(False)
        if self._on_close is not None:
            self._on_close(self)
        super().closeEvent(event)


def _short_name(point: SweepPoint) -> str:
    """The values alone: the axes say of what."""
    return point.name if len(point.knobs) == 1 else ", ".join(
        part.partition("=")[2] for part in point.name.split(", "))
