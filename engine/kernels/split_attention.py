"""Attention for few requests with long contexts: each context is cut into parts that are attended to in parallel.

Without it a batch of one keeps as many of a GPU's processors busy as the model has key-value heads. Every part yields
a result and the logarithm of its weight; a second, small kernel merges them (Flash-Decoding, Dao et al., 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.attention import LOG2_E, Tile, scan_keys

MAX_SPLITS = 64
MERGE_WARPS = 2
MERGED_AT_ONCE = 8
"""Parts that a program merges at a time: their loads wait together."""
_KEYS_A_SPLIT = 256  # fewer are not worth the merge


def choose_splits(requests: int, kv_heads: int, longest: int, processors: int) -> int:
    """Into how many parts contexts of up to ``longest`` tokens are cut; 1: not worth it."""
    programs = max(1, requests * kv_heads)
    wanted = -(-2 * processors // programs)  # two programs a processor hide each other's waiting
    return max(1, min(wanted, longest // _KEYS_A_SPLIT, MAX_SPLITS))


@triton.jit(
    do_not_specialize=["heads", "kv_heads", "block_shift", "table_stride", "window", "splits"],
    do_not_specialize_on_alignment=["context_lens", "block_tables"],
)
def split_kernel(
    partial, weights, queries, keys, values, context_lens, block_tables,
    heads, kv_heads, block_shift, table_stride, window, splits, scale,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program a request, a key-value head and a part of the context."""
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(context_lens + request)
    group = heads // kv_heads
    rows = tl.arange(0, BLOCK_M)
    mine = rows < group
    dims = tl.arange(0, HEAD_PAD)
    row = request.to(tl.int64) * heads + kv_head * group + rows
    there = mine[:, None] & (dims < HEAD)[None, :]
    query = tl.load(queries + row[:, None] * HEAD + dims[None, :], mask=there, other=0.0)
    begin = tl.maximum(context - window, 0) // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(context - begin, splits), BLOCK_N) * BLOCK_N
    first = begin + split * share
    last = tl.minimum(first + share, context)
    positions = tl.zeros([BLOCK_M], tl.int32) + (context - 1)
    weighted, total, largest = scan_keys(
        query, positions, keys, values, block_tables + request.to(tl.int64) * table_stride, kv_head, kv_heads,
        block_shift, first, last, window, scale, HEAD, HEAD_PAD, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    some = tl.where(total > 0, total, 1.0)
    part = row * splits + split
    tl.store(partial + part[:, None] * HEAD + dims[None, :], weighted / some[:, None], mask=there & (first < last))
    tl.store(weights + part, largest + tl.log2(some), mask=mine)  # -infinity for a part with no keys


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    output, partial, weights, splits,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, MOST: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """One program a request and a query head: its parts, each with its share of the weight."""
    row = tl.program_id(0).to(tl.int64) * splits
    dims = tl.arange(0, HEAD_PAD)
    real = dims < HEAD
    numbers = tl.arange(0, MOST)
    logs = tl.load(weights + row + numbers, mask=numbers < splits, other=float("-inf"))
    largest = tl.max(logs, 0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp2(logs - shift), 0)
    # A short context leaves the last parts empty: they are not read, and nobody has written them.
    end = tl.max(tl.where(logs > float("-inf"), numbers + 1, 0), 0)
    weighted = tl.zeros([HEAD_PAD], tl.float32)
    for first in range(0, end, AT_ONCE):
        parts = first + tl.arange(0, AT_ONCE)
        log = tl.load(weights + row + parts, mask=parts < end, other=float("-inf"))
        some = log > float("-inf")
        values = tl.load(partial + (row + parts)[:, None] * HEAD + dims[None, :], mask=some[:, None] & real[None, :],
                         other=0.0)  # fmt: skip
        weighted += tl.sum(tl.exp2(log - shift)[:, None] * values, 0)
    result = weighted / tl.where(total > 0, total, 1.0)
    tl.store(output + tl.program_id(0).to(tl.int64) * HEAD + dims, result.to(output.dtype.element_ty), mask=real)


def split_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context_lens: torch.Tensor,
    block_tables: torch.Tensor, *, splits: int, tile: Tile, scale: float, window: int = 0,
) -> torch.Tensor:  # fmt: skip
    """As :func:`engine.kernels.attention.attention`, for a batch in which request ``r`` has the one token ``r``."""
    requests, heads, head_size = queries.shape
    kv_heads, block_size = keys.shape[1], keys.shape[2]
    if not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"{splits} parts: from 1 to {MAX_SPLITS} can be merged")
    if heads // kv_heads > tile.rows:
        raise ValueError(f"{heads // kv_heads} query heads for one key do not fit into a tile of {tile.rows} rows")
    partial = torch.empty((requests, heads, splits, head_size), dtype=torch.float32, device=queries.device)
    weights = torch.empty((requests, heads, splits), dtype=torch.float32, device=queries.device)
    padded = triton.next_power_of_2(head_size)
    split_kernel[(requests, kv_heads, splits)](
        partial, weights, queries, keys, values, context_lens, block_tables,
        heads, kv_heads, block_size.bit_length() - 1, block_tables.stride(0), window or 2**30, splits, scale * LOG2_E,
        HEAD=head_size, HEAD_PAD=padded, BLOCK_M=tile.rows, BLOCK_N=tile.keys,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    output = torch.empty_like(queries)
    merge_kernel[(requests * heads,)](
        output, partial, weights, splits, HEAD=head_size, HEAD_PAD=padded, MOST=MAX_SPLITS, AT_ONCE=MERGED_AT_ONCE,
        num_warps=MERGE_WARPS,
    )  # fmt: skip
    return output
