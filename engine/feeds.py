"""What hands a recorded workload to an engine: before the steps at which it came, or at the times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from engine.core import Tell
from engine.recorded_engine import RecordedEngine
from engine.recorded_workload import RecordedWorkload, StepInputs
from engine.trace.events import Arrived, KnobChange
from engine.trace.knobs import KnobError


class Feed(Protocol):
    """Hands an engine what comes in."""

    all_requests: int

    def hand_over(self, engine: RecordedEngine) -> bool:
        """Give the engine what is due before its next step; False when everything is over."""
        ...

    def step(self, engine: RecordedEngine, tell: Tell) -> None:
        """Run the step, and tell what there is to tell by then."""
        ...


class StepFeed:
    """Everything before the same step as in the recording, and as many steps."""

    def __init__(self, workload: RecordedWorkload) -> None:
        self.all_requests = workload.num_requests
        self._inputs = {i.step: i for i in workload.inputs}
        self._steps = workload.num_steps
        self._next = 0
        self._now: StepInputs | None = None

    def hand_over(self, engine: RecordedEngine) -> bool:
        if self._next >= self._steps:
            return False
        self._now = self._inputs.get(self._next)
        self._next += 1
        if self._now is not None:
            engine.hand_over(self._now)
        return True

    def step(self, engine: RecordedEngine, tell: Tell) -> None:
        engine.advance_like(self._now, tell)


class TimeFeed:
    """Everything when it happened on the run's clock. Turns of the knobs in ``fixed`` are left out."""

    def __init__(self, workload: RecordedWorkload, fixed: Sequence[str] = ()) -> None:
        self.all_requests = workload.num_requests
        due: list[tuple[int, Arrived | KnobChange | str]] = []
        for inputs in workload.inputs:
            due += [(inputs.start_ns, change) for change in inputs.knobs if change.name not in fixed]
            due += [(arrived.arrival_ns, arrived) for arrived in inputs.arrived]
            due += [(inputs.start_ns, request_id) for request_id in inputs.aborted]
        due.sort(key=lambda entry: entry[0])  # stable: what came at once stays in order
        self._due = due
        self._at = 0

    def hand_over(self, engine: RecordedEngine) -> bool:
        if not engine.has_work and self._at < len(self._due):
            engine.clock.skip_to(self._due[self._at][0])
        now = engine.clock.now_ns()
        while self._at < len(self._due) and self._due[self._at][0] <= now:
            at_ns, what = self._due[self._at]
            self._at += 1
            if isinstance(what, Arrived):
                engine.take(what, at_ns)
            elif isinstance(what, KnobChange):
                with suppress(KnobError):  # there may be less memory than there was
                    engine.set_knob(what.name, what.new)
            else:
                engine.abort(what)
        return engine.has_work or self._at < len(self._due) or engine.has_news

    def step(self, engine: RecordedEngine, tell: Tell) -> None:
        engine.advance(tell)
