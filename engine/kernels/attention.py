"""Attention of a mixed batch over the paged KV cache: decodes and prefill chunks in one launch.

Online softmax (Milakov and Gimelshein, 2018; tiled as in FlashAttention-2, Dao, 2023) over a cache in blocks
(PagedAttention, Kwon et al., 2023). The query heads that share a key-value head lie in the same tile, so every key is
read once for all of them: with ``group`` of them a tile of ``BLOCK_M`` rows holds ``BLOCK_M // group`` tokens.

The cache of a layer is two tensors (num_blocks, kv heads, block_size, head size): what one program reads of a block
is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

HEAD_SIZES = (64, 80, 96, 128, 256)
MAX_GROUP = 32
"""The most query heads that may share a key-value head: those of one token fit into a tile."""
LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tile:
    """How a program cuts its work: ``rows`` of queries by ``keys``, and what the compiler is told."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def choose_tile(head_size: int, dtype: torch.dtype, group: int, single: bool) -> Tile:
    """The tile for a batch in which every request has a single token (``single``), or for any other."""
    wide = head_size > 128
    few = single and group <= 16
    if dtype == torch.float32:  # computed without tensor cores, which would round it; sizes at which nothing spills
        return Tile(16, 16, 8, 2) if few else Tile(32, 32 if 64 < head_size <= 128 else 16, 8, 2)
    if few:
        # Memory is all that counts: three stages make a second buffer, filled while the first is computed with.
        return Tile(16, 32 if wide else 64, 8 if wide else 4, 3)
    return Tile(64, 32 if wide else 64, 8 if wide else 4, 2)


SMALL_ROWS: tl.constexpr = tl.constexpr(16)


@triton.jit
def _blocks_at(positions, last, table, block_shift):
    """In which blocks the keys at ``positions`` lie."""
    return tl.load(table + (positions >> block_shift), mask=positions < last, other=0)


