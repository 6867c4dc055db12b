"""One loaded model serves run after run: nothing of a run reaches the next, and nobody uses it beside another."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from engine.config import EngineConfig, SchedulerConfig
from engine.core import Engine
from engine.model.tokenizer import Tokenizer
from engine.model_holder import HeldModel, ModelHolder, ModelKey
from engine.plan import StepPlan
from engine.runner import Runner
from engine.trace.events import MemoryInfo, PhaseTimes, StepEvents
from engine.worker import EngineThread, RunSpec
from tests.engine.forward_driver import make_llama
from tests.engine.test_sampling_engine import VOCABULARY, every_kind, outputs
from tests.engine.test_worker import wait_for
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make_tokenizer(folder)
    make_llama(folder, seed=5, vocab_size=VOCABULARY, eos_token_id=0, bos_token_id=1)
    return folder


# ---- the runner ------------------------------------------------------------------------------------------------------


def config_of(**knobs: Any) -> EngineConfig:
    scheduler = SchedulerConfig(**{"max_model_len": 400, "num_blocks": 40, "block_size": 8, **knobs})
    return EngineConfig(dtype="float32", num_threads=1, scheduler=scheduler)


def run(runner: Runner, tokenizer: Tokenizer, config: EngineConfig, seed: int, limit: int = 10**9) -> list[StepEvents]:
    """Requests of every kind, of the same names in every run; ``limit`` leaves off in the middle."""
    engine = Engine(runner, tokenizer, config.scheduler, seed=seed)
    chance = random.Random(seed)
    work = every_kind(14)
    chance.shuffle(work)
    for prompt, params in work:
        engine.add_request([chance.randrange(1, 200), *prompt], params)
    steps: list[StepEvents] = []
    while len(steps) < limit and (events := engine.step()) is not None:
        # Times are new in every run; all else must not be.
        steps.append(msgspec.structs.replace(
            events, start_ns=0, end_ns=0, phases=PhaseTimes(),
            arrived=[msgspec.structs.replace(a, arrival_ns=0) for a in events.arrived]))
    return steps


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_a_run_is_the_same_with_a_used_model_as_with_a_fresh_one(folder: Path, path: str) -> None:
    tokenizer = Tokenizer.load(folder)
    runs = [(config_of(), 1, 10**9), (config_of(num_blocks=24, max_num_batched_tokens=24, max_num_seqs=9), 2, 9),
            (config_of(block_size=16), 2, 10**9), (config_of(), 1, 25), (config_of(), 1, 10**9)]
    used = Runner(folder, replace(runs[0][0], forward_path=path))
    sampled = 0
    for config, seed, limit in runs:
        config = replace(config, forward_path=path)
        used.configure(config)
        fresh = Runner(folder, config)
        expected = run(fresh, tokenizer, config, seed, limit)
        assert run(used, tokenizer, config, seed, limit) == expected
        assert expected[0].scheduled
        sampled += sum(len(tokens) for tokens in outputs(expected).values())
        used.release()
        assert not used._sampler._seen
        assert len(used.logprobs) == 0
    assert sampled > 300


def test_a_released_model_holds_no_cache_and_nobody(folder: Path) -> None:
    class Listener:
        def tell(self, stage: str, fraction: float | None) -> None:
            pass

    listener = Listener()
    runner = Runner(folder, config_of(num_blocks=2000), progress=listener.tell)
    run(runner, Tokenizer.load(folder), config_of(num_blocks=2000), 1, 5)
    before = runner._forward_path._cache[3].nbytes  # type: ignore[attr-defined]
    runner.release()
    assert runner._forward_path._cache[3].nbytes * 2000 == before  # type: ignore[attr-defined]
    gone = weakref.ref(listener)
    del listener
    gc.collect()
    assert gone() is None


def test_a_model_is_not_taken_for_another(folder: Path) -> None:
    config = config_of()
    runner = Runner(folder, config)
    for other in (EngineConfig(dtype="bfloat16", num_threads=1, scheduler=config.scheduler),
                  EngineConfig(dtype="float32", num_threads=2, scheduler=config.scheduler),
                  replace(config, forward_path="torch"), config_of(max_model_len=300)):
        with pytest.raises(ValueError, match="loaded"):
            runner.configure(other)
        assert ModelKey.of(folder, other) != ModelKey.of(folder, config)
    assert ModelKey.of(folder, config_of(num_blocks=9, max_num_seqs=3)) == ModelKey.of(folder, config)


def test_a_folder_that_has_changed_is_another_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = ModelKey.of(tmp_path, config_of())
    assert ModelKey.of(tmp_path, config_of()) == before
    (tmp_path / "model.safetensors").write_bytes(b"others!")
    (tmp_path / "config.json").write_text("{}")
    assert ModelKey.of(tmp_path, config_of()) != before


# ---- threads ---------------------------------------------------------------------------------------------------------


class CountedRunner(TokenRunner):
    """Loads in a while, notes how many there are, and minds that two threads never use it at once."""

    made = 0
    alive: ClassVar[weakref.WeakSet[CountedRunner]] = weakref.WeakSet()
    load_s = 0.05
    step_s = 0.001
    load_failure: Exception | None = None
    step_failure: Exception | None = None

    forward_path = "tokens"
    memory = MemoryInfo()

    def __init__(self, folder: Path, config: EngineConfig, *, progress: Callable[[str, float | None], None]) -> None:
        super().__init__()
        CountedRunner.made += 1
        CountedRunner.alive.add(self)
        self.user: int | None = threading.get_ident()
        self.configured = 0
        until = time.monotonic() + self.load_s
        while time.monotonic() < until:
            progress("Loading weights", 0.5)
            time.sleep(0.005)
        if self.load_failure is not None:
            raise self.load_failure

    def configure(self, config: EngineConfig, progress: object) -> None:
        assert self.user is None, "still somebody else's"
        self.user = threading.get_ident()
        self.configured += 1

    def release(self) -> None:
        assert self.user in (threading.get_ident(), None)  # None: taken, but the run ended before it was used
        self.user = None

    def warm_up(self, progress: object = None) -> None:
        assert self.user == threading.get_ident()

    def execute(self, plan: StepPlan) -> list[int]:
        assert self.user == threading.get_ident()
        time.sleep(self.step_s)
        if self.step_failure is not None:
            raise self.step_failure
        return super().execute(plan)


Start = Callable[..., EngineThread]


@pytest.fixture
def models() -> ModelHolder:
    return ModelHolder()


@pytest.fixture
def start(models: ModelHolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    folders = {"a": tmp_path / "a", "b": tmp_path / "b"}
    for folder in folders.values():
        make_tokenizer(folder)
    monkeypatch.setattr("engine.model.library.find_model", lambda spec, **_: folders[spec])
    monkeypatch.setattr("engine.runner.Runner", CountedRunner)
    for name, value in (("made", 0), ("load_s", 0.05), ("step_s", 0.001), ("load_failure", None),
                        ("step_failure", None)):
        monkeypatch.setattr(CountedRunner, name, value)
    CountedRunner.alive.clear()
    started: list[EngineThread] = []

    def begin(model: str = "a", **spec: Any) -> EngineThread:
        thread = EngineThread(RunSpec(model=model, **spec), models)
        started.append(thread)
        thread.start()
        return thread

    yield begin
    for thread in started:
        assert thread.stop(10)


def serves(thread: EngineThread) -> None:
    """A prompt goes in, and its tokens come out."""
    assert thread.loaded.wait(10)
    assert thread.error is None
    events = thread.hub.subscribe()
    thread.submit("Hello", max_tokens=5, ignore_eos=True)
    told: list[StepEvents] = []

    def finished() -> bool:
        told.extend(events.drain())
        return any(e.finished for e in told)

    wait_for(finished)
    assert sum(len(e.sampled) for e in told) == 5


def test_the_next_run_takes_the_model_over(start: Start, models: ModelHolder) -> None:
    first = start()
    serves(first)
    assert first.stop(5)
    assert models.keeps
    second = start(knobs={"num_blocks": 40})
    serves(second)
    assert CountedRunner.made == 1
    assert not models.keeps
    third = start()  # the second still runs, and nobody has told it to end: the model is its own
    serves(third)
    assert CountedRunner.made == 2


def test_a_run_waits_for_the_one_that_is_ending(start: Start) -> None:
    CountedRunner.step_s = 0.2
    first = start()
    assert first.loaded.wait(5)
    first.submit("Hello", max_tokens=1000, ignore_eos=True)
    wait_for(lambda: first.status == "running" and first._engine.has_work)
    first.stop(timeout=0)
    second = start()
    assert second.loaded.wait(10)
    assert CountedRunner.made == 1
    assert not first.is_alive() or first.ending


def test_quick_switches_load_one_model(start: Start) -> None:
    """Each is chosen before the one before has begun to load, or to end."""
    threads = [start()]
    serves(threads[0])
    for _ in range(6):
        threads[-1].stop(timeout=0)
        threads.append(start())
    serves(threads[-1])
    assert CountedRunner.made == 1
    assert all(not t.is_alive() for t in threads[:-1])
    assert [t.error for t in threads] == [None] * 7


def test_another_model_takes_the_place_of_the_one_that_was_kept(start: Start, models: ModelHolder) -> None:
    first = start("a")
    serves(first)
    first.stop(5)
    second = start("b")
    serves(second)
    gc.collect()
    assert CountedRunner.made == 2
    assert len(CountedRunner.alive) == 1  # the first one's memory is free
    second.stop(timeout=0)
    third = start("a")  # the second comes back when another is wanted: it is not kept
    serves(third)
    assert second.stop(5)
    gc.collect()
    assert len(CountedRunner.alive) == 1
    assert not models.keeps


def test_stopped_while_loading_nothing_is_kept_and_the_next_one_loads(start: Start, models: ModelHolder) -> None:
    CountedRunner.load_s = 30.0
    first = start()
    wait_for(lambda: CountedRunner.made == 1)
    assert first.stop(5)
    assert first.status == "stopped"
    assert first.error is None
    assert not models.keeps
    CountedRunner.load_s = 0.0
    serves(start())


def test_what_failed_is_not_kept(start: Start, models: ModelHolder) -> None:
    CountedRunner.load_failure = RuntimeError("no such weights")
    first = start()
    wait_for(lambda: first.status == "failed")
    assert first.error == "no such weights"
    CountedRunner.load_failure = None
    second = start()
    serves(second)
    CountedRunner.step_failure = RuntimeError("the forward pass broke")
    second.submit("more", max_tokens=5)
    wait_for(lambda: second.status == "failed")
    second.join(5)
    assert not models.keeps
    CountedRunner.step_failure = None
    serves(start())
    assert CountedRunner.made == 3


def test_nothing_holds_a_run_that_is_over(start: Start) -> None:
    """Neither the model nor its holder: a run's events are many."""
    spec = RunSpec(model="a")
    models = ModelHolder()
    thread = EngineThread(spec, models)
    thread.start()
    serves(thread)
    assert thread.stop(5)
    gone = weakref.ref(thread)
    del thread
    gc.collect()
    assert gone() is None
    assert models.keeps


