"""Penalties, the likeliest token, and the draw of one by temperature, min-p, top-k and top-p, without sorting.

What a parameter excludes lies below a bound: that of min-p is known at once, those of top-k and top-p are found by
bisection over the bits of the logits, which order as the numbers do. A pass counts, or weighs, what is at or above a
candidate; the search ends as soon as the set is the right one, after twenty passes or so over a row that stays in the
L2 cache. Sorting moves every logit several times (compare "Sorting-Free GPU Kernels for LLM Sampling", FlashInfer,
2025). The draw then walks through the tokens in the order of their ids, as the CPU's does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 2048
NUM_WARPS = 8
PAIRS = 128
PART = 8 * BLOCK
"""So much of a row one program looks through for its largest logit: a single row keeps several processors at work."""
ARGMAX_PARTS = 128
PARAMETERS = ("row", "temperature", "top_k", "top_p", "min_p", "uniform")
"""The columns of ``parameters`` in :func:`draw`."""


@triton.jit
def _ordered(logits):
    """Int32 numbers that order as float32 ``logits`` do; both zeros are one."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _load(logits, start, size, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)
    return tl.load(logits + columns, mask=columns < size, other=float("-inf"))


@triton.jit
def _count(logits, size, bound, BLOCK: tl.constexpr):
    """How many logits are at or above ``bound``."""
    counts = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        counts += (_ordered(_load(logits, start, size, BLOCK)) >= bound).to(tl.int32)
    return tl.sum(counts)


@triton.jit
def _weigh(logits, size, bound, largest, scale, BLOCK: tl.constexpr):
    """How many logits are at or above ``bound``, and what they weigh together, as float64."""
    counts = tl.zeros([BLOCK], tl.int32)
    total = tl.sum(counts).to(tl.float64)
    for start in range(0, size, BLOCK):
        chunk = _load(logits, start, size, BLOCK)
        kept = _ordered(chunk) >= bound
        counts += kept.to(tl.int32)
        total += tl.sum(tl.where(kept, tl.exp2((chunk - largest) * scale), 0.0)).to(tl.float64)
    return tl.sum(counts), total


@triton.jit(do_not_specialize_on_alignment=["keys"])
def largest_kernel(keys, all_logits, size, BLOCK: tl.constexpr, PART: tl.constexpr):
    """One program a row and a part of it: a key of the largest logit and, below it, of the first token that has it."""
    part = tl.program_id(1)
    logits = all_logits + tl.program_id(0).to(tl.int64) * size
    best = tl.full([BLOCK], -(2**63), tl.int64)
    for start in range(part * PART, tl.minimum(part * PART + PART, size), BLOCK):
        columns = start + tl.arange(0, BLOCK)
        key = (_ordered(_load(logits, start, size, BLOCK)).to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)
        best = tl.maximum(best, key)
    tl.store(keys + tl.program_id(0) * tl.num_programs(1) + part, tl.max(best))


@triton.jit(do_not_specialize=["parts"], do_not_specialize_on_alignment=["tokens", "keys"])
def first_kernel(tokens, keys, parts, PARTS: tl.constexpr):
    """One program a row: the token of the largest key of all parts."""
    row = tl.program_id(0)
    at = tl.arange(0, PARTS)
    best = tl.max(tl.load(keys + row * parts + at, mask=at < parts, other=-(2**63)))
    tl.store(tokens + row, 0x7FFFFFFF - (best & 0x7FFFFFFF))


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """The token with the largest logit of each row, the first of several: int64[rows].

    ``logits`` is float32 (rows, vocabulary), contiguous; a vocabulary of at most 2,097,152 tokens.
    """
    rows, size = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        parts = triton.cdiv(size, PART)
        assert parts <= ARGMAX_PARTS, f"a vocabulary of {size:,} tokens"
        keys = torch.empty((rows, parts), dtype=torch.int64, device=logits.device)
        largest_kernel[(rows, parts)](keys, logits, size, BLOCK=BLOCK, PART=PART, num_warps=NUM_WARPS)
        first_kernel[(rows,)](tokens, keys, parts, PARTS=ARGMAX_PARTS, num_warps=1)
    return tokens


