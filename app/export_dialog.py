"""Asks what to export of a run, and shows how that goes; it can be cancelled."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

from PySide6.QtCore import QEvent, QStandardPaths, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QMessageBox,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.engine_texts import say
from app.export import DEFAULT_FPS, MAX_FPS, VideoOptions, export_video, parse_size
from app.task_view import TaskView
from app.tasks import Going, Report, Task
from engine.trace.export import export_csv, export_jsonl, export_perfetto
from engine.trace.reader import open_recording
from engine.trace.source import RunSource
from widgets.number_box import NumberBox
from widgets.theme import px

FILM_STEPS = 100
"""A film begins at the step that is looked at and has this many steps, unless the user says otherwise."""

SIZES = ((1280, 720), (1920, 1080), (3840, 2160), (800, 600), (640, 480))
SUFFIXES = {"perfetto": ".pftrace", "csv": "", "jsonl": ".jsonl", "mp4": ".mp4", "gif": ".gif"}


class ExportDialog(QDialog):
    """``path`` is the recording, None for a live run; ``source`` stays open until ``on_end`` is called.

    ``step`` is what is looked at, ``name`` what a file is called if the user does not say otherwise.
    """

    done_with = Signal(Path)

    def __init__(self, parent: QWidget, source: RunSource, path: Path | None, name: str, step: int, *,
                 on_end: Callable[[], object]) -> None:
        super().__init__(parent)
        self._source, self._path, self._name, self._step, self._on_end = source, path, name, step, on_end
        self.task = Task(self)
        self.view = TaskView(self.task, self, self.adjustSize)
        self.task.done.connect(self._finish)
        self.task.failed.connect(lambda failure: self._end(lambda: say(failure), "bad"))
        self.task.cancelled.connect(lambda: self._end(lambda: self.tr("Cancelled: nothing was written.")))
        self.finished.connect(self._close_down)
        self._build()
        self.retranslate()
        self._choose()

    def _build(self) -> None:
        self.what = QComboBox()
        for kind in SUFFIXES:
            self.what.addItem("", kind)
        self.what.currentIndexChanged.connect(self._choose)
        first, last = self._source.first_step, self._source.last_step
        self.first, self.last = NumberBox(first, last), NumberBox(first, last, last)
        for box in (self.first, self.last):
            box.setGroupSeparatorShown(True)
        steps = QWidget()
        row = QHBoxLayout(steps)
        row.setContentsMargins(0, 0, 0, 0)
        self.to = QLabel()
        row.addWidget(self.first, 1)
        row.addWidget(self.to)
        row.addWidget(self.last, 1)
        self.size_box = QComboBox()
        self.size_box.setEditable(True)
        for width, height in SIZES:
            self.size_box.addItem(f"{width} × {height}")
        self.fps, self.rate = NumberBox(1, MAX_FPS), NumberBox(1, MAX_FPS, 4)
        self.form = QFormLayout()
        self.form.setSpacing(12)
        self.labels = [QLabel() for _ in range(5)]
        for label, field in zip(self.labels, (self.what, steps, self.size_box, self.fps, self.rate), strict=True):
            label.setFixedHeight(self.what.sizeHint().height())  # so that it stands in the middle of its row
            self.form.addRow(label, field)
        self.start_button, self.cancel_button = QPushButton(), QPushButton()
        self.start_button.setDefault(True)
        self.start_button.setProperty("primary", True)
        self.start_button.clicked.connect(self.choose_target)
        self.cancel_button.clicked.connect(self.cancel)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(self.cancel_button)
        buttons.addWidget(self.start_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(12)
        column.addLayout(self.form)
        column.addWidget(self.view.bar)
        column.addWidget(self.view.line)
        column.addLayout(buttons)
        self.setMinimumWidth(px(440))

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Export"))
        for index, text in enumerate((self.tr("Perfetto trace, for ui.perfetto.dev"),
                                      self.tr("CSV tables of steps and requests"), self.tr("Events as JSON lines"),
                                      self.tr("Film (MP4)"), self.tr("Film (GIF)"))):
            self.what.setItemText(index, text)
        for label, text in zip(self.labels, (self.tr("What"), self.tr("Steps"), self.tr("Size"),
                                             self.tr("Frames a second"), self.tr("Steps a second")), strict=True):
            label.setText(text)
        self.to.setText(self.tr("to"))
        self.first.setToolTip(self.tr("The first step of the export."))
        self.last.setToolTip(self.tr("The last step of the export."))
        self.size_box.setToolTip(self.tr("Width and height of the film in pixels. A large film shows more panels."))
        self.fps.setToolTip(self.tr("Frames a second: more of them look smoother and make a larger file."))
        self.rate.setToolTip(self.tr("How many engine steps pass in a second of the film. Motion takes a quarter of a "
                                     "second, so at 4 it is seen to its end."))
        self.start_button.setText(self.tr("Export…"))
        self.cancel_button.setText(self.tr("Cancel") if self.task.busy else self.tr("Close"))
        self.adjustSize()

    @property
    def kind(self) -> str:
        return str(self.what.currentData())

    def _choose(self) -> None:
        """Show what the chosen format needs."""
        film = self.kind in ("mp4", "gif")
        for row in (self.size_box, self.fps, self.rate):
            self.form.setRowVisible(row, film)
        first, last = self._source.first_step, self._source.last_step
        if film:
            self.fps.setValue(DEFAULT_FPS[f".{self.kind}"])
            if self.last.value() - self.first.value() >= FILM_STEPS:
                start = max(first, min(self._step, last - FILM_STEPS + 1))
                self.first.setValue(start)
                self.last.setValue(min(last, start + FILM_STEPS - 1))
        self.adjustSize()

    def _show_running(self, running: bool) -> None:
        for widget in (self.what, self.first, self.last, self.size_box, self.fps, self.rate, self.start_button):
            widget.setEnabled(not running)
        self.cancel_button.setText(self.tr("Cancel") if running else self.tr("Close"))
        self.adjustSize()

    # ---- what the user does --------------------------------------------------------------------------------------

    def choose_target(self) -> None:
        """Ask where it is to go. What is there already is only replaced when the user has said so."""
        documents = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
        folder = self._path.parent if self._path is not None else Path(documents or Path.home())
        suffix = SUFFIXES[self.kind]
        if self.kind == "csv":
            name = QFileDialog.getExistingDirectory(self, self.tr("Folder for the tables"), str(folder))
            if name:
                self._start_tables(Path(name))
            return
        name, _ = QFileDialog.getSaveFileName(self, self.tr("Export to"), str(folder / (self._name + suffix)),
                                              f"{self.what.currentText()} (*{suffix})")
        if name:
            path = Path(name) if name.lower().endswith(suffix) else Path(name + suffix)
            self.start(path, overwrite=path == Path(name))  # the file dialog has asked about that name only

    def _start_tables(self, folder: Path) -> None:
        there = [name for name in ("steps.csv", "requests.csv") if (folder / name).exists()]
        if there:
            question = self.tr("{names} in {folder} will be replaced.").format(names=", ".join(there), folder=folder)
            answer = QMessageBox.question(self, self.windowTitle(), question,
                                          QMessageBox.StandardButton.Ok | QMessageBox.StandardButton.Cancel)
            if answer != QMessageBox.StandardButton.Ok:
                return
        self.start(folder, overwrite=bool(there))

    def start(self, target: Path, *, overwrite: bool = False) -> None:
        """Begin to export to ``target`` what the dialog says."""
        self.task.start(self._going(target, overwrite))
        self._show_running(True)
        self.view.begin()

    def _going(self, target: Path, overwrite: bool) -> Going[Path]:
        # A file is read by a reader of its own: the window goes on moving about in its one.
        own = open_recording(self._path) if self._path is not None else None
        try:
            with closing(self._exporter(own or self._source, target, overwrite)) as exporter:
                for share in exporter:
                    yield Report(f"{share:.0%}", share)
        finally:
            if own is not None:
                own.close()
        return target

    def _exporter(self, source: RunSource, target: Path, overwrite: bool) -> Generator[float]:
        first, last = self.first.value(), self.last.value()
        if self.kind in ("mp4", "gif"):
            options = VideoOptions(parse_size(self.size_box.currentText()), self.fps.value(), self.rate.value())
            return export_video(source, target, first=first, last=last, options=options, overwrite=overwrite)
        export = {"perfetto": export_perfetto, "csv": export_csv, "jsonl": export_jsonl}[self.kind]
        return export(source, target, first=first, last=last, overwrite=overwrite)

    def _finish(self, target: Path) -> None:
        self._show_running(False)
        self.done_with.emit(target)
        self.accept()

    def _end(self, text: Callable[[], str], role: str = "secondary") -> None:
        self._show_running(False)
        self.view.say(text, role)

    def cancel(self) -> None:
        """Stop the export, or, when there is none, close the dialog."""
        if self.task.busy:
            self.task.cancel()
        else:
            super().reject()

    # ---- Qt ------------------------------------------------------------------------------------------------------

    def reject(self) -> None:
        """Escape: first the export, then the dialog."""
        self.cancel()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()

    def closeEvent(self, event: QCloseEvent) -> None:
        self.task.close()
        super().closeEvent(event)

    def _close_down(self) -> None:
        """It is closed, however that came: now it may go."""
        self._on_end()
        self.deleteLater()
