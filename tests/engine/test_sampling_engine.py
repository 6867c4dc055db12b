"""Sampling through the whole engine: real scheduler, real forward pass of a small random model, events."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, SchedulerConfig
from engine.core import AtOnce, Engine
from engine.model.tokenizer import Tokenizer
from engine.request import SamplingParams
from engine.runner import Runner
from engine.trace.events import Logprobs, StepEvents, decode_step, encode_step
from engine.trace.state import EngineState
from tests.engine.forward_driver import greedy_reference, make_llama, random_prompt, reference_logits
from tests.engine.test_core import info_of, run_to_end
from tests.engine.tiny_tokenizer import make_tokenizer

VOCABULARY = 509


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokens are the bytes of a text, mostly."""
    folder = tmp_path_factory.mktemp("llama")
    make_tokenizer(folder)
    make_llama(folder, seed=5, vocab_size=VOCABULARY, eos_token_id=0, bos_token_id=1)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
def make_engine(folder: Path, tokenizer: Tokenizer) -> Any:
    def make(path: str = "auto", seed: int = 0, **knobs: Any) -> Engine:
        config = SchedulerConfig(**{"max_model_len": 400, "num_blocks": 200, **knobs})
        runner = Runner(folder, EngineConfig(dtype="float32", num_threads=1, scheduler=config, forward_path=path))
        return Engine(runner, tokenizer, config, seed=seed)
    return make


