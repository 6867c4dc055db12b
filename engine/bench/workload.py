"""``cutaway bench engine``: a workload file on the engine, without a window.

    workload file -> all requests at once, or each when it is due -> Engine.step, again and again -> figures

The engine is the one that the window shows: its events are made, its text is made readable. Each repeat begins with
an empty prefix cache, and the model is warmed up before the first.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.bench.report import Figures, print_figures
from engine.bench.workload_file import RequestFile, load_workload
from engine.config import EngineConfig, SchedulerConfig
from engine.core import Engine, ModelRunner
from engine.request import SamplingParams
from engine.trace.events import StepEvents
from engine.trace.knobs import KnobValue
from engine.trace.metrics import nearest_rank

if TYPE_CHECKING:
    from engine.model.tokenizer import Tokenizer
    from engine.runner import Runner

MAX_NUM_BATCHED_TOKENS = 2048
MAX_NUM_SEQS = 64
MAX_MODEL_LEN = 2048
BLOCK_SIZE = 16
POOL_BYTES = 1 << 30
PHASES = ("schedule", "prepare", "forward", "sample", "publish")

Observer = Callable[[StepEvents], None]


@dataclass(frozen=True)
class Pass:
    """One time through a workload. ``arrived_ns`` by request; times on the engine's clock."""

    seconds: float
    steps: list[StepEvents]
    arrived_ns: dict[str, int]

    @property
    def output_tokens(self) -> int:
        return sum(len(events.sampled) for events in self.steps)


# ---- the engine ------------------------------------------------------------------------------------------------------


