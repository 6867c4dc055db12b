"""Random runs of the real scheduler, without a model: events as an engine would tell them, on a clock of their own."""

from __future__ import annotations

import random
from collections.abc import Callable

from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.plan import StepPlan
from engine.request import Request, RequestRefused, SamplingParams
from engine.scheduler import Scheduler
from engine.step_events import build_step_events
from engine.trace.events import (
    SCHEMA_VERSION,
    Arrived,
    Finished,
    KnobChange,
    MachineInfo,
    ModelInfo,
    PhaseTimes,
    Refused,
    RunInfo,
    Sampled,
    StepEvents,
)
from engine.trace.knobs import KNOBS, KnobValue

WORDS = ("block", " 页", "表", " 🙂", " the", " prefill", "", " KV", "\n", " être")

TURNS: dict[str, list[KnobValue]] = {
    "max_num_batched_tokens": [16, 24, 64, 500],
    "max_num_seqs": [1, 3, 16, 64],
    "long_prefill_token_threshold": [0, 5, 40],
    "enable_chunked_prefill": [True, False],
    "policy": ["fcfs", "priority"],
    "reserve_full_input": [True, False],
    "watermark": [0.0, 0.1],
    "num_blocks": [40, 64, 200],
    "block_size": [8, 16, 32],
    "enable_prefix_caching": [True, False],
    "arrival_rate": [0.5, 3.0],
}

BUSY: dict[str, KnobValue] = {"num_blocks": 48, "block_size": 8, "max_num_batched_tokens": 64}
"""A configuration small enough that everything happens: chunks, hits, evictions, preemptions."""


class RandomRun:
    """A scheduler that is fed at random. :meth:`step` returns what happened; ``scheduler`` is there to compare with."""

    def __init__(self, seed: int, config: dict[str, KnobValue] | None = None, *, knob_rate: float = 0.0,
                 arrival_rate: float = 0.1, abort_rate: float = 0.01, keep_running: int = 0,
                 prompt_tokens: tuple[int, int] = (1, 120), output_tokens: tuple[int, int] = (1, 60)) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(SchedulerConfig(**(BUSY if config is None else config)), eos_token_ids=(2,))
        self.knob_rate, self.arrival_rate, self.abort_rate = knob_rate, arrival_rate, abort_rate
        self.keep_running = keep_running
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.knobs: dict[str, KnobValue] = {name: knob.default for name, knob in KNOBS.items()}
        self.knobs |= {name: getattr(self.scheduler.config, name) for name in SCHEDULER_KNOBS}
        self.info = RunInfo(SCHEMA_VERSION, "test", "2026-01-01T00:00:00Z", 1_767_225_600_000_000_000,
                            ModelInfo("tiny", dtype="float32"), MachineInfo("cpu"), "random", seed, 2048,
                            dict(self.knobs))
        self.now_ns = 0
        self.next_step = 0
        self.next_id = 1
        self.common = [self.rng.randrange(3, 400) for _ in range(70)]

    def _arrive(self, arrived: list[Arrived], refused: list[Refused]) -> None:
        rng = self.rng
        request_id = f"r{self.next_id}"
        self.next_id += 1
        prompt = self.common[:rng.randrange(71)] if rng.random() < 0.5 else []
        prompt = prompt + [rng.randrange(3, 400) for _ in range(rng.randint(*self.prompt_tokens))]
        if rng.random() < 0.03:
            prompt = []  # which is refused
        text = f"说 {request_id} 🙂"
        request = Request(request_id, prompt, SamplingParams(max_tokens=rng.randint(*self.output_tokens)),
                          priority=rng.randrange(3), salt=rng.choice([None, None, "a"]),
                          arrival_ns=max(0, self.now_ns - rng.randrange(1000)))
        try:
            self.scheduler.add_request(request)
        except RequestRefused as refusal:
            refused.append(Refused(request_id, refusal.reason, str(refusal), text))
            return
        arrived.append(Arrived(request_id, request.arrival_ns, prompt, text, request.params.max_tokens,
                               priority=request.priority, salt=request.salt))

    def _turn(self, changes: list[KnobChange]) -> None:
        name = self.rng.choice(list(TURNS))
        value = self.rng.choice(TURNS[name])
        if value == self.knobs[name]:
            return
        if name in SCHEDULER_KNOBS:
            changes += self.scheduler.reconfigure({name: value})
        else:
            changes.append(KnobChange(name, self.knobs[name], value))
        self.knobs[name] = value

    def step(self) -> StepEvents:
        rng, scheduler = self.rng, self.scheduler
        changes: list[KnobChange] = []
        arrived: list[Arrived] = []
        refused: list[Refused] = []
        aborted: list[Finished] = []
        if rng.random() < self.arrival_rate or len(scheduler.requests) < self.keep_running:
            for _ in range(rng.randrange(1, 4)):
                self._arrive(arrived, refused)
        if scheduler.requests and rng.random() < self.abort_rate:
            victim = rng.choice(list(scheduler.requests))
            scheduler.abort(victim)
            aborted.append(Finished(victim, "abort", "…"))
        if rng.random() < self.knob_rate:
            self._turn(changes)
            for request in scheduler.unservable():
                scheduler.finish(request.request_id, "length")
                aborted.append(Finished(request.request_id, "length"))
        start_ns = self.now_ns = self.now_ns + rng.randrange(1_000, 200_000)
        busy = bool(scheduler.requests)
        plan = scheduler.schedule() if busy else StepPlan(free_blocks=scheduler.pool.num_free_blocks)
        self.now_ns += 2_000_000 + 10_000 * plan.num_tokens + rng.randrange(500_000)
        tokens = [2 if rng.random() < 0.01 else rng.randrange(3, 400) for s in plan.scheduled if s.samples]
        done = {r.request_id: reason for r, reason in scheduler.commit(plan, tokens)} if busy else {}
        names = [s.request.request_id for s in plan.scheduled if s.samples]
        sampled = [Sampled(n, t, rng.choice(WORDS)) for n, t in zip(names, tokens, strict=True)]
        events = build_step_events(
            step=self.next_step, start_ns=start_ns, end_ns=self.now_ns,
            phases=PhaseTimes(20_000, 50_000, 1_800_000, 90_000, 10_000), knobs=changes, arrived=arrived,
            refused=refused, aborted=aborted, plan=plan, pool=scheduler.take_pool_events(), sampled=sampled,
            finished=[Finished(n, done[n], "!") for n in names if n in done],
            free_blocks_after=scheduler.pool.num_free_blocks)
        self.next_step += 1
        return events

    def steps(self, count: int, each: Callable[[StepEvents], None] | None = None) -> list[StepEvents]:
        """Run ``count`` steps. ``each`` sees every step right after it happened."""
        result = []
        for _ in range(count):
            events = self.step()
            if each is not None:
                each(events)
            result.append(events)
        return result
