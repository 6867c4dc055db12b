"""What of a step is a decision, as opposed to a measurement, and where two runs first decide differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.trace.events import StepEvents
from engine.trace.redact import without_prompts
from engine.trace.source import RunSource

DECISIONS = ("knobs", "arrived", "refused", "aborted", "preempted", "scheduled", "pool", "sampled", "finished",
             "stopped_by", "stopped_at", "free_blocks", "free_blocks_after")
"""What is compared of a step, in this order: everything but times."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two runs part. ``field`` is one of :data:`DECISIONS`, or "steps": one run is shorter."""

    step: int
    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"step {self.step}, {self.field}: {self.first!r} and {self.second!r}"


def decision(events: StepEvents, name: str) -> Any:
    """One decision of a step, in a form to compare: without times, texts and probabilities."""
    if name == "arrived":
        return [(a.request_id, a.prompt_token_ids, a.max_tokens, a.priority, a.salt) for a in events.arrived]
    if name == "refused":
        return [(r.request_id, r.reason) for r in events.refused]
    if name in ("aborted", "finished"):
        return [(f.request_id, f.reason, f.stop) for f in getattr(events, name)]
    if name == "sampled":
        return [(s.request_id, s.token_id) for s in events.sampled]
    return getattr(events, name)


def difference(first: StepEvents, second: StepEvents, names: Sequence[str] = DECISIONS) -> Divergence | None:
    """The first decision in which two steps differ, among those ``names``."""
    for name in names:
        mine, theirs = decision(first, name), decision(second, name)
        if mine != theirs:
            return Divergence(first.step, name, mine, theirs)
    return None


def first_divergence(first: RunSource, second: Iterable[StepEvents], *, prompts: bool = True) -> Divergence | None:
    """Where ``second`` first decides otherwise than the whole run ``first``; None if it never does.

    Without ``prompts`` only their lengths are compared: one of the runs does not tell more.
    """
    step = start = max(0, first.first_step)
    for events in second:
        if step > first.last_step:
            return Divergence(step, "steps", first.last_step - start + 1, "more")
        mine = first.events(step)
        found = (difference(mine, events) if prompts else
                 difference(without_prompts(mine), without_prompts(events)))
        if found is not None:
            return found
        step += 1
    if step <= first.last_step:
        return Divergence(step, "steps", first.last_step - start + 1, step - start)
    return None
