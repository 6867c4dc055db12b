"""Sampling: the distribution is the one asked for, and a request's choices are its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.logit_rows import CompiledRows, LogitRows, TorchRows
from engine.request import Request, SamplingParams
from engine.sampler import Sampler, uniforms

DRAWS = 4000


def sample(logits: torch.Tensor | LogitRows, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """A token for each row, for requests that hold so many tokens already."""
    requests = [Request(str(i), [5] * positions[i], params[i]) for i in range(len(params))]
    return Sampler().sample(TorchRows(logits) if isinstance(logits, torch.Tensor) else logits, requests)


def frequencies(logits: torch.Tensor, **params: float) -> np.ndarray:
    """How often each token comes when one row of logits is drawn from with many seeds."""
    many = [SamplingParams(seed=seed, **params) for seed in range(DRAWS)]  # type: ignore[arg-type]
    tokens = sample(logits.expand(DRAWS, -1), many, [17] * DRAWS)
    return np.bincount(tokens, minlength=logits.shape[0]) / DRAWS


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Within five standard deviations of every token's expected frequency."""
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / DRAWS) + 1e-12)


def softmax(logits: torch.Tensor, temperature: float = 1.0) -> np.ndarray:
    return (logits.double() / temperature).softmax(0).numpy()


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.tensor([1.0, -1.0, 2.0, 0.5, 2.5, -3.0, 0.0, 1.5])


def test_greedy_takes_the_largest() -> None:
    rows = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0], [0.0, 0.0, 0.5]])
    assert sample(rows, [SamplingParams()] * 3, [1, 2, 3]) == [1, 0, 2]
    assert sample(rows[:0], [], []) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(logits: torch.Tensor, temperature: float) -> None:
    assert_close(frequencies(logits, temperature=temperature), softmax(logits, temperature))


def test_top_k(logits: torch.Tensor) -> None:
    expected = softmax(logits)
    expected[np.argsort(-expected)[3:]] = 0
    assert_close(frequencies(logits, temperature=1.0, top_k=3), expected / expected.sum())


def test_top_p(logits: torch.Tensor) -> None:
    expected = softmax(logits)
    order = np.argsort(-expected)
    inside = 1 + int(np.searchsorted(np.cumsum(expected[order]), 0.8))
    expected[order[inside:]] = 0
    assert 1 < inside < len(order)
    assert_close(frequencies(logits, temperature=1.0, top_p=0.8), expected / expected.sum())


def test_top_k_and_top_p_together(logits: torch.Tensor) -> None:
    expected = softmax(logits)
    order = np.argsort(-expected)
    expected[order[4:]] = 0
    expected /= expected.sum()
    inside = 1 + int(np.searchsorted(np.cumsum(expected[order]), 0.6))
    expected[order[inside:]] = 0
    assert_close(frequencies(logits, temperature=1.0, top_k=4, top_p=0.6), expected / expected.sum())


def test_a_nucleus_wider_than_the_first_look() -> None:
    flat = torch.zeros(5000)
    tokens = sample(flat.expand(500, -1), [SamplingParams(temperature=1.0, top_p=0.9, seed=s) for s in range(500)],
                    [0] * 500)  # fmt: skip
    assert len(set(tokens)) > 400


def test_hardly_any_temperature_is_greedy(logits: torch.Tensor) -> None:
    assert frequencies(logits, temperature=2e-5)[4] == 1.0


def test_other_requests_change_nothing(logits: torch.Tensor) -> None:
    rows = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=5),
              SamplingParams(temperature=1.5, top_k=20, seed=-3),
              SamplingParams(temperature=1.0, top_p=0.7, seed=2**70),
              SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=5), SamplingParams(temperature=1.0)]
    positions = [3, 9, 9, 40, 9, 0]
    together = sample(rows, params, positions)
    alone = [sample(rows[i : i + 1], params[i : i + 1], positions[i : i + 1])[0] for i in range(6)]
    backwards = sample(rows.flip(0), params[::-1], positions[::-1])[::-1]
    assert together == alone == backwards


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


def test_the_fused_sampler_draws_the_same_tokens() -> None:
    from engine.model.fused import load_sampler_kernels

    kernels = load_sampler_kernels()
    rows = torch.randn(60, 1000, generator=torch.Generator().manual_seed(2)) * 3
    rows[::3] = rows[::3].round()  # many equal logits
    params = [SamplingParams(temperature=(0.3, 1.0, 1.7)[i % 3], top_k=(0, 1, 7, 40, 2000)[i % 5],
                             top_p=(1.0, 0.9, 0.3, 1e-9)[i % 4], seed=i) for i in range(60)]  # fmt: skip
    padded = np.full((60, 1024), -np.inf, dtype=np.float32)
    padded[:, :1000] = rows.numpy()
    compiled = CompiledRows(kernels, padded, 1000, kernels.make_scratch(1024), rows.argmax(dim=-1).numpy())
    drawn = sample(compiled, params, range(60))
    assert drawn == sample(rows, params, range(60))
    assert len(set(drawn)) > 30
