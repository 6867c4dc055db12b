"""The engine's thread: commands act between steps, nothing is lost, and it always ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.clock import RunClock
from engine.config import RUNNER_KNOBS, SchedulerConfig
from engine.core import Engine
from engine.plan import StepPlan
from engine.trace.events import MachineInfo, RunInfo, StepEvents, decode_step, encode_step
from engine.trace.knobs import KNOBS, KnobError
from engine.worker import EngineThread, RunSpec, Subscription
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner


class SlowTokenRunner(TokenRunner):
    """Takes ``delay_s`` a step, like a model does."""

    delay_s = 0.001
    fail_at: int | None = None

    def execute(self, plan: StepPlan) -> list[int]:
        time.sleep(self.delay_s)
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                raise RuntimeError("the forward pass broke")
        return super().execute(plan)


class TokenThread(EngineThread):
    """An engine thread that serves without a model; everything but loading is the real thing."""

    runner: SlowTokenRunner
    folder: Path

    def _load(self) -> bool:
        self.clock = RunClock()
        self._tokenizer = make_tokenizer(self.folder)
        knobs = self.spec.all_knobs(None)
        config = SchedulerConfig().with_knobs({k: v for k, v in knobs.items() if hasattr(SchedulerConfig, k)})
        self._engine = Engine(self.runner, self._tokenizer, config, knobs, self.clock)
        self.info = RunInfo(1, "test", "", 0, self.runner.model_info, MachineInfo(), "", 0, 2048, knobs)
        self.status = "running"
        self.loaded.set()
        return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[EngineThread, Subscription]]]:
    started: list[EngineThread] = []

    def _start(**spec: Any) -> tuple[EngineThread, Subscription]:
        thread = TokenThread(RunSpec(**spec))
        thread.runner = SlowTokenRunner()
        thread.folder = tmp_path
        subscription = thread.hub.subscribe()
        started.append(thread)
        thread.start()
        assert thread.loaded.wait(5)
        return thread, subscription

    yield _start
    for thread in started:
        assert thread.stop(5), "the engine thread did not end"
    assert not [t for t in threading.enumerate() if t.name == "engine"]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def collect(subscription: Subscription, steps: list[StepEvents], until: Callable[[StepEvents], bool]) -> None:
    def found() -> bool:
        new = subscription.drain()
        steps.extend(new)
        return any(until(s) for s in new)
    wait_for(found)


def test_a_prompt_goes_in_and_its_text_comes_out(start) -> None:
    thread, subscription = start()
    thread.submit("Hello", max_tokens=12, ignore_eos=True)
    steps: list[StepEvents] = []
    collect(subscription, steps, lambda s: bool(s.finished))
    assert [s.step for s in steps] == list(range(len(steps)))
    assert sum(len(s.sampled) for s in steps) == 12
    assert steps[0].arrived[0].prompt_text == "Hello"
    assert steps[0].arrived[0].source == "user"
    wait_for(lambda: thread.status == "idle")


def test_parameters_that_do_not_work_are_refused_and_the_engine_goes_on(start) -> None:
    thread, subscription = start()
    thread.submit("one", temprature=1.0)
    thread.submit("two", top_p="much")
    thread.submit("three", stop=["\x00"], max_tokens=3, ignore_eos=True, temperature=0.5, seed=4, n=2)
    steps: list[StepEvents] = []
    collect(subscription, steps, lambda s: len(s.finished) == 2)
    refused = [r for s in steps for r in s.refused]
    assert [(r.reason, r.prompt_text) for r in refused] == [("bad_parameters", "one"), ("bad_parameters", "two")]
    assert "temprature is no parameter of a request; there are" in refused[0].message
    assert "top_p is 'much'; it must be a number above 0" in refused[1].message
    assert [(a.request_id, a.seed, a.parent, a.stop) for s in steps for a in s.arrived] == [
        ("0_r3", 4, "r3", ["\x00"]), ("1_r3", 5, "r3", ["\x00"])]
    assert thread.error is None


def test_pause_step_and_resume(start) -> None:
    thread, subscription = start()
    thread.pause()
    wait_for(lambda: thread.status == "paused")
    thread.submit("x", max_tokens=1000, ignore_eos=True)
    steps: list[StepEvents] = []
    collect(subscription, steps, lambda s: bool(s.arrived))  # seen at once, though nothing runs
    assert not any(s.scheduled for s in steps)
    held = thread.clock.now_ns()
    thread.single_step(3)
    wait_for(lambda: len(subscription) == 3)
    time.sleep(0.05)
    steps = subscription.drain()
    assert len(steps) == 3
    assert all(s.scheduled for s in steps)
    assert thread.clock.now_ns() - held < 40_000_000, "the clock ran on while paused"
    thread.resume()
    wait_for(lambda: len(subscription) > 10)
    assert thread.status == "running"


def test_slow_motion_limits_the_steps_and_stops_the_clock_between_them(start) -> None:
    thread, subscription = start()
    thread.set_slow_motion(20)
    thread.submit("x", max_tokens=1000, ignore_eos=True)
    wait_for(lambda: len(subscription) > 0)
    begin, before, clock = time.monotonic(), len(subscription), thread.clock.now_ns()
    wait_for(lambda: len(subscription) >= before + 8)
    assert time.monotonic() - begin > 0.3
    assert thread.clock.now_ns() - clock < 150_000_000
    thread.set_slow_motion(None)
    wait_for(lambda: len(subscription) > 100)


def test_a_knob_acts_and_a_bad_one_is_refused_at_once(start) -> None:
    thread, subscription = start()
    with pytest.raises(KnobError):
        thread.set_knob("max_num_seqs", 0)
    with pytest.raises(KnobError):
        thread.set_knob("no_such_knob", 1)
    thread.set_knob("max_num_seqs", 3)
    steps: list[StepEvents] = []
    collect(subscription, steps, lambda s: bool(s.knobs))
    assert steps[-1].knobs[0].new == 3
    thread.runner.model_info.bytes_per_token = 2**40
    thread.set_knob("num_blocks", 60000)
    wait_for(lambda: bool(thread.notices))
    assert "GiB" in thread.notices.popleft()
    assert thread.is_alive()


def test_a_failure_is_told_and_ends_the_thread(start) -> None:
    thread, subscription = start()
    thread.runner.fail_at = 4
    thread.submit("x", max_tokens=100, ignore_eos=True)
    wait_for(lambda: thread.status == "failed")
    assert thread.error == "the forward pass broke"
    assert len(subscription) >= 4


def test_stopping_in_mid_step_loses_nothing(start) -> None:
    thread, subscription = start()
    thread.runner.delay_s = 0.05
    thread.submit("x", max_tokens=1000, ignore_eos=True)
    wait_for(lambda: len(subscription) > 2)
    begin = time.monotonic()
    assert thread.stop(5)
    assert time.monotonic() - begin < 1
    steps = subscription.drain()
    assert [s.step for s in steps] == list(range(len(steps)))
    assert thread.status == "stopped"


# ---- with overlap ----------------------------------------------------------------------------------------------------


def test_with_overlap_every_step_is_told_in_order_and_none_is_kept_back(start) -> None:
    thread, subscription = start(knobs={"overlap": True})
    thread.submit("Hello", max_tokens=12, ignore_eos=True)
    steps: list[StepEvents] = []
    collect(subscription, steps, lambda s: bool(s.finished))
    wait_for(lambda: thread.status == "idle")
    steps += subscription.drain()
    assert [s.step for s in steps] == list(range(len(steps)))
    assert sum(len(s.sampled) for s in steps) == 12
    for before, after in pairwise(steps):
        assert before.start_ns <= before.end_ns <= after.start_ns


def test_with_overlap_a_pause_shows_the_last_step_and_each_single_one(start) -> None:
    thread, subscription = start(knobs={"overlap": True})
    thread.runner.delay_s = 0.01
    thread.submit("x", max_tokens=1000, ignore_eos=True)
    wait_for(lambda: len(subscription) > 3)
    thread.pause()
    wait_for(lambda: thread.status == "paused")
    engine = thread._engine
    told = subscription.drain()
    assert told[-1].step + 1 == engine._next_step
    for _ in range(3):
        thread.single_step()
        wait_for(lambda: len(subscription) > 0)
        (one,) = subscription.drain()
        assert one.step == told[-1].step + 1 == engine._next_step - 1
        told.append(one)
    thread.single_step(4)
    wait_for(lambda: len(subscription) == 4)
    time.sleep(0.05)
    told += subscription.drain()
    assert [s.step for s in told] == list(range(engine._next_step))
    thread.resume()
    thread.pause()
    thread.single_step()  # all at once, so that the pause itself is never waited in
    wait_for(lambda: thread.status == "paused" and bool(len(subscription)))
    time.sleep(0.05)
    told += subscription.drain()
    assert [s.step for s in told] == list(range(engine._next_step))


def test_with_overlap_slow_motion_shows_each_step_when_it_happens(start) -> None:
    thread, subscription = start(knobs={"overlap": True})
    thread.submit("x", max_tokens=1000, ignore_eos=True)
    wait_for(lambda: len(subscription) > 0)
    thread.set_slow_motion(8)
    time.sleep(0.2)
    for _ in range(2):
        count = thread._engine._next_step
        wait_for(lambda count=count: thread._engine._next_step > count)
        time.sleep(0.05)  # of the 0.125 s to the next one
        assert subscription.drain()[-1].step == thread._engine._next_step - 1


def test_with_overlap_a_failure_loses_nothing_that_was_done(start) -> None:
    thread, subscription = start(knobs={"overlap": True})
    thread.runner.fail_at = 4
    thread.submit("x", max_tokens=100, ignore_eos=True)
    wait_for(lambda: thread.status == "failed")
    assert [len(s.sampled) for s in subscription.drain()] == [1, 1, 1, 1]


def test_with_overlap_stopping_loses_nothing(start) -> None:
    thread, subscription = start(knobs={"overlap": True})
    engine = thread._engine
    thread.submit("x", max_tokens=1000, ignore_eos=True)
    wait_for(lambda: len(subscription) > 2)
    assert thread.stop(5)
    assert [s.step for s in subscription.drain()] == list(range(engine._next_step))


def test_every_listener_gets_every_step(start) -> None:
    thread, first = start()
    second = thread.hub.subscribe()
    seen: list[int] = []
    thread.hub.add_sink(lambda s: seen.append(s.step))
    thread.submit("x", max_tokens=50, ignore_eos=True)
    wait_for(lambda: thread.status == "idle" and len(first) >= 50)
    assert [s.step for s in first.drain()] == [s.step for s in second.drain()] == seen


def test_commands_from_many_threads(start) -> None:
    thread, subscription = start()
    threads = [threading.Thread(target=lambda: [thread.submit("y", max_tokens=3, ignore_eos=True) for _ in range(20)])
               for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    finished = 0

    def all_done() -> bool:
        nonlocal finished
        finished += sum(len(s.finished) for s in subscription.drain())
        return finished == 80
    wait_for(all_done)


def test_knob_presets_are_checked() -> None:
    defaults = {k.name: k.default for k in KNOBS.values()}
    assert RunSpec(device="cuda").all_knobs(None) == defaults
    assert RunSpec().all_knobs(None) == {n: v for n, v in defaults.items() if n not in RUNNER_KNOBS}
    assert RunSpec(knobs={"overlap": True}).all_knobs(None)["overlap"] is True  # asked for, so told
    with pytest.raises(KnobError):
        RunSpec(knobs={"watermark": 2.0}).all_knobs(None)


def test_a_watched_engine_leaves_the_window_a_core() -> None:
    assert RunSpec(watched=False).choose_threads() >= RunSpec(watched=True).choose_threads() >= 1
    assert RunSpec(num_threads=7).choose_threads() == 7


def test_importing_the_worker_imports_no_torch() -> None:
    import subprocess
    code = "import sys, engine.worker; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'PySide6')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_loading_ends_at_once_when_nobody_waits_for_the_model_any_more(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Who picks one scenario after another starts many; each of them holds a model's worth of memory."""
    stages: list[str] = []

    class EndlessRunner:
        def __init__(self, *_: object, progress: Callable[[str, float | None], None]) -> None:
            while True:
                progress("Loading weights", 0.1)
                stages.append("Loading weights")
                time.sleep(0.001)

    make_tokenizer(tmp_path)
    monkeypatch.setattr("engine.model.library.find_model", lambda *_, **__: tmp_path)
    monkeypatch.setattr("engine.model.tokenizer.Tokenizer.load", lambda _: None)
    monkeypatch.setattr("engine.runner.Runner", EndlessRunner)
    thread = EngineThread(RunSpec())
    thread.start()
    wait_for(lambda: bool(stages))
    assert thread.progress.stage == "Loading weights"
    assert thread.stop(5)
    assert (thread.status, thread.error) == ("stopped", None)


def test_a_prompt_that_is_no_text_is_refused_and_the_run_goes_on(start) -> None:
    thread, events = start()
    thread.submit("half a pair: \ud83d")
    thread.submit("hello", max_tokens=3)
    told: list[StepEvents] = []

    def answered() -> bool:
        told.extend(events.drain())
        return any(e.finished for e in told)

    wait_for(answered)
    (refused,) = [r for e in told for r in e.refused]
    assert refused.reason == "bad_prompt"
    assert [decode_step(encode_step(events)) for events in told] == told  # and can be recorded
    assert thread.status != "failed"


def test_a_pool_that_does_not_fit_is_refused_by_name(start) -> None:
    thread, _ = start()
    thread.runner.model_info.bytes_per_token = 2**40
    thread.set_knob("num_blocks", 65536)
    wait_for(lambda: bool(thread.refused_knobs))
    assert list(thread.refused_knobs) == ["num_blocks"]
    (notice,) = thread.notices
    assert "65,536 blocks" in notice
    assert "65,536" not in notice.template  # it can be translated
