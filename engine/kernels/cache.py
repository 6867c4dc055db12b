"""Writing keys and values into the paged KV cache, alone or on the way from the projection.

A slot is ``block * block_size + offset``; a token whose slot is -1 (padding) is not written. The cache's layout is that
of :mod:`engine.kernels.attention`. Rotary positions are RoFormer's (Su et al., 2021) with the halves of a head as
pairs, as Llama has them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.norm import normalize


@triton.jit(do_not_specialize=["kv_heads", "block_shift"], do_not_specialize_on_alignment=["slots"])
def reshape_and_cache_kernel(
    cached_keys, cached_values, keys, values, slots, kv_heads, block_shift, stride,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr,
):  # fmt: skip
    """One program a token and a key-value head."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot >= 0:
        dims = tl.arange(0, HEAD_PAD)
        real = dims < HEAD
        row = _cache_row(slot, head, kv_heads, block_shift)
        key = tl.load(keys + token * stride + head * HEAD + dims, mask=real)
        value = tl.load(values + token * stride + head * HEAD + dims, mask=real)
        tl.store(cached_keys + row * HEAD + dims, key, mask=real)
        tl.store(cached_values + row * HEAD + dims, value, mask=real)


@triton.jit
def _cache_row(slot, head, kv_heads, block_shift):
    """Which row of head size elements of the cache, in 64 bits: a large pool has more than 2**31 elements."""
    block = slot.to(tl.int64) >> block_shift
    return ((block * kv_heads + head) << block_shift) + (slot & ((1 << block_shift) - 1))


def reshape_and_cache(
    keys: torch.Tensor, values: torch.Tensor, cached_keys: torch.Tensor, cached_values: torch.Tensor,
    slots: torch.Tensor,
) -> None:  # fmt: skip
    """Write ``keys`` and ``values``, (T, kv heads, head size) with one stride from token to token, to their slots.

    The cache is (blocks, kv heads, block_size, head size), ``slots`` int64[T].
    """
    _, kv_heads, block_size, head_size = cached_keys.shape
    if keys.stride() != values.stride() or keys.stride()[1:] != (head_size, 1):
        raise ValueError(f"keys and values with strides {keys.stride()} and {values.stride()}: want whole heads")
    reshape_and_cache_kernel[(len(slots), kv_heads)](
        cached_keys, cached_values, keys, values, slots, kv_heads, block_size.bit_length() - 1, keys.stride(0),
        HEAD=head_size, HEAD_PAD=triton.next_power_of_2(head_size), num_warps=1,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["heads", "kv_heads", "block_shift", "eps"],
    do_not_specialize_on_alignment=["slots"],
)
def rotate_and_cache_kernel(
    queries, cached_keys, cached_values, qkv, cos, sin, query_norm, key_norm, slots,
    heads, kv_heads, block_shift, eps,
    HEAD: tl.constexpr, HALF_PAD: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """One program a token and a head: first the query heads, then each key head together with its value head."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = HEAD // 2
    dims = tl.arange(0, HALF_PAD)
    real = dims < HALF
    source = qkv + (token * (heads + 2 * kv_heads) + head) * HEAD + dims
    low = tl.load(source, mask=real, other=0.0)
    high = tl.load(source + HALF, mask=real, other=0.0)
    is_key = head >= heads
    if HAS_NORM:
        norm = key_norm if is_key else query_norm
        low, high = _normalize_halves(low, high, norm, dims, real, eps, HALF)
    kind = qkv.dtype.element_ty
    # Angles and products are rounded, as the decoder's plain `rotate` does it.
    c = tl.load(cos + token * HALF + dims, mask=real, other=0.0).to(kind).to(tl.float32)
    s = tl.load(sin + token * HALF + dims, mask=real, other=0.0).to(kind).to(tl.float32)
    a, b = low.to(tl.float32), high.to(tl.float32)
    low = ((a * c).to(kind).to(tl.float32) - (b * s).to(kind).to(tl.float32)).to(kind)
    high = ((b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)).to(kind)
    if is_key:
        slot = tl.load(slots + token)
        if slot >= 0:
            row = _cache_row(slot, head - heads, kv_heads, block_shift) * HEAD + dims
            tl.store(cached_keys + row, low, mask=real)
            tl.store(cached_keys + row + HALF, high, mask=real)
            tl.store(cached_values + row, tl.load(source + kv_heads * HEAD, mask=real), mask=real)
            tl.store(cached_values + row + HALF, tl.load(source + kv_heads * HEAD + HALF, mask=real), mask=real)
    else:
        target = queries + (token * heads + head) * HEAD + dims
        tl.store(target, low, mask=real)
        tl.store(target + HALF, high, mask=real)


@triton.jit
def _normalize_halves(low, high, norm, dims, real, eps, HALF: tl.constexpr):
    """RMSNorm of one head that lies in two halves."""
    a, b = low.to(tl.float32), high.to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a) + tl.sum(b * b)) / (2 * HALF) + eps)
    first = tl.load(norm + dims, mask=real, other=0.0)
    second = tl.load(norm + HALF + dims, mask=real, other=0.0)
    return normalize(a, scale, first, low.dtype), normalize(b, scale, second, low.dtype)


def rotate_and_cache(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, slots: torch.Tensor,
    cached_keys: torch.Tensor, cached_values: torch.Tensor, heads: int,
    query_norm: torch.Tensor | None = None, key_norm: torch.Tensor | None = None, eps: float = 1e-6,
) -> torch.Tensor:  # fmt: skip
    """From the projection to the cache in one pass; returns the queries (T, heads, head size), ready to attend.

    ``qkv`` is (T, heads + 2 kv heads, head size), contiguous: queries, keys, values. With ``query_norm`` and
    ``key_norm`` (head size each) every query and key is normalised first. ``cos`` and ``sin`` are float32 (T, head
    size / 2), those of the tokens' positions; ``slots`` is int64[T].
    """
    tokens, _, head_size = qkv.shape
    kv_heads, block_size = cached_keys.shape[1], cached_keys.shape[2]
    queries = torch.empty((tokens, heads, head_size), dtype=qkv.dtype, device=qkv.device)
    has_norm = query_norm is not None and key_norm is not None
    rotate_and_cache_kernel[(tokens, heads + kv_heads)](
        queries, cached_keys, cached_values, qkv, cos, sin, query_norm if has_norm else cos,
        key_norm if has_norm else cos, slots, heads, kv_heads, block_size.bit_length() - 1, eps,
        HEAD=head_size, HALF_PAD=triton.next_power_of_2(head_size // 2), HAS_NORM=has_norm, num_warps=1,
    )  # fmt: skip
    return queries