@triton.jit
def scan_keys(
    queries, query_positions, keys, values, table, kv_head, kv_heads, block_shift, first, last, window, scale,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attend with the tile ``queries`` (BLOCK_M, HEAD_PAD) to the keys at the positions ``first`` to ``last`` - 1.

    Returns the sum of the weighted values (BLOCK_M, HEAD_PAD), the sum of the weights and the largest score, in units
    of log 2 (-infinity if a row saw nothing).
    """
    dims = tl.arange(0, HEAD_PAD)
    real = dims < HEAD
    columns = tl.arange(0, BLOCK_N)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    # A small tile waits for memory. It is told a round ahead where the next keys lie: then the compiler can have them
    # fetched while it computes with these. A large one has no registers to spare for that.
    AHEAD: tl.constexpr = BLOCK_M <= SMALL_ROWS
    blocks = _blocks_at(first + columns, last, table, block_shift)
    for start in range(first, last, BLOCK_N):
        positions = start + columns
        inside = positions < last
        if AHEAD:
            rows = blocks.to(tl.int64)
            blocks = _blocks_at(positions + BLOCK_N, last, table, block_shift)
        else:
            rows = _blocks_at(positions, last, table, block_shift).to(tl.int64)
        # 64 bits: a large pool has more than 2**31 elements.
        slots = ((rows * kv_heads + kv_head) << block_shift) + (positions & ((1 << block_shift) - 1))
        # What is not inside was never written and may be NaN; it must not be read, since 0 times NaN is NaN.
        key = tl.load(keys + slots[None, :] * HEAD + dims[:, None], mask=inside[None, :] & real[:, None], other=0.0)
        scores = tl.dot(queries, key, input_precision="ieee") * scale
        seen = inside[None, :] & (positions[None, :] <= query_positions[:, None])
        seen = seen & (positions[None, :] > query_positions[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # a row that saw nothing yet: no infinity minus itself
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(largest - shift)
        value = tl.load(values + slots[:, None] * HEAD + dims[None, :], mask=inside[:, None] & real[None, :], other=0.0)
        weighted = weighted * shrink[:, None]
        weighted = tl.dot(weights.to(value.dtype), value, weighted, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        largest = higher
    return weighted, total, largest


@triton.jit(
    do_not_specialize=["heads", "kv_heads", "block_shift", "table_stride", "window"],
    do_not_specialize_on_alignment=["tile_requests", "tile_tokens", "query_starts", "context_lens", "block_tables"],
)
def attention_kernel(
    output, queries, keys, values, tile_requests, tile_tokens, query_starts, context_lens, block_tables,
    heads, kv_heads, block_shift, table_stride, window, scale,
    HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program a tile of one request's tokens and a key-value head."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    request = tl.load(tile_requests + tile)
    start = tl.load(query_starts + request)
    count = tl.load(query_starts + request + 1) - start
    context = tl.load(context_lens + request)
    group = heads // kv_heads
    rows = tl.arange(0, BLOCK_M)
    first_token = tl.load(tile_tokens + tile)
    tokens = first_token + rows // group
    in_tile = BLOCK_M // group
    mine = (rows < in_tile * group) & (tokens < count)
    head = kv_head * group + rows % group
    dims = tl.arange(0, HEAD_PAD)
    at = ((start + tokens).to(tl.int64) * heads + head)[:, None] * HEAD + dims[None, :]
    there = mine[:, None] & (dims < HEAD)[None, :]
    query = tl.load(queries + at, mask=there, other=0.0)
    positions = context - count + tokens
    first = tl.maximum(context - count + first_token - window + 1, 0) // BLOCK_N * BLOCK_N
    last = tl.minimum(context, context - count + first_token + in_tile)
    weighted, total, _ = scan_keys(
        query, positions, keys, values, block_tables + request.to(tl.int64) * table_stride, kv_head, kv_heads,
        block_shift, first, last, window, scale, HEAD, HEAD_PAD, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    result = weighted / tl.where(total > 0, total, 1.0)[:, None]  # a padded request saw nothing: zeros
    tl.store(output + at, result.to(output.dtype.element_ty), mask=there)


def attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile_requests: torch.Tensor,
    tile_tokens: torch.Tensor, query_starts: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor,
    *, tile: Tile, scale: float, window: int = 0,
) -> torch.Tensor:  # fmt: skip
    """Causal attention of ``queries`` (T, heads, head size) to their requests' contexts; the same shape comes back.

    ``keys`` and ``values`` are the cache, (blocks, kv heads, block_size, head size), block_size a power of two.
    Int32 on the same device: ``tile_requests`` and ``tile_tokens`` say of each tile whose tokens it holds and from
    which on (see :func:`cut_tiles`); ``query_starts``, R + 1; ``context_lens``, R, 0 for padding; ``block_tables``
    (R, blocks). A token looks back on ``window`` tokens, itself included; 0: on all.
    """
    _, heads, head_size = queries.shape
    kv_heads, block_size = keys.shape[1], keys.shape[2]
    output = torch.empty_like(queries)
    attention_kernel[(len(tile_requests), kv_heads)](
        output, queries, keys, values, tile_requests, tile_tokens, query_starts, context_lens, block_tables,
        heads, kv_heads, block_size.bit_length() - 1, block_tables.stride(0), window or 2**30, scale * LOG2_E,
        HEAD=head_size, HEAD_PAD=triton.next_power_of_2(head_size), BLOCK_M=tile.rows, BLOCK_N=tile.keys,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return output


def cut_tiles(
    query_starts: Sequence[int] | np.ndarray, group: int, tile: Tile, left_out: Sequence[int] | np.ndarray = ()
) -> tuple[np.ndarray, np.ndarray]:
    """For each tile of a batch the request, and the first of its tokens, counted from the request's own: int32.

    The requests ``left_out`` have none.
    """
    in_tile = tile.rows // group
    counts = -(-np.diff(query_starts) // in_tile)
    if len(left_out):
        counts[left_out] = 0
    requests = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return requests, ((np.arange(len(requests)) - before) * in_tile).astype(np.int32)
