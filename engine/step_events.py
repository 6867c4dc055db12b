"""Puts what the scheduler, the runner and the clock say of one step into one :class:`StepEvents`."""

from __future__ import annotations

from engine.plan import StepPlan
from engine.request import Request
from engine.trace.events import (
    Arrived,
    Finished,
    KnobChange,
    PhaseTimes,
    PoolEvent,
    Refused,
    Sampled,
    Scheduled,
    StepEvents,
)


def arrival_of(request: Request, parent: str = "") -> Arrived:
    """The event of a request's arrival; ``parent`` as in :class:`Arrived`."""
    params = request.params
    return Arrived(
        request.request_id, request.arrival_ns, request.prompt_token_ids, request.prompt_text, params.max_tokens,
        params.temperature, request.priority, request.salt, request.source, params.top_k, params.top_p,
        params.seed or 0, params.ignore_eos, params.min_p, params.repetition_penalty, params.presence_penalty,
        params.frequency_penalty, dict(params.logit_bias), params.min_tokens, list(params.stop),
        list(params.stop_token_ids), params.logprobs, parent)


def build_step_events(
    *,
    step: int,
    start_ns: int,
    end_ns: int,
    phases: PhaseTimes,
    knobs: list[KnobChange],
    arrived: list[Arrived],
    refused: list[Refused],
    aborted: list[Finished],
    plan: StepPlan,
    pool: list[PoolEvent],
    sampled: list[Sampled],
    finished: list[Finished],
    free_blocks_after: int,
) -> StepEvents:
    """One step's record. The lists become part of it: the caller must not change them afterwards.

    ``pool`` is what :meth:`Scheduler.take_pool_events` returned after the step was committed, so that it also holds
    what aborts and rebuilds did to blocks before the step. Times are run-clock nanoseconds.
    """
    scheduled = [
        Scheduled(s.request.request_id, s.num_tokens, s.num_computed_tokens, s.samples, s.admission, s.hit_tokens)
        for s in plan.scheduled
    ]
    return StepEvents(step, start_ns, end_ns, phases, knobs, arrived, refused, aborted, plan.preempted, scheduled,
                      pool, sampled, finished, plan.stopped_by, plan.stopped_at, plan.free_blocks, free_blocks_after,
                      plan.mode)
