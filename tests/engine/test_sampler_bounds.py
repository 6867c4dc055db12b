"""Every way to bound a draw, on rows of every kind, against the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.request import SamplingParams
from engine.sampler import Sampler
from tests.engine.test_sampler import compiled_rows, request_at, torch_rows

CLOSE = 3e-6  # how far off a probability may be, weights being float32
CLOSE_WEIGHT = 5e-5  # the same of a single weight, as a share of it: those of e^-80 are the least exact


def kept(row: np.ndarray, params: SamplingParams, slack: float) -> tuple[np.ndarray, np.ndarray]:
    """The weights of all tokens, and which a draw may give; fewer with a ``slack`` of -1, more with 1, exact with 0."""
    logits = row.astype(np.float64)
    weights = np.exp((logits - logits.max()) / params.temperature)
    keep = np.ones(len(row), dtype=bool)
    if params.min_p > 0:
        keep &= weights >= params.min_p * (1 - slack * 1e-9)
    if 0 < params.top_k < len(row):
        keep &= logits >= np.sort(logits)[-params.top_k]
    if params.top_p < 1:
        order = np.sort(np.where(keep, weights, 0.0))[::-1]
        reached = np.cumsum(order)
        wanted = (params.top_p + slack * CLOSE) * reached[-1]
        bound = order[min(int(np.searchsorted(reached, wanted)), len(order) - 1)]
        keep &= weights >= bound * (1 - slack * CLOSE_WEIGHT)
    return weights, keep


def assert_right(row: np.ndarray, params: SamplingParams, uniform: float, token: int) -> None:
    """The token is the one whose cumulated weight is the first to pass the random number, give or take rounding."""
    (weights, few), (_, many) = kept(row, params, -1), kept(row, params, 1)
    assert 0 <= token < len(row)
    assert many[token], (params, token)
    least, most = np.cumsum(np.where(few, weights, 0)), np.cumsum(np.where(many, weights, 0))
    before = least[token] - (weights[token] if few[token] else 0)
    tolerance = 2 * CLOSE * most[-1]
    assert before <= uniform * most[-1] + tolerance, (params, uniform, token)
    assert most[token] >= uniform * least[-1] - tolerance, (params, uniform, token)


def make_row(size: int, seed: int, kind: str, scale: float, steps: int, forbidden: float) -> np.ndarray:
    chance = np.random.default_rng(seed)
    row = {
        "normal": lambda: chance.standard_normal(size),
        "equal": lambda: np.zeros(size),
        "ramp": lambda: np.linspace(-3, 3, size)[:: chance.choice((-1, 1))],
        "spike": lambda: np.where(np.arange(size) == chance.integers(size), 9.0, chance.standard_normal(size)),
        "heavy": lambda: chance.standard_cauchy(size).clip(-300, 300),
    }[kind]()
    row = (row * scale).astype(np.float32)
    if steps:
        row = np.round(row * steps) / np.float32(steps)  # ties
    row[chance.random(size) < forbidden] = -np.inf
    row[chance.integers(size)] = np.float32(scale)
    return row.astype(np.float32)


rows = st.builds(
    make_row, size=st.sampled_from([1, 2, 31, 64, 65, 300, 1000, 2081, 5001]), seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "equal", "ramp", "spike", "heavy"]),
    scale=st.sampled_from([1e-6, 0.5, 3.0, 30.0, 1e4]), steps=st.sampled_from([0, 0, 1, 4]),
    forbidden=st.sampled_from([0.0, 0.0, 0.3, 0.99]))

params = st.builds(
    SamplingParams, temperature=st.sampled_from([1.1e-5, 1e-3, 0.2, 0.7, 1.0, 2.0, 100.0]),
    top_k=st.one_of(st.just(0), st.integers(1, 20), st.integers(1, 5100)),
    top_p=st.one_of(st.just(1.0), st.floats(1e-9, 1.0), st.sampled_from([1e-9, 0.5, 0.9, 0.99, 1 - 1e-5, 1 - 1e-12])),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.sampled_from([1e-30, 0.05, 1.0])))

uniforms = st.one_of(st.floats(0.0, 1.0, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53]))


@pytest.mark.parametrize("make_rows", [compiled_rows, torch_rows])
@settings(max_examples=150, deadline=None)
@given(row=rows, draws=st.lists(st.tuples(params, uniforms), min_size=1, max_size=64))
def test_draws_by_the_definition(make_rows: object, row: np.ndarray, draws: list) -> None:
    """A row drawn from in up to 64 ways at once."""
    logits = make_rows(torch.from_numpy(row).expand(len(draws), -1))  # type: ignore[operator]
    logits.choose(range(len(draws)), [one for one, _ in draws], np.array([number for _, number in draws]))
    tokens, _ = logits.fetch()
    for (wanted, uniform), token in zip(draws, tokens, strict=True):
        assert_right(row, wanted, uniform, token)


@settings(max_examples=100, deadline=None)
@given(row=rows, k=st.integers(1, 5100), number=uniforms)
@example(row=np.arange(5001, dtype=np.float32), k=5000, number=0.0)
@example(row=np.zeros(300, dtype=np.float32), k=1, number=1 - 2.0**-53)
def test_top_k_is_exact(row: np.ndarray, k: int, number: float) -> None:
    """A bound on logits has no rounding: with no temperature to speak of, all that is left is about equally likely."""
    chosen = compiled_rows(torch.from_numpy(np.stack([row, row])))
    chosen.choose([0, 1], [SamplingParams(temperature=1e30, top_k=k)] * 2, np.array([0.0, number]))
    first, other = chosen.fetch()[0]
    left = np.flatnonzero(np.isfinite(row) & (row >= np.sort(row)[-min(k, len(row))]))
    assert first == left[0]
    assert other == left[min(int(number * len(left)), len(left) - 1)]


def test_the_kth_largest_wherever_it_is() -> None:
    """For every k of a row that is wide enough for guesses, some of which fail: the row's order misleads a sample."""
    chance = np.random.default_rng(5)
    size = 4096 + 32
    row = np.sort(chance.standard_normal(size)).astype(np.float32)
    misleading = row.reshape(-1, 2)[:, ::-1].copy().ravel()  # every second is the larger of two
    misleading[::2] += np.float32(2.0)
    for one in (row, misleading, chance.permutation(row)):
        sizes = [1, 2, 50, 64, 65, 66, 99, 100, 101, 102, *chance.integers(103, size, 60).tolist(), size - 1, size]
        chosen = compiled_rows(torch.from_numpy(one).expand(len(sizes), -1))
        last = np.full(len(sizes), 1 - 2.0**-53)
        chosen.choose(range(len(sizes)), [SamplingParams(temperature=1e30, top_k=k) for k in sizes], last)
        tokens, _ = chosen.fetch()
        ordered = np.sort(one)[::-1]
        assert tokens == [int(np.flatnonzero(one >= ordered[k - 1])[-1]) for k in sizes]


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
@pytest.mark.parametrize("size", [700, 20_000])
def test_how_many_tokens_a_bound_leaves(size: int, spread: float) -> None:
    """Of a row in descending order the largest random number takes the last token that is left."""
    row = np.sort(np.random.default_rng(size).standard_normal(size) * spread)[::-1].astype(np.float32)
    weights = np.exp(row.astype(np.float64) - row[0])
    reached = np.cumsum(weights) / weights.sum()
    shares = np.array([1e-9, 0.01, 0.2, 0.5, 0.77, 0.9, 0.95, 0.99, 0.999, 1 - 1e-5])
    nuclei = [SamplingParams(temperature=1.0, top_p=share) for share in shares]
    least = [SamplingParams(temperature=1.0, min_p=share) for share in shares]
    logits = compiled_rows(torch.from_numpy(row.copy()).expand(2 * len(shares), -1))
    logits.choose(range(2 * len(shares)), nuclei + least, np.full(2 * len(shares), 1 - 2.0**-53))
    tokens = np.array(logits.fetch()[0])
    assert np.all(tokens[: len(shares)] >= np.searchsorted(reached, shares - 1e-7))
    assert np.all(tokens[: len(shares)] <= np.searchsorted(reached, shares + 1e-7))
    assert tokens[len(shares) :].tolist() == [np.count_nonzero(weights >= share) - 1 for share in shares]


