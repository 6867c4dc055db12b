"""Where a run comes from, for everything that only wants to look at it: live, from a file, later also compared."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from engine.trace.events import RunInfo, StepEvents
from engine.trace.metrics import StepSeries
from engine.trace.state import EngineState
from engine.trace.timeline import Timeline

SNAPSHOT_INTERVAL = 256
"""Steps from one snapshot to the next: reaching any step takes at most this many applications of events."""


@runtime_checkable
class RunSource(Protocol):
    """A run, from ``first_step`` to ``last_step`` (both inclusive, both -1 when there is no step yet).

    ``complete`` is False when something of the run is missing, and ``warnings`` then says what, for people.
    ``series`` and ``timeline`` cover the whole run so far.
    """

    info: RunInfo
    complete: bool
    warnings: list[str]

    @property
    def first_step(self) -> int: ...

    @property
    def last_step(self) -> int: ...

    @property
    def series(self) -> StepSeries: ...

    @property
    def timeline(self) -> Timeline: ...

    def events(self, step: int) -> StepEvents:
        """What happened in ``step``. Raises IndexError outside ``first_step .. last_step``. Not to be changed."""
        ...

    def state_at(self, step: int) -> EngineState:
        """The engine after ``step``: a state of the caller's own, to keep and to advance.

        ``first_step - 1`` is allowed and gives the engine before the first step. Raises IndexError beyond that.
        """
        ...

    def close(self) -> None: ...


def step_out_of_range(source: RunSource, step: int) -> IndexError:
    """The error that both methods raise."""
    return IndexError(f"there is no step {step}: the run has steps {source.first_step} to {source.last_step}")
