"""The mixture of experts against a loop over tokens in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.kernels.experts import MAX_EXPERTS, experts
from engine.model import operations as plain
from tests.kernels.interpreted.close import TYPES, assert_near, random
from tests.kernels.waiting import waiting_forbidden


def reference(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
              activation: str) -> torch.Tensor:
    out = torch.zeros(x.shape)
    for token, row in enumerate(x.float()):
        for weight, expert in zip(weights[token].float(), chosen[token].tolist(), strict=True):
            active = plain.gated(gate_up[expert].float() @ row, activation)
            out[token] += weight * (down[expert].float() @ active)
    return out


@settings(max_examples=20, deadline=None, derandomize=True)
@given(tokens=st.integers(1, 40), count=st.integers(1, 9), each=st.integers(1, 4), hidden=st.integers(1, 90),
       inner=st.integers(1, 80), dtype=st.sampled_from(TYPES), skewed=st.booleans(), seed=st.integers(0, 99))
@example(tokens=70, count=1, each=1, hidden=64, inner=64, dtype=torch.bfloat16, skewed=False, seed=1)
@example(tokens=80, count=2, each=2, hidden=33, inner=65, dtype=torch.float32, skewed=False, seed=2)
@example(tokens=1, count=MAX_EXPERTS, each=8, hidden=16, inner=8, dtype=torch.float16, skewed=False, seed=3)
def test_mixtures(tokens: int, count: int, each: int, hidden: int, inner: int, dtype: torch.dtype, skewed: bool,
                  seed: int) -> None:
    each = min(each, count)
    liking = random(tokens, count, seed=seed)
    if skewed:  # everybody wants the same ones, and nobody the others
        liking = liking[:1].expand(tokens, count)
    weights, chosen = liking.softmax(-1).topk(each, dim=-1)
    weights = weights.to(dtype)
    x = random(tokens, hidden, dtype=dtype, seed=seed + 1)
    gate_up = random(count, 2 * inner, hidden, dtype=dtype, seed=seed + 2)
    down = random(count, hidden, inner, dtype=dtype, seed=seed + 3)
    with waiting_forbidden():
        found = experts(x, weights, chosen, gate_up, down, "silu")
    assert found.dtype == dtype
    assert_near(found, reference(x, weights, chosen, gate_up, down, "silu"))


def test_no_tokens_and_too_many_experts() -> None:
    gate_up, down = random(2, 8, 4), random(2, 4, 4)
    none = torch.zeros((0, 2), dtype=torch.int64)
    assert experts(random(0, 4), random(0, 2), none, gate_up, down, "silu").shape == (0, 4)
    many = gate_up[:1].expand(MAX_EXPERTS + 1, 8, 4)
    with pytest.raises(ValueError, match="257 experts, the kernel knows up to 256"):
        experts(random(1, 4), random(1, 1), none.new_zeros(1, 1), many, down, "silu")
