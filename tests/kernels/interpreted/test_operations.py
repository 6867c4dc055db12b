"""Norms and gates against the plain operations in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.kernels import operations as kernels
from engine.kernels.norm import MAX_HIDDEN, block_for
from engine.model import operations as plain
from tests.kernels.interpreted.close import TYPES, assert_near, random

ROWS = st.integers(1, 6)
WIDTHS = st.one_of(st.sampled_from([1, 255, 256, 257, 576, 1024, 2048]), st.integers(1, 5000))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rows=ROWS, hidden=WIDTHS, dtype=st.sampled_from(TYPES), wide=st.booleans(), seed=st.integers(0, 99))
@example(rows=2, hidden=MAX_HIDDEN, dtype=torch.bfloat16, wide=False, seed=0)
def test_norms(rows: int, hidden: int, dtype: torch.dtype, wide: bool, seed: int) -> None:
    x, residual = (random(rows, hidden, dtype=dtype, seed=seed + i) for i in (0, 1))
    weight = random(hidden, seed=seed + 2).to(torch.float32 if wide else dtype)
    assert_near(kernels.rms_norm(x, weight, 1e-6), plain.rms_norm(x.float(), weight.float(), 1e-6))
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
    expected = x.float() + residual.float()
    assert_near(total, expected)
    assert_near(normed, plain.rms_norm(expected, weight.float(), 1e-6))
    # To the bit where the plain operations round: what is added is what is normalised.
    assert torch.equal(total, residual + x)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(rows=ROWS, size=WIDTHS, dtype=st.sampled_from(TYPES), name=st.sampled_from(["silu", "gelu_tanh"]),
       seed=st.integers(0, 99))  # fmt: skip
def test_gates(rows: int, size: int, dtype: torch.dtype, name: str, seed: int) -> None:
    x = 3 * random(rows, 2 * size, dtype=dtype, seed=seed)
    assert_near(kernels.gated(x, name), plain.gated(x.float(), name))


def test_large_gates_do_not_overflow() -> None:
    x = torch.tensor([[-1000.0, -30.0, 0.0, 30.0, 1000.0] + [1.0] * 5])
    for name in ("silu", "gelu_tanh"):
        assert_near(kernels.gated(x, name), plain.gated(x, name))


def test_strided_and_empty_rows() -> None:
    x, weight = random(6, 700)[::2, :300], random(300)
    assert_near(kernels.rms_norm(x, weight, 1e-6), plain.rms_norm(x, weight, 1e-6))
    assert kernels.rms_norm(x[:0], weight, 1e-6).shape == (0, 300)
    assert kernels.gated(x[:0], "silu").shape == (0, 150)


def test_what_the_kernels_do_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="'relu' is not one of silu, gelu_tanh"):
        kernels.gated(random(1, 4), "relu")
    with pytest.raises(ValueError, match="do not fit"):
        kernels.rms_norm(random(1, MAX_HIDDEN + 1), random(MAX_HIDDEN + 1), 1e-6)
    assert block_for(MAX_HIDDEN)[0] == MAX_HIDDEN
