"""The run's clock."""

from __future__ import annotations

import time


class RunClock:
    """Monotonic nanoseconds since the run began, standing still while held.

    Pauses and slow motion hold the clock, so that TTFT and ITL never contain them and no queue of arrivals builds up
    behind a pause.
    """

    def __init__(self) -> None:
        self._origin = time.perf_counter_ns()
        self._held_at: int | None = None
        self.wall_start_ns = time.time_ns()

    def now_ns(self) -> int:
        return (self._held_at or time.perf_counter_ns()) - self._origin

    def hold(self) -> None:
        if self._held_at is None:
            self._held_at = time.perf_counter_ns()

    def release(self) -> None:
        if self._held_at is not None:
            self._origin += time.perf_counter_ns() - self._held_at
            self._held_at = None

    @property
    def held(self) -> bool:
        return self._held_at is not None
