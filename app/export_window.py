"""Exports from the window: a dialog that asks what, drives it between frames, and can be cancelled; and a picture of
any panel from its context menu."""

from __future__ import annotations

import time
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QPointF, QStandardPaths, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QCloseEvent, QContextMenuEvent, QDesktopServices
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QMenu,
    QMessageBox,
    QProgressBar,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.engine_texts import say
from app.export import DEFAULT_FPS, MAX_FPS, VideoOptions, export_video, parse_size, save_picture
from app.session import ReplaySession
from engine.trace.export import ExportError, export_csv, export_jsonl, export_perfetto
from engine.trace.reader import RecordingError, open_recording
from engine.trace.source import RunSource
from widgets.panel import Panel
from widgets.request_list import RequestList

if TYPE_CHECKING:
    from app.main_window import MainWindow

SLICE_S = 0.012
"""How long an export works at a time before the window has its turn."""

FILM_STEPS = 100
"""A film begins at the step that is looked at and has this many steps, unless the user says otherwise."""

SIZES = ((1280, 720), (1920, 1080), (3840, 2160), (800, 600), (640, 480))
SUFFIXES = {"perfetto": ".pftrace", "csv": "", "jsonl": ".jsonl", "mp4": ".mp4", "gif": ".gif"}


class Exporting(QObject):
    """What the window ``window`` can hand on."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self.dialog: ExportDialog | None = None
        for panel in window.panels.values():
            panel.installEventFilter(self)

    def show_dialog(self) -> None:
        """Ask what to export of the run that is shown; the dialog that is open already comes to the front."""
        if self.dialog is not None:
            self.dialog.raise_()
            self.dialog.activateWindow()
            return
        session = self._window.session
        source = session.source if session is not None else None
        if session is None or source is None or source.last_step < 0:
            self._window.banner.tell(self.tr("There is nothing to export yet."), "info")
            return
        path = session.path if isinstance(session, ReplaySession) else None
        name = path.stem if path is not None else source.info.scenario or "run"
        # A file is read by a reader of its own: its session may be closed while the export goes on.
        self.dialog = ExportDialog(self._window, source, path, Path(name).stem, session.time.step)
        self.dialog.done_with.connect(self._done)
        self.dialog.finished.connect(self._forget)
        self.dialog.show()

    def _forget(self) -> None:
        self.dialog = None

    def stop(self) -> None:
        """The window closes: nothing may be left half written."""
        if self.dialog is not None:
            self.dialog.stop()
            self.dialog.close()

    def _done(self, path: Path) -> None:
        folder = path if path.is_dir() else path.parent
        self._window.banner.tell(self.tr("{path} was written.").format(path=path), "good", [
            (self.tr("Open the folder"), lambda: QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))))])

    # ---- pictures of panels --------------------------------------------------------------------------------------

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QContextMenuEvent) and isinstance(watched, Panel):
            menu = self.build_menu(watched, QPointF(event.pos()))
            menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            menu.popup(event.globalPos())
            return True
        return super().eventFilter(watched, event)

    def build_menu(self, panel: Panel, position: QPointF) -> QMenu:
        """The panel's context menu at ``position``: its own, if it has one there, and the picture."""
        request = panel.request_at(position) if isinstance(panel, RequestList) else None
        if isinstance(panel, RequestList) and request is not None:
            panel.selection.select(request_id=request)
            menu = panel.build_menu(request)
            menu.addSeparator()
        else:
            menu = QMenu(panel)
        menu.addAction(self.tr("Save picture…")).triggered.connect(lambda: self.choose_picture(panel))
        return menu

    def choose_picture(self, panel: Panel) -> None:
        """Ask where a picture of ``panel`` is to go, and save it."""
        pictures = Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.PicturesLocation))
        start = pictures / f"{panel.title}-{datetime.now():%Y%m%d-%H%M%S}.png"
        name, chosen = QFileDialog.getSaveFileName(
            self._window, self.tr("Save picture"), str(start), self.tr("Pictures (*.png);;Drawings (*.svg)"))
        if not name:
            return
        path = Path(name)
        if not path.suffix:
            path = path.with_suffix(".svg" if "svg" in chosen else ".png")
        self.save(panel, path, overwrite=path == Path(name))  # the file dialog has asked about that name only

    def save(self, panel: Panel, path: Path, *, overwrite: bool) -> None:
        """Save a picture of ``panel``, and say so, or why not, in the banner."""
        try:
            panel.show_now()
            save_picture(panel, path, overwrite=overwrite)
        except ExportError as refusal:
            self._window.banner.tell(say(refusal), "bad", [(self.tr("Choose…"), lambda: self.choose_picture(panel))])
        else:
            self._done(path)


class Job(QObject):
    """Works an exporter off in slices between the window's frames. ``source`` is closed at the end if it is ours."""

    def __init__(self, parent: QObject, going: Generator[float], own: RunSource | None) -> None:
        super().__init__(parent)
        self._going = going
        self._own = own
        self.share = 0.0
        self.over = False
        self.refusal = ""

    def work(self) -> None:
        """One slice; afterwards ``share``, ``over`` and ``refusal`` say how it stands."""
        until = time.perf_counter() + SLICE_S
        try:
            while time.perf_counter() < until:
                self.share = next(self._going)
        except StopIteration:
            self.end()
        except (ExportError, RecordingError) as refusal:
            self.refusal = say(refusal)
            self.end()
        except Exception as failure:  # a timer's call: nobody else would hear of it
            self.refusal = f"{type(failure).__name__}: {failure}"
            self.end()

    def end(self) -> None:
        """Stop here. What is not whole is deleted."""
        if self.over:
            return
        self.over = True
        self._going.close()
        if self._own is not None:
            self._own.close()


