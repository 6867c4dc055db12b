"""Motion tells what happened, takes at most a quarter of a second, and can be turned off."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Motion:
    """Pure functions of the time since a step came onto the screen, so that motion plays backwards as well.

    Each takes ``t``, 0 at the moment and 1 after :attr:`DURATION` seconds, and returns a strength from 0 to 1. With
    :attr:`enabled` off, ``t`` is 1 at once and nothing moves.
    """

    DURATION = 0.25
    enabled = True
    _moment: float | None = None

    @classmethod
    def now(cls) -> float:
        """The clock of ``View.shown_at``, in seconds."""
        return time.perf_counter() if cls._moment is None else cls._moment

    @classmethod
    @contextmanager
    def at(cls, moment: float) -> Iterator[None]:
        """Inside the block it is ``moment``: whatever is painted there is painted as it looks then."""
        before, cls._moment = cls._moment, moment
        try:
            yield
        finally:
            cls._moment = before

    @classmethod
    def progress(cls, shown_at: float, now: float | None = None) -> float:
        """``t`` for a step shown at ``shown_at``: 0 to 1."""
        if not cls.enabled:
            return 1.0
        elapsed = (cls.now() if now is None else now) - shown_at
        return min(1.0, max(0.0, elapsed / cls.DURATION))

    @staticmethod
    def appear(t: float) -> float:
        """How far something new has come: 0 to 1, fast first."""
        return 1.0 - (1.0 - t) ** 3

    @staticmethod
    def fade(t: float) -> float:
        """How much is left of something gone: 1 to 0."""
        return (1.0 - t) ** 2

    @staticmethod
    def glow(t: float) -> float:
        """A swell and its ebb, highest at a quarter of the time; 0 at the end."""
        return math.sin(math.pi * math.sqrt(t)) if t < 1.0 else 0.0

    @staticmethod
    def flash(t: float) -> float:
        """Bright at once, then two beats, 0 at the end."""
        return (1.0 - t) * (0.5 + 0.5 * math.cos(4.0 * math.pi * t))
