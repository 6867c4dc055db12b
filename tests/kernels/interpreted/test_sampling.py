"""Penalties and draws against the plain rows that the sampler uses elsewhere."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.kernels.rows import TritonRows
from engine.logit_rows import TorchRows
from engine.sampling_params import SamplingParams
from tests.kernels.drawn import kept
from tests.kernels.interpreted.close import random

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.02, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, -1, 1, 2, 40, 100_000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
)


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
    found = TritonRows(logits.clone()).draw(order, rows, uniform)
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
    assert TritonRows(logits).draw(range(40), params, uniform) == TorchRows(logits).draw(range(40), params, uniform)


def test_the_ends_of_the_line() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf, 0.0, -torch.inf]])
    params = [SamplingParams(temperature=1.0)]
    for number, token in ((0.0, 1), (0.34, 2), (0.999999999999, 4)):
        assert TritonRows(logits).draw([0], params, np.array([number])) == [token]


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
    TritonRows(found).penalise(*arguments)
    TorchRows(expected).penalise(*arguments)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(found, logits)
    changed = torch.zeros(3, 500, dtype=torch.bool)
    changed[torch.from_numpy(rows), torch.from_numpy(tokens)] = True
    assert torch.equal(found[~changed], logits[~changed])
