"""Which step is looked at, and how it moves: one object, changed only through its commands.

The viewing step and the engine's step are two things. A live view is *attached* to the live edge until it is scrubbed
or stepped back; from then on only :meth:`TimeControl.follow` attaches it again. A paused view is moved by commands and
by nothing else: new steps of the engine leave it where it is.

There is no Qt in here and no clock either: :meth:`TimeControl.tick` is told the time.
"""

from __future__ import annotations

from typing import Literal, Protocol

from engine.trace.conditions import parse_gauge

SPEEDS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
"""The speeds offered for a replay by the run's clock; 1 is as fast as it happened."""

STEP_RATES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The rates offered for showing every step once, in steps a second."""

Pacing = Literal["clock", "steps"]


class Steps(Protocol):
    """The steps that there are to look at. ``last_step`` is -1 while there are none."""

    @property
    def first_step(self) -> int: ...

    @property
    def last_step(self) -> int: ...

    @property
    def ended(self) -> bool:
        """True when no further step will come: playing stops at the last one."""

    def end_ns(self, step: int) -> int:
        """When ``step`` ended on the run's clock."""

    def step_at(self, time_ns: int) -> int:
        """The last step that had ended by then; the first step if none had."""

    def next_match(self, condition: str, after: int, upto: int) -> int | None:
        """The first step in ``after < step <= upto`` that meets ``condition`` (see :mod:`engine.trace.conditions`)."""

    def event_after(self, step: int) -> int | None:
        """The first step after ``step`` with a marked event or a note."""

    def event_before(self, step: int) -> int | None:
        """The last step before ``step`` with a marked event or a note."""


