"""Drives a scheduler without a model and holds it against the state that its events tell of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engine.block_pool import event_hash
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.plan import StepPlan
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step_events import build_step_events
from engine.trace.events import (
    Arrived,
    Finished,
    KnobChange,
    MachineInfo,
    ModelInfo,
    PhaseTimes,
    RunInfo,
    Sampled,
    StepEvents,
    decode_step,
    encode_step,
)
from engine.trace.knobs import KnobValue
from engine.trace.state import EngineState

TokensOf = Callable[[StepPlan], list[int]]


def run_info(config: SchedulerConfig) -> RunInfo:
    return RunInfo(1, "test", "", 0, ModelInfo("none"), MachineInfo(), "", 0, config.max_model_len,
                   {name: getattr(config, name) for name in SCHEDULER_KNOBS})


def make_request(request_id: str, prompt: Iterable[int], max_tokens: int = 1000, *, priority: int = 0,
                 salt: str | None = None, ignore_eos: bool = False) -> Request:
    return Request(request_id, list(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos),
                   priority=priority, salt=salt)


class SchedulerDriver:
    """A scheduler, the state made of its events, and the lists that a core keeps between steps."""

    def __init__(self, config: SchedulerConfig, eos_token_ids: Iterable[int] = ()) -> None:
        self.scheduler = Scheduler(config, frozenset(eos_token_ids))
        self.state = EngineState(run_info(config))
        self.steps = 0
        self.reasons: dict[str, str] = {}  # of the requests that have left
        self.plan = StepPlan()
        self._knobs: list[KnobChange] = []
        self._arrived: list[Arrived] = []
        self._aborted: list[Finished] = []

    def add(self, request: Request) -> Request:
        self.scheduler.add_request(request)
        self._arrived.append(Arrived(request.request_id, 0, request.prompt_token_ids, "", request.params.max_tokens,
                                     priority=request.priority, salt=request.salt))
        return request

    def end(self, request_id: str, reason: str = "abort") -> bool:
        if not self.scheduler.finish(request_id, reason):
            return False
        self._aborted.append(Finished(request_id, reason))
        self.reasons[request_id] = reason
        return True

    def turn(self, changes: Mapping[str, KnobValue]) -> list[KnobChange]:
        changed = self.scheduler.reconfigure(changes)
        self._knobs += changed
        return changed

    def step(self, tokens_of: TokensOf) -> StepEvents:
        """Schedule, sample with ``tokens_of``, commit; the events are written, read back and applied."""
        self.plan = plan = self.scheduler.schedule()
        tokens = tokens_of(plan)
        done = self.scheduler.commit(plan, tokens)
        sampling = [entry.request.request_id for entry in plan.scheduled if entry.samples]
        self.reasons.update((request.request_id, reason) for request, reason in done)
        events = build_step_events(
            step=self.steps, start_ns=self.steps, end_ns=self.steps + 1, phases=PhaseTimes(), knobs=self._knobs,
            arrived=self._arrived, refused=[], aborted=self._aborted, plan=plan,
            pool=self.scheduler.take_pool_events(),
            sampled=[Sampled(request_id, token, "") for request_id, token in zip(sampling, tokens, strict=True)],
            finished=[Finished(request.request_id, reason) for request, reason in done],
            free_blocks_after=self.scheduler.pool.num_free_blocks)
        self.steps += 1
        self._knobs, self._arrived, self._aborted = [], [], []
        self.state.apply(decode_step(encode_step(events)))
        return events

    def check(self) -> None:
        """The pool adds up, and the state from events is the scheduler's."""
        scheduler, state, pool = self.scheduler, self.state, self.scheduler.pool
        requests = scheduler.requests
        pool.check(request.block_ids for request in requests.values())
        assert state.running == [r.request_id for r in scheduler.running]
        assert state.waiting == [r.request_id for r in scheduler.waiting]
        assert sorted(state.running + state.waiting) == sorted(requests)
        assert state.free_queue() == pool.free_block_ids()
        assert state.num_free_blocks == pool.num_free_blocks
        assert state.ref_count.tolist() == [block.ref_count for block in pool.blocks]
        assert state.block_hash.tolist() == [
            event_hash(block.block_hash) if block.block_hash is not None else 0 for block in pool.blocks]
        for request_id, request in requests.items():
            view = state.requests[request_id]
            assert view.blocks == request.block_ids
            assert view.num_computed_tokens == request.num_computed_tokens
            assert view.prompt_token_ids + view.output_token_ids == request.token_ids
            assert view.num_preemptions == request.num_preemptions
            assert view.status == request.status.value
