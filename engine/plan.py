"""What the scheduler hands to the runner: the decisions of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.request import Request
from engine.trace.events import Preempted


class ScheduledRequest(msgspec.Struct, gc=False, eq=False):
    """``num_tokens`` tokens of ``request`` are computed in this step, after ``num_computed_tokens``.

    Their slots are in ``request.block_ids``, which already holds every block that they need. ``samples`` says that
    the step reaches the request's last token, so that a new one is sampled from its logits. ``admission`` is "",
    "first" or "resumed"; then ``hit_tokens`` of ``num_computed_tokens`` came from the prefix cache.
    """

    request: Request
    num_tokens: int
    num_computed_tokens: int
    samples: bool
    admission: str = ""
    hit_tokens: int = 0


@dataclass(slots=True)
class StepPlan:
    """One step: who computes how much, in order, and why it ended there (codes as in ``StepEvents.stopped_by``).

    ``orphans`` are rare and almost always empty. Blocks become cached when the step that fills them is decided; if
    their request is then preempted within that same step, they would stay cached with nothing in them. The runner
    therefore computes them all the same, like ``scheduled`` entries, from a copy of the request as it was: none of
    them samples. See :attr:`computed`. ``mode`` is how it then ran (as in ``StepEvents.mode``), once it has.
    """

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    stopped_by: str = ""
    stopped_at: str = ""
    free_blocks: int = 0
    orphans: list[ScheduledRequest] = field(default_factory=list)
    mode: str = ""

    @property
    def num_tokens(self) -> int:
        """Tokens of the budget that are used."""
        return sum(s.num_tokens for s in self.scheduled)

    @property
    def computed(self) -> list[ScheduledRequest]:
        """What the runner has to compute, in this order: the scheduled requests, then the orphans."""
        return self.scheduled + self.orphans if self.orphans else self.scheduled
