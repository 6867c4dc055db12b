"""The engine as a whole, over a runner that checks every slot it reads."""

from __future__ import annotations

import random

import pytest

from engine.config import RUNNER_KNOBS, SCHEDULER_KNOBS, SchedulerConfig
from engine.core import Engine, generate
from engine.request import RequestRefused, SamplingParams
from engine.trace.events import RunInfo, StepEvents
from engine.trace.knobs import KNOBS, KnobError, KnobValue
from engine.trace.state import EngineState
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner, text_of


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def make_engine(tokenizer, **config: KnobValue) -> Engine:
    return Engine(TokenRunner(), tokenizer, SchedulerConfig(**config), {"temperature": 0.0, "arrival_rate": 1.0})


def info_of(engine: Engine) -> RunInfo:
    from engine.trace.events import MachineInfo
    return RunInfo(1, "test", "", 0, engine._runner.model_info, MachineInfo(), "", 0, 4096, dict(engine.knobs))


def run_to_end(engine: Engine, limit: int = 5000) -> list[StepEvents]:
    steps = []
    while (events := engine.step()) is not None:
        steps.append(events)
        assert len(steps) < limit, "the engine does not come to an end"
    return steps


def random_prompts(rng: random.Random, count: int) -> list[list[int]]:
    common = [rng.randrange(1, 400) for _ in range(70)]
    return [(common if rng.random() < 0.5 else []) + [rng.randrange(1, 400) for _ in range(rng.randrange(1, 120))]
            for _ in range(count)]


def test_serves_requests_and_tells_of_them(tokenizer) -> None:
    engine = make_engine(tokenizer, max_num_batched_tokens=64, num_blocks=64)
    prompts = random_prompts(random.Random(1), 12)
    ids = [engine.add_request(p, SamplingParams(max_tokens=30)) for p in prompts]
    steps = run_to_end(engine)
    assert [s.step for s in steps] == list(range(len(steps)))
    tokens: dict[str, list[int]] = {i: [] for i in ids}
    for step in steps:
        for sampled in step.sampled:
            tokens[sampled.request_id].append(sampled.token_id)
    assert tokens == {i: text_of(p, 30) for i, p in zip(ids, prompts, strict=True)}
    assert sorted(engine._runner.freed) == sorted(ids)
    assert steps[-1].free_blocks_after == 63


