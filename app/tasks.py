"""Long work that a window starts and shows: worked off between frames, cancelled in order, and ended exactly once.

The work is a generator that runs in the window's thread and yields a :class:`Report` now and then. What takes a thread
of its own is waited for by :func:`in_thread`, which is such a generator too; so reading a workload, a run in another
thread and a film whose frames only the window's thread may paint are all cancelled and closed in the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from PySide6.QtCore import QObject, QTimer, Signal

from app.jobs import Job

SLICE_S = 0.012
"""How long a task works at a time before the window has its turn."""

WORKING_MS, WAITING_MS = 4, 50
"""From one slice to the next, and to the next look at a thread."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """How far a task is: ``text`` for people, ``fraction`` 0 to 1 or None for unknown. ``wait``: there is nothing to
    do just now."""

    text: str
    fraction: float | None
    wait: bool = False


Going = Generator[Report, None, T]


class Cancelled(Exception):
    """Thrown into a task that is to end. It may report on until it has ended in order, and lets it pass in the end."""


class Task(QObject):
    """Drives one piece of work at a time. Exactly one of ``done``, ``failed`` and ``cancelled`` follows each start,
    unless it is closed."""

    told = Signal(object)
    """A :class:`Report`, after every slice."""

    done = Signal(object)
    """What the work returned."""

    failed = Signal(object)
    """The exception that ended it."""

    cancelled = Signal()
    ended = Signal()
    """It is over, however it ended, even by :meth:`close`; comes before the other three."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._going: Going[Any] | None = None
        self.cancelling = False
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._slice)

    @property
    def busy(self) -> bool:
        return self._going is not None

    def start(self, going: Going[Any]) -> None:
        assert self._going is None
        self._going = going
        self.cancelling = False
        self._timer.start(0)

    def cancel(self) -> None:
        """Ask the work to end. It is told once, whenever that is and however often it is asked."""
        if self._going is not None and not self.cancelling:
            self.cancelling = True
            self._go_on(lambda going: going.throw(Cancelled()))

    def close(self) -> None:
        """End the work here: nobody is told what came of it, but for ``ended``."""
        self._timer.stop()
        going, self._going = self._going, None
        if going is not None:
            going.close()
            self.ended.emit()

    def _slice(self) -> None:
        if self._going is not None:
            self._go_on(_work_off)

    def _go_on(self, step: Callable[[Going[Any]], Report]) -> None:
        going = self._going
        assert going is not None
        self._timer.stop()
        try:
            report = step(going)
        except StopIteration as end:
            self._end(self.done, end.value)
        except Cancelled:
            self._end(self.cancelled)
        except Exception as failure:  # a timer's call: nobody else would hear of it
            self._end(self.failed, failure)
        else:
            self._timer.start(WAITING_MS if report.wait else WORKING_MS)
            self.told.emit(report)

    def _end(self, signal: Any, *values: object) -> None:
        self._going = None
        self.ended.emit()
        signal.emit(*values)


def _work_off(going: Going[Any]) -> Report:
    until = time.perf_counter() + SLICE_S
    while True:
        report = next(going)
        if report.wait or time.perf_counter() > until:
            return report


def in_thread(work: Callable[[Job], T], describe: Callable[[Job], str],
              keep: Callable[[threading.Thread], object]) -> Going[T]:
    """Run ``work`` in a :class:`Job` and wait for it; to be used with ``yield from``. Raises what it raised, and
    :class:`Cancelled` once a cancelled job has ended.

    ``describe`` puts into words how far it is. ``keep`` is given the thread: should its window be closed meanwhile, it
    ends by itself a moment later, and the program waits for that.
    """
    job = Job(work)
    keep(job)
    job.start()
    try:
        while job.is_alive():
            try:
                yield Report(describe(job), job.fraction, wait=True)
            except Cancelled:
                job.cancel.set()
    finally:
        job.cancel.set()
    if job.failure is not None:
        raise job.failure
    if job.result is None:
        raise Cancelled
    result: T = job.result
    return result
