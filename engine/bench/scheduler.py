"""``cutaway bench scheduler``: the price of deciding, with no model behind it.

N requests of 512 tokens, of which 256 are shared, block size 16, budget 8,192, prefix caching on, all queued at once.
A step's time is everything that the engine pays around the forward pass: the plan, taking its tokens, and the record
of what happened. In one decode step of 16 a request takes a block, and in the one before it has filled one, so steps
differ: each of the 16 kinds has its median, and the figure is their mean. ``tests/bench/vllm_scheduler.py`` puts the
same load on vLLM's scheduler.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence

from engine.bench.report import Figures, print_figures
from engine.config import SchedulerConfig
from engine.plan import StepPlan
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step_events import build_step_events
from engine.trace.events import Finished, PhaseTimes, Sampled, StepEvents

PROMPT_TOKENS = 512
SHARED_TOKENS = 256
BLOCK_SIZE = 16
BUDGET = 8192
DECODE_STEPS = 128
VOCABULARY = 40_000


def make_requests(count: int, max_tokens: int, seed: int = 0) -> list[Request]:
    """``count`` prompts in random tokens behind one shared prefix."""
    draw = random.Random(seed)
    shared = [draw.randrange(VOCABULARY) for _ in range(SHARED_TOKENS)]
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [Request(f"r{n}", shared + [draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS - SHARED_TOKENS)],
                    params) for n in range(count)]


def measure_scheduler(requests: int, decode_steps: int = DECODE_STEPS) -> Figures:
    """Microseconds, medians over the steps that compute prompts and over those in which every request decodes.

    ``add_request_us`` is what queueing a request takes; its blocks are hashed in the step that admits it.
    """
    blocks_each = -(-(PROMPT_TOKENS + decode_steps) // BLOCK_SIZE)
    scheduler = Scheduler(SchedulerConfig(
        max_num_batched_tokens=max(BUDGET, requests), max_num_seqs=requests, block_size=BLOCK_SIZE,
        num_blocks=requests * blocks_each + 2))
    adding: list[int] = []
    prefill: list[int] = []
    decode: list[int] = []
    for request in make_requests(requests, decode_steps):
        began = time.perf_counter_ns()
        scheduler.add_request(request)
        adding.append(time.perf_counter_ns() - began)
    gc.collect()
    tokens = 0
    while scheduler.requests:
        kind, num_tokens, spent = _step(scheduler)
        tokens += num_tokens
        if kind == "prefill":
            prefill.append(spent)
        elif num_tokens == requests:
            decode.append(spent)
    if tokens != requests * decode_steps:
        raise AssertionError(f"{tokens} tokens instead of {requests * decode_steps}")
    return {
        "decode_step_us": round(typical_step(decode) / 1e3, 1),
        "prefill_step_us": _microseconds(prefill),
        "add_request_us": _microseconds(adding),
        "requests": requests,
        "decode_steps": len(decode),
        "prefill_steps": len(prefill),
    }


def _step(scheduler: Scheduler) -> tuple[str, int, int]:
    """Run one step; returns "prefill" or "decode", the tokens made, and the nanoseconds spent on it."""
    began = time.perf_counter_ns()
    plan = scheduler.schedule()
    planned = time.perf_counter_ns() - began
    tokens = list(range(1000, 1000 + sum(entry.samples for entry in plan.scheduled)))
    began = time.perf_counter_ns()
    _finish_step(scheduler, plan, tokens)
    spent = planned + time.perf_counter_ns() - began
    return ("prefill" if plan.num_tokens > len(plan.scheduled) else "decode"), len(tokens), spent


def _finish_step(scheduler: Scheduler, plan: StepPlan, tokens: list[int]) -> StepEvents:
    """What the engine does with a step's tokens, but for their text."""
    done = {request.request_id: reason for request, reason in scheduler.commit(plan, tokens)}
    sampling = [entry.request.request_id for entry in plan.scheduled if entry.samples]
    sampled = [Sampled(request_id, token, "") for request_id, token in zip(sampling, tokens, strict=True)]
    return build_step_events(
        step=0, start_ns=0, end_ns=0, phases=PhaseTimes(), knobs=[], arrived=[], refused=[], aborted=[], plan=plan,
        pool=scheduler.take_pool_events(), sampled=sampled,
        finished=[Finished(request_id, reason) for request_id, reason in done.items()],
        free_blocks_after=scheduler.pool.num_free_blocks)


def typical_step(steps: Sequence[int]) -> float:
    """The mean of the medians of each kind of step: a kind is every 16th, 16 being the tokens of a block."""
    kinds = [steps[first::BLOCK_SIZE] for first in range(min(BLOCK_SIZE, len(steps)))]
    return statistics.fmean(map(statistics.median, kinds)) if kinds else float("nan")


def _microseconds(nanoseconds: list[int]) -> float:
    return round(statistics.median(nanoseconds) / 1e3, 1) if nanoseconds else float("nan")


def run_scheduler_bench(*, requests: int, as_json: bool) -> int:
    """Measure and print. Returns the exit status."""
    print_figures(measure_scheduler(requests), as_json=as_json)
    return 0
