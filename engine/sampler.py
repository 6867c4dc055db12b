"""Choosing tokens from logits: greedy, or at random with temperature, top-k and top-p.

Every random choice uses one number, drawn from the request's own seed and the position of the token, and from nothing
else. So a request's text depends neither on the requests beside it nor on how often it was preempted.

A choice is made by thresholds instead of by sorting the vocabulary: the k-th largest logit bounds top-k, and the least
probable token of the nucleus bounds top-p. Tokens exactly at a bound stay in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.request import SamplingParams

_NUCLEUS = 1024  # how many of the likeliest tokens are sorted first; the whole vocabulary only if they are not enough
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """One token for each row of ``logits``, float32 (samples, vocabulary), by that row's parameters.

    ``positions`` are the places in their requests that the new tokens will take.
    """
    if len(params) == 0:
        return []
    rows = [row for row, wanted in enumerate(params) if wanted.temperature > 0]
    if not rows:
        return logits.argmax(dim=-1).tolist()
    if len(rows) == len(params):
        return _draw(logits, params, positions)
    tokens = logits.argmax(dim=-1).tolist()
    drawn = _draw(logits[rows], [params[row] for row in rows], [positions[row] for row in rows])
    for row, token in zip(rows, drawn, strict=True):
        tokens[row] = token
    return tokens


def uniforms(seeds: Sequence[int | None], positions: Sequence[int]) -> np.ndarray:
    """A number in [0, 1) for each pair of a seed and a position: float64, the same on every machine."""
    # Any integer may be a seed; NumPy takes only those that fit.
    seed = np.array([(value or 0) & _MASK for value in seeds], dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    mixed = _mix(_mix(seed + _GOLDEN) ^ (position * _GOLDEN))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread 64 bits over 64 bits so that neighbours have nothing in common (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Draw from every row: mask what top-k and top-p exclude, then invert the cumulated probabilities."""
    device = logits.device
    temperature = torch.tensor([wanted.temperature for wanted in params], device=device, dtype=torch.float64)
    scaled = logits.double() / temperature[:, None]
    scaled -= scaled.amax(dim=-1, keepdim=True)  # the likeliest token weighs 1, however small the temperature
    weights = scaled.exp()
    for row, wanted in enumerate(params):
        if 0 < wanted.top_k < weights.shape[1]:
            bound = weights[row].topk(wanted.top_k).values[-1]
            weights[row].masked_fill_(weights[row] < bound, 0.0)
        if wanted.top_p < 1:
            bound = _nucleus_bound(weights[row], wanted.top_p)
            weights[row].masked_fill_(weights[row] < bound, 0.0)
    cumulated = weights.cumsum(dim=-1)
    drawn = torch.from_numpy(uniforms([wanted.seed for wanted in params], list(positions))).to(device)
    target = drawn[:, None] * cumulated[:, -1:]
    # The first token whose cumulated weight exceeds the target: never one that was masked, whose weight adds nothing.
    return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1).tolist()


def _nucleus_bound(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest weight in the smallest set of likeliest tokens that together reach ``top_p`` of the total."""
    wanted = weights.cumsum(dim=-1)[-1] * top_p
    for count in (_NUCLEUS, weights.shape[0]):
        largest = weights.topk(min(count, weights.shape[0])).values
        reached = largest.cumsum(dim=-1)
        if bool(reached[-1] >= wanted):
            break
    index = torch.searchsorted(reached, wanted).clamp_(max=largest.shape[0] - 1)
    return largest[index]
