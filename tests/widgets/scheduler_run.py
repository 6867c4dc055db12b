"""A run made by the real scheduler and block pool, without a model: its tokens are words in turn, its clock computed.

Every step takes 12 ms and 0.06 ms more for each token in it, so that prefill chunks show in the latencies.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from functools import lru_cache

from engine.config import SchedulerConfig
from engine.request import Request, SamplingParams
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
    RunInfo,
    Sampled,
    StepEvents,
)
from engine.trace.history import LiveHistory
from engine.trace.knobs import KNOBS, KnobValue
from widgets.view import View

TEXT = ("The outage began when a certificate expired and the retry storm filled every queue in the region . "
        "A paged cache keeps each request in blocks that need not lie next to one another 内存 分页 😀 .")
WORDS = TEXT.split()


def run_info(knobs: Mapping[str, KnobValue]) -> RunInfo:
    values = {name: knob.default for name, knob in KNOBS.items()} | dict(knobs)
    return RunInfo(SCHEMA_VERSION, "0", "2026-01-01T00:00:00Z", 0, ModelInfo("SmolLM2-135M-Instruct"),
                   MachineInfo(device="cpu"), "shared-prefix", 0, 4096, values)


def make_run(steps: int, *, seed: int = 0, rate: float = 0.25, long_every: int = 6, max_requests: int = 10_000,
             knob_at: Mapping[int, tuple[str, KnobValue]] | None = None, **knobs: KnobValue) -> LiveHistory:
    """``steps`` steps, ``rate`` requests a step; all share 64 tokens, every ``long_every``-th has a long prompt.

    ``knob_at`` turns a knob before the given step.
    """
    rng = random.Random(seed)
    config = SchedulerConfig(max_model_len=4096).with_knobs(knobs)
    scheduler = Scheduler(config, ())
    history = LiveHistory(run_info(knobs))
    now, count = 0, 0
    for step in range(steps):
        changes: list[KnobChange] = []
        if knob_at and step in knob_at:
            changes = scheduler.reconfigure(dict([knob_at[step]]))
        arrived: list[Arrived] = []
        while count < max_requests and (not scheduler.requests or rng.random() < rate):
            count += 1
            length = rng.randint(700, 1500) if long_every and count % long_every == 0 else rng.randint(80, 200)
            prompt = list(range(64)) + [rng.randrange(1000, 30_000) for _ in range(length - 64)]
            request = Request(f"r{count}", prompt, SamplingParams(max_tokens=rng.randint(30, 90)), arrival_ns=now,
                              prompt_text=f"Summarise incident report {count} below. " + " ".join(WORDS))
            scheduler.add_request(request)
            arrived.append(Arrived(request.request_id, now, prompt, request.prompt_text, request.params.max_tokens))
        plan = scheduler.schedule()
        duration = 12_000_000 + 60_000 * plan.num_tokens
        sampling = [s.request for s in plan.scheduled if s.samples]
        tokens = [5 + (step * 7 + i) % 400 for i in range(len(sampling))]
        done = {r.request_id: reason for r, reason in scheduler.commit(plan, tokens)}
        sampled = [Sampled(r.request_id, t, " " + WORDS[(r.num_output_tokens - 1) % len(WORDS)])
                   for r, t in zip(sampling, tokens, strict=True)]
        phases = PhaseTimes(200_000, 400_000, duration - 1_200_000, 400_000, 200_000)
        history.append(build_step_events(
            step=step, start_ns=now, end_ns=now + duration, phases=phases, knobs=changes, arrived=arrived, refused=[],
            aborted=[], plan=plan, pool=scheduler.take_pool_events(), sampled=sampled,
            finished=[Finished(r, reason) for r, reason in done.items()],
            free_blocks_after=scheduler.pool.num_free_blocks))
        now += duration
    return history


def view_at(history: LiveHistory, step: int | None = None) -> View:
    step = history.last_step if step is None else step
    events: StepEvents | None = history.events(step) if step >= 0 else None
    return View(history.state_at(step), events, history.series, history.timeline, step == history.last_step,
                time.perf_counter())


@lru_cache(maxsize=4)
def busy_run() -> LiveHistory:
    """400 steps under memory pressure: hits, chunks, preemptions, evictions, a knob change. Not to be appended to."""
    return make_run(400, num_blocks=260, knob_at={200: ("max_num_batched_tokens", 256)})
