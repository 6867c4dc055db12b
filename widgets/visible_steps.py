"""Which steps the charts and the scrubber show: one stretch of the run for all of them.

As long as nobody takes hold of it, every chart shows its own stretch around the viewing step. Whoever pans or zooms a
chart holds all of them where they are; new steps never move what is held. Zooming at the live edge holds nothing: the
charts go on with the run, with as many steps in sight as were asked for.
"""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QObject, Signal

from engine.trace.metrics import StepSeries

FEWEST_STEPS = 8
"""No zoom shows fewer."""

Range = tuple[float, float]
"""The first and the last step in sight, both whole; fractions are for smooth panning."""


class VisibleSteps(QObject):
    """The stretch that is shared. ``changed``: another one; ``panned``: the user moved it; ``follow_asked``: and wants
    it to go with the run again."""

    changed = Signal()
    panned = Signal()
    follow_asked = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._held: Range | None = None
        self._span: float | None = None  # steps in sight at the live edge; None: as many as each chart likes
        self._by_pause = False  # it is held only because the run was paused
        self._followed = False  # at the last step that was shown

    @property
    def held(self) -> bool:
        """Whether the user put the charts where they are, so that they do not follow the run."""
        return self._held is not None and not self._by_pause

    def range_at(self, step: int, first: int) -> Range | None:
        """What is in sight while ``step`` is looked at in a run that begins with ``first``; None: each to his own."""
        if self._held is not None:
            return self._held
        if self._span is None:
            return None
        return max(float(first), step - self._span), float(max(step, first + FEWEST_STEPS))

    def hold(self, low: float, high: float, first: int, last: int) -> None:
        """Show steps ``low`` to ``high`` of a run of steps ``first`` to ``last``, as far as there are such."""
        length = min(max(high - low, FEWEST_STEPS), max(last - first, 1))
        low = min(max(low, first), max(first, last - length))
        self._set((low, low + length), self._span)

    def go_with_the_run(self, span: float) -> None:
        """Show the last ``span`` steps, and the next ones as they come."""
        self._set(None, max(span, FEWEST_STEPS))

    def release(self) -> None:
        """Each chart its own stretch again."""
        self._set(None, None)

    def _set(self, held: Range | None, span: float | None, *, by_pause: bool = False) -> None:
        if (held, span, by_pause) != (self._held, self._span, self._by_pause):
            self._held, self._span, self._by_pause = held, span, by_pause
            self.changed.emit()

    def zoom(self, seen: Range, factor: float, at: float, *, following: bool, first: int, last: int) -> None:
        """``factor`` times fewer steps than are ``seen``, the one at ``at`` staying where it is. At the live edge
        (``following``) the newest one does."""
        low, high = seen
        length = max((high - low) / factor, FEWEST_STEPS)
        if following and not self.held:
            self.go_with_the_run(min(length, max(FEWEST_STEPS, last - first)))
            return
        share = (at - low) / max(1e-9, high - low)
        self.hold(at - share * length, at + (1 - share) * length, first, last)

    def pan(self, seen: Range, steps: float, first: int, last: int) -> None:
        """Move what was ``seen`` by ``steps`` towards the end of the run, and hold it there. Of a run that is in sight
        from end to end there is nothing to move."""
        if not self.held and seen[0] <= first and seen[1] >= last:
            return
        self.hold(seen[0] + steps, seen[1] + steps, first, last)
        self.panned.emit()

    def keep_in_sight(self, before: int, step: int, first: int, last: int, *, playing: bool, following: bool) -> None:
        """The viewing step went from ``before`` to ``step``. If it left what is in sight it takes that along, unless it
        was out of sight already while it played on.

        A chart shows the run a few steps late. Whoever pans it lets go of the run at a step that is still to be shown:
        that one takes nothing along either."""
        let_go = self._followed and self.held
        self._followed = following
        if following:
            if self._held is not None and (self._by_pause or step > self._held[1]):
                self._set(None, self._held[1] - self._held[0])
            return
        if self._held is None:
            if self._span is None:
                return
            low, high = self.range_at(before, first) or (first, last)
            self._set((low, high), self._span, by_pause=True)
        assert self._held is not None
        low, high = self._held
        if low < first:  # the oldest steps were given up
            low, high = float(first), max(high, float(min(last, first + FEWEST_STEPS)))
            self._set((low, high), self._span, by_pause=self._by_pause)
        if step != before and not let_go and not low <= step <= high and (low <= before <= high or not playing):
            margin = 0.1 * (high - low)
            move = step + margin - high if step > high else step - margin - low
            length = high - low
            low = min(max(low + move, first), max(first, last - length))
            self._set((low, low + length), self._span, by_pause=self._by_pause)


# ---- steps and seconds -----------------------------------------------------------------------------------------------


def time_of(series: StepSeries, step: float) -> float:
    """When ``step`` ended, on the run's clock in nanoseconds; in between, the part of the way. One before the first is
    where the first began."""
    first = int(series.step[0])
    if step < first:
        start, end = float(series.start_ns[0]), float(series.end_ns[0])
        return start + (step - first + 1) * (end - start)
    row = series.index_of(int(step))
    here = float(series.end_ns[row])
    if row + 1 >= series.n:
        return here
    return here + (step - int(series.step[row])) * (float(series.end_ns[row + 1]) - here)


def step_at_time(series: StepSeries, time_ns: float) -> float:
    """The inverse of :func:`time_of`, within the run."""
    row = int(np.searchsorted(series.end_ns, np.int64(min(max(time_ns, 0.0), 2.0**62)), "right")) - 1
    if row + 1 >= series.n:
        return float(series.step[-1])
    before = float(series.end_ns[row]) if row >= 0 else float(series.start_ns[0])
    length = float(series.end_ns[row + 1]) - before
    start = float(series.step[row]) if row >= 0 else float(series.step[0]) - 1
    return start + min(1.0, max(0.0, (time_ns - before) / length if length > 0 else 1.0))
