"""Which step is looked at, and how it moves: one object, changed only through its commands.

The viewing step and the engine's step are two things. A live view is *attached* to the live edge until it is scrubbed
or stepped back; from then on only :meth:`TimeControl.follow` attaches it again. A paused view is moved by commands and
by nothing else: new steps of the engine leave it where it is.

There is no Qt in here and no clock either: :meth:`TimeControl.tick` is told the time.
"""

from __future__ import annotations

from typing import Literal, Protocol

SPEEDS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
"""The speeds offered for a replay by the run's clock; 1 is as fast as it happened."""

STEP_RATES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The rates offered for showing every step once, in steps a second."""

CONDITIONS = ("preemption", "hit", "chunk", "eviction", "finish", "knob")
"""What playing can run until; the names are those of the marks in ``StepSeries.marks``."""

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

    def next_mark(self, kind: str, after: int, upto: int) -> int | None:
        """The first step in ``after < step <= upto`` in which ``kind`` happened."""


class TimeControl:
    """The viewing step. Read the attributes; change them only through the commands.

    ``step`` is -1 while there is nothing to look at. ``attached`` says that the view belongs to the live edge;
    together with ``playing`` it is *following*. ``until`` is the condition that playing stops at, "" for none, and
    ``stopped_by`` the one that stopped it last, until the next command.
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

    # ---- commands ------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Go on from where the view is. At the end of a complete run, start again from the beginning."""
        self.stopped_by = ""
        self._owed = 0
        if self._steps.ended and self.at_edge and not self.attached:
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
        """Play, and stop at the next step in which ``condition`` happens; "" plays on without stopping.

        The condition stays: playing again goes on to the next time. Raises ValueError for an unknown one.
        """
        if condition and condition not in CONDITIONS:
            raise ValueError(f"there is no condition {condition!r}; there are {', '.join(CONDITIONS)}")
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
        if not self.playing:
            self._pay(last)
            return self.step != before
        target = self._target(elapsed, last)
        stop = self._steps.next_mark(self.until, self.step, target) if self.until and target > self.step else None
        if stop is not None:
            self.step = stop
            self.playing = False
            self.stopped_by = self.until
        else:
            self.step = max(self.step, target)
            if self.step >= last and self._steps.ended and not self.attached:
                self.playing = False
        return self.step != before

    # ---- inside --------------------------------------------------------------------------------------------------

    def _target(self, elapsed: float, last: int) -> int:
        if self.attached:
            return last
        if self.pacing == "steps":
            if self.step >= last:
                self._fraction = 0.0
                return last
            self._fraction += elapsed * self.speed
            whole = int(self._fraction)
            self._fraction -= whole
            return min(self.step + whole, last)
        # By the clock. It never runs ahead of the last step, or a step that comes late would be skipped.
        self._clock_ns = min(self._clock_ns + elapsed * self.speed * 1e9, float(self._steps.end_ns(last)))
        return max(self.step, min(self._steps.step_at(int(self._clock_ns)), last))

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
