"""One run at a time is timed: a second one, and the live run that is shown, would share the processor with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.session import LiveSession
from app.tasks import Task

if TYPE_CHECKING:
    from app.main_window import MainWindow


class TimedRuns(QObject):
    """Asked by whoever is about to time runs, on behalf of ``window``."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._timed: Task | None = None
        self._held: LiveSession | None = None  # the live run that waits meanwhile

    def begin(self, task: Task) -> bool:
        """Whether the runs of ``task`` may begin now. Until it has ended the live run stands still, and nobody else
        may begin."""
        if self._timed is not None:
            return False
        self._timed = task
        task.ended.connect(self._end)
        session = self._window.session
        if isinstance(session, LiveSession) and not session.engine_paused:
            self._held = session
            session.engine.pause()
            self._window.banner.tell(self.tr("The live run waits while another run is timed."), "info")
        return True

    def _end(self) -> None:
        if self._timed is not None:
            self._timed.ended.disconnect(self._end)
            self._timed = None
        held, self._held = self._held, None
        if held is not None and not held.engine_paused:
            held.engine.resume()
