"""Is a recording whole, and can what it tells have happened?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine.trace.events import StepEvents
from engine.trace.metrics import StepSeries
from engine.trace.source import Notice, RunSource
from engine.trace.state import CONTRADICTIONS, EngineState

MAX_PROBLEMS = 20
COMPARED_COLUMNS = ("step", "start_ns", "end_ns", "decode_tokens", "prefill_tokens", "budget", "running", "waiting",
                    "used_blocks", "usable_blocks", "hit_tokens", "preemptions", "evictions", "finished",
                    "output_tokens")


@dataclass
class Verified:
    """What was looked at, and what was found. ``decided`` counts the steps whose decisions were repeated."""

    steps: int = 0
    whole: bool = True
    possible: bool = True
    repeated: bool | None = None  # None: the decisions could not be repeated; ``not_checked`` says why
    decided: int = 0
    not_checked: Notice | None = None
    problems: list[Notice] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def add(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem if isinstance(problem, Notice) else Notice("{text}", text=problem))


def verify(source: RunSource, decide: Callable[[StepEvents], Notice | None] | None, not_checked: Notice | None = None,
           progress: Callable[[float], None] | None = None) -> Verified:
    """Read every step of ``source``, follow the state, and compare the series with what the steps say.

    ``decide`` decides a step again and returns what differs; None, and ``not_checked``, if that is not possible.
    """
    found = Verified(not_checked=not_checked, repeated=None if decide is None else True)
    _add_warnings(source, found)
    first, last = source.first_step, source.last_step
    if first < 0:
        return found
    series, count = StepSeries(), 0
    try:
        state = source.state_at(first - 1)
        series.prime(state)
        for step in range(first, last + 1):
            events = source.events(step)
            state.apply(events)
            series.append(events, state)
            problem = find_impossible(state, events)
            if problem:
                found.possible = False
                found.add(problem)
            if decide is not None and found.repeated:
                difference = decide(events)
                if difference is None:
                    found.decided += 1
                else:
                    found.repeated = False
                    found.add(difference)
            found.steps += 1
            count += 1
            if count == 1024:
                found.whole &= _compare(source, series, found)
                series.forget_before(step)
                count = 0
                if progress is not None:
                    progress((step - first) / (last - first + 1))
        found.whole &= _compare(source, series, found)
    except Exception as error:  # a source that cannot be read any more says so in words of its own
        if not isinstance(error, CONTRADICTIONS) and type(error).__name__ != "RecordingError":
            raise
        found.whole = False
        found.add(error.args[0] if error.args and isinstance(error.args[0], Notice) else
                  Notice("Step {step} contradicts the steps before it ({problem}).", step=first + found.steps,
                         problem=error))
    source.check(lambda: False, thorough=True)
    _add_warnings(source, found)
    return found


def _add_warnings(source: RunSource, found: Verified) -> None:
    """What the source warns of, by now: reading a large file finds more than opening it does."""
    for warning in source.warnings:
        if warning not in found.problems:
            found.add(warning)
    found.whole = found.whole and source.complete and not source.warnings


def _compare(source: RunSource, series: StepSeries, found: Verified) -> bool:
    """Whether the source's own figures are those of the steps."""
    if not series.n:
        return True
    start = source.series.index_of(int(series.step[0]))
    for name in COMPARED_COLUMNS:
        mine, theirs = getattr(series, name), getattr(source.series, name)[start:start + series.n]
        if not np.array_equal(mine, theirs):
            found.add(Notice("The index says something else of {what} than the steps {first} to {last} do.", what=name,
                             first=int(series.step[0]), last=int(series.step[-1])))
            return False
    for mine, theirs in zip(series.segments_between(0, series.n),
                            source.series.segments_between(start, start + series.n), strict=True):
        if not np.array_equal(mine, theirs):
            found.add(Notice("The index says something else of {what} than the steps {first} to {last} do.",
                             what="segments", first=int(series.step[0]), last=int(series.step[-1])))
            return False
    return True


def find_impossible(state: EngineState, events: StepEvents) -> Notice | None:
    """What of the pool's and the queues' rules does not hold after a step; None if all do."""
    problem = _find_broken_rule(state, events)
    return Notice("After step {step}: {problem}.", step=state.step, problem=problem) if problem else None


def _find_broken_rule(state: EngineState, events: StepEvents) -> str:
    num_held = np.zeros(state.num_blocks, np.int64)
    for request in state.active():
        table = np.array(request.blocks, np.int64)
        if len(table) and (table.min() < 1 or table.max() >= state.num_blocks or len(set(request.blocks)) < len(table)):
            return f"the block table of {request.request_id} holds a block twice, or one that there is not"
        num_held[table] += 1
        if request.num_computed_tokens > len(table) * state.block_size:
            return f"{request.request_id} has computed {request.num_computed_tokens} tokens in {len(table)} blocks"
        if request.num_computed_tokens > request.num_tokens:
            return f"{request.request_id} has computed more tokens than it has"
    if not np.array_equal(num_held, state.ref_count):
        return "the reference counts are not those of the block tables"
    if {block: len(holders) for block, holders in state.holders.items()} != {
            int(b): int(num_held[b]) for b in np.flatnonzero(num_held)}:
        return "the holders of blocks are not those of the block tables"
    if state.num_free_blocks != events.free_blocks_after:
        return f"{state.num_free_blocks} blocks are free, and {events.free_blocks_after} were said to be"
    if ((state.fill < 0) | (state.fill > state.block_size)).any():
        return "a block holds more tokens than fit"
    free = np.flatnonzero(state.ref_count[1:] == 0) + 1
    if len(np.unique(state.free_rank[free])) != len(free):
        return "a block stands in the free queue twice"
    queued = state.running + state.waiting
    if len(set(queued)) != len(queued):
        return "a request stands in the queues twice"
    scheduled = sum(share.num_tokens for share in events.scheduled)
    if scheduled > int(state.knobs.get("max_num_batched_tokens", scheduled)):
        return f"{scheduled} tokens were scheduled, more than the budget"
    if events.scheduled and len(events.scheduled) > int(state.knobs.get("max_num_seqs", 1 << 30)) and any(
            share.admission for share in events.scheduled):
        return f"{len(events.scheduled)} requests were scheduled, more than max_num_seqs"
    return ""