@triton.jit(do_not_specialize_on_alignment=["tokens", "parameters"])
def draw_kernel(tokens, all_logits, parameters, size, BLOCK: tl.constexpr):
    """One program a row."""
    index = tl.program_id(0)
    mine = parameters + index * 6
    logits = all_logits + tl.load(mine).to(tl.int64) * size
    temperature = tl.load(mine + 1)
    top_k = tl.load(mine + 2).to(tl.int32)
    top_p = tl.load(mine + 3)
    min_p = tl.load(mine + 4)
    uniform = tl.load(mine + 5)

    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        highest = tl.maximum(highest, _load(logits, start, size, BLOCK))
    largest = tl.max(highest)
    scale = (1.4426950408889634 / temperature).to(tl.float32)  # exp(x / temperature) is exp2(x * scale)
    top = _ordered(largest).to(tl.int64) + 1  # nothing is at or above this
    bound = _ordered(largest - float("inf")).to(tl.int64)  # everything is
    if min_p > 0:
        bound = _ordered((largest + temperature * tl.log(min_p)).to(tl.float32)).to(tl.int64)

    if (top_k > 0) & (top_k < size):
        low, high = bound, top  # at least k are at or above `low` (or min-p leaves fewer), fewer than k above `high`
        searching = _count(logits, size, low.to(tl.int32), BLOCK) > top_k
        while searching:
            middle = low + (high - low) // 2
            count = _count(logits, size, middle.to(tl.int32), BLOCK)
            enough = count >= top_k
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
            searching = (count != top_k) & (high - low > 1)
        bound = low

    if top_p < 1:
        count_low, total = _weigh(logits, size, bound.to(tl.int32), largest, scale, BLOCK)
        wanted = total * top_p
        low, high = bound, top  # what is at or above `low` weighs enough, what is at or above `high` does not
        count_high = count_low * 0
        while (high - low > 1) & (count_low - count_high > 1):
            middle = low + (high - low) // 2
            count, weight = _weigh(logits, size, middle.to(tl.int32), largest, scale, BLOCK)
            enough = weight >= wanted
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
            count_low = tl.where(enough, count, count_low)
            count_high = tl.where(enough, count_high, count)
        bound = low

    lowest = bound.to(tl.int32)
    _, total = _weigh(logits, size, lowest, largest, scale, BLOCK)
    target = total * uniform
    before = total * 0
    token = top_k * 0 - 1
    start = top_k * 0
    searching = start < size
    while searching:
        chunk = _load(logits, start, size, BLOCK)
        weights = tl.where(_ordered(chunk) >= lowest, tl.exp2((chunk - largest) * scale), 0.0)
        after = before + tl.sum(weights).to(tl.float64)
        columns = start + tl.arange(0, BLOCK)
        # The last token that weighs something is the answer should rounding let the walk end before the target.
        last = tl.max(tl.where(weights > 0, columns, -1))
        token = tl.where(last >= 0, last, token)
        if after > target:
            passed = (before + tl.cumsum(weights, 0).to(tl.float64) > target) & (weights > 0)
            first = tl.min(tl.where(passed, columns, size))
            token = tl.where(first < size, first, token)
        searching = (after <= target) & (start + BLOCK < size)
        before = after
        start += BLOCK
    tl.store(tokens + index, tl.maximum(token, 0).to(tl.int64))  # a model that says NaN shall not name a token before 0


def draw(logits: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
    """A token, int64[n], for each row of ``parameters``: float64 (n, 6), columns as in :data:`PARAMETERS`.

    ``logits`` is float32 (rows, vocabulary), contiguous. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off;
    ``uniform`` in [0, 1) decides.
    """
    tokens = torch.empty(len(parameters), dtype=torch.int64, device=logits.device)
    if not len(parameters):
        return tokens
    draw_kernel[(len(parameters),)](tokens, logits, parameters, logits.shape[1], BLOCK=BLOCK, num_warps=NUM_WARPS)
    return tokens


@triton.jit(
    do_not_specialize=["size", "pairs"],
    do_not_specialize_on_alignment=["rows", "tokens", "counts", "repetition", "frequency", "presence"],
)
def penalise_kernel(logits, rows, tokens, counts, repetition, frequency, presence, size, pairs, PAIRS: tl.constexpr):
    """One program a piece of the pairs."""
    at = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    real = at < pairs
    place = logits + tl.load(rows + at, mask=real, other=0) * size + tl.load(tokens + at, mask=real, other=0)
    count = tl.load(counts + at, mask=real, other=0.0)
    by = tl.load(repetition + at, mask=real, other=1.0)
    value = tl.load(place, mask=real, other=0.0)
    value = tl.where(value > 0, value / by, value * by)
    value -= tl.load(frequency + at, mask=real, other=0.0) * count
    value -= tl.where(count > 0, tl.load(presence + at, mask=real, other=0.0), 0.0)
    tl.store(place, value, mask=real)


def penalise(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor, repetition: torch.Tensor,
    frequency: torch.Tensor, presence: torch.Tensor,
) -> None:  # fmt: skip
    """Change ``logits``, float32 (rows, vocabulary), at pairs of a row and a token (int64), none of them twice.

    For each pair, float32: how often the token is in the output, and the three penalties of its request.
    """
    pairs = len(rows)
    if pairs:
        penalise_kernel[(triton.cdiv(pairs, PAIRS),)](
            logits, rows, tokens, counts, repetition, frequency, presence, logits.shape[1], pairs, PAIRS=PAIRS,
            num_warps=4,
        )  # fmt: skip

