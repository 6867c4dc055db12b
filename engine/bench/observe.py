"""``cutaway bench observe``: what being observed costs the engine.

The same workload, served in turns by the same runner in two ways:

    plain       schedule, execute, commit, and the text; nobody is told of it
    observed    Engine.step with its events, published to a hub; a recorder writes them to a file, and a thread like
                the window's applies them to a state and its series, 60 times a second

``observed_over_plain`` is the ratio of the medians of tokens a second. The window itself is not part of it: that is
``cutaway bench gui``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engine.bench.report import Figures, print_figures
from engine.bench.workload import load_runner, serve, warm_up
from engine.bench.workload_file import RequestFile, load_workload
from engine.config import SchedulerConfig
from engine.core import Engine, ModelRunner
from engine.model.detokenizer import IncrementalDetokenizer
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.trace.events import SCHEMA_VERSION, MachineInfo, RunInfo
from engine.trace.history import LiveHistory
from engine.trace.recording import Recorder
from engine.version import VERSION
from engine.worker import EventHub, Subscription

if TYPE_CHECKING:
    from engine.model.tokenizer import Tokenizer

FRAME_S = 1 / 60


class Watcher(threading.Thread):
    """Applies what a hub publishes to a history, as a window does at every frame."""

    def __init__(self, info: RunInfo, subscription: Subscription) -> None:
        super().__init__(name="watcher", daemon=True)
        self.history = LiveHistory(info)
        self._subscription = subscription
        self._closing = threading.Event()

    def run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(FRAME_S)
            for events in self._subscription.drain():
                self.history.append(events)

    def close(self) -> None:
        self._closing.set()
        self.join()


def serve_plain(runner: ModelRunner, tokenizer: Tokenizer, config: SchedulerConfig, workload: RequestFile
                ) -> tuple[float, int]:
    """Serve a workload with nothing made of it but text; seconds and output tokens."""
    runner.allocate_cache(config.num_blocks, config.block_size)
    scheduler = Scheduler(config, runner.eos_token_ids)
    texts: dict[str, IncrementalDetokenizer] = {}
    tokens_made = 0
    began = time.perf_counter()
    for request in workload.requests:
        params = SamplingParams(max_tokens=request.max_tokens, ignore_eos=workload.ignore_eos)
        scheduler.add_request(Request(request.id, request.prompt, params))
        texts[request.id] = IncrementalDetokenizer(tokenizer)
    while scheduler.requests:
        plan = scheduler.schedule()
        tokens = runner.execute(plan)
        finished = scheduler.commit(plan, tokens)
        scheduler.take_pool_events()  # which nobody wants; else they would pile up
        for entry, token in zip((s for s in plan.scheduled if s.samples), tokens, strict=True):
            texts[entry.request.request_id].add(token)
        for ended, _ in finished:
            runner.free_request(ended.request_id)
            del texts[ended.request_id]
        tokens_made += len(tokens)
    return time.perf_counter() - began, tokens_made


def serve_observed(runner: ModelRunner, tokenizer: Tokenizer, config: SchedulerConfig, workload: RequestFile,
                   recording: Path) -> tuple[float, int]:
    """Serve a workload with all that the program does while somebody watches and records, but for drawing."""
    engine = Engine(runner, tokenizer, config)
    info = RunInfo(SCHEMA_VERSION, VERSION, datetime.now(UTC).isoformat(timespec="seconds"),
                   engine.clock.wall_start_ns, runner.model_info, MachineInfo(device="cpu", threads=runner.num_threads),
                   "", 0, engine.scheduler.config.max_model_len, dict(engine.knobs))
    hub = EventHub()
    recorder = Recorder(recording, info)
    hub.add_sink(recorder.put)
    watcher = Watcher(info, hub.subscribe())
    watcher.start()
    one = serve(engine, workload, observe=hub.publish)
    watcher.close()
    recorder.close()
    if recorder.dropped or recorder.error or watcher.history.last_step != one.steps[-1].step:
        raise RuntimeError(recorder.error or "not every step was observed")
    return one.seconds, one.output_tokens


def measure_observing(runner: ModelRunner, tokenizer: Tokenizer, config: SchedulerConfig, workload: RequestFile, *,
                      rounds: int = 3) -> Figures:
    """Alternate ``rounds`` times, plain first in one round and last in the next, so that a drift favours neither."""
    warm_up(Engine(runner, tokenizer, config))
    plain: list[float] = []
    observed: list[float] = []
    with tempfile.TemporaryDirectory(prefix="cutaway-bench-") as folder:
        for number in range(2 * rounds):
            if number % 4 in (0, 3):
                seconds, tokens = serve_plain(runner, tokenizer, config, workload)
                plain.append(tokens / seconds)
            else:
                recording = Path(folder) / f"{number}.mcap"
                seconds, tokens = serve_observed(runner, tokenizer, config, workload, recording)
                observed.append(tokens / seconds)
                recording.unlink()
    return {
        "observed_over_plain": round(statistics.median(observed) / statistics.median(plain), 3),
        "observed_tokens_per_s": round(statistics.median(observed), 1),
        "plain_tokens_per_s": round(statistics.median(plain), 1),
        "observed_runs": [round(rate, 1) for rate in observed],
        "plain_runs": [round(rate, 1) for rate in plain],
        "workload": workload.name,
        "threads": runner.num_threads,
    }


def run_observe_bench(*, workload: str, model: str | None = None, dtype: str = "bfloat16", threads: int = 0,
                      device: str = "cpu", rounds: int = 3, as_json: bool = False) -> int:
    """Measure and print. Returns the exit status; raises :class:`WorkloadFileError` for a workload that is none."""
    loaded = load_workload(workload)
    print(f"{loaded.name}: {2 * rounds} times {len(loaded.requests)} requests; loading the model ...", file=sys.stderr)
    runner, tokenizer, config = load_runner(model, dtype, threads, device)
    print_figures(measure_observing(runner, tokenizer, config, loaded, rounds=rounds), as_json=as_json)
    return 0
