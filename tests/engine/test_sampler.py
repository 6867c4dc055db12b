"""Sampling: the distribution is the one asked for, and a request's choices are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.gpu.device import HostDevice
from engine.gpu.transfers import Transfers
from engine.logit_rows import CompiledRows, LogitRows, TorchRows
from engine.request import Request, SamplingParams
from engine.sampler import Sampler, uniforms
from tests.engine.mixed_requests import mixed_requests

DRAWS = 4000
MakeRows = Callable[[torch.Tensor], LogitRows]


def compiled_rows(logits: torch.Tensor) -> CompiledRows:
    from engine.model.fused import load_sampler_kernels

    kernels = load_sampler_kernels()
    count, vocabulary = logits.shape
    padded = np.full((count, -(-vocabulary // 32) * 32), -np.inf, dtype=np.float32)
    padded[:, :vocabulary] = logits.numpy()
    peaks = np.maximum.reduceat(padded, range(0, padded.shape[1], kernels.CHUNK), axis=1)
    return CompiledRows(kernels, padded, vocabulary, kernels.make_scratch(padded.shape[1]), peaks, padded.argmax(1))


def torch_rows(logits: torch.Tensor) -> TorchRows:
    return TorchRows(logits.clone())


TRANSFERS = Transfers(HostDevice())


def transferred_rows(logits: torch.Tensor) -> TorchRows:
    """As on a GPU: what goes there and comes back is packed, and nothing is asked on the way."""
    return TorchRows(logits.clone(), TRANSFERS)


@pytest.fixture(params=[compiled_rows, torch_rows, transferred_rows])
def make_rows(request: pytest.FixtureRequest) -> MakeRows:
    return request.param  # type: ignore[no-any-return]


def request_at(position: int, params: SamplingParams, prompt: Sequence[int] = (), name: str = "") -> Request:
    """A request whose next token is the one at ``position``; without a ``prompt`` the tokens are of no interest."""
    return Request(name or str(id(params)), list(prompt) or [0], params, token_ids=list(prompt) or [0] * position)


def sample(rows: LogitRows, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    return Sampler().sample(rows, [request_at(at, one) for at, one in zip(positions, params, strict=True)])


def frequencies(make_rows: MakeRows, logits: torch.Tensor, **params: float) -> np.ndarray:
    """How often each token comes when one row of logits is drawn from with many seeds."""
    many = [SamplingParams(seed=seed, **params) for seed in range(DRAWS)]  # type: ignore[arg-type]
    tokens = sample(make_rows(logits.expand(DRAWS, -1)), many, [17] * DRAWS)
    return np.bincount(tokens, minlength=logits.shape[0]) / DRAWS


def assert_drawn_from(found: np.ndarray, expected: np.ndarray) -> None:
    """Chi square: what cannot come has not come, and the rest is as often as chance allows (p above 1e-4)."""
    possible = expected > 0
    assert np.all(found[~possible] == 0)
    expected = expected[possible] / expected.sum()
    statistic = DRAWS * ((found[possible] - expected) ** 2 / expected).sum()
    degrees = len(expected) - 1
    assert statistic <= degrees + 3.9 * np.sqrt(2 * degrees) + 12


def softmax(logits: torch.Tensor, temperature: float = 1.0) -> np.ndarray:
    return (logits.double() / temperature).softmax(0).numpy()


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.tensor([1.0, -1.0, 2.0, 0.5, 2.5, -3.0, 0.0, 1.5])


def test_greedy_takes_the_largest(make_rows: MakeRows) -> None:
    rows = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0], [0.0, 0.5, 0.5]])
    assert sample(make_rows(rows), [SamplingParams()] * 3, [1, 2, 3]) == [1, 0, 1]
    assert sample(make_rows(rows[:0]), [], []) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(make_rows: MakeRows, logits: torch.Tensor, temperature: float) -> None:
    assert_drawn_from(frequencies(make_rows, logits, temperature=temperature), softmax(logits, temperature))


def test_top_k_and_top_p_together(make_rows: MakeRows, logits: torch.Tensor) -> None:
    expected = softmax(logits)
    order = np.argsort(-expected)
    expected[order[4:]] = 0
    expected /= expected.sum()
    inside = 1 + int(np.searchsorted(np.cumsum(expected[order]), 0.6))
    expected[order[inside:]] = 0
    assert 1 < inside < 4
    assert_drawn_from(frequencies(make_rows, logits, temperature=1.0, top_k=4, top_p=0.6), expected)


def test_many_tokens_by_seed_alone(make_rows: MakeRows) -> None:
    """A vocabulary that fills many chunks, most of which are seldom reached."""
    logits = torch.randn(500, generator=torch.Generator().manual_seed(3)) * 2
    assert_drawn_from(frequencies(make_rows, logits, temperature=1.3), softmax(logits, 1.3))


def test_a_nucleus_wider_than_the_first_look(make_rows: MakeRows) -> None:
    flat = torch.zeros(5000)
    tokens = sample(make_rows(flat.expand(500, -1)),
                    [SamplingParams(temperature=1.0, top_p=0.9, seed=s) for s in range(500)], [0] * 500)  # fmt: skip
    assert len(set(tokens)) > 400


def test_hardly_any_temperature_is_greedy(make_rows: MakeRows, logits: torch.Tensor) -> None:
    assert frequencies(make_rows, logits, temperature=1e-6)[4] == 1.0
    assert frequencies(make_rows, logits, temperature=2e-5)[4] == 1.0


# ---- against transformers --------------------------------------------------------------------------------------------

STRATA = 5000
VOCABULARY = 300


def shares(make_rows: MakeRows, row: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """The probability of each token, to within 2 of :data:`STRATA`: numbers from 0 to 1 in equal steps."""
    uniform = (np.arange(STRATA) + 0.5) / STRATA
    rows = make_rows(row.expand(STRATA, -1))
    rows.choose(range(STRATA), [params] * STRATA, uniform)
    tokens, _ = rows.fetch()
    return np.bincount(tokens, minlength=row.shape[0]) / STRATA


def vllms_order(params: SamplingParams) -> LogitsProcessorList:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    return warpers


@pytest.mark.parametrize("params", [
    {"temperature": 0.7}, {"temperature": 1.9}, {"top_k": 1}, {"top_k": 12}, {"top_k": 299}, {"top_k": 5000},
    {"top_p": 0.05}, {"top_p": 0.5}, {"top_p": 0.95}, {"min_p": 0.01}, {"min_p": 0.3}, {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8}, {"temperature": 0.6, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.5, "min_p": 0.05, "top_p": 0.6}, {"temperature": 0.3, "top_k": 3, "min_p": 0.2},
], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_warpers_of_transformers(make_rows: MakeRows, params: dict, seed: int) -> None:
    wanted = SamplingParams(**{"temperature": 1.0, **params})
    row = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2.5
    expected = vllms_order(wanted)(torch.zeros(1, 1, dtype=torch.long), row[None].clone())[0].softmax(0).numpy()
    found = shares(make_rows, row, wanted)
    assert np.all(found[expected == 0] == 0)
    assert np.abs(found - expected).max() <= 2.5 / STRATA
    assert np.all(found[expected > 3 / STRATA] > 0)


def edited(make_rows: MakeRows, row: torch.Tensor, prompt: list[int], output: list[int],
           **params: object) -> torch.Tensor:
    """What is left of a row of logits when the sampler has worked on it, with 2 and 3 ending a sequence."""
    rows = make_rows(torch.stack([torch.zeros_like(row), row]))
    request = Request("r", prompt, SamplingParams(**params), token_ids=prompt + output)  # type: ignore[arg-type]
    Sampler({2, 3}).sample(rows, [request_at(1, SamplingParams()), request])
    left = torch.as_tensor(rows._logits)[:, :VOCABULARY]  # type: ignore[attr-defined]
    assert not left[0].any(), "the other request's logits have changed"
    return left[1]


@pytest.fixture
def row() -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(8)) * 3


PROMPT, OUTPUT = [5, 9, 9, 120, 5, 44], [9, 200, 200, 200, 7]


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty_of_transformers(make_rows: MakeRows, row: torch.Tensor, penalty: float) -> None:
    ids = torch.tensor([PROMPT + OUTPUT])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(ids, row[None].clone())[0]
    torch.testing.assert_close(edited(make_rows, row, PROMPT, OUTPUT, repetition_penalty=penalty), expected)


def test_min_tokens_of_transformers(make_rows: MakeRows, row: torch.Tensor) -> None:
    for output in ([], [7], [7, 8], [7, 8, 9]):
        processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), 2, [2, 3, 40])
        expected = processor(torch.tensor([PROMPT + output]), row[None].clone())[0]
        found = edited(make_rows, row, PROMPT, output, min_tokens=2, stop_token_ids=(40,), ignore_eos=True)
        torch.testing.assert_close(found, expected)
        assert bool(found.isinf().any()) == (len(output) < 2)


def test_logit_bias_of_transformers(make_rows: MakeRows, row: torch.Tensor) -> None:
    bias = {4: 7.5, 17: -100.0, 299: 0.25}
    processor = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])
    expected = processor(torch.tensor([PROMPT]), row[None].clone())[0]
    torch.testing.assert_close(edited(make_rows, row, PROMPT, [], logit_bias=bias), expected)


def test_presence_and_frequency_penalties(make_rows: MakeRows, row: torch.Tensor) -> None:
    expected = row.clone()
    for token in set(OUTPUT):
        expected[token] -= 0.75 + 1.5 * OUTPUT.count(token)
    found = edited(make_rows, row, PROMPT, OUTPUT, presence_penalty=0.75, frequency_penalty=1.5)
    torch.testing.assert_close(found, expected)


def test_everything_that_changes_logits_in_vllms_order(make_rows: MakeRows, row: torch.Tensor) -> None:
    expected = row.clone()
    expected[2] = expected[3] = -torch.inf
    expected[200] += 50.0
    expected = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([PROMPT + OUTPUT]), expected[None])[0]
    for token in set(OUTPUT):
        expected[token] -= 0.5 * OUTPUT.count(token) - 1.0
    found = edited(make_rows, row, PROMPT, OUTPUT, min_tokens=6, logit_bias={200: 50.0}, repetition_penalty=1.5,
                   frequency_penalty=0.5, presence_penalty=-1.0)
    torch.testing.assert_close(found, expected)


def test_counting_goes_on_from_step_to_step(make_rows: MakeRows) -> None:
    """Counts that grow token by token, past the room they begin with, are those of a sampler that never saw it."""
    rows = torch.randn(200, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
    params = SamplingParams(repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1, temperature=1.0)
    request, sampler = Request("r", list(PROMPT), params), Sampler()
    for row in rows:
        fresh = sampler_choice(make_rows, Sampler(), row, request)
        assert sampler_choice(make_rows, sampler, row, request) == fresh
        request.token_ids.append(fresh)
    assert len(set(request.token_ids)) > 100
    sampler.forget("r")
    sampler.forget("r")
    other = Request("r", [1, 2], params)
    assert sampler_choice(make_rows, sampler, rows[0], other) == sampler_choice(make_rows, Sampler(), rows[0], other)


def sampler_choice(make_rows: MakeRows, sampler: Sampler, row: torch.Tensor, request: Request) -> int:
    return sampler.sample(make_rows(row[None]), [request])[0]


# ---- log probabilities -----------------------------------------------------------------------------------------------


def test_logprobs_are_the_models_own(make_rows: MakeRows) -> None:
    """Of the logits as they come from the model, whatever is done to them before a token is drawn."""
    rows = torch.randn(7, VOCABULARY, generator=torch.Generator().manual_seed(4)) * 3
    expected = rows.double().log_softmax(-1)
    asked = [
        SamplingParams(logprobs=0), SamplingParams(), SamplingParams(logprobs=5),
        SamplingParams(logprobs=20, temperature=2.0, seed=9), SamplingParams(temperature=1.0),
        SamplingParams(logprobs=3, logit_bias={11: 100.0}, repetition_penalty=1.7, min_tokens=3),
        SamplingParams(logprobs=2, temperature=0.5, top_k=4, frequency_penalty=2.0),
    ]
    sampler = Sampler({2})
    tokens = sampler.sample(make_rows(rows), [request_at(3, one, PROMPT) for one in asked])
    assert tokens[5] == 11
    assert len(sampler.logprobs) == 7
    for row, (one, token, found) in enumerate(zip(asked, tokens, sampler.logprobs, strict=True)):
        if one.logprobs is None:
            assert found is None
            continue
        assert found is not None
        assert found.sampled.token_id == token
        assert found.sampled.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        best = expected[row].topk(one.logprobs)
        assert [t.token_id for t in found.top] == best.indices.tolist()
        assert [t.logprob for t in found.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert sampler.sample(make_rows(rows[:1]), [request_at(3, SamplingParams())]) == [int(rows[0].argmax())]
    assert sampler.logprobs == ()


def test_logprobs_of_few_tokens_and_of_equal_ones(make_rows: MakeRows) -> None:
    sampler = Sampler()
    sampler.sample(make_rows(torch.tensor([[1.0, 1.0, 1.0]])), [request_at(1, SamplingParams(logprobs=20))])
    (found,) = sampler.logprobs
    assert found is not None
    assert sorted(t.token_id for t in found.top) == [0, 1, 2]
    assert [t.logprob for t in found.top] == pytest.approx([np.log(1 / 3)] * 3)


# ---- a request's choices are its own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [97, 1000, 4096])
def test_other_requests_change_nothing(make_rows: MakeRows, vocabulary: int) -> None:
    logits = torch.randn(60, vocabulary, generator=torch.Generator().manual_seed(1)) * 3
    logits[::3] = logits[::3].round()  # many equal logits
    requests = mixed_requests(60, vocabulary)
    together = Sampler({1}).sample(make_rows(logits), requests)
    alone = [Sampler({1}).sample(make_rows(logits[i : i + 1]), [requests[i]])[0] for i in range(60)]
    backwards = Sampler({1}).sample(make_rows(logits.flip(0)), requests[::-1])[::-1]
    assert together == alone == backwards
    assert len(set(together)) > 25


@pytest.mark.parametrize("vocabulary", [97, 1000, 49152])
def test_both_ways_choose_the_same_tokens(vocabulary: int) -> None:
    logits = torch.randn(60, vocabulary, generator=torch.Generator().manual_seed(2)) * 3
    logits[::3] = logits[::3].round()
    requests = mixed_requests(60, vocabulary, salt=5)
    compiled, plain = Sampler({1}), Sampler({1})
    assert compiled.sample(compiled_rows(logits), requests) == plain.sample(torch_rows(logits), requests)
    for one, other in zip(compiled.logprobs, plain.logprobs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.sampled.logprob == pytest.approx(other.sampled.logprob, abs=1e-5)


def test_uniforms_are_uniform_and_independent() -> None:
    seeds, positions = np.meshgrid(np.arange(200), np.arange(200))
    numbers = uniforms(seeds.ravel().tolist(), positions.ravel().tolist())
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(np.unique(numbers)) == numbers.size
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    expected = numbers.size / 50
    assert ((counts - expected) ** 2 / expected).sum() < 95  # chi square, 49 degrees of freedom: p is about 1e-4
    grid = numbers.reshape(200, 200)
    for neighbour in (np.roll(grid, 1, axis=0), np.roll(grid, 1, axis=1)):
        assert abs(np.corrcoef(grid.ravel(), neighbour.ravel())[0, 1]) < 0.025
