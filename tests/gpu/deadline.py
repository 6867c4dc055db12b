"""Time that a section may take, and what it says when that was not enough."""

from __future__ import annotations

import time


class Deadline:
    """``seconds`` from now. A section looks at it between two pieces of work and leaves the rest out."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.stopped = ""
        self._start = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        return max(0.1, self.seconds - self.spent)

    @property
    def over(self) -> bool:
        return self.spent >= self.seconds

    def stop(self, why: str) -> None:
        """Say that something was left out."""
        self.stopped = self.stopped or f"out of time: {why}"