def outputs(steps: list[StepEvents]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for step in steps:
        for sampled in step.sampled:
            found.setdefault(sampled.request_id, []).append(sampled.token_id)
    return found


def texts(steps: list[StepEvents]) -> dict[str, str]:
    found: dict[str, str] = {}
    for step in steps:
        for said in (*step.sampled, *step.finished):
            found[said.request_id] = found.get(said.request_id, "") + said.text
    return found


def ends(steps: list[StepEvents]) -> dict[str, tuple[str, str | int | None]]:
    return {f.request_id: (f.reason, f.stop) for step in steps for f in step.finished}


def every_kind(count: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts, half of them behind a common beginning, and parameters that use everything there is."""
    common = random_prompt(40, seed=77)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.9}, {}, {"temperature": 1.2, "top_k": 20, "repetition_penalty": 1.3},
        {"temperature": 1.0, "top_p": 0.8, "logprobs": 2}, {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 0.7, "min_p": 0.05, "logit_bias": {9: 3.0}}, {"repetition_penalty": 1.8, "min_tokens": 12},
    ]
    return [((common if i % 2 else []) + random_prompt(5 + 3 * i, seed=i),
             SamplingParams(seed=i, max_tokens=12 + i, ignore_eos=i % 3 == 0, **kinds[i % len(kinds)]))
            for i in range(count)]


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_a_requests_text_is_its_own(make_engine: Any, path: str) -> None:
    """Alone and whole, or in a crowd, in chunks, hit by the prefix cache and preempted: the same tokens."""
    work = every_kind(14)
    alone = []
    engine = make_engine(path)
    for prompt, params in work:
        request_id = engine.add_request(prompt, params)
        alone.append(outputs(run_to_end(engine))[request_id])
        engine.scheduler.reset_prefix_cache()
    assert len({tuple(tokens) for tokens in alone}) == len(alone)
    preemptions = chunks = 0
    for seed in range(2):
        chance = random.Random(seed)
        engine = make_engine(path, block_size=8, num_blocks=24, max_num_batched_tokens=(16, 40)[seed], max_num_seqs=9)
        order = list(range(len(work)))
        chance.shuffle(order)
        names = {engine.add_request(*work[i]): i for i in order}
        steps = run_to_end(engine)
        assert [outputs(steps)[name] for name in sorted(names, key=names.__getitem__)] == alone
        preemptions += sum(len(step.preempted) for step in steps)
        chunks += sum(not s.samples for step in steps for s in step.scheduled)
        assert not engine._runner._sampler._seen
        assert not engine._texts
    assert preemptions > 3
    assert chunks > 10


def test_penalties_by_the_definition(make_engine: Any, model: Any) -> None:
    """Token by token from the model's logits and the whole text, without any bookkeeping."""
    prompt = random_prompt(15, seed=1)
    params = SamplingParams(repetition_penalty=1.4, frequency_penalty=0.8, presence_penalty=-0.4, max_tokens=40,
                            logit_bias={50: 4.0}, ignore_eos=True)
    engine = make_engine()
    request_id = engine.add_request(prompt, params)
    found = outputs(run_to_end(engine))[request_id]
    ids = list(prompt)
    for _ in range(40):
        logits = reference_logits(model, ids)[-1]
        logits[50] += 4.0
        for token in set(ids):
            logits[token] = logits[token] / 1.4 if logits[token] > 0 else logits[token] * 1.4
        output = ids[len(prompt):]
        for token in set(output):
            logits[token] -= 0.8 * output.count(token) - 0.4
        ids.append(int(logits.argmax()))
    assert found == ids[len(prompt):]
    assert found != greedy_reference(model, prompt, 40)


def test_logprobs_in_the_events_are_the_models(make_engine: Any, model: Any, tokenizer: Tokenizer) -> None:
    prompt = random_prompt(20, seed=2)
    engine = make_engine()
    asked = engine.add_request(prompt, SamplingParams(logprobs=4, temperature=1.5, seed=3, max_tokens=15,
                                                      repetition_penalty=1.3, ignore_eos=True))
    plain = engine.add_request(prompt, SamplingParams(max_tokens=15))
    state = EngineState(info_of(engine))
    steps = run_to_end(engine)
    steps = [decode_step(encode_step(step)) for step in steps]
    sampled = [s for step in steps for s in step.sampled if s.request_id == asked]
    assert all(s.logprobs is None for step in steps for s in step.sampled if s.request_id == plain)
    expected = reference_logits(model, prompt + [s.token_id for s in sampled]).log_softmax(-1)[len(prompt) - 1:]
    for one, row in zip(sampled, expected, strict=False):
        found = one.logprobs
        assert isinstance(found, Logprobs)
        assert found.sampled.token_id == one.token_id
        assert found.sampled.logprob == pytest.approx(float(row[one.token_id]), abs=2e-4)
        best = row.topk(4)
        assert [t.token_id for t in found.top] == best.indices.tolist()
        assert [t.logprob for t in found.top] == pytest.approx(best.values.tolist(), abs=2e-4)
        assert all(t.text == (tokenizer.decode([t.token_id]) or "<end>") for t in found.top)
    for step in steps[:6]:
        state.apply(step)
    early = state.copy()
    for step in steps[6:]:
        state.apply(step)
    assert len(early.requests[asked].logprobs) == len(early.requests[asked].output_token_ids) == 6
    view = state.requests[asked]
    assert view.logprobs == pytest.approx([s.logprobs.sampled.logprob for s in sampled])  # type: ignore[union-attr]
    assert view.latest_logprobs == sampled[-1].logprobs
    assert EngineState.from_snapshot(state.info, state.snapshot()) == state
    assert state.requests[plain].logprobs == []


def test_samples_of_one_prompt_share_its_blocks(make_engine: Any) -> None:
    """The first computes the prompt; in the same step the others take its whole blocks from the prefix cache."""
    engine = make_engine(block_size=16, max_num_batched_tokens=512)
    prompt = random_prompt(70, seed=3)
    parent = engine.add_request(prompt, SamplingParams(temperature=1.0, n=4, seed=11, max_tokens=10, ignore_eos=True))
    first = engine.step()
    assert first is not None
    names = [f"{i}_{parent}" for i in range(4)]
    assert [(a.request_id, a.parent, a.seed) for a in first.arrived] == [
        (name, parent, 11 + i) for i, name in enumerate(names)]
    assert [(s.request_id, s.num_tokens, s.hit_tokens) for s in first.scheduled] == [
        (names[0], 70, 0), *((name, 6, 64) for name in names[1:])]
    tables = [engine.scheduler.requests[name].block_ids for name in names]
    assert all(table[:4] == tables[0][:4] for table in tables)
    assert [engine.scheduler.pool.blocks[block].ref_count for block in tables[0]] == [4, 4, 4, 4, 1]
    assert len({table[4] for table in tables}) == 4
    steps = [first, *run_to_end(engine)]
    found = outputs(steps)
    assert len({tuple(tokens) for tokens in found.values()}) == 4
    assert steps[-1].free_blocks_after == engine.scheduler.pool.num_usable_blocks
    # Each is what it would be as a request of its own.
    other = make_engine(enable_prefix_caching=False)
    single = other.add_request(prompt, SamplingParams(temperature=1.0, seed=13, max_tokens=10, ignore_eos=True))
    assert outputs(run_to_end(other))[single] == found[names[2]]
    assert not engine._samples


def test_samples_are_aborted_together_or_one_by_one(make_engine: Any) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=1.0, n=3, max_tokens=200, ignore_eos=True)
    parent = engine.add_request(random_prompt(20, seed=4), params)
    engine.step()
    assert engine.abort(f"1_{parent}")
    assert not engine.abort(f"1_{parent}")
    engine.step()
    assert engine.abort(parent)
    assert not engine.abort(parent)
    news = engine.step()
    assert news is not None
    assert [f.request_id for f in news.aborted] == [f"0_{parent}", f"2_{parent}"]
    assert not engine.has_work
    assert not engine._samples


def test_requests_without_a_seed(make_engine: Any) -> None:
    """Another text for each, the same ones in every run with the same seed."""
    prompt = random_prompt(20, seed=5)
    runs = []
    for seed in (1, 1, 2):
        engine = make_engine(seed=seed)
        ids = [engine.add_request(prompt, SamplingParams(temperature=1.5, max_tokens=12)) for _ in range(3)]
        steps = run_to_end(engine)
        runs.append([outputs(steps)[i] for i in ids])
        assert len({a.seed for a in steps[0].arrived}) == 3
    assert runs[0] == runs[1] != runs[2]
    assert len({tuple(tokens) for tokens in runs[0]}) == 3


# ---- ends ------------------------------------------------------------------------------------------------------------


def written(make_engine: Any, prompt: list[int], **params: Any) -> tuple[list[int], str, tuple[str, str | int | None]]:
    engine = make_engine()
    request_id = engine.add_request(prompt, SamplingParams(**{"max_tokens": 40, "ignore_eos": True, **params}))
    steps = run_to_end(engine)
    state = EngineState(info_of(engine))
    for step in steps:
        state.apply(step)
    assert state.num_free_blocks == engine.scheduler.pool.num_free_blocks == engine.scheduler.pool.num_usable_blocks
    assert not state.running
    assert state.requests[request_id].text == texts(steps)[request_id]
    return outputs(steps)[request_id], texts(steps)[request_id], ends(steps)[request_id]


@pytest.fixture
def prompt() -> list[int]:
    return random_prompt(12, seed=6)


class Spelling(AtOnce):
    """A runner that writes what it is told and leaves everything else to the real one."""

    def __init__(self, runner: Runner, token_ids: list[int]) -> None:
        self._runner, self._token_ids = runner, token_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: Any) -> list[int]:
        self._runner.execute(plan)
        return [self._token_ids[entry.request.num_output_tokens % len(self._token_ids)]
                for entry in plan.scheduled if entry.samples]


