"""Long work beside the window: a thread that tells how far it is, can be cancelled, and ends in a result or a failure.

It has no Qt. The window looks at it from a timer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from engine.model.problems import PreparationCancelled
from engine.recorded_workload import RerunCancelled


class Job(threading.Thread):
    """Runs ``work(job)``. ``stage`` and ``fraction`` (None: unknown) are for people; ``cancel`` is an Event.

    Once it is not alive any more: ``result``, or ``failure``, or neither if it was cancelled.
    """

    def __init__(self, work: Callable[[Job], Any]) -> None:
        super().__init__(name="job", daemon=True)
        self._work = work
        self.cancel = threading.Event()
        self.stage = ""
        self.fraction: float | None = None
        self.result: Any = None
        self.failure: Exception | None = None

    @property
    def cancelled(self) -> bool:
        return self.cancel.is_set() and self.result is None

    def tell(self, stage: str, fraction: float | None) -> None:
        self.stage, self.fraction = stage, fraction

    def run(self) -> None:
        try:
            self.result = self._work(self)
        except (RerunCancelled, PreparationCancelled):
            self.cancel.set()
        except Exception as failure:  # the window says what it was
            self.failure = failure
