"""With overlap and without: the same decisions, tokens and events, but for their times; and nothing is left untold."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import SCHEDULER_KNOBS, EngineConfig, SchedulerConfig
from engine.core import Engine, Tell
from engine.decisions import first_divergence
from engine.plan import StepPlan
from engine.recorded_workload import read_workload
from engine.request import SamplingParams
from engine.rerun import rerun
from engine.runner import Runner
from engine.trace.events import Logprobs, PhaseTimes, StepEvents, TokenLogprob, encode_step
from engine.trace.knobs import KnobValue
from engine.trace.reader import open_recording
from tests.engine.forward_driver import make_llama, random_prompt
from tests.engine.recorded_runs import SMALL, engine_run, make_model, save
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner
from tests.engine.trace_runs import TURNS


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class LateRunner(TokenRunner):
    """Computes when its tokens are collected, as a device that is never done before; notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self._plan: StepPlan | None = None
        self.logprobs: list[Logprobs | None] = []

    def launch(self, plan: StepPlan) -> None:
        assert self._plan is None, "a step is under way"
        self._plan = plan
        self.log.append("launch")

    def collect(self) -> list[int]:
        plan, self._plan = self._plan, None
        assert plan is not None
        self.log.append("collect")
        return self.execute(plan)

    def execute(self, plan: StepPlan) -> list[int]:
        tokens = super().execute(plan)
        self.logprobs = [Logprobs(TokenLogprob(token, -0.5), [TokenLogprob(token + 1, -1.0)]) for token in tokens]
        return tokens

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        assert self._plan is None, "the cache is taken away from under a step"
        super().allocate_cache(num_blocks, block_size)


def make_engine(tokenizer: Any, overlap: bool, **config: KnobValue) -> Engine:
    config = {"max_num_batched_tokens": 64, "num_blocks": 40, "block_size": 8, "max_num_seqs": 8} | config
    return Engine(LateRunner(), tokenizer, SchedulerConfig(**config), {"overlap": overlap, "arrival_rate": 1.0})


def timeless(events: StepEvents) -> bytes:
    """A step's record without its times."""
    events.start_ns = events.end_ns = 0
    events.phases = PhaseTimes()
    return encode_step(events)


def run_at_random(engine: Engine, seed: int, tell: Tell, calls: int = 400) -> None:
    """Requests of every kind, aborts, knobs, pauses with news, single steps: the same for the same seed."""
    chance = random.Random(seed)
    common = [chance.randrange(1, 400) for _ in range(50)]
    ids: list[str] = []
    for call in range(100_000):
        if call < calls and chance.random() < 0.15:
            prompt = (common if chance.random() < 0.4 else []) + [
                chance.randrange(1, 400) for _ in range(chance.choice((0, 1, 8, 30, 400)))]
            samples = 2 if chance.random() < 0.2 else 1
            params = SamplingParams(
                max_tokens=chance.randrange(1, 50), n=samples, temperature=float(samples - 1),
                ignore_eos=chance.random() < 0.3, logprobs=chance.choice((None, None, 1)),
                stop=chance.choice(((), (), ("a", "zz"), ("e",))),
                stop_token_ids=chance.choice(((), (), tuple(range(1, 40)))))  # fmt: skip
            ids.append(engine.add_request(prompt, params, priority=chance.randrange(3), arrival_ns=call))
        if ids and chance.random() < 0.06:
            engine.abort(chance.choice(ids))
        if call < calls and chance.random() < 0.06:
            name = chance.choice(list(TURNS))
            engine.set_knob(name, chance.choice(TURNS[name]))
        kind = chance.random()
        if kind < 0.05:  # a pause, in which the news are told
            engine.flush(tell)
            news = engine.tell_news()
            if news is not None:
                tell(news)
        elif kind < 0.1:  # a single step
            engine.flush(tell)
            events = engine.step()
            if events is not None:
                tell(events)
        elif not engine.advance(tell, at_once=kind < 0.15) and call >= calls:
            break
    engine.flush(tell)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), policy=st.sampled_from(["fcfs", "priority"]))
