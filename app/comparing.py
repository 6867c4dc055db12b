"""What the main window does with other runs: run the workload again, compare, sweep. Keeps the windows it opens.

Those are imported when they are first asked for: a window that only shows a run is up without them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QFileDialog, QWidget

from app.asking import recordings_folder
from app.engine_texts import say
from app.session import LiveSession, ReplaySession, Session
from app.timed_runs import TimedRuns
from engine.trace.reader import RecordingError, open_recording
from engine.trace.source import RunSource

if TYPE_CHECKING:
    from app.compare_window import CompareWindow
    from app.main_window import MainWindow
    from app.rerun_dialog import Loader, RerunDialog
    from app.sweep_window import SweepWindow

Borrowed = tuple[RunSource, Callable[[], None]]
"""A run, and what is to be called when nobody needs it any more."""


class Comparing(QObject):
    """The three commands of the Run menu, for ``window``. ``load`` loads models for them, if not the usual way."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self.load: Loader | None = None
        self.windows: list[QWidget] = []
        self._timed = TimedRuns(window)

    # ---- the commands --------------------------------------------------------------------------------------------

    def rerun(self) -> RerunDialog | None:
        """Ask for knobs, run the workload that is shown again with them, and open the comparison."""
        borrowed = self._borrow()
        if borrowed is None:
            return None
        from app.rerun_dialog import RerunDialog, load_for

        source, release = borrowed
        path = recordings_folder() / f"{self._name()}-rerun-{datetime.now():%Y%m%d-%H%M%S}.mcap"
        # The window may show another run by the time that it is done.
        against = self._own_path() or self._window.session
        dialog = RerunDialog(self._window, source, path, lambda done, notes: self._rerun_done(against, done, notes),
                             begin=self._timed.begin, keep=self._window.wait_at_the_end_for,
                             load=self.load or load_for, on_end=lambda window: self._ended(window, release),
                             keep_prompts=self._window.keeps_prompts)
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
        source = self._window.session.source if self._window.session is not None else None
        return self._sweep_window(self._borrow() if source is not None and source.last_step >= 0 else None)

    def open_sweep(self, path: Path, *, show_best: bool = False) -> SweepWindow | None:
        """Show the sweep that is kept in the file at ``path``; the banner says so if it is none.

        ``show_best``: the main window has nothing to show, and shows one of the sweep's best points.
        """
        from engine.sweep_file import SweepFileError, read_sweep
        from engine.sweep_grid import pareto_front

        try:
            sweep = read_sweep(path)
        except SweepFileError as refusal:
            self._window.banner.tell(say(refusal), "bad", [(self.tr("Open another…"),
                                                            self._window.asking.choose_recording)])
            return None
        there = [(not best, p.path) for p, best in zip(sweep.points, pareto_front(sweep.points), strict=True) if p.path]
        if show_best and there:
            self._window.open_recording(min(there, key=lambda entry: entry[0])[1], play=False)
        self._window.settings.add_recent(path)
        window = self._sweep_window(None)
        window.show_saved(sweep, path.absolute().parent)
        return window

    def _sweep_window(self, borrowed: Borrowed | None) -> SweepWindow:
        from app.rerun_dialog import load_for
        from app.sweep_window import SweepWindow

        session = self._window.session
        source, release = borrowed or (None, None)
        model = session.spec.model if isinstance(session, LiveSession) else None
        window = SweepWindow(source, self._own_path(), self._window.scenario_titles(), recordings_folder(),
                             self._window.open_recording, begin=self._timed.begin,
                             keep=self._window.wait_at_the_end_for, model=model, load=self.load or load_for,
                             on_end=lambda ended: self._ended(ended, release),
                             keep_prompts=self._window.keeps_prompts)
        self._keep(window)
        return window

    def compare(self, path: Path, notes: tuple[str, ...] = ()) -> CompareWindow | None:
        """Open the comparison of the run that is shown and the recording at ``path``."""
        borrowed = self._borrow()
        return self._compare(borrowed, self._name(), path, notes) if borrowed is not None else None

    def _compare(self, borrowed: Borrowed, name: str, path: Path, notes: tuple[str, ...]) -> CompareWindow | None:
        from app.compare_window import CompareWindow

        first, release = borrowed
        try:
            second = open_recording(path)
        except RecordingError as refusal:
            release()
            self._tell_refused(refusal)
            return None

        def let_go() -> None:
            release()
            second.close()

        window = CompareWindow(first, second, (name, path.stem), notes=notes,
                               on_end=lambda ended: self._ended(ended, let_go))
        self._keep(window)
        return window

    # ---- what comes of them --------------------------------------------------------------------------------------

    def _rerun_done(self, against: Path | Session | None, path: Path, notes: list[str]) -> None:
        self._window.settings.add_recent(path)
        if isinstance(against, Path):
            try:
                recording = open_recording(against)
            except RecordingError as refusal:
                self._tell_refused(refusal)
                return
            self._compare((recording, recording.close), against.stem, path, tuple(notes))
        elif against is not None and against.source is not None:
            self._compare((against.source, against.hold_source()), session_name(against), path, tuple(notes))

    def _tell_refused(self, refusal: RecordingError) -> None:
        self._window.banner.tell(say(refusal), "bad", [(self.tr("Compare with another…"), self.compare_with)])

    def _keep(self, window: QWidget) -> None:
        self.windows.append(window)
        window.show()

    def _ended(self, window: QWidget, release: Callable[[], None] | None) -> None:
        if window in self.windows:
            self.windows.remove(window)
            if release is not None:
                release()

    def shut_down(self) -> None:
        """Close every window; what still runs for one of them has been told to end."""
        for window in list(self.windows):
            window.close()

    # ---- what is shown -------------------------------------------------------------------------------------------

    def _source(self) -> RunSource | None:
        session = self._window.session
        source = session.source if session is not None else None
        if source is None or source.last_step < 0:
            self._window.banner.tell(self.tr("Nothing has run yet: there is nothing to compare or to run again."),
                                     "warning")
            return None
        return source

    def _borrow(self) -> Borrowed | None:
        """The run that is shown, to be read by another window however long that is there, and what lets go of it.

        None if there is nothing to be read; the banner has said so.
        """
        session, source = self._window.session, self._source()
        if session is None or source is None:
            return None
        path = self._own_path()
        if path is None:
            return source, session.hold_source()
        try:
            own = open_recording(path)  # once more: the main window may go on to another one
        except RecordingError as refusal:
            self._window.banner.tell(say(refusal), "bad")
            return None
        return own, own.close

    def _own_path(self) -> Path | None:
        session = self._window.session
        return session.path if isinstance(session, ReplaySession) else None

    def _name(self) -> str:
        session = self._window.session
        return session_name(session) if session is not None else "run"


def session_name(session: Session) -> str:
    """What the run of a session is called."""
    if isinstance(session, ReplaySession) and session.path is not None:
        return session.path.stem
    if isinstance(session, LiveSession) and session.spec.scenario:
        return Path(session.spec.scenario).stem
    return "run"
