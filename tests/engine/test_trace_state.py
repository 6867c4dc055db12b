"""The state made of events is the engine itself, at every step, and snapshots lose nothing of it."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import SCHEDULER_KNOBS
from engine.trace.events import (
    Allocated,
    Arrived,
    Cached,
    CacheReset,
    Finished,
    Freed,
    Hit,
    PhaseTimes,
    PoolEvent,
    PoolRebuilt,
    Preempted,
    Sampled,
    Scheduled,
    StepEvents,
    decode_step,
    encode_step,
)
from engine.trace.pool_state import Touch
from engine.trace.state import (
    CONTRADICTIONS,
    FINISHED_KEPT,
    EngineState,
    decode_snapshot,
    encode_snapshot,
)
from tests.engine.trace_runs import BUSY, RandomRun


def check_against(state: EngineState, run: RandomRun) -> None:
    scheduler, pool = run.scheduler, run.scheduler.pool
    assert state.running == [r.request_id for r in scheduler.running]
    assert state.waiting == [r.request_id for r in scheduler.waiting]
    assert state.free_queue() == pool.free_block_ids()
    assert state.num_free_blocks == pool.num_free_blocks
    assert state.ref_count.tolist() == [b.ref_count for b in pool.blocks]
    assert state.block_hash.tolist() == [int.from_bytes(b.block_hash[:8], "little") if b.block_hash else 0
                                         for b in pool.blocks]
    assert {n: state.knobs[n] for n in SCHEDULER_KNOBS} == {n: run.knobs[n] for n in SCHEDULER_KNOBS}
    fill = [0] * pool.num_blocks
    holders: dict[int, set[str]] = {}
    for request in scheduler.requests.values():
        view = state.requests[request.request_id]
        assert view.blocks == request.block_ids
        assert view.num_computed_tokens == request.num_computed_tokens
        assert view.prompt_token_ids + view.output_token_ids == request.token_ids
        assert view.status == request.status.value
        for index, block in enumerate(view.blocks):
            tokens = min(state.block_size, request.num_computed_tokens - index * state.block_size)
            fill[block] = max(fill[block], tokens)
            holders.setdefault(block, set()).add(request.request_id)
    assert {b: set(h) for b, h in state.holders.items()} == holders
    for block in pool.blocks:
        if block.ref_count == 0 and block.block_hash:  # free, and still of use
            fill[block.block_id] = state.block_size
    assert state.fill.tolist() == fill
    assert [c >= 0 for c in state.owner_colour.tolist()] == [b.ref_count > 0 for b in pool.blocks]


@pytest.mark.parametrize("seed", range(8))
def test_the_state_is_the_engine_at_every_step(seed: int) -> None:
    run = RandomRun(seed, knob_rate=0.05 if seed % 2 else 0.0)
    state = EngineState(run.info)
    for events in (run.step() for _ in range(400)):
        state.apply(decode_step(encode_step(events)))
        check_against(state, run)
        thawed = EngineState.from_snapshot(run.info, decode_snapshot(encode_snapshot(state.snapshot())))
        assert thawed == state
        assert thawed.owner_colour.tolist() == state.owner_colour.tolist()
        if state.step % 50 == 0:
            state = thawed  # it must be as good to go on from
    counters = state.counters
    if not run.knob_rate:  # knobs may have been turned to where the pool is never full
        assert min(counters.preemptions, counters.evictions, counters.hit_tokens, counters.chunked_prefills) > 0
        assert counters.finished > 20
    assert counters.steps == 400
    assert len(state.requests) <= FINISHED_KEPT + len(run.scheduler.requests)


def test_a_copy_is_independent() -> None:
    run = RandomRun(3)
    state = EngineState(run.info)
    for events in run.steps(60):
        state.apply(events)
    frozen = state.snapshot()
    copy = state.copy()
    for events in run.steps(60):
        copy.apply(events)
    assert state.snapshot() == frozen
    assert copy != state


# ---- single rules ------------------------------------------------------------------------------------------------

def step_of(step: int, *, pool: tuple[PoolEvent, ...] = (), arrived: tuple[str, ...] = (),
            scheduled: tuple[Scheduled, ...] = (), sampled: tuple[str, ...] = (), finished: tuple[str, ...] = (),
            preempted: tuple[Preempted, ...] = ()) -> StepEvents:
    return StepEvents(
        step, step * 1000, step * 1000 + 900, PhaseTimes(), [],
        [Arrived(r, step * 1000, list(range(1, 18)), r, 8) for r in arrived], [], [], list(preempted),
        list(scheduled), list(pool), [Sampled(r, 7, "x") for r in sampled],
        [Finished(r, "length") for r in finished], "", "", 0, 0)


@pytest.fixture
def state() -> EngineState:
    return EngineState(RandomRun(0, BUSY | {"num_blocks": 12}).info)


def test_a_request_may_be_preempted_resumed_and_finished_in_one_step(state: EngineState) -> None:
    """A rebuilt pool preempts it, it comes back at once, and its next token is its last."""
    state.apply(step_of(0, arrived=("a",), pool=(Allocated("a", [1, 2, 3]),), sampled=("a",),
                        scheduled=(Scheduled("a", 17, 0, True, "first"),)))
    state.apply(step_of(
        1, preempted=(Preempted("a", "pool_rebuilt", "", 17, 3),), sampled=("a",), finished=("a",),
        pool=(Freed("a", [3, 2, 1]), PoolRebuilt(8, 16), Allocated("a", [1, 2]), Freed("a", [2, 1])),
        scheduled=(Scheduled("a", 18, 0, True, "resumed"),)))
    assert state.free_queue() == [2, 1, 3, 4, 5, 6, 7]
    assert state.requests["a"].status == "finished"
    assert state.requests["a"].num_preemptions == 1
    assert state.fill.tolist() == [0] * 8


def test_the_share_of_the_last_step_is_forgotten_after_it(state: EngineState) -> None:
    state.apply(step_of(0, arrived=("a", "b"), pool=(Allocated("a", [1, 2, 3]), Freed("a", [3, 2, 1])),
                        scheduled=(Scheduled("a", 17, 0, True, "first"),), sampled=("a",), finished=("a",)))
    assert state.requests["a"].scheduled_tokens == 17
    state.apply(step_of(1))
    assert state.requests["a"].scheduled_tokens == 0


def test_a_block_that_others_hold_is_not_shown_as_freed(state: EngineState) -> None:
    state.apply(step_of(
        0, arrived=("a", "b"), sampled=("a", "b"), finished=("a",),
        pool=(Allocated("a", [1, 2, 3]), Cached("a", [1, 2], [11, 12]), Hit("b", [1, 2]), Allocated("b", [4]),
              Freed("a", [3, 2, 1])),
        scheduled=(Scheduled("a", 17, 0, True, "first"), Scheduled("b", 1, 16, True, "first", 16))))
    assert state.touch[[1, 2, 3, 4]].tolist() == [Touch.HIT, Touch.HIT, Touch.FREED, Touch.ALLOCATED]
    assert state.owner_colour[1] == state.requests["b"].colour


def test_the_last_token_of_a_prompt_is_prefill(state: EngineState) -> None:
    """17 tokens as 16 and 1: the 1 computes prompt, though it is one token."""
    state.apply(step_of(0, arrived=("a",), pool=(Allocated("a", [1, 2]),),
                        scheduled=(Scheduled("a", 16, 0, False, "first"),)))
    assert state.requests["a"].is_prefill
    state.apply(step_of(1, pool=(Allocated("a", [3]),), scheduled=(Scheduled("a", 1, 16, True),), sampled=("a",)))
    assert not state.requests["a"].is_prefill
    assert state.requests["a"].num_chunks == 2
    state.apply(step_of(2, scheduled=(Scheduled("a", 1, 17, True),), sampled=("a",)))
    assert state.requests["a"].num_chunks == 2
    assert state.counters.chunked_prefills == 1


def test_a_reset_cache_leaves_nothing_in_free_blocks(state: EngineState) -> None:
    state.apply(step_of(0, arrived=("a",), sampled=("a",), finished=("a",), scheduled=(
        Scheduled("a", 17, 0, True, "first"),), pool=(
        Allocated("a", [1, 2, 3]), Cached("a", [1, 2], [11, 12]), Freed("a", [3, 2, 1]))))
    assert state.fill[[1, 2, 3]].tolist() == [8, 8, 0]
    state.apply(step_of(1, pool=(CacheReset(),)))
    assert not state.fill.any()
    assert not state.block_hash.any()
    assert state.free_queue() == [3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 1]


@pytest.mark.parametrize("events", [
    step_of(0, sampled=("nobody",)),
    step_of(0, pool=(Allocated("nobody", [1]),)),
    step_of(0, arrived=("a",), pool=(Allocated("a", [12]),)),
    step_of(0, arrived=("a",), scheduled=(Scheduled("a", 17, 0, True, "first"),)),
    step_of(0, arrived=("a",), pool=(Freed("a", [1]),)),
    step_of(0, pool=(PoolRebuilt(1 << 60, 16),)),
    step_of(0, pool=(PoolRebuilt(16, 0),)),
    step_of(0, arrived=("a",), finished=("a", "a")),
])
def test_what_cannot_have_happened_raises_and_does_not_hang(state: EngineState, events: StepEvents) -> None:
    with pytest.raises(CONTRADICTIONS):
        state.apply(events)


@pytest.mark.parametrize("change", [
    {"ref_count": b""}, {"touch": b"\0"}, {"fill": b"\0" * 47}, {"num_blocks": 1 << 62}, {"running": ["nobody"]},
    {"holders": {99: ["a"]}}, {"holders": {1: []}}, {"holders": {1: ["nobody"]}}, {"block_size": -1},
])
def test_a_snapshot_that_contradicts_itself_is_refused(state: EngineState, change: dict) -> None:
    snapshot = msgspec.structs.replace(state.snapshot(), **change)
    with pytest.raises(ValueError, match=r"."):
        EngineState.from_snapshot(state.info, decode_snapshot(encode_snapshot(snapshot)))
