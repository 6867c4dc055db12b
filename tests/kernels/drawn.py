"""What a draw must come to, by sorting and in float64."""

from __future__ import annotations

import torch

from engine.sampling_params import SamplingParams


def kept(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``params`` leave of a row, and what it weighs: tokens exactly at a bound stay."""
    weights = ((logits.double() - logits.max()) / params.temperature).exp()
    weights[weights < params.min_p] = 0
    if 0 < params.top_k < len(weights):
        weights[weights < weights.sort(descending=True).values[params.top_k - 1]] = 0
    if params.top_p < 1:
        ordered = weights.sort(descending=True).values
        reached = int((ordered.cumsum(0) < params.top_p * weights.sum()).sum())
        weights[weights < ordered[min(reached, len(weights) - 1)]] = 0
    return weights > 0, weights