@pytest.fixture
def spelling(make_engine: Any, tokenizer: Tokenizer) -> Any:
    def run(text: str, **params: Any) -> tuple[int, str, tuple[str, str | int | None], list[str]]:
        """Of a request that writes ``text``: how many tokens, its text, how it ended, and the pieces shown."""
        engine = make_engine()
        engine._runner = Spelling(engine._runner, tokenizer.encode(text))
        request_id = engine.add_request([5, 6, 7], SamplingParams(**{"max_tokens": 60, **params}))
        steps = run_to_end(engine)
        assert steps[-1].free_blocks_after == engine.scheduler.pool.num_usable_blocks
        return (len(outputs(steps)[request_id]), texts(steps)[request_id], ends(steps)[request_id],
                [s.text for step in steps for s in step.sampled])
    return run


def test_a_stop_string_ends_a_request_and_is_not_in_its_text(spelling: Any) -> None:
    tokens, text, end, pieces = spelling("Hello. User: and so on", stop=("User:", "\n"))
    assert (text, end) == ("Hello. ", ("stop", "User:"))
    assert tokens == len("Hello. User:")
    assert "".join(pieces) == "Hello. "
    assert spelling("山上有一座庙，庙里有个老和尚", stop=("庙里",))[1:3] == ("山上有一座庙，", ("stop", "庙里"))


