"""What the main window does with other runs: run the workload again, compare, sweep. Keeps the windows it opens.

Those are imported when they are first asked for: a window that only shows a run is up without them.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QFileDialog, QWidget

from app.asking import recordings_folder
from app.engine_texts import say
from app.session import LiveSession, ReplaySession
from engine.trace.reader import RecordingError, open_recording
from engine.trace.source import RunSource

if TYPE_CHECKING:
    from app.compare_window import CompareWindow
    from app.main_window import MainWindow
    from app.rerun_dialog import Loader, RerunDialog
    from app.sweep_window import SweepWindow

PATIENCE_S = 2.0


class Comparing(QObject):
    """The three commands of the Run menu, for ``window``. ``load`` loads models for them, if not the usual way."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self.load: Loader | None = None
        self.windows: list[QWidget] = []
        self._jobs: list[threading.Thread] = []
        self._held: LiveSession | None = None  # the live run that waits while another run is timed

    # ---- the commands --------------------------------------------------------------------------------------------

    def rerun(self) -> RerunDialog | None:
        """Ask for knobs, run the workload that is shown again with them, and open the comparison."""
        source = self._source()
        if source is None:
            return None
        from app.rerun_dialog import RerunDialog, load_for

        path = recordings_folder() / f"{self._name()}-rerun-{datetime.now():%Y%m%d-%H%M%S}.mcap"
        dialog = RerunDialog(self._window, source, path, self._rerun_done, load=self.load or load_for,
                             on_end=self._ended, on_busy=self._hold)
        self._keep(dialog)
        return dialog

    def compare_with(self) -> None:
        """Ask for a recording and compare it with the run that is shown."""
        if self._source() is None:
            return
        w = self._window
        start = w.settings.recent[0].parent if w.settings.recent else recordings_folder()
        name, _ = QFileDialog.getOpenFileName(w, self.tr("Compare with"), str(start),
                                              self.tr("Recordings (*.mcap);;All files (*)"))
        if name:
            self.compare(Path(name))

    def sweep(self) -> SweepWindow:
        """Open the window for sweeps."""
        from app.rerun_dialog import load_for
        from app.sweep_window import SweepWindow

        session = self._window.session
        source = session.source if session is not None else None
        model = session.spec.model if isinstance(session, LiveSession) else None
        window = SweepWindow(source if source is not None and source.last_step >= 0 else None,
                             self._window.scenario_titles(), recordings_folder(), self._window.open_recording,
                             model=model, load=self.load or load_for, on_close=self._ended, on_busy=self._hold)
        self._keep(window)
        return window

    def compare(self, path: Path, notes: tuple[str, ...] = ()) -> CompareWindow | None:
        """Open the comparison of the run that is shown and the recording at ``path``."""
        session = self._window.session
        source = self._source()
        if session is None or source is None:
            return None
        from app.compare_window import CompareWindow, run_name

        own = session.path if isinstance(session, ReplaySession) else None
        try:
            second = open_recording(path)
            # A recording is opened once more: the main window may go on to another one.
            first = open_recording(own) if own is not None else source
        except RecordingError as refusal:
            self._window.banner.tell(say(refusal), "bad")
            return None
        window = CompareWindow(first, second, (self._name(), run_name(path)), (own is not None, True), notes=notes,
                               on_close=self._ended)
        self._keep(window)
        return window

    # ---- what comes of them --------------------------------------------------------------------------------------

    def _rerun_done(self, path: Path, notes: list[str]) -> None:
        self._window.settings.add_recent(path)
        self.compare(path, tuple(notes))

    def _hold(self, busy: bool) -> None:
        """The live run stands still while another one is timed: they would share the processor."""
        session = self._window.session
        if busy and isinstance(session, LiveSession) and not session.engine_paused and self._held is None:
            self._held = session
            session.engine.pause()
        elif not busy and self._held is not None:
            if not self._held.engine_paused:
                self._held.engine.resume()
            self._held = None

    def _keep(self, window: QWidget) -> None:
        self.windows.append(window)
        window.show()

    def _ended(self, window: QWidget) -> None:
        job = getattr(window, "job", None)
        if job is not None:
            self._jobs.append(job)
        if window in self.windows:
            self.windows.remove(window)

    def shut_down(self) -> bool:
        """Close every window and wait for what runs; True when nothing is left running."""
        until = time.perf_counter() + PATIENCE_S
        for window in list(self.windows):
            window.close()
        for job in self._jobs:
            job.join(max(0.0, until - time.perf_counter()))
        return not any(job.is_alive() for job in self._jobs)

    # ---- what is shown -------------------------------------------------------------------------------------------

    def _source(self) -> RunSource | None:
        session = self._window.session
        source = session.source if session is not None else None
        if source is None or source.last_step < 0:
            self._window.banner.tell(self.tr("Nothing has run yet: there is nothing to compare or to run again."),
                                     "warning")
            return None
        return source

    def _name(self) -> str:
        session = self._window.session
        if isinstance(session, ReplaySession) and session.path is not None:
            return session.path.stem
        if isinstance(session, LiveSession):
            return Path(session.spec.scenario).stem if session.spec.scenario else "run"
        return "run"