def test_after_the_last_run_nothing_is_kept(start: Start, models: ModelHolder) -> None:
    first = start()
    serves(first)
    models.let_go()
    assert first.stop(5)
    assert not models.keeps
    gc.collect()
    assert not CountedRunner.alive


def test_whoever_waits_in_vain_loads(models: ModelHolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A borrower that never gives back, though it was told to end, keeps nobody for ever."""
    class Thread:
        ending = False

    monkeypatch.setattr("engine.model_holder.PATIENCE_S", 0.1)
    stuck, other = Thread(), Thread()
    key = ModelKey.of(tmp_path, config_of())
    assert models.take(key, stuck) is None
    stuck.ending = True
    began = time.monotonic()
    assert models.take(key, other) is None
    assert 0.1 <= time.monotonic() - began < 5
    model = HeldModel(key, None, None)  # type: ignore[arg-type]
    models.give_back(stuck, model)  # and then it does
    assert models.keeps


def test_a_real_model_serves_two_threads_after_one_another(folder: Path) -> None:
    import torch

    models = ModelHolder()
    tokens: list[list[int]] = []
    runners = set()
    for seed in (1, 1, 2):
        spec = RunSpec(model=str(folder), dtype="float32", num_threads=1, seed=seed, max_model_len=400,
                       knobs={"num_blocks": 60, "temperature": 1.0})
        thread = EngineThread(spec, models)
        events = thread.hub.subscribe()
        thread.start()
        assert thread.loaded.wait(60)
        assert thread.error is None
        runners.add(id(thread._engine._runner))
        numbers: list[tuple[int, bool]] = []
        thread._commands.put(lambda n=numbers: n.append((torch.get_num_threads(), torch.is_grad_enabled())))
        thread.submit("What is said twice?", max_tokens=30, ignore_eos=True)
        told: list[StepEvents] = []

        def finished(told: list[StepEvents] = told, events: Any = events) -> bool:
            told.extend(events.drain())
            return any(e.finished for e in told)

        wait_for(finished, 30)
        assert thread.stop(10)
        assert numbers == [(1, False)]
        tokens.append([s.token_id for e in told for s in e.sampled])
        assert [e.step for e in told] == list(range(len(told)))
    assert len(runners) == 1
    assert len(tokens[0]) == 30
    assert tokens[0] == tokens[1] != tokens[2]