def test_a_pool_that_is_turned_and_turned_back_keeps_what_is_cached(tokenizer) -> None:
    engine = make_engine(tokenizer, num_blocks=64, block_size=8)
    prompt = random_prompts(random.Random(2), 1)[0]
    engine.add_request(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    engine.set_knob("num_blocks", 100)
    engine.set_knob("num_blocks", 64)
    steps = run_to_end(engine)  # the runner checks what it reads
    assert not any(step.knobs or step.preempted for step in steps)


@pytest.mark.parametrize("seed", range(6))
def test_knobs_never_change_the_text(tokenizer, seed: int) -> None:
    """Every knob turned at random while requests run, pool sizes too: the same texts as served alone."""
    rng = random.Random(seed)
    engine = make_engine(tokenizer, max_num_batched_tokens=64, num_blocks=80, block_size=8)
    state = EngineState(info_of(engine))
    prompts = random_prompts(rng, 40)
    waiting = [(p, rng.randrange(1, 60)) for p in prompts]
    expected: dict[str, list[int]] = {}
    tokens: dict[str, list[int]] = {}
    choices: dict[str, list[KnobValue]] = {
        "max_num_batched_tokens": [16, 24, 64, 500], "max_num_seqs": [1, 3, 16, 64],
        "long_prefill_token_threshold": [0, 5, 40], "enable_chunked_prefill": [True, False],
        "policy": ["fcfs", "priority"], "reserve_full_input": [True, False], "watermark": [0.0, 0.1],
        "num_blocks": [40, 64, 200], "block_size": [8, 16, 32], "enable_prefix_caching": [True, False]}
    assert set(choices) == set(SCHEDULER_KNOBS)
    for _ in range(1500):
        if waiting and rng.random() < 0.1:
            prompt, max_tokens = waiting.pop()
            request_id = engine.add_request(prompt, SamplingParams(max_tokens=max_tokens), priority=rng.randrange(3))
            expected[request_id] = text_of(prompt, max_tokens)
            tokens[request_id] = []
        if rng.random() < 0.08:
            name = rng.choice(list(choices))
            engine.set_knob(name, rng.choice(choices[name]))
        if len(expected) == len(prompts) and rng.random() < 0.02:
            engine.set_knob("max_num_batched_tokens", 500)  # an unchunked prompt needs room to get in at all
        events = engine.step()
        if events is None:
            if not waiting:
                break
            continue
        for sampled in events.sampled:
            tokens[sampled.request_id].append(sampled.token_id)
        for refused in events.refused:
            del expected[refused.request_id]
        for aborted in events.aborted:  # only a pool that has become too small for a request ends it
            expected[aborted.request_id] = expected[aborted.request_id][:len(tokens[aborted.request_id])]
        state.apply(events)
        check_state(state, engine)
    else:
        pytest.fail("the requests did not come to an end")
    assert {i: tokens[i] for i in expected} == expected
    assert state.counters.knob_changes > 10
    assert state.counters.preemptions > 0


def check_state(state: EngineState, engine: Engine) -> None:
    """The picture made of events is the engine itself."""
    scheduler = engine.scheduler
    assert state.running == [r.request_id for r in scheduler.running]
    assert state.waiting == [r.request_id for r in scheduler.waiting]
    assert state.num_free_blocks == scheduler.pool.num_free_blocks
    for request in (*scheduler.running, *scheduler.waiting):
        view = state.requests[request.request_id]
        assert view.blocks == request.block_ids
        assert view.num_computed_tokens == request.num_computed_tokens
        assert view.prompt_token_ids + view.output_token_ids == request.token_ids
    assert {n: state.knobs[n] for n in SCHEDULER_KNOBS} == {n: engine.knobs[n] for n in SCHEDULER_KNOBS}


def test_what_can_never_fit_is_refused_and_the_queue_goes_on(tokenizer) -> None:
    engine = make_engine(tokenizer, num_blocks=10, max_model_len=256)
    for prompt in ([], [5] * 400, [5] * 200):
        engine.add_request(prompt, SamplingParams(max_tokens=4))
    good = engine.add_request([7] * 20, SamplingParams(max_tokens=4, ignore_eos=True))
    steps = run_to_end(engine)
    refused = [r for s in steps for r in s.refused]
    assert [r.reason for r in refused] == ["empty_prompt", "prompt_too_long", "larger_than_pool"]
    assert all(len(r.message) > 20 for r in refused)
    assert [f.request_id for s in steps for f in s.finished] == [good]


def test_an_abort_gives_everything_back(tokenizer) -> None:
    engine = make_engine(tokenizer)
    first = engine.add_request([5] * 40, SamplingParams(max_tokens=500, ignore_eos=True))
    second = engine.add_request([6] * 40, SamplingParams(max_tokens=500, ignore_eos=True))
    for _ in range(5):
        engine.step()
    assert engine.abort(first)
    assert not engine.abort(first)
    assert engine.abort(second)
    events = engine.step()
    assert events is not None
    assert [f.request_id for f in events.aborted] == [first, second]
    assert events.free_blocks_after == 1023
    assert engine.step() is None


def test_a_knob_out_of_range_changes_nothing(tokenizer) -> None:
    engine = make_engine(tokenizer)
    with pytest.raises(KnobError, match="power of two"):
        engine.set_knob("block_size", 12)
    with pytest.raises(KnobError, match="the knobs are"):
        engine.set_knob("blok_size", 16)
    engine._runner.model_info.bytes_per_token = 2**40
    try:
        with pytest.raises(KnobError, match="GiB"):
            engine.set_knob("num_blocks", 60000)
    finally:
        engine._runner.model_info.bytes_per_token = 8
    assert engine.step() is None
    engine.set_knob("temperature", 0.5)
    events = engine.step()
    assert events is not None
    assert [(k.name, k.old, k.new) for k in events.knobs] == [("temperature", 0.0, 0.5)]


def test_knobs_of_the_device_reach_the_runner_and_are_told(tokenizer) -> None:
    assert {k.name for k in KNOBS.values() if k.group == "device"} == set(RUNNER_KNOBS)
    runner = TokenRunner()
    engine = Engine(runner, tokenizer, SchedulerConfig(), {"enforce_eager": True})
    # The runner may have served another engine: it is told of those that have their defaults too.
    assert runner.turned == [("enforce_eager", True), ("overlap", False)]
    runner.turned.clear()
    engine.set_knob("enforce_eager", True)
    engine.set_knob("overlap", False)
    assert engine.step() is None  # neither has changed
    engine.set_knob("enforce_eager", False)
    engine.set_knob("overlap", True)
    with pytest.raises(KnobError, match="true or false"):
        engine.set_knob("overlap", 1)
    assert runner.turned == [("enforce_eager", False), ("overlap", True)]
    events = engine.step()
    assert events is not None
    assert [(k.name, k.old, k.new) for k in events.knobs] == [("enforce_eager", True, False), ("overlap", False, True)]


def test_generate_streams_the_text_and_refuses_clearly(tokenizer) -> None:
    engine = make_engine(tokenizer)
    prompt = tokenizer.encode("你好 👋🏽")
    pieces = list(generate(engine, prompt, SamplingParams(max_tokens=20)))
    assert all(pieces)
    with pytest.raises(RequestRefused):
        list(generate(engine, [1] * 5000, SamplingParams()))


def test_a_request_goes_through_the_whole_life_on_the_picture(tokenizer) -> None:
    engine = make_engine(tokenizer, max_num_batched_tokens=32, num_blocks=17)
    state = EngineState(info_of(engine))
    for prompt in ([5] * 100, [6] * 100, [7] * 100):
        engine.add_request(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    seen = set()
    while (events := engine.step()) is not None:
        state.apply(events)
        seen |= {r.status for r in state.requests.values()}
        check_state(state, engine)
    assert seen == {"waiting", "running", "preempted", "finished"}
    assert state.counters.finished == 3
    assert state.counters.output_tokens == 120
    assert all(r.ttft_ns > 0 and len(r.output_token_ids) == 40 for r in state.requests.values())
