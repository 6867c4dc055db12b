"""Rotary positions: how fast each pair of a head turns, and the ways in which models stretch them for long contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
"""``dynamic`` changes nothing up to the length that the model was trained for, and only so far is it run here."""


@dataclass(frozen=True, slots=True)
class Rope:
    """``theta`` is the base; ``kind`` says how frequencies are stretched; the rest are parameters of some kinds.

    ``original_max_position`` is the context length before stretching. ``attention_factor`` (YaRN) scales cosines and
    sines, and so the attention scores by its square.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], theta: float, max_position: int) -> Rope:
        """From ``rope_parameters`` or ``rope_scaling`` of a configuration.

        ``theta`` and ``max_position`` stand in for what ``settings`` lack. Raises ValueError for an unknown kind.
        """
        kind = str(settings.get("rope_type") or settings.get("type") or "default")
        if kind not in SUPPORTED_ROPE_TYPES:
            raise ValueError(f"rotary positions of type {kind!r} are not supported; supported are "
                             f"{', '.join(SUPPORTED_ROPE_TYPES)}")
        if float(settings.get("partial_rotary_factor") or 1.0) != 1.0:
            raise ValueError("rotary positions over a part of the head are not supported")
        original = int(settings.get("original_max_position_embeddings") or max_position)
        factor = settings.get("factor")
        if factor is None:
            factor = max_position / original if kind == "yarn" else 1.0
        return cls(
            theta=float(settings.get("rope_theta") or theta),
            kind=kind,
            factor=float(factor),
            low_freq_factor=float(settings.get("low_freq_factor", 1.0)),
            high_freq_factor=float(settings.get("high_freq_factor", 4.0)),
            original_max_position=original,
            attention_factor=_attention_factor(settings, float(factor)) if kind == "yarn" else 1.0,
            beta_fast=float(settings.get("beta_fast") or 32.0),
            beta_slow=float(settings.get("beta_slow") or 1.0),
            truncate=bool(settings.get("truncate", True)),
        )

    def inverse_frequencies(self, head_size: int) -> np.ndarray:
        """Radians a position for each pair of a head: float32[head_size / 2]."""
        # Rounded at each step, as transformers does it: a difference in the last place grows with the position.
        exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
        powers = np.float64(self.theta) ** exponents.astype(np.float64)
        inverse = np.float32(1.0) / powers.astype(np.float32)
        if self.kind == "linear":
            inverse = inverse / self.factor
        elif self.kind == "llama3":
            # Slow rotations are slowed further, fast ones are left alone, and those between are blended. Torch divides
            # a number by an array by way of the reciprocal.
            wavelength = 2 * math.pi * (1.0 / inverse)
            turns = self.original_max_position * (1.0 / wavelength)
            blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            blend = np.clip(blend, 0.0, 1.0)
            inverse = (1 - blend) * inverse / self.factor + blend * inverse
        elif self.kind == "yarn":
            low, high = self._blended_pairs(head_size)
            slowed = np.clip((np.arange(head_size // 2) - low) / (high - low), 0.0, 1.0)
            inverse = slowed * inverse / self.factor + (1 - slowed) * inverse
        return inverse.astype(np.float32)

    def _blended_pairs(self, head_size: int) -> tuple[float, float]:
        """YaRN: between which pairs of a head the blend from left alone to slowed goes.

        They are those that turn ``beta_fast`` and ``beta_slow`` times within the original context.
        """

        def pair(turns: float) -> float:
            wavelength = self.original_max_position / turns
            return head_size * math.log(wavelength / (2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_size - 1)
        return low, high if high != low else high + 0.001

    def table(self, length: int, head_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of positions ``0 .. length-1``: two float32[length, head_size / 2]."""
        import torch

        # Angles in float32, as transformers computes them: at position 8,000 a rounded angle is visible in float32.
        # Torch's cosine and NumPy's differ in the last place, which bfloat16 sees once in a hundred thousand numbers.
        angles = np.arange(length, dtype=np.float32)[:, None] * self.inverse_frequencies(head_size)[None, :]
        turned = torch.from_numpy(angles)
        scale = np.float32(self.attention_factor)
        return turned.cos().numpy() * scale, turned.sin().numpy() * scale


def _attention_factor(settings: Mapping[str, Any], factor: float) -> float:
    """YaRN's: as given, else by the rule of its paper."""
    given = settings.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    above, below = settings.get("mscale"), settings.get("mscale_all_dim")
    return scale(float(above)) / scale(float(below)) if above and below else scale(1.0)