def load_runner(model: str | None, dtype: str, threads: int, device: str = "cpu", forward_path: str = "auto"
                ) -> tuple[Runner, Tokenizer, SchedulerConfig]:
    """Load a model with a KV cache of :data:`POOL_BYTES`, on a GPU of as much as there is memory for.

    Imports torch; raises what finding and loading raise.
    """
    from engine.model.library import find_model
    from engine.model.tokenizer import Tokenizer
    from engine.runner import Runner

    folder = find_model(model)
    # The cache is reserved when the engine is built: how much a token takes is known only then.
    runner = Runner(folder, EngineConfig(model=str(folder), device=device, dtype=dtype, num_threads=threads,
                                         forward_path=forward_path, scheduler=bench_config(num_blocks=8)))
    if device == "cuda":
        num_blocks = runner.profile_num_blocks()
    else:
        num_blocks = max(8, POOL_BYTES // (BLOCK_SIZE * runner.model_info.bytes_per_token))
    return runner, Tokenizer.load(folder), bench_config(num_blocks)


def bench_config(num_blocks: int) -> SchedulerConfig:
    return SchedulerConfig(max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, max_num_seqs=MAX_NUM_SEQS,
                           max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, num_blocks=num_blocks)


def warm_up(engine: Engine) -> None:
    """Prompts and decodes in small and in large batches, so that whatever is made at first use is made."""
    engine.warm_up()
    for count, length in ((1, 24), (8, 200)):
        for number in range(count):
            engine.add_request([(number * 31 + i) % 97 for i in range(length)],
                               SamplingParams(max_tokens=4, ignore_eos=True))
        while engine.has_work:
            engine.step()
    engine.scheduler.reset_prefix_cache()
    engine.tell_news()


# ---- a pass ----------------------------------------------------------------------------------------------------------


def serve(engine: Engine, workload: RequestFile, *, arrivals: bool = False, observe: Observer | None = None) -> Pass:
    """Serve a workload to its end, with an empty prefix cache at the start. Raises ValueError if one is refused."""
    if not engine.scheduler.reset_prefix_cache():
        raise RuntimeError("the engine is still at work")
    steps: list[StepEvents] = []
    arrived: dict[str, int] = {}
    waiting = sorted(workload.requests, key=lambda request: request.arrival_s) if arrivals else workload.requests
    began = engine.clock.now_ns()
    added = 0

    def tell(events: StepEvents) -> None:
        if events.refused:
            raise ValueError(f"{workload.name}: a request was refused: {events.refused[0].message}")
        steps.append(events)
        if observe is not None:
            observe(events)

    while True:
        while added < len(waiting):
            request = waiting[added]
            due = began + round(request.arrival_s * 1e9) if arrivals else began
            if due > engine.clock.now_ns():
                break
            params = SamplingParams(max_tokens=request.max_tokens, ignore_eos=workload.ignore_eos)
            request_id = engine.add_request(request.prompt, params, source="bench", arrival_ns=due)
            arrived[request_id] = due
            added += 1
        if not engine.has_work and added < len(waiting):
            time.sleep(max(0.0, (due - engine.clock.now_ns()) / 1e9))
            continue
        if not engine.advance(tell) or (not engine.has_work and added == len(waiting)):
            break
    return Pass((engine.clock.now_ns() - began) / 1e9, steps, arrived)


def figures_of(one: Pass) -> Figures:
    """Throughput, latencies in milliseconds, and each phase's share of the time, of one pass."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    between: list[int] = []
    for events in one.steps:
        for sampled in events.sampled:
            request_id, at = sampled.request_id, events.end_ns
            if request_id in last:
                between.append(at - last[request_id])
            else:
                first[request_id] = at
            last[request_id] = at
    ttft = np.array([at - one.arrived_ns[request_id] for request_id, at in first.items()])
    ttft_p50, ttft_p99 = nearest_rank(ttft, 50, 99)
    itl_p50, itl_p99 = nearest_rank(np.array(between), 50, 99)
    step_p50, = nearest_rank(np.array([events.end_ns - events.start_ns for events in one.steps]), 50)
    phases = {name: sum(getattr(events.phases, name) for events in one.steps) / 1e9 / one.seconds for name in PHASES}
    return {
        "output_tokens_per_s": round(one.output_tokens / one.seconds, 1),
        "steps": len(one.steps),
        "seconds": round(one.seconds, 3),
        "ttft_p50_ms": _milliseconds(ttft_p50),
        "ttft_p99_ms": _milliseconds(ttft_p99),
        "itl_p50_ms": _milliseconds(itl_p50),
        "itl_p99_ms": _milliseconds(itl_p99),
        "step_p50_ms": _milliseconds(step_p50),
        "phases": {**{name: round(share, 4) for name, share in phases.items()},
                   "other": round(max(0.0, 1 - sum(phases.values())), 4)},
        "output_tokens": one.output_tokens,
    }


def _milliseconds(nanoseconds: float) -> float:
    return round(nanoseconds / 1e6, 2)


def median_figures(all_figures: list[Figures]) -> Figures:
    """Every figure's median over the passes; a share of a phase is a figure too."""
    first = all_figures[0]
    merged: Figures = {}
    for name, value in first.items():
        if isinstance(value, dict):
            merged[name] = median_figures([figures[name] for figures in all_figures])
        else:
            median = statistics.median_low if isinstance(value, int) else statistics.median
            merged[name] = median([figures[name] for figures in all_figures])
    return merged


# ---- the benchmark ---------------------------------------------------------------------------------------------------


def measure_engine(runner: ModelRunner, tokenizer: Tokenizer, config: SchedulerConfig, workload: RequestFile, *,
                   arrivals: bool = False, repeats: int = 3, knobs: Mapping[str, KnobValue] | None = None) -> Figures:
    """Serve the workload ``repeats`` times with one engine; the figures are medians, ``runs`` are tokens a second.

    ``knobs`` are those of the device.
    """
    engine = Engine(runner, tokenizer, config, knobs)
    warm_up(engine)
    passes = [figures_of(serve(engine, workload, arrivals=arrivals)) for _ in range(repeats)]
    return {
        **median_figures(passes),
        "runs": [figures["output_tokens_per_s"] for figures in passes],
        "workload": workload.name,
        "requests": len(workload.requests),
        "prompt_tokens": workload.num_prompt_tokens,
        "arrivals": arrivals,
        "model": runner.model_info.name,
        "dtype": runner.model_info.dtype,
        "threads": runner.num_threads,
        "forward_path": getattr(runner, "forward_path", ""),
        **(knobs or {}),
    }


def run_engine_bench(*, workload: str, model: str | None = None, dtype: str = "bfloat16", threads: int = 0,
                     device: str = "cpu", forward_path: str = "auto",
                     knobs: Mapping[str, KnobValue] | None = None, arrivals: bool = False,
                     repeats: int = 3, as_json: bool = False) -> int:
    """Measure and print. Returns the exit status; raises :class:`WorkloadFileError` for a workload that is none."""
    loaded = load_workload(workload)
    print(f"{loaded.name}: {len(loaded.requests)} requests, {loaded.num_prompt_tokens:,} prompt tokens; loading the "
          "model ...", file=sys.stderr)
    runner, tokenizer, config = load_runner(model, dtype, threads, device, forward_path)
    print_figures(measure_engine(runner, tokenizer, config, loaded, arrivals=arrivals, repeats=repeats, knobs=knobs),
                  as_json=as_json)
    return 0
