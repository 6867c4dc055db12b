"""A mixture of experts: every token through the experts that were chosen for it, with nothing decided on the host.

Pairs of a token and an expert are sorted by expert; then one launch multiplies each expert's rows with its matrix.
Which expert a program works for it finds out itself, so the same launch serves any choice, and can be captured in a
graph (grouped matrix products as in MegaBlocks, Gale et al., 2022, and in vLLM's fused mixture).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.activation import gated
from engine.kernels.attention import Tile

MAX_EXPERTS = 256


def choose_expert_tile(dtype: torch.dtype, pairs: int, experts: int) -> tuple[Tile, int]:
    """The tile of a product, rows by columns, and how much of the sum it takes at a time."""
    few = pairs <= 16 * experts  # most experts have no more than a tile's rows
    if dtype == torch.float32:  # computed without tensor cores, which would round it
        return Tile(16 if few else 32, 32, 4, 2), 32
    return Tile(16 if few else 64, 64, 4 if few else 8, 3), 64


@triton.jit(do_not_specialize=["size", "each", "experts"])
def expert_kernel(
    output, x, weight, order, starts, ends, size, inner, each, experts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One program a tile of one expert's rows and a piece of the columns.

    ``order`` holds the pairs sorted by expert, of which expert ``e`` has those from ``starts[e]`` on; its tiles end
    before tile ``ends[e]``. The row of pair ``p`` is ``x[p // each]``.
    """
    block = tl.program_id(0)
    numbers = tl.arange(0, MOST)
    end = tl.load(ends + numbers, mask=numbers < experts, other=2**30)
    expert = tl.sum((end <= block).to(tl.int32))
    if expert < experts:  # there are programs for the worst case
        before = tl.max(tl.where(numbers < expert, end, 0))
        rows = tl.load(starts + expert) + (block - before) * BLOCK_M + tl.arange(0, BLOCK_M)
        mine = rows < tl.load(starts + expert + 1)
        pairs = tl.load(order + rows, mask=mine, other=0)
        columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        real = columns < size
        summed = tl.arange(0, BLOCK_K)
        left = x + (pairs // each)[:, None] * inner + summed[None, :]
        right = weight + (expert.to(tl.int64) * size + columns)[None, :] * inner + summed[:, None]
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, inner, BLOCK_K):
            there = start + summed < inner
            a = tl.load(left + start, mask=mine[:, None] & there[None, :], other=0.0)
            b = tl.load(right + start, mask=real[None, :] & there[:, None], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        at = output + pairs[:, None] * size + columns[None, :]
        tl.store(at, total.to(output.dtype.element_ty), mask=mine[:, None] & real[None, :])


def experts(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    activation: str,
) -> torch.Tensor:  # fmt: skip
    """The weighted sum of what the experts ``chosen``, int64 (T, experts per token), make of ``x`` (T, hidden).

    ``weights`` are (T, experts per token), ``gate_up`` (experts, 2 size, hidden), ``down`` (experts, hidden, size).
    """
    tokens, each = chosen.shape
    if not tokens:
        return torch.empty_like(x)
    count = len(gate_up)
    if count > MAX_EXPERTS:
        raise ValueError(f"{count} experts, the kernel knows up to {MAX_EXPERTS}")
    tile, at_once = choose_expert_tile(x.dtype, tokens * each, count)
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    starts = torch.searchsorted(flat[order], torch.arange(count + 1, device=x.device))
    ends = ((starts.diff() + (tile.rows - 1)) // tile.rows).cumsum(0)

    def product(rows: torch.Tensor, matrices: torch.Tensor, pairs_a_row: int) -> torch.Tensor:
        size, inner = matrices.shape[1:]
        output = torch.empty((tokens * each, size), dtype=x.dtype, device=x.device)
        blocks = min(tokens * each, count) + tokens * each // tile.rows  # each expert has one that is not full at most
        expert_kernel[(blocks, triton.cdiv(size, tile.keys))](
            output, rows, matrices, order, starts, ends, size, inner, pairs_a_row, count, BLOCK_M=tile.rows,
            BLOCK_N=tile.keys, BLOCK_K=at_once, MOST=MAX_EXPERTS, num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        return output

    made = product(gated(product(x.contiguous(), gate_up, each), activation), down, 1)
    return (made.view(tokens, each, -1) * weights[:, :, None]).sum(dim=1).to(x.dtype)
