"""When the window draws: at most 60 times a second, and never so often that the engine starves.

The engine and the window share the interpreter lock. So a frame that took long puts the next one off: the window takes
only a share of the time, and the rest is the engine's. And the interpreter is told to hand the lock over quickly: with
Python's own 5 ms, each of the two waits that long whenever the other one is at work.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer

FRAME_S = 1 / 60
IDLE_S = 1 / 30
"""From one look to the next while there is nothing new and nothing moves."""

DUTY = 0.35
SLOWEST_S = 1 / 32
BUSIEST = 0.7
"""A frame may take the share ``DUTY`` of its period. Where that would make the period longer than ``SLOWEST_S``, it is
that long, or as long as leaves the frame the share ``BUSIEST``: on a crowded machine much of a frame is waiting."""

SWITCH_INTERVAL_S = 0.001
KEPT = 4096


def share_the_interpreter() -> None:
    """Make threads hand the interpreter lock over quickly. For programs with both an engine and a window."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def settle_memory() -> None:
    """Spare the garbage collector what is there now: after a model was loaded, that is here to stay.

    A full collection walks over everything that was ever imported, and holds up a frame and the engine while it does.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class FrameClock(QObject):
    """Calls ``frame(now)`` in time; what that asked to repaint is painted at once, so that a frame can be timed.

    ``frame`` returns False when nothing was to be drawn. ``now`` is in ``time.perf_counter`` seconds.
    """

    def __init__(self, frame: Callable[[float], bool], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._frame = frame
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._tick)
        self._times_ms = np.zeros(KEPT, np.float32)
        self.frames = 0
        self._drawn_at: float | None = None  # when the frame before began, if it drew something
        self._busy_s = 0.0  # between frames that followed one another
        self._busy_frames = 0
        self._running = False

    def start(self) -> None:
        self._running = True
        self._timer.start(0)

    def stop(self) -> None:
        self._running = False
        self._timer.stop()

    def _tick(self) -> None:
        start = time.perf_counter()
        drawn = False
        try:
            drawn = self._frame(start)
            if drawn:
                QCoreApplication.sendPostedEvents(None, QEvent.Type.UpdateRequest.value)
                self._count(start, time.perf_counter())
        finally:
            self._drawn_at = start if drawn else None
            if self._running:
                took = time.perf_counter() - start
                period = max(FRAME_S, min(took / DUTY, SLOWEST_S), took / BUSIEST)
                self._timer.start(max(1, round(1e3 * (period - took if drawn else IDLE_S))))

    def _count(self, start: float, end: float) -> None:
        self._times_ms[self.frames % KEPT] = (end - start) * 1e3
        self.frames += 1
        if self._drawn_at is not None:
            self._busy_s += start - self._drawn_at
            self._busy_frames += 1

    def reset(self) -> None:
        """Forget the frames so far."""
        self.frames = 0
        self._drawn_at = None
        self._busy_s, self._busy_frames = 0.0, 0

    @property
    def frames_per_s(self) -> float:
        """How many frames a second are drawn while there is something to draw; NaN when there never was."""
        return self._busy_frames / self._busy_s if self._busy_s else float("nan")

    def times_ms(self) -> np.ndarray:
        """How long the latest frames took, in milliseconds from the tick to the end of painting; in no order."""
        return self._times_ms[:min(self.frames, KEPT)]

    def recent_ms(self, count: int = 60) -> float:
        """Median of the latest frames, NaN before the first."""
        if not self.frames:
            return float("nan")
        slots = np.arange(max(0, self.frames - min(count, KEPT)), self.frames) % KEPT
        return float(np.median(self._times_ms[slots]))