class ExportDialog(QDialog):
    """Asks what to export, and shows how it goes. ``path`` is the recording, None for a live run."""

    done_with = Signal(Path)

    def __init__(self, parent: QWidget, source: RunSource, path: Path | None, name: str, step: int) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Export"))
        self._source, self._path, self._name, self._step = source, path, name, step
        self._target: Path | None = None
        self.job: Job | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(4)
        self._timer.timeout.connect(self._look)
        self._build()
        self._choose()

    def _build(self) -> None:
        self.what = QComboBox()
        for kind, text in (("perfetto", self.tr("Perfetto trace, for ui.perfetto.dev")),
                           ("csv", self.tr("CSV tables of steps and requests")),
                           ("jsonl", self.tr("Events as JSON lines")), ("mp4", self.tr("Film (MP4)")),
                           ("gif", self.tr("Film (GIF)"))):
            self.what.addItem(text, kind)
        self.what.currentIndexChanged.connect(self._choose)
        first, last = self._source.first_step, self._source.last_step
        self.first, self.last = QSpinBox(), QSpinBox()
        for box in (self.first, self.last):
            box.setRange(first, last)
            box.setGroupSeparatorShown(True)
        self.last.setValue(last)
        self.first.setToolTip(self.tr("The first step of the export."))
        self.last.setToolTip(self.tr("The last step of the export."))
        steps = QHBoxLayout()
        steps.addWidget(self.first, 1)
        steps.addWidget(QLabel(self.tr("to")))
        steps.addWidget(self.last, 1)
        self.size_box = QComboBox()
        self.size_box.setEditable(True)
        for width, height in SIZES:
            self.size_box.addItem(f"{width} × {height}")
        self.size_box.setToolTip(self.tr("Width and height of the film in pixels. A large film shows more panels."))
        self.fps, self.rate = QSpinBox(), QSpinBox()
        for box, tip in ((self.fps, self.tr("Frames a second: more of them look smoother and make a larger file.")),
                         (self.rate, self.tr("How many engine steps pass in a second of the film. Motion takes a "
                                             "quarter of a second, so at 4 it is seen to its end."))):
            box.setRange(1, MAX_FPS)
            box.setToolTip(tip)
        self.rate.setValue(4)
        self.form = QFormLayout()
        self.form.setSpacing(12)
        self.form.addRow(self.tr("What"), self.what)
        self.form.addRow(self.tr("Steps"), steps)
        self.form.addRow(self.tr("Size"), self.size_box)
        self.form.addRow(self.tr("Frames a second"), self.fps)
        self.form.addRow(self.tr("Steps a second"), self.rate)
        self.bar = QProgressBar()
        self.bar.setRange(0, 1000)
        self.bar.setTextVisible(False)
        self.note = QLabel()
        self.note.setWordWrap(True)
        self.note.setProperty("role", "secondary")
        self.start_button, self.cancel_button = QPushButton(self.tr("Export…")), QPushButton()
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
        column.addWidget(self.note)
        column.addWidget(self.bar)
        column.addLayout(buttons)
        self.setMinimumWidth(440)

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
        self._show_running(False)

    def _show_running(self, running: bool) -> None:
        for widget in (self.what, self.first, self.last, self.size_box, self.fps, self.rate, self.start_button):
            widget.setEnabled(not running)
        self.bar.setVisible(running)
        self.note.setVisible(bool(self.note.text()))
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
        own: RunSource | None = None
        try:
            if self._path is not None:
                own = open_recording(self._path)
            going = self._exporter(own or self._source, target, overwrite)
        except (RecordingError, ExportError) as refusal:
            if own is not None:
                own.close()
            self._say(say(refusal), "bad")
            return
        self._target = target
        self.job = Job(self, going, own)
        self._say("", "secondary")
        self.bar.setValue(0)
        self._show_running(True)
        self._timer.start()

    def _exporter(self, source: RunSource, target: Path, overwrite: bool) -> Generator[float]:
        first, last = self.first.value(), self.last.value()
        if self.kind in ("mp4", "gif"):
            options = VideoOptions(parse_size(self.size_box.currentText()), self.fps.value(), self.rate.value())
            return export_video(source, target, first=first, last=last, options=options, overwrite=overwrite)
        export = {"perfetto": export_perfetto, "csv": export_csv, "jsonl": export_jsonl}[self.kind]
        return export(source, target, first=first, last=last, overwrite=overwrite)

    def _look(self) -> None:
        job = self.job
        if job is None:
            self._timer.stop()
            return
        job.work()
        self.bar.setValue(round(1000 * job.share))
        if job.over:
            self._timer.stop()
            self.job = None
            self._show_running(False)
            if job.refusal:
                self._say(job.refusal, "bad")
            elif self._target is not None:
                self.done_with.emit(self._target)
                self.accept()

    def cancel(self) -> None:
        """Stop the export, or, when there is none, close the dialog."""
        if self.job is None:
            super().reject()
            return
        self._timer.stop()
        self.job.end()
        self.job = None
        self._show_running(False)
        self._say(self.tr("Cancelled: nothing was written."), "secondary")

    def _say(self, text: str, role: str) -> None:
        self.note.setText(text)
        self.note.setProperty("role", role)
        self.note.style().unpolish(self.note)  # the style sheet looks at the role only then
        self.note.style().polish(self.note)
        self.note.setVisible(bool(text))
        self.adjustSize()

    def reject(self) -> None:
        """Escape: first the export, then the dialog."""
        self.cancel()

    def closeEvent(self, event: QCloseEvent) -> None:
        self.stop()
        super().closeEvent(event)

    def stop(self) -> None:
        """Stop the export, if there is one, for good."""
        self._timer.stop()
        if self.job is not None:
            self.job.end()
            self.job = None
