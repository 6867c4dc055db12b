"""Memory stays flat, however many requests have come and gone."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Iterator

import pytest

from engine.config import SchedulerConfig
from engine.core import Engine
from engine.request import SamplingParams
from engine.trace.events import MachineInfo, RunInfo, StepEvents
from engine.trace.history import PAGE_STEPS, LiveHistory
from engine.trace.source import SNAPSHOT_INTERVAL
from engine.trace.state import FINISHED_KEPT, EngineState
from engine.worker import EventHub
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner

MEASURED_REQUESTS = 10_000
TRACED_REQUESTS = 800
WARM_UP_REQUESTS = 3_000
AT_ONCE = 24
KEPT_STEPS = 256
KEPT_ROWS = 256
FLAT_OBJECTS = 2_500
"""Half an object for each of the 5,000 requests between the levels compared: a kept id does not go unnoticed."""

FLAT_BYTES = 16_000
"""20 bytes a traced request; an id takes 51. Large buffers, which Python's own allocator does not see, count here."""


class ForgetfulRunner(TokenRunner):
    """The runner of the tests, which notes every request that it has freed, without the notes."""

    def free_request(self, request_id: str) -> None:
        self.num_freed = getattr(self, "num_freed", 0) + 1


class ClosedLoop:
    """Short requests through an engine, its hub, a history and a state: somebody finishes, somebody comes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.keep_history = True
        self.hub = EventHub()
        self.subscription = self.hub.subscribe()
        info = RunInfo(1, "test", "", 0, engine._runner.model_info, MachineInfo(), "", 0, 4096, dict(engine.knobs))
        self.history = LiveHistory(info, max_steps=KEPT_STEPS, spill=False)
        self.history.timeline.max_rows = KEPT_ROWS
        self.state = EngineState(info)
        self.num_left = self.num_preemptions = self.num_evictions = self.num_aborted = 0
        self._rng = random.Random(4)
        self._prefixes = [[self._rng.randrange(1, 400) for _ in range(16)] for _ in range(5)]
        self._inside = 0

    def run(self, requests: int) -> None:
        """Until ``requests`` more have left."""
        until = self.num_left + requests
        while self.num_left < until:
            while self._inside < AT_ONCE:
                self._add()
            if self._rng.random() < 0.02:
                self.engine.abort(self._rng.choice(list(self.engine.scheduler.requests)))
            events = self.engine.step()
            assert events is not None
            self.hub.publish(events)
            for published in self.subscription.drain():
                self.state.apply(published)
                if self.keep_history:
                    self.history.append(published)
            assert not events.refused
            self._count(events)

    def _add(self) -> None:
        own = [self._rng.randrange(1, 400) for _ in range(self._rng.randrange(1, 10))]
        samples = 2 if self._rng.random() < 0.1 else 1
        stop = ("never comes",) if self._rng.random() < 0.1 else ()
        self.engine.add_request(self._rng.choice(self._prefixes) + own,
                                SamplingParams(max_tokens=self._rng.randrange(1, 16), n=samples, stop=stop,
                                               temperature=float(samples - 1)),
                                prompt_text="a text" * 3, source="loop")
        self._inside += samples

    def _count(self, events: StepEvents) -> None:
        gone = len(events.finished) + len(events.aborted)
        self._inside -= gone
        self.num_left += gone
        self.num_aborted += len(events.aborted)
        self.num_preemptions += len(events.preempted)


def allocated_objects() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> ClosedLoop:
    """Run so long that everything that has a bound has reached it."""
    config = SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=16, num_blocks=36, block_size=8)
    loop = ClosedLoop(Engine(ForgetfulRunner(), make_tokenizer(tmp_path_factory.mktemp("tokenizer")), config))
    loop.run(WARM_UP_REQUESTS)
    assert loop.history.first_step > 0, "the history has not reached its bound yet"
    assert loop.history.timeline.forgotten > 0, "the timeline has not reached its bound yet"
    return loop


def test_ten_thousand_requests_leave_no_objects_behind(loop: ClosedLoop) -> None:
    """Everything that lives as long as a run: scheduler, pool, core, hub, history, series, timeline, state.

    The history packs its newest steps many at a time, so the level goes up and down: the lowest ones are compared.
    """
    left = loop.num_left
    levels = []
    for _ in range(20):
        loop.run(MEASURED_REQUESTS // 20)
        levels.append(allocated_objects())
    assert loop.num_left - left >= MEASURED_REQUESTS
    assert loop.num_preemptions > 50, "the pool was meant to be too small"
    assert loop.state.counters.evictions > 1000
    assert loop.num_aborted > 20
    assert min(levels[10:]) - min(levels[:10]) < FLAT_OBJECTS, levels

    scheduler, history = loop.engine.scheduler, loop.history
    assert len(scheduler.requests) <= AT_ONCE + 1
    assert len(scheduler.running) + len(scheduler.waiting) == len(scheduler.requests)
    assert len(scheduler.pool._cached) < scheduler.config.num_blocks
    assert len(loop.engine._texts) == len(scheduler.requests)
    assert len(loop.engine._samples) <= len(scheduler.requests)
    assert len(loop.state.requests) <= AT_ONCE + 1 + FINISHED_KEPT
    assert history.last_step - history.first_step < KEPT_STEPS + 2 * SNAPSHOT_INTERVAL
    assert history.series.n == history.last_step - history.first_step + 1
    assert len(history.timeline.rows) < 2 * KEPT_ROWS


def test_requests_leave_no_bytes_behind(loop: ClosedLoop, tracing: None) -> None:
    """Without the history, whose pages are let go of many at a time: its size goes up and down."""
    loop.keep_history = False
    loop.run(TRACED_REQUESTS // 2)  # what was made before it began to trace is let go
    before = traced_bytes()
    loop.run(TRACED_REQUESTS)
    assert traced_bytes() - before < FLAT_BYTES


def test_a_history_keeps_to_its_bounds(loop: ClosedLoop) -> None:
    history = loop.history
    pages = (KEPT_STEPS + 2 * SNAPSHOT_INTERVAL) // PAGE_STEPS
    assert 0 < len(history._packed) <= pages
    assert 0 < len(history._recent) <= 2 * PAGE_STEPS
    assert len(history._snapshots) == len(history._snapshot_steps) <= 2 + KEPT_STEPS // SNAPSHOT_INTERVAL
    assert len(history.series._steps.columns["step"]) <= 8 * KEPT_STEPS
    assert len(history.series._known) <= AT_ONCE + 1
    assert len(history.timeline._by_id) == len(history.timeline.rows)


def test_these_measurements_would_notice(tracing: None) -> None:
    """A leak of one id a request is more than what passes for flat."""
    objects, size = allocated_objects(), traced_bytes()
    kept = [f"r{number}" for number in range(MEASURED_REQUESTS // 2)]
    assert allocated_objects() - objects > FLAT_OBJECTS
    del kept[TRACED_REQUESTS:]
    assert traced_bytes() - size > FLAT_BYTES
