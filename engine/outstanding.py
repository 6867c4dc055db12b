"""A step that has been decided and computed, and of which nobody has been told yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.model.detokenizer import IncrementalDetokenizer
from engine.plan import StepPlan
from engine.step_events import build_step_events
from engine.trace.events import (
    Arrived,
    Finished,
    KnobChange,
    Logprobs,
    PhaseTimes,
    PoolEvent,
    Refused,
    Sampled,
    StepEvents,
)


@dataclass(slots=True)
class Outstanding:
    """All that there is to tell, taken down when it happened: the engine may go on before it is told.

    Only texts may be missing. ``unread`` holds what has none yet, with where it comes from and the token that it comes
    with (None: what is held back at the end), in order; ``unnamed`` the log probabilities whose tokens have none.
    """

    step: int
    start_ns: int
    plan: StepPlan
    phases: PhaseTimes
    knobs: list[KnobChange]
    arrived: list[Arrived]
    refused: list[Refused]
    aborted: list[Finished]
    pool: list[PoolEvent]
    sampled: list[Sampled]
    finished: list[Finished]
    free_blocks_after: int
    end_ns: int = 0
    unread: list[tuple[Sampled | Finished, IncrementalDetokenizer, int | None]] = field(default_factory=list)
    unnamed: list[Logprobs] = field(default_factory=list)

    def read(self) -> None:
        """Make the texts that are missing."""
        for event, text, token in self.unread:
            event.text = text.flush() if token is None else text.add(token)
        self.unread.clear()

    def events(self) -> StepEvents:
        """The record of the step; its texts must be there."""
        return build_step_events(
            step=self.step, start_ns=self.start_ns, end_ns=self.end_ns, phases=self.phases, knobs=self.knobs,
            arrived=self.arrived, refused=self.refused, aborted=self.aborted, plan=self.plan, pool=self.pool,
            sampled=self.sampled, finished=self.finished, free_blocks_after=self.free_blocks_after)
