"""What is written to the cache: the right slots, with rotary positions and norms on the way, and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.kernels.attention import HEAD_SIZES
from engine.kernels.cache import reshape_and_cache, rotate_and_cache
from engine.model.operations import rms_norm, rotate
from engine.model.rope import Rope
from tests.kernels.interpreted.close import TYPES, assert_near, random
from tests.kernels.paged import as_slots, make_cache, make_slots

SHAPES = {
    "head_size": st.sampled_from(HEAD_SIZES),
    "kv_heads": st.sampled_from([1, 2, 3]),
    "block_size": st.sampled_from([8, 16, 32, 64, 128, 256]),
    "tokens": st.integers(1, 12),
    "dtype": st.sampled_from(TYPES),
    "seed": st.integers(0, 99),
}


def assert_cached(cache: torch.Tensor, expected: torch.Tensor, slots: torch.Tensor, block_size: int) -> None:
    """``expected`` (T, kv heads, head size) lies in the slots, and everything else is untouched."""
    used = slots >= 0
    flat = as_slots(cache)
    if used.any():
        assert_near(flat[slots[used]], expected[used])
    untouched = torch.ones(len(flat), dtype=torch.bool)
    untouched[slots[used]] = False
    assert bool(flat[untouched].isnan().all())


@settings(max_examples=15, deadline=None, derandomize=True)
@given(**SHAPES)
def test_reshape_and_cache(
    head_size: int, kv_heads: int, block_size: int, tokens: int, dtype: torch.dtype, seed: int
) -> None:
    qkv = random(tokens, 3 * kv_heads, head_size, dtype=dtype, seed=seed)
    _, keys, values = qkv.split(kv_heads, dim=1)  # views with a stride, as a projection leaves them
    slots = make_slots(tokens, block_size, seed)
    cached_keys, cached_values = (make_cache(4, kv_heads, block_size, head_size, dtype) for _ in range(2))
    reshape_and_cache(keys, values, cached_keys, cached_values, slots)
    assert_cached(cached_keys, keys, slots, block_size)
    assert_cached(cached_values, values, slots, block_size)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(**SHAPES, group=st.sampled_from([1, 3, 4]), norm=st.sampled_from(["", "same", "wide"]))
@example(head_size=80, kv_heads=1, block_size=8, tokens=5, dtype=torch.float32, seed=1, group=2, norm="same")
@example(head_size=96, kv_heads=2, block_size=8, tokens=8, dtype=torch.bfloat16, seed=2, group=1, norm="wide")
def test_rotate_and_cache(
    head_size: int, kv_heads: int, block_size: int, tokens: int, dtype: torch.dtype, seed: int, group: int, norm: str
) -> None:
    heads = kv_heads * group
    qkv = random(tokens, heads + 2 * kv_heads, head_size, dtype=dtype, seed=seed)
    positions = torch.randint(0, 2000, (tokens,), generator=torch.Generator().manual_seed(seed))
    cos, sin = (torch.from_numpy(table)[positions] for table in Rope().table(2000, head_size))
    kind = torch.float32 if norm == "wide" else dtype
    norms = [random(head_size, seed=seed + i).abs().add(0.5).to(kind) for i in (1, 2)] if norm else [None, None]
    slots = make_slots(tokens, block_size, seed)
    cached_keys, cached_values = (make_cache(4, kv_heads, block_size, head_size, dtype) for _ in range(2))
    found = rotate_and_cache(qkv, cos, sin, slots, cached_keys, cached_values, heads, *norms, 1e-5)

    queries, keys, values = qkv.float().split((heads, kv_heads, kv_heads), dim=1)
    if norms[0] is not None and norms[1] is not None:
        queries = rms_norm(queries, norms[0].float(), 1e-5)
        keys = rms_norm(keys, norms[1].float(), 1e-5)
    assert_near(found, rotate(queries, cos[:, None], sin[:, None]))
    assert_cached(cached_keys, rotate(keys, cos[:, None], sin[:, None]), slots, block_size)
    assert_cached(cached_values, values, slots, block_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotations_are_rounded_as_those_of_the_plain_decoder(dtype: torch.dtype) -> None:
    """To the bit, so that what is close by a hair is decided alike."""
    heads, kv_heads, head_size, tokens = 3, 1, 80, 9
    qkv = random(tokens, heads + 2 * kv_heads, head_size, dtype=dtype)
    cos, sin = (torch.from_numpy(table)[1000 : 1000 + tokens] for table in Rope().table(2000, head_size))
    cached_keys, cached_values = (make_cache(3, kv_heads, 8, head_size, dtype) for _ in range(2))
    slots = torch.arange(8, 8 + tokens)
    found = rotate_and_cache(qkv, cos, sin, slots, cached_keys, cached_values, heads)
    queries, keys, values = qkv.split((heads, kv_heads, kv_heads), dim=1)
    assert torch.equal(found, rotate(queries, cos[:, None], sin[:, None]))
    assert torch.equal(cached_keys.transpose(1, 2).flatten(0, 1)[slots], rotate(keys, cos[:, None], sin[:, None]))
    assert torch.equal(cached_values.transpose(1, 2).flatten(0, 1)[slots], values)


def test_what_does_not_lie_in_whole_heads_is_refused() -> None:
    cache = make_cache(2, 2, 8, 64, torch.float32)
    keys = random(3, 64, 2).transpose(1, 2)
    with pytest.raises(ValueError, match="want whole heads"):
        reshape_and_cache(keys, keys, cache, cache, torch.tensor([8, 9, 10]))
