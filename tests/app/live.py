"""An engine thread for tests: scheduler, pool, workload and thread are the real ones; only the model is not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from engine.clock import RunClock
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.core import Engine
from engine.plan import StepPlan
from engine.request import SamplingParams
from engine.trace.events import MachineInfo, RunInfo, StepEvents
from engine.trace.history import LiveHistory
from engine.worker import EngineThread, RunSpec
from engine.workload import NewRequest
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner


class TimedRunner(TokenRunner):
    """Takes ``delay_s`` a step, like a model does."""

    delay_s = 0.002

    def execute(self, plan: StepPlan) -> list[int]:
        time.sleep(self.delay_s)
        return super().execute(plan)


class TokenWorkload:
    """Twelve requests at a time for ever: one system prompt of 64 tokens before most, some prompts long."""

    exhausted = False

    def __init__(self, seed: int, limit: int = 10**9) -> None:
        self._random = random.Random(seed)
        self._prefix = [self._random.randrange(1, 500) for _ in range(64)]
        self._unfinished = self._made = 0
        self._limit = limit

    def due(self, now_ns: int) -> list[NewRequest]:
        made = []
        while self._unfinished < 12 and self._made < self._limit:
            self._unfinished += 1
            self._made += 1
            length = self._random.choice((10, 30, 60, 200))
            tokens = [self._random.randrange(1, 500) for _ in range(length)]
            made.append(NewRequest(
                index=self._made, prompt_token_ids=self._prefix * (self._random.random() < 0.7) + tokens,
                prompt_text=f"prompt {self._made}", arrival_ns=now_ns, source="tests",
                params=SamplingParams(max_tokens=self._random.randrange(8, 60), ignore_eos=True)))
        self.exhausted = self._made >= self._limit
        return made

    def next_arrival_ns(self) -> int | None:
        return None

    def set_knob(self, name: str, value: object, now_ns: int | None = None) -> bool:
        return True

    def on_admitted(self, new: NewRequest, request_id: str) -> None:
        pass

    def observe(self, events: StepEvents) -> None:
        self._unfinished -= len(events.finished) + len(events.aborted) + len(events.refused)


class TokenThread(EngineThread):
    """Serves a scenario without a model; ``failure`` is raised instead of loading, ``hold`` delays loading."""

    def __init__(self, spec: RunSpec, folder: Path, *, delay_s: float = 0.002, failure: Exception | None = None,
                 hold_s: float = 0.0) -> None:
        super().__init__(spec)
        self._folder, self._delay_s, self._load_failure, self._hold_s = folder, delay_s, failure, hold_s

    def _load(self) -> bool:
        self._stopping.wait(self._hold_s)
        if self._stopping.is_set():
            return False
        if self._load_failure is not None:
            raise self._load_failure
        runner = TimedRunner()
        runner.delay_s = self._delay_s
        knobs = self.spec.all_knobs(None)
        self._tokenizer = make_tokenizer(self._folder)
        config = SchedulerConfig().with_knobs({n: v for n, v in knobs.items() if n in SCHEDULER_KNOBS})
        self.clock = RunClock()
        self._engine = Engine(runner, self._tokenizer, config, knobs, self.clock)
        if self.spec.scenario is not None:
            self._workload = TokenWorkload(self.spec.seed)  # type: ignore[assignment]
        self.info = RunInfo(1, "test", "2026-01-01T00:00:00+00:00", 0, runner.model_info,
                            MachineInfo(device="cpu", threads=1), self.spec.scenario or "", self.spec.seed, 2048, knobs)
        self.status = "running"
        self.loaded.set()
        return True


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait, without a Qt event loop, until ``condition`` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


BUSY = {"num_blocks": 64, "max_num_seqs": 12, "max_num_batched_tokens": 96}
"""Knobs that make everything happen within a few hundred steps: hits, chunks, preemptions, evictions."""


def make_run(folder: Path, steps: int = 300, scenario: str = "shared-prefix") -> LiveHistory:
    """A run of ``steps`` steps, taken from the thread as fast as it goes."""
    thread = TokenThread(RunSpec(scenario=scenario, knobs=BUSY), folder, delay_s=0.0005)
    subscription = thread.hub.subscribe()
    thread.start()
    try:
        assert thread.loaded.wait(10)
        assert thread.info is not None
        history = LiveHistory(thread.info)

        def enough() -> bool:
            for events in subscription.drain():
                if history.last_step < steps - 1:
                    history.append(events)
            return history.last_step >= steps - 1

        wait_for(enough, 30)
    finally:
        assert thread.stop(5)
    return history