def test_overlap_changes_no_decision_and_no_event(tokenizer: Any, seed: int, policy: str) -> None:
    streams: list[list[bytes]] = []
    put_off = 0
    for overlap in (False, True):
        engine = make_engine(tokenizer, overlap, policy=policy)
        stream: list[bytes] = []

        def tell(events: StepEvents, stream: list[bytes] = stream, engine: Engine = engine) -> None:
            nonlocal put_off
            assert events.step == len(stream)
            assert events.end_ns >= events.start_ns
            put_off += engine._runner.log[-1:] == ["launch"]  # type: ignore[attr-defined]
            stream.append(timeless(events))

        run_at_random(engine, seed, tell, calls=120)
        streams.append(stream)
        if not overlap:
            assert put_off == 0, "something was told while a step was under way"
    assert streams[0] == streams[1]
    assert put_off > len(streams[1]) / 4


def test_what_the_random_runs_hold(tokenizer: Any) -> None:
    """Everything that could go wrong does happen."""
    seen: set[str] = set()
    for seed in range(6):
        engine = make_engine(tokenizer, True)

        def tell(events: StepEvents) -> None:
            seen.update(f"{f.reason} {type(f.stop).__name__}" for f in (*events.finished, *events.aborted))
            seen.update("preempted " + p.cause for p in events.preempted)
            seen.update("refused" for _ in events.refused)
            seen.update("logprobs" for s in events.sampled if s.logprobs and s.logprobs.sampled.text)
            seen.update("held back" for f in (*events.finished, *events.aborted) if f.text)

        run_at_random(engine, seed, tell, calls=300)
    assert seen >= {"stop str", "stop int", "stop NoneType", "length NoneType", "abort NoneType", "held back",
                    "logprobs", "refused", "preempted no_free_blocks", "preempted pool_rebuilt"}


# ---- the order of things ---------------------------------------------------------------------------------------------


def test_a_step_is_told_while_the_next_one_is_under_way(tokenizer: Any) -> None:
    engine = make_engine(tokenizer, True)
    log = engine._runner.log  # type: ignore[attr-defined]

    def tell(events: StepEvents) -> None:
        log.append(f"step {events.step}")

    engine.add_request([5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True))
    while engine.advance(tell):
        pass
    assert log == ["launch", "collect", "launch", "step 0", "collect", "launch", "step 1", "collect",
                   "launch", "step 2", "collect", "step 3"]  # fmt: skip


def test_without_overlap_a_step_is_told_at_its_end(tokenizer: Any) -> None:
    engine = make_engine(tokenizer, False)
    log = engine._runner.log  # type: ignore[attr-defined]
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True))
    while engine.advance(lambda events: log.append(f"step {events.step}")):
        pass
    assert log == ["launch", "collect", "step 0", "launch", "collect", "step 1", "launch", "collect", "step 2"]


def test_the_knob_acts_at_the_next_step_in_either_direction(tokenizer: Any) -> None:
    engine = make_engine(tokenizer, False)
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))
    told: list[StepEvents] = []
    counts = []
    for call in range(6):
        if call in (2, 4):
            engine.set_knob("overlap", call == 2)
        assert engine.advance(told.append)
        counts.append(len(told))
    assert counts == [1, 2, 2, 3, 5, 6]  # the fifth call tells what was put off, and its own step
    assert [(k.name, k.new) for events in told for k in events.knobs] == [("overlap", True), ("overlap", False)]
    assert [events.step for events in told] == list(range(6))


def test_a_step_by_step_caller_must_not_leave_anything_behind(tokenizer: Any) -> None:
    engine = make_engine(tokenizer, True)
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))
    told: list[StepEvents] = []
    engine.advance(told.append)
    assert not told
    for call in (engine.step, engine.tell_news):
        with pytest.raises(RuntimeError, match="put off"):
            call()
    engine.flush(told.append)
    engine.flush(told.append)
    assert len(told) == 1
    events = engine.step()
    assert events is not None
    assert (events.step, len(events.sampled)) == (1, 1)


def test_an_abort_finds_the_text_that_was_put_off(tokenizer: Any) -> None:
    """What is held back of a text at its end comes after the token of the step that was not told yet."""
    texts = []
    for overlap in (False, True):
        engine = make_engine(tokenizer, overlap)
        request_id = engine.add_request(tokenizer.encode("你好 👋🏽"), SamplingParams(max_tokens=40, ignore_eos=True))
        told: list[StepEvents] = []
        for _ in range(9):
            engine.advance(told.append)
        assert engine.abort(request_id)
        while engine.advance(told.append):
            pass
        texts.append(["".join(s.text for e in told for s in e.sampled), told[-1].aborted[0].text])
        assert sum(len(e.sampled) for e in told) == 9
    assert texts[0] == texts[1]


