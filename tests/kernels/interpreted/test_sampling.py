"""Penalties, the likeliest tokens and draws against the plain rows that the sampler uses elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.gpu.device import HostDevice
from engine.gpu.transfers import Transfers
from engine.kernels.rows import TritonRows
from engine.kernels.sampling import PART, argmax
from engine.logit_rows import LogitRows, TorchRows
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.engine.mixed_requests import mixed_requests
from tests.kernels.drawn import kept
from tests.kernels.interpreted.close import random

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.02, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, -1, 1, 2, 40, 100_000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
)


TRANSFERS = Transfers(HostDevice())


def choose(rows: LogitRows, drawn: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> list[int]:
    rows.choose(drawn, params, uniform)
    return rows.fetch()[0]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(vocab=st.sampled_from([1, 5, 211, 4096, 5000]), rows=st.lists(PARAMS, min_size=1, max_size=3),
       spread=st.sampled_from([0.1, 3.0, 20.0]), ties=st.booleans(), seed=st.integers(0, 99))  # fmt: skip
@example(vocab=9000, rows=[SamplingParams(temperature=1.0, top_k=40, top_p=0.9)], spread=3.0, ties=False, seed=1)
def test_draws(vocab: int, rows: list[SamplingParams], spread: float, ties: bool, seed: int) -> None:
    logits = spread * random(len(rows) + 1, vocab, seed=seed)
    if ties:
        logits = logits.round()
    logits[:, ::7] = torch.where(torch.rand(1, generator=torch.Generator().manual_seed(seed)) < 0.3, -torch.inf,
                                 logits[:, ::7]) if vocab > 7 else logits[:, ::7]  # fmt: skip
    order = list(range(1, len(rows) + 1))  # not all rows, and not from the first
    uniform = np.random.default_rng(seed).random(len(rows))
    first, *found = choose(TritonRows(logits.clone()), order, rows, uniform)
    assert first == int(logits[0].argmax())
    for row, params, number, token in zip(order, rows, uniform, found, strict=True):
        left, weights = kept(logits[row], params)
        assert left[token], (params, token)
        # The kernel weighs in float32: the token's share of the line holds the number, give or take its rounding.
        total = float(weights.sum())
        after, slack = float(weights.cumsum(0)[token]), 1e-5 * total
        assert after - float(weights[token]) - slack <= number * total <= after + slack


def test_draws_are_those_of_the_plain_rows() -> None:
    logits = 2 * random(40, 1000, seed=3)
    params = [SamplingParams(temperature=0.5 + i / 40, top_k=(0, 50)[i % 2], top_p=(1.0, 0.9, 0.6)[i % 3],
                             min_p=(0.0, 0.1)[i % 5 == 4]) for i in range(40)]  # fmt: skip
    uniform = np.random.default_rng(0).random(40)
    expected = choose(TorchRows(logits), range(40), params, uniform)
    assert choose(TritonRows(logits, TRANSFERS), range(40), params, uniform) == expected


def test_the_ends_of_the_line() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf, 0.0, -torch.inf]])
    params = [SamplingParams(temperature=1.0)]
    for number, token in ((0.0, 1), (0.34, 2), (0.999999999999, 4)):
        assert choose(TritonRows(logits), [0], params, np.array([number])) == [token]


@settings(max_examples=16, deadline=None, derandomize=True)
@given(vocab=st.sampled_from([1, 5, 4096, 4097, 20_000, 3 * PART + 17]), seed=st.integers(0, 999),
       kind=st.sampled_from(["any", "ties", "all equal", "zeros of both signs", "mostly forbidden", "all forbidden"]))
@example(vocab=PART + 1, seed=1, kind="all equal")
def test_the_first_of_the_largest(vocab: int, seed: int, kind: str) -> None:
    logits = 3 * random(3, vocab, seed=seed)
    if kind == "ties":
        logits = logits.clamp(max=float(logits.max()) / 2)  # a great many at the same height
    if kind == "all equal":
        logits[:] = -7.25
    if kind == "zeros of both signs":
        logits = torch.where(logits > 0, 0.0, -0.0)
    if kind == "mostly forbidden":
        logits[logits < 2] = -torch.inf
    if kind == "all forbidden":
        logits[:] = -torch.inf
    assert argmax(logits).tolist() == logits.argmax(-1).tolist()
    # Beside a row that is drawn the likeliest tokens are drawn too, in a way that leaves nothing to chance.
    if kind != "all forbidden":
        drawn = choose(TritonRows(logits), [1], [SamplingParams(temperature=1.0)], np.array([0.5]))
        assert (drawn[0], drawn[2]) == (int(logits[0].argmax()), int(logits[2].argmax()))


def test_a_model_that_says_nan_names_a_token_all_the_same() -> None:
    """A token out of the vocabulary would end in an illegal address at the next step, and with it the whole run."""
    logits = torch.full((2, 300), torch.nan)
    params = [SamplingParams(temperature=1.0, top_p=0.9)]
    for tokens in (argmax(logits).tolist(), choose(TritonRows(logits), [0], params, np.array([0.5]))):
        assert all(0 <= token < 300 for token in tokens)


@pytest.mark.parametrize(("count", "vocabulary"), [(30, 97), (10, 5000)])
def test_the_same_tokens_as_the_cpus_sampler(count: int, vocabulary: int) -> None:
    """Requests of every kind in one batch: penalties, biases, forbidden ends, bounds, log probabilities."""
    logits = 3 * random(count, vocabulary, seed=2)
    logits[::3] = logits[::3].round()
    requests = mixed_requests(count, vocabulary, salt=5)
    found, expected = Sampler({1}), Sampler({1})
    assert found.sample(TritonRows(logits.clone(), TRANSFERS), requests) == expected.sample(
        TorchRows(logits.clone()), requests)
    for one, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.sampled.token_id == other.sampled.token_id
            assert one.sampled.logprob == pytest.approx(other.sampled.logprob, abs=1e-5)
            assert [t.logprob for t in one.top] == pytest.approx([t.logprob for t in other.top], abs=1e-5)


def test_nobody_to_choose_for() -> None:
    logits = torch.empty(0, 300)
    assert Sampler().sample(TritonRows(logits, TRANSFERS), []) == []
    assert choose(TritonRows(logits, TRANSFERS), [], [], np.zeros(0)) == []


@settings(max_examples=20, deadline=None, derandomize=True)
@given(pairs=st.integers(1, 300), seed=st.integers(0, 99))
def test_penalties(pairs: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = random(3, 500, seed=seed)
    places = generator.choice(3 * 500, pairs, replace=False)
    rows, tokens = places // 500, places % 500

    def numbers(low: float, high: float) -> np.ndarray:
        return generator.uniform(low, high, pairs).astype(np.float32)

    counts = generator.integers(0, 4, pairs).astype(np.float32)
    arguments = (rows, tokens, counts, numbers(0.5, 2), numbers(-2, 2), numbers(-2, 2))
    found, expected = logits.clone(), logits.clone()
    TritonRows(found, TRANSFERS).penalise(*arguments)
    TorchRows(expected).penalise(*arguments)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(found, logits)
    changed = torch.zeros(3, 500, dtype=torch.bool)
    changed[torch.from_numpy(rows), torch.from_numpy(tokens)] = True
    assert torch.equal(found[~changed], logits[~changed])