def test_a_stop_string_with_the_last_token_is_a_stop(spelling: Any) -> None:
    """As in vLLM: the text decides, not the number of tokens."""
    assert spelling("abcEND", max_tokens=6, stop=("END",))[:3] == (6, "abc", ("stop", "END"))
    assert spelling("abcEND", max_tokens=5, stop=("END",))[:3] == (5, "abcEN", ("length", None))


def test_stop_strings_wait_for_min_tokens(spelling: Any) -> None:
    assert spelling("ab;cd;ef", min_tokens=4, stop=(";",), max_tokens=8)[:3] == (6, "ab;cd", ("stop", ";"))


def test_stop_tokens_and_the_end_of_the_sequence(spelling: Any, tokenizer: Tokenizer) -> None:
    (semicolon,) = tokenizer.encode(";")
    assert spelling("ab;cd", stop_token_ids=(semicolon,))[:3] == (3, "ab", ("stop", semicolon))
    assert spelling("ab<end>cd")[:3] == (3, "ab", ("stop", None))
    assert spelling("ab<end>cd", ignore_eos=True, max_tokens=5)[:3] == (5, "abcd", ("length", None))
    assert spelling("ab<end>cd", ignore_eos=True, stop_token_ids=(0,))[:3] == (3, "ab", ("stop", 0))
    assert spelling("ab<end>cd", stop_token_ids=(0,))[:3] == (3, "ab", ("stop", None))
    # What was held back because a stop string might have begun is text after all.
    assert spelling("ab!<end>", stop=("!!",))[:3] == (4, "ab!", ("stop", None))


def test_min_tokens_keep_a_request_from_ending(make_engine: Any, prompt: list[int]) -> None:
    tokens, _, end = written(make_engine, prompt, ignore_eos=False, logit_bias={0: 100.0}, min_tokens=7)
    assert len(tokens) == 8
    assert 0 not in tokens[:7]
    assert tokens[7] == 0
    assert end == ("stop", None)
    tokens, _, end = written(make_engine, prompt, logit_bias={33: 100.0}, stop_token_ids=(33,), min_tokens=5)
    assert (len(tokens), end) == (6, ("stop", 33))


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_bad_parameters_are_refused_and_the_engine_goes_on(make_engine: Any) -> None:
    engine = make_engine()
    for params in (SamplingParams(top_p=0.0), SamplingParams(n=2), SamplingParams(stop_token_ids=(VOCABULARY,)),
                   SamplingParams(logit_bias={600: 1.0}), SamplingParams(min_tokens=99)):
        engine.add_request([5, 6], params, prompt_text="hi")
    refused = engine.refuse("bad_parameters", "temprature is no parameter of a request.", "hello")
    good = engine.add_request([5, 6], SamplingParams(max_tokens=2, ignore_eos=True))
    too_many = engine.add_request([5] * 500, SamplingParams(temperature=1.0, n=5))
    steps = run_to_end(engine)
    told = [r for step in steps for r in step.refused]
    assert [r.reason for r in told] == ["bad_parameters"] * 6 + ["prompt_too_long"]
    assert told[2].message == "stop_token_ids holds 509; its token ids must be whole numbers from 0 to 508."
    assert (told[5].request_id, told[5].prompt_text, told[6].request_id) == (refused, "hello", too_many)
    assert list(ends(steps)) == [good]