@pytest.mark.parametrize("where", ["launch", "collect"])
def test_what_was_put_off_outlives_a_failure(tokenizer: Any, where: str) -> None:
    engine = make_engine(tokenizer, True)
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))
    told: list[StepEvents] = []
    for _ in range(4):
        engine.advance(told.append)

    def fail(*_: Any) -> None:
        raise RuntimeError("the device is gone")

    setattr(engine._runner, where, fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.advance(told.append)
    engine.flush(told.append)
    assert [events.step for events in told] == [0, 1, 2, 3]
    assert told[-1].sampled


# ---- times -----------------------------------------------------------------------------------------------------------


class TimedRunner(LateRunner):
    """A device that takes 8 ms a step beside the host, and says so."""

    step_s = 0.008

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self._done_at = time.perf_counter() + self.step_s

    def collect(self) -> list[int]:
        time.sleep(max(0.0, self._done_at - time.perf_counter()))
        self.phase_ns = {"prepare": 0, "forward": int(self.step_s * 1e9), "sample": 0}
        return super().collect()


@pytest.mark.parametrize("overlap", [False, True])
def test_no_time_is_counted_twice(tokenizer: Any, overlap: bool) -> None:
    """A listener that takes 4 ms: hidden behind the device with overlap, in nobody's phases either way."""
    engine = make_engine(tokenizer, overlap)
    engine._runner = TimedRunner()
    engine._runner.allocate_cache(40, 8)
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=12, ignore_eos=True))
    told: list[StepEvents] = []

    def tell(events: StepEvents) -> None:
        time.sleep(0.004)
        told.append(events)

    while engine.advance(tell):
        pass
    for events, after in pairwise(told):
        phases = events.phases
        assert events.start_ns <= events.end_ns <= after.start_ns
        assert sum((phases.schedule, phases.prepare, phases.forward, phases.sample, phases.publish)) <= (
            events.end_ns - events.start_ns)
        assert phases.forward == 8_000_000
    publish = sorted(events.phases.publish for events in told)[len(told) // 2]
    assert publish < 3_000_000, "what the device hides is counted"
    gaps = sorted(after.start_ns - events.end_ns for events, after in pairwise(told))
    assert (gaps[len(gaps) // 2] > 3_500_000) == (not overlap)


# ---- a real model, and whoever drives an engine ----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_a_real_model_says_the_same(tmp_path: Path, path: str) -> None:
    make_llama(tmp_path, seed=3)
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=8, block_size=8, num_blocks=30, max_model_len=256)
    runner = Runner(tmp_path, EngineConfig(dtype="float32", num_threads=1, scheduler=config, forward_path=path))
    streams = []
    for overlap in (False, True):
        engine = Engine(runner, tokenizer, config, {"overlap": overlap, "arrival_rate": 1.0})
        before = runner._inputs.guessed_right
        stream: list[bytes] = []
        for i in range(10):
            params = SamplingParams(max_tokens=6 + 3 * i, temperature=0.9 * (i % 3 == 2), seed=i, ignore_eos=True,
                                    logprobs=2 if i == 4 else None, frequency_penalty=0.5 * (i % 4 == 1))  # fmt: skip
            engine.add_request(random_prompt(5 + 7 * i, seed=i), params, arrival_ns=0)
            for _ in range(3):
                engine.advance(lambda events, stream=stream: stream.append(timeless(events)))
        while engine.advance(lambda events, stream=stream: stream.append(timeless(events))):
            pass
        streams.append(stream)
        assert (runner._inputs.guessed_right - before > len(stream) / 4) == overlap
    assert streams[0] == streams[1]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_with_overlap_is_repeated(tokenizer: Any, tmp_path: Path, overlap: bool) -> None:
    knobs: dict[str, KnobValue] = SMALL | {"overlap": overlap}
    history = engine_run(tokenizer, 5, turns=0.02, aborts=0.02, knobs={
        **{name: getattr(SchedulerConfig(), name) for name in SCHEDULER_KNOBS}, **knobs})  # fmt: skip
    source = open_recording(save(history, tmp_path / "a.mcap"))
    assert source.info.knobs["overlap"] is overlap
    result = rerun(read_workload(source), {}, tmp_path / "b.mcap", make_model(tokenizer))
    again = open_recording(result.path)
    assert again.info.knobs["overlap"] is overlap
    steps = (again.events(step) for step in range(again.first_step, again.last_step + 1))
    assert first_divergence(source, steps) is None
    for source_or_copy in (source, again):
        source_or_copy.close()