def test_rows_of_nothing_choose_some_token() -> None:
    """What no sampling can make sense of neither hangs nor leaves the vocabulary."""
    ways = [SamplingParams(temperature=1.0, top_k=k, top_p=p, min_p=m)
            for k in (0, 3, 290) for p in (0.5, 1.0) for m in (0.0, 0.1)]
    for bad in (-np.inf, np.nan, np.inf):
        row = np.full(300, bad, dtype=np.float32)
        for some in (row, np.where(np.arange(300) % 2, row, np.float32(1.0))):
            logits = compiled_rows(torch.from_numpy(some).expand(len(ways), -1))
            logits.choose(range(len(ways)), ways, np.full(len(ways), 0.5))
            assert all(0 <= token < 300 for token in logits.fetch()[0])


@settings(max_examples=60, deadline=None)
@given(row=rows, count=st.integers(0, 20))
def test_log_probabilities_of_any_row(row: np.ndarray, count: int) -> None:
    sampler = Sampler()
    sampler.sample(compiled_rows(torch.from_numpy(row)[None]), [request_at(1, SamplingParams(logprobs=count))])
    (found,) = sampler.logprobs
    assert found is not None
    expected = torch.from_numpy(row).double().log_softmax(-1)
    likely = expected[torch.isfinite(expected)].sort(descending=True).values[:count].tolist()
    assert found.sampled.logprob == pytest.approx(float(expected.max()), abs=1e-5)
    assert [one.logprob for one in found.top][: len(likely)] == pytest.approx(likely, rel=1e-6, abs=1e-5)
    for one in found.top[: len(likely)]:
        assert one.logprob == pytest.approx(float(expected[one.token_id]), rel=1e-6, abs=1e-5)
    assert len({one.token_id for one in found.top[: len(likely)]}) == len(likely)
