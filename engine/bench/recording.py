"""``cutaway bench recording``: what writing a recording costs, and how quickly a long one opens and is sought in.

A scheduler without a model serves 20 requests at once: prompts of 40 to 240 tokens, half of them behind a shared
prefix, answers of 40 to 160. Its steps are recorded as fast as they come; then another process opens the file, jumps
about in it, and says how much memory that took.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.bench.report import Figures, print_figures
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step_events import arrival_of, build_step_events
from engine.trace.events import (
    SCHEMA_VERSION,
    Arrived,
    Finished,
    MachineInfo,
    ModelInfo,
    PhaseTimes,
    RunInfo,
    Sampled,
    StepEvents,
)
from engine.trace.knobs import KNOBS, KnobValue
from engine.version import VERSION

AT_ONCE = 20
SEEKS = 400
VOCABULARY = 40_000
WORDS = (" the", " block", " page", ",", " is", " scheduled", ".", " and")


class BusyRun:
    """A scheduler that always has ``AT_ONCE`` requests. Iterating gives its steps, without an end."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self._scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=AT_ONCE, num_blocks=512))
        knobs: dict[str, KnobValue] = {name: knob.default for name, knob in KNOBS.items()}
        knobs |= {name: getattr(self._scheduler.config, name) for name in SCHEDULER_KNOBS}
        self.info = RunInfo(SCHEMA_VERSION, VERSION, "2026-01-01T00:00:00Z", 1_767_225_600_000_000_000,
                            ModelInfo("none", dtype="float32"), MachineInfo("cpu"), "bench", seed,
                            self._scheduler.config.max_model_len, knobs, eos_token_ids=[])
        self._shared = [self._draw.randrange(VOCABULARY) for _ in range(96)]
        self._next_id = 1

    def _arrive(self, now_ns: int) -> Arrived:
        draw = self._draw
        prompt = self._shared if draw.random() < 0.5 else []
        prompt = prompt + [draw.randrange(VOCABULARY) for _ in range(draw.randint(40, 144))]
        request = Request(f"r{self._next_id}", prompt, SamplingParams(max_tokens=draw.randint(40, 160)),
                          arrival_ns=now_ns, prompt_text="".join(draw.choices(WORDS, k=len(prompt))))
        self._next_id += 1
        self._scheduler.add_request(request)
        return arrival_of(request)

    def __iter__(self) -> Iterator[StepEvents]:
        scheduler, draw = self._scheduler, self._draw
        now_ns, step = 0, 0
        while True:
            arrived = [self._arrive(now_ns) for _ in range(AT_ONCE - len(scheduler.requests))]
            start_ns = now_ns + 20_000
            plan = scheduler.schedule()
            now_ns = start_ns + 8_000_000 + 20_000 * plan.num_tokens + draw.randrange(300_000)
            names = [s.request.request_id for s in plan.scheduled if s.samples]
            tokens = [draw.randrange(VOCABULARY) for _ in names]
            done = {request.request_id: reason for request, reason in scheduler.commit(plan, tokens)}
            sampled = [Sampled(n, t, WORDS[t % len(WORDS)]) for n, t in zip(names, tokens, strict=True)]
            yield build_step_events(
                step=step, start_ns=start_ns, end_ns=now_ns,
                phases=PhaseTimes(40_000, 60_000, now_ns - start_ns - 300_000, 150_000, 20_000), knobs=[],
                arrived=arrived, refused=[], aborted=[], plan=plan, pool=scheduler.take_pool_events(), sampled=sampled,
                finished=[Finished(n, done[n]) for n in names if n in done],
                free_blocks_after=scheduler.pool.num_free_blocks)
            step += 1


def measure_writing(path: Path, steps: int) -> Figures:
    """Record ``steps`` steps. ``write_us_per_step`` is time that the engine's thread loses to recording, and
    ``writer_us_per_step`` processor time of the recorder's own thread."""
    from engine.trace.recording import Recorder

    run = BusyRun()
    recorder = Recorder(path, run.info)
    handing_over = 0
    try:
        for events in run:
            began = time.perf_counter_ns()
            recorder.put(events)
            handing_over += time.perf_counter_ns() - began
            if recorder.queued > 2000:  # no engine is so fast
                recorder.wait_for_room()
            if events.step == steps - 1:
                break
    finally:
        recorder.close(timeout=600)
    if recorder.error is not None:
        raise OSError(recorder.error)
    return {"write_us_per_step": round(handing_over / 1000 / steps, 3),
            "writer_us_per_step": round(recorder.cpu_ns / 1000 / steps, 1),
            "file_mb": round(sum(p.stat().st_size for p in recorder.paths) / 1e6, 2)}


def measure_reading(path: Path) -> Figures:
    """Open a recording and look at random steps of it."""
    import numpy as np
    import psutil

    from engine.trace.reader import open_recording

    began = time.perf_counter()
    recording = open_recording(path)
    open_s = time.perf_counter() - began
    draw = random.Random(0)
    times = []
    for _ in range(SEEKS):
        step = draw.randint(recording.first_step, recording.last_step)
        began = time.perf_counter()
        recording.state_at(step)
        recording.events(step)
        times.append(time.perf_counter() - began)
    series = recording.series
    for index in range(0, series.n, max(1, series.n // 50)):  # what a window looks at
        series.segments_between(index, index + 300)
        series.latency(int(series.step[index]), 256)
    assert recording.timeline.rows
    times.sort()
    figures = {"open_s": round(open_s, 3), "seek_p50_ms": round(1e3 * times[SEEKS // 2], 2),
               "seek_p99_ms": round(1e3 * times[-(-SEEKS * 99 // 100) - 1], 2),
               "rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1), "steps": int(np.int64(series.n))}
    recording.close()
    return figures


def measure_recording(steps: int, folder: Path | None = None) -> Figures:
    """All figures of a recording of ``steps`` steps, which is made in ``folder`` and removed."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="cutaway-bench-") as made:
        path = Path(made) / "bench.mcap"
        figures = measure_writing(path, steps)
        done = subprocess.run([sys.executable, "-m", "engine.bench.recording", str(path)], check=True,
                              stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        reading: dict[str, Any] = json.loads(done.stdout)
    return {"steps": steps, **figures, **{name: value for name, value in reading.items() if name != "steps"}}


def run_recording_bench(steps: int, *, as_json: bool) -> int:
    print_figures(measure_recording(steps), as_json=as_json)
    return 0


if __name__ == "__main__":
    print(json.dumps(measure_reading(Path(sys.argv[1]))))
