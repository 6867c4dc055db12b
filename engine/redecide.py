"""Decides a recorded run again, step by step: from the recorded arrivals, aborts, knobs and tokens, and nothing else.

What comes out has to equal what was recorded, block number by block number. A difference says that the recording was
changed, or that this version of the scheduler decides differently from the one that made it.
"""

from __future__ import annotations

from typing import Any

from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.recorded_workload import sampling_of
from engine.request import Request, RequestRefused
from engine.scheduler import Scheduler
from engine.step_events import build_step_events
from engine.trace.events import Finished, PoolEvent, PoolRebuilt, RunInfo, StepEvents
from engine.trace.knobs import KnobValue
from engine.trace.source import Notice, RunSource


def why_not(source: RunSource) -> Notice | None:
    """Why the decisions of a run cannot be repeated; None if they can."""
    if source.first_step > 0:
        return Notice("The recording begins in the middle of a run: its decisions cannot be repeated.")
    caching = source.info.knobs.get("enable_prefix_caching", True) or any(
        mark.kind == "knob" and mark.label.startswith("enable_prefix_caching") for mark in source.series.marks)
    if not source.info.prompt_text and caching:
        return Notice("The prompts were left out of the recording: what the prefix cache had to find cannot be known, "
                      "and so the decisions cannot be repeated.")
    return None


def guess_eos(source: RunSource) -> set[int]:
    """The tokens that ended sequences, for recordings that do not say which ones do."""
    found: set[int] = set()
    for step in range(source.first_step, source.last_step + 1):
        events = source.events(step)
        ended = {f.request_id for f in events.finished if f.reason == "stop" and f.stop is None}
        if ended:
            found |= {s.token_id for s in events.sampled if s.request_id in ended}
    return found


class Redecider:
    """A scheduler that is driven by recorded steps."""

    def __init__(self, info: RunInfo, eos_token_ids: set[int]) -> None:
        knobs = {name: info.knobs[name] for name in SCHEDULER_KNOBS if name in info.knobs}
        config = SchedulerConfig(max_model_len=info.max_model_len).with_knobs(knobs)
        self._scheduler = Scheduler(config, eos_token_ids)

    def check(self, recorded: StepEvents) -> Notice | None:
        """Decide the next step; what differs from the recorded one, if anything. After a difference all is over."""
        try:
            decided = self._decide(recorded)
        except (ValueError, KeyError, RuntimeError, RequestRefused) as error:
            return Notice("Step {step} cannot have been decided ({problem}).", step=recorded.step, problem=error)
        for what in ("preempted", "scheduled", "stopped_by", "stopped_at", "free_blocks", "finished", "pool",
                     "free_blocks_after"):
            one, other = _comparable(what, recorded), _comparable(what, decided)
            if one != other:
                return Notice("Step {step}: {what} was recorded as {recorded}, and would be {decided}.",
                              step=recorded.step, what=what, recorded=_first_difference(one, other),
                              decided=_first_difference(other, one))
        return None

    def _decide(self, recorded: StepEvents) -> StepEvents:
        scheduler = self._scheduler
        late = self._add_arrivals(recorded)
        rebuilt = any(isinstance(event, PoolRebuilt) for event in recorded.pool)
        unservable = [f for f in recorded.aborted if rebuilt and f.reason == "length"]
        for gone in recorded.aborted:
            if gone not in unservable:
                self._finish(gone)
        changes: dict[str, KnobValue] = {c.name: c.new for c in recorded.knobs if c.name in SCHEDULER_KNOBS}
        # Knobs of the pool act last, as one.
        sizes: dict[str, KnobValue] = {n: changes.pop(n) for n in ("num_blocks", "block_size") if n in changes}
        for name, value in changes.items():
            scheduler.reconfigure({name: value})
        if sizes:
            scheduler.reconfigure(sizes)
        for request in late:
            scheduler.add_request(request)
        for gone in unservable:
            self._finish(gone)
        finished: list[Finished] = []
        tells_only = not recorded.scheduled and not recorded.preempted and recorded.phases.schedule == 0
        if not scheduler.requests or tells_only:
            return self._told(recorded)
        plan = scheduler.schedule()
        names = [entry.request.request_id for entry in plan.scheduled if entry.samples]
        if names != [s.request_id for s in recorded.sampled]:
            tokens = [0] * len(names)  # the difference is told by what was scheduled
        else:
            tokens = [s.token_id for s in recorded.sampled]
        reasons = {request.request_id: reason for request, reason in scheduler.commit(plan, tokens)}
        for ended in recorded.finished:
            # A stop string is found in the text, which the scheduler does not see.
            if isinstance(ended.stop, str) and ended.request_id in scheduler.requests:
                scheduler.finish(ended.request_id, ended.reason)
            if isinstance(ended.stop, str):
                reasons[ended.request_id] = ended.reason
        finished = [Finished(name, reasons[name]) for name in names if name in reasons]
        return build_step_events(
            step=recorded.step, start_ns=0, end_ns=0, phases=recorded.phases, knobs=[], arrived=[], refused=[],
            aborted=[], plan=plan, pool=scheduler.take_pool_events(), sampled=[], finished=finished,
            free_blocks_after=scheduler.pool.num_free_blocks)

    def _told(self, recorded: StepEvents) -> StepEvents:
        """A step in which nothing ran."""
        free = self._scheduler.pool.num_free_blocks
        return StepEvents(recorded.step, 0, 0, recorded.phases, [], [], [], [], [], [],
                          self._scheduler.take_pool_events(), [], [], "", "", free, free)

    def _add_arrivals(self, recorded: StepEvents) -> list[Request]:
        """Queue those that arrived; returns those that the pool can only serve after it has been made anew."""
        late: list[Request] = []
        for arrived in recorded.arrived:
            request = Request(arrived.request_id, arrived.prompt_token_ids, sampling_of(arrived), arrived.arrival_ns,
                              arrived.priority, arrived.salt)
            try:
                self._scheduler.add_request(request)
            except RequestRefused:
                late.append(request)
        return late

    def _finish(self, gone: Finished) -> None:
        if not self._scheduler.finish(gone.request_id, gone.reason):
            raise KeyError(f"there is no request {gone.request_id} to end")


def _comparable(what: str, events: StepEvents) -> Any:
    if what == "finished":
        return [(f.request_id, f.reason) for f in events.finished]
    if what == "pool":
        return _after_rebuild(events.pool)
    return getattr(events, what)


def _after_rebuild(pool: list[PoolEvent]) -> list[PoolEvent]:
    """What happened to the blocks of the newest pool: of one that is gone, the order does not matter any more."""
    for at in range(len(pool) - 1, -1, -1):
        if isinstance(pool[at], PoolRebuilt):
            return pool[at:]
    return pool


def _first_difference(mine: Any, other: Any) -> str:
    if not isinstance(mine, list):
        return repr(mine)
    for at, item in enumerate(mine):
        if at >= len(other) or item != other[at]:
            return f"{at}: {item!r}"[:200]
    return f"{len(mine)} of them"