class TimeControl:
    """The viewing step. Read the attributes; change them only through the commands.

    ``step`` is -1 while there is nothing to look at. ``attached`` says that the view belongs to the live edge;
    together with ``playing`` it is *following*. ``until`` is the condition that playing stops at, "" for none, and
    ``stopped_by`` the one that stopped it last, until the next command. ``loop_start`` and ``loop_end`` are the ends of
    the range that playing repeats; either may be None.
    """

    def __init__(self, steps: Steps, *, live: bool) -> None:
        self._steps = steps
        self.live = live
        self.attached = live
        self.playing = live
        self.step = steps.last_step if live or steps.last_step < 0 else steps.first_step
        self.speed = 1.0
        self.pacing: Pacing = "clock"
        self.until = ""
        self.stopped_by = ""
        self.loop_start: int | None = None
        self.loop_end: int | None = None
        self._owed = 0  # steps asked for beyond the edge, shown as soon as the engine has made them
        self._clock_ns = 0.0  # where playing by the clock has got to
        self._fraction = 0.0  # of a step, when playing at a rate
        self._last_tick: float | None = None

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def following(self) -> bool:
        return self.attached and self.playing

    @property
    def first_step(self) -> int:
        return self._steps.first_step

    @property
    def last_step(self) -> int:
        return self._steps.last_step

    @property
    def at_edge(self) -> bool:
        return self.step >= self._steps.last_step

    @property
    def behind(self) -> int:
        """How many steps the view is behind the last one."""
        return max(0, self._steps.last_step - self.step)

    @property
    def loop(self) -> tuple[int, int] | None:
        """The range that playing repeats, when both of its ends are set."""
        if self.loop_start is None or self.loop_end is None:
            return None
        return self.loop_start, self.loop_end

    @property
    def looping(self) -> bool:
        """Whether playing from here stays in the loop. A view at the live edge, or beyond the loop, does not."""
        return self.loop is not None and not self.attached and self.loop[0] <= self.step <= self.loop[1]

    # ---- commands ------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Go on from where the view is. At the end of a complete run, start again from the beginning."""
        self.stopped_by = ""
        self._owed = 0
        if self._steps.ended and self.at_edge and not self.attached and not self.looping:
            self._go(self._steps.first_step)
        self.playing = True
        self._rebase()

    def pause(self) -> None:
        """Stay at this step."""
        self.stopped_by = ""
        self._owed = 0
        self.playing = False

    def toggle(self) -> None:
        """Pause, or go on from where it was paused."""
        self.pause() if self.playing else self.play()

    def step_forward(self, count: int = 1) -> int:
        """Pause and move ``count`` steps on. Returns how many of them the engine still has to make (live only).

        Those are shown when they come: the view moves by that many steps and no further.
        """
        self.pause()
        target = max(self.step, self._steps.first_step - 1) + max(0, count)
        self.step = max(self.step, min(target, self._steps.last_step))
        self._owed = target - self.step if not self._steps.ended else 0
        return self._owed

    def step_back(self, count: int = 1) -> None:
        """Pause and move ``count`` steps back."""
        self.pause()
        self.attached = False
        self._go(self.step - max(0, count))

    def seek(self, step: int) -> None:
        """Look at ``step``, or the nearest that there is. A view that followed stays there; a replay plays on."""
        if self.attached:
            self.playing = False
        self.attached = False
        self.stopped_by = ""
        self._owed = 0
        self._go(step)
        self._rebase()

    def detach(self) -> None:
        """Stay at this step while the run goes on. A replay is not attached to anything and plays on."""
        if self.attached:
            self.pause()
            self.attached = False

    def next_event(self) -> bool:
        """Pause at the next step with a marked event or a note; False, and nothing changes, if there is none."""
        return self._go_to_event(self._steps.event_after(self.step))

    def previous_event(self) -> bool:
        """Pause at the step before with a marked event or a note; False, and nothing changes, if there is none."""
        return self._go_to_event(self._steps.event_before(self.step))

    def _go_to_event(self, step: int | None) -> bool:
        if step is None or not self._steps.first_step <= step <= self._steps.last_step:
            return False
        self.pause()
        self.attached = False
        self._go(step)
        return True

    def mark_loop_start(self) -> None:
        """The loop begins at this step; a second time here, it has no beginning. An end that is not later goes."""
        if self.step < 0:
            return
        self.loop_start = None if self.loop_start == self.step else self.step
        if self.loop_end is not None and self.loop_start is not None and self.loop_end <= self.loop_start:
            self.loop_end = None
        self._enter_loop()

    def mark_loop_end(self) -> None:
        """The loop ends with this step; a second time here, it has no end. A beginning that is not earlier goes."""
        if self.step < 0:
            return
        self.loop_end = None if self.loop_end == self.step else self.step
        if self.loop_start is not None and self.loop_end is not None and self.loop_end <= self.loop_start:
            self.loop_start = None
        self._enter_loop()

    def clear_loop(self) -> None:
        self.loop_start = self.loop_end = None

    def _enter_loop(self) -> None:
        """A loop that was closed while following is looked at, instead of the newest step; the engine goes on."""
        if self.loop is not None and self.attached:
            self.attached = False
            self._rebase()

    def first(self) -> None:
        """Look at the first step that there is."""
        self.seek(self._steps.first_step)

    def follow(self) -> None:
        """Go to the newest step and, in a live run, stay at the newest: the only way back to the live edge."""
        self.stopped_by = ""
        self._owed = 0
        self._go(self._steps.last_step)
        self.attached = self.live
        self.playing = self.live

    def set_speed(self, speed: float, pacing: Pacing = "clock") -> None:
        """Play ``speed`` times as fast as it happened ("clock"), or every step once at ``speed`` steps a second.

        Raises ValueError for a speed that is not above 0 and at most 1000.
        """
        if not 0 < speed <= 1000:
            raise ValueError(f"speed {speed}: it must be above 0 and at most 1000")
        self.speed = speed
        self.pacing = pacing
        self._rebase()

    def run_until(self, condition: str) -> None:
        """Play, and stop at the next step that meets ``condition``; "" plays on without stopping.

        The condition stays: playing again goes on to the next time. Raises ValueError for an unknown one.
        """
        if condition:
            parse_gauge(condition)
        self.until = condition
        if condition and not self.playing:
            self.play()

    def end_of_run(self) -> None:
        """No further step will come: the live edge becomes the last step of a run that can be replayed."""
        if self.attached:
            self._go(self._steps.last_step)
        self.live = self.attached = self.playing = False
        self._owed = 0

    def tick(self, now: float) -> bool:
        """Let time pass up to ``now`` (seconds, any origin). Returns True when the viewing step moved."""
        elapsed = 0.0 if self._last_tick is None else max(0.0, now - self._last_tick)
        self._last_tick = now
        before = self.step
        first, last = self._steps.first_step, self._steps.last_step
        if last < 0:
            return False
        if self.step < first and (self.step >= 0 or not self.live):
            self.step = first  # the oldest steps were given up
        self._trim_loop(first)
        if not self.playing:
            self._pay(last)
            return self.step != before
        after, target = self._next(elapsed, last)
        stop = self._steps.next_match(self.until, after, target) if self.until and target > after else None
        if stop is not None:
            self.step = stop
            self.playing = False
            self.stopped_by = self.until
        else:
            self.step = target
            if self.step >= last and self._steps.ended and not self.attached and not self.looping:
                self.playing = False
        return self.step != before

    # ---- inside --------------------------------------------------------------------------------------------------

    def _next(self, elapsed: float, last: int) -> tuple[int, int]:
        """The step to be shown, and the one that the steps passed over on the way to it begin after."""
        loop = self.loop if self.looping else None
        if self.pacing == "steps":
            target = self._next_by_count(elapsed, last, loop)
        elif self.attached:
            target = last
        else:
            target = self._next_by_clock(elapsed, last, loop)
        if loop is not None and target < self.step:
            return loop[0] - 1, loop[0]
        return self.step, max(self.step, target)

    def _next_by_count(self, elapsed: float, last: int, loop: tuple[int, int] | None) -> int:
        """At most one step on, however late the tick: none is passed over. The engine sets the pace at its edge."""
        if self.attached:
            return min(max(self.step + 1, self._steps.first_step), last)
        if loop is None and self.step >= last:
            self._fraction = 0.0
            return self.step
        self._fraction = min(self._fraction + elapsed * self.speed, 2.0)
        if self._fraction < 1:
            return self.step
        self._fraction -= 1
        return loop[0] if loop is not None and self.step >= loop[1] else self.step + 1

    def _next_by_clock(self, elapsed: float, last: int, loop: tuple[int, int] | None) -> int:
        """Where the run's clock has got to. It never runs ahead of the last step, or a late step would be skipped."""
        limit = last if loop is None else min(loop[1], last)
        end = float(self._steps.end_ns(limit))
        self._clock_ns += elapsed * self.speed * 1e9
        if loop is not None and self.step >= limit:
            # Back to the beginning, after as long as the first step took: then it is due.
            start = self._steps.end_ns(loop[0])
            before = self._steps.end_ns(loop[0] - 1) if loop[0] > self._steps.first_step else start
            if self._clock_ns >= end + start - before:
                self._clock_ns = float(start)
                return loop[0]
            return self.step
        self._clock_ns = min(self._clock_ns, end)
        return max(self.step, min(self._steps.step_at(int(self._clock_ns)), limit))

    def _trim_loop(self, first: int) -> None:
        """The oldest steps were given up, and the loop with them."""
        if self.loop_end is not None and self.loop_end <= first:
            self.loop_end = None
        if self.loop_start is not None and self.loop_start < first:
            self.loop_start = first if self.loop_end is not None else None

    def _pay(self, last: int) -> None:
        moved = min(self._owed, max(0, last - self.step))
        self.step += moved
        self._owed -= moved

    def _go(self, step: int) -> None:
        last = self._steps.last_step
        self.step = -1 if last < 0 else min(max(step, self._steps.first_step), last)

    def _rebase(self) -> None:
        self._fraction = 0.0
        self._last_tick = None  # the time that has passed until now belongs to what was before
        exists = self._steps.first_step <= self.step <= self._steps.last_step and self.step >= 0
        self._clock_ns = float(self._steps.end_ns(self.step)) if exists else 0.0
