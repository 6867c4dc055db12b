"""Compiled choices: rows of logits in, tokens and log probabilities out, without the interpreter lock.

Import this module through :mod:`engine.model.fused`, which says where compiled code is kept.

A row comes with its peaks, the largest logit of each chunk of it: whoever looks for large logits passes over every
chunk that cannot hold one. A row fills whole vectors: what only pads it is -infinity. Arrays are C-contiguous.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from engine.model.fused_ir import SCORES, row_exp
from engine.model.fused_kernels import (
    CHUNK,
    address,
    compiled,
    compiled_loosely,
    entry,
    find_largest,
    find_peaks,
    from_bits,
)

Array = Any  # of NumPy; numba finds the types out by itself


class Scratch(NamedTuple):
    """Room to work in, for rows of one width."""

    weights: Array  # float32 (width,)
    heap: Array  # float32 (width,)
    picked: Array  # int32 (width,)


def make_scratch(width: int) -> Scratch:
    def floats(count: int) -> np.ndarray:
        return np.zeros(count, dtype=np.float32)

    return Scratch(floats(width), floats(width), np.zeros(width, dtype=np.int32))


@entry
def find_peaks_of(logits, peaks, rows):  # type: ignore[no-untyped-def]
    """Find the peaks of ``rows`` anew."""
    for r in range(rows.shape[0]):
        find_peaks(logits[rows[r]], peaks[rows[r]])


@entry
def find_likeliest(logits, peaks, rows, tokens):  # type: ignore[no-untyped-def]
    """The largest logit of each row, the first of several, into ``tokens``."""
    for r in range(rows.shape[0]):
        tokens[r] = find_largest(logits[rows[r]], peaks[rows[r]])


@entry
def draw_rows(logits, peaks, rows, temperature, top_k, top_p, min_p, uniform, scratch, tokens):  # type: ignore[no-untyped-def]
    """Choose a token at random for each of ``rows``, as :mod:`engine.sampler` says, into ``tokens``."""
    for r in range(rows.shape[0]):
        tokens[r] = draw(
            logits[rows[r]], peaks[rows[r]], temperature[r], top_k[r], top_p[r], min_p[r], uniform[r], scratch)


@entry
def measure_rows(logits, peaks, rows, counts, scratch, totals, tokens, values):  # type: ignore[no-untyped-def]
    """For each of ``rows`` the logarithm of the sum of all exponentials, and its ``counts`` largest logits in order.

    ``totals`` float64 (rows,), ``tokens`` int32 and ``values`` float32 (rows, at least the largest count).
    """
    for r in range(rows.shape[0]):
        row, tops = logits[rows[r]], peaks[rows[r]]
        largest = row[find_largest(row, tops)]
        totals[r] = largest + math.log(weigh(row, tops.shape[0], largest, np.float32(1.0), scratch))
        if counts[r] == 0:
            continue
        found = collect(row, tops, kth_largest_logit(row, tops, counts[r], scratch), scratch)
        for place in range(counts[r]):
            best = 0
            for i in range(1, found):
                if scratch.weights[i] > scratch.weights[best]:
                    best = i
            tokens[r, place] = scratch.picked[best]
            values[r, place] = scratch.weights[best]
            scratch.weights[best] = -np.inf


@compiled
def weigh(row, chunks, largest, scale, scratch):  # type: ignore[no-untyped-def]
    """``exp((x - largest) * scale)`` of the whole row into the weights, each chunk's sum into ``heap``; the total."""
    weights = scratch.weights
    for i in range(row.shape[0]):
        weights[i] = row[i]
    total = 0.0
    for chunk in range(chunks):
        start = chunk * CHUNK
        size = min(CHUNK, row.shape[0] - start)
        scratch.heap[chunk] = row_exp(address(weights) + 4 * start, size // SCORES, largest, scale)
        total += scratch.heap[chunk]
    return total


@compiled
def kth_largest(values, k, heap):  # type: ignore[no-untyped-def]
    """The ``k``-th largest of at least k values. The k largest so far are a heap with the smallest of them on top."""
    for size in range(k):
        x, at = values[size], size
        while at > 0 and heap[(at - 1) // 2] > x:
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = x
    for i in range(k, values.shape[0]):
        x = values[i]
        if x > heap[0]:
            at = 0
            while True:
                child = 2 * at + 1
                if child >= k:
                    break
                if child + 1 < k and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= x:
                    break
                heap[at] = heap[child]
                at = child
            heap[at] = x
    return heap[0]


@compiled
def kth_largest_logit(row, peaks, k, scratch):  # type: ignore[no-untyped-def]
    """As many chunks as ``k`` have a peak that is at least the k-th largest peak, so many logits have, at least."""
    bound = -np.inf
    if k <= peaks.shape[0]:
        bound = float(kth_largest(peaks, k, scratch.heap))
    return kth_largest(scratch.weights[: collect(row, peaks, bound, scratch)], k, scratch.heap)


@compiled
def collect(row, peaks, bound, scratch):  # type: ignore[no-untyped-def]
    """The tokens whose logits are at least ``bound`` into ``picked``, their logits into ``weights``; how many."""
    picked, weights = scratch.picked, scratch.weights
    found = 0
    for chunk in range(peaks.shape[0]):
        if peaks[chunk] >= bound:
            for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, row.shape[0])):
                picked[found] = i  # without a branch: whether it stays there is seen by the next
                weights[found] = row[i]
                found += row[i] >= bound
    return found


@compiled
def weigh_collected(found, largest, scale, scratch):  # type: ignore[no-untyped-def]
    """Logits that were collected become weights; how many they are, filled up to whole vectors with zeros."""
    end = (found + SCORES - 1) // SCORES * SCORES  # no more than the width, which fills whole vectors
    for i in range(found, end):
        scratch.weights[i] = -np.inf
    row_exp(address(scratch.weights), end // SCORES, largest, scale)
    return end


@compiled
def draw(row, peaks, temperature, top_k, top_p, min_p, uniform, scratch):  # type: ignore[no-untyped-def]
    count = row.shape[0]
    weights = scratch.weights
    largest = row[find_largest(row, peaks)]
    scale = np.float32(1.0 / temperature)
    bound = -np.inf
    if 0 < top_k < count:
        bound = float(kth_largest_logit(row, peaks, top_k, scratch))
    if min_p > 0.0:
        bound = max(bound, largest + temperature * math.log(min_p))
    if bound > -np.inf:
        end = weigh_collected(collect(row, peaks, bound, scratch), largest, scale, scratch)
        total = total_of(weights[:end])
        if top_p < 1.0:
            drop_below(weights[:end], lightest_of_nucleus(weights[:end], top_p * total))
        return scratch.picked[walk(weights, 0, end, uniform * total_of(weights[:end]))]

    total = weigh(row, peaks.shape[0], largest, scale, scratch)
    if top_p < 1.0:
        # The nucleus is almost always near the likeliest token: look there first.
        reach = 4.0
        while True:
            end = weigh_collected(collect(row, peaks, largest - temperature * reach, scratch), largest, scale, scratch)
            if total_of(weights[:end]) >= top_p * total or reach > 88.0:  # beyond that a token weighs nothing
                break
            reach *= 2.0
        drop_below(weights[:end], lightest_of_nucleus(weights[:end], top_p * total))
        return scratch.picked[walk(weights, 0, end, uniform * total_of(weights[:end]))]

    target = uniform * total
    reached = before = 0.0
    chosen = 0
    for chunk in range(peaks.shape[0]):
        if scratch.heap[chunk] > 0:
            chosen, before = chunk, reached
            reached += scratch.heap[chunk]
            if reached > target:
                break
    start = chosen * CHUNK
    return walk(weights, start, min(start + CHUNK, count), target - before)


@compiled
def walk(weights, start, end, target):  # type: ignore[no-untyped-def]
    """Where the sum of the weights from ``start`` on passes ``target``; the last that weighs anything if nowhere."""
    reached = 0.0
    last = start
    for i in range(start, end):
        if weights[i] > 0:
            last = i
            reached += weights[i]
            if reached > target:
                break
    return last


@compiled_loosely
def total_of(weights):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(weights.shape[0]):
        total += weights[i]
    return total


@compiled
def drop_below(weights, bound):  # type: ignore[no-untyped-def]
    for i in range(weights.shape[0]):  # without a branch, so that it is done in vectors
        weights[i] = weights[i] if weights[i] >= bound else np.float32(0.0)


@compiled_loosely
def total_from(weights, bound):  # type: ignore[no-untyped-def]
    """What the weights that are at least ``bound`` weigh together."""
    total = 0.0
    for i in range(weights.shape[0]):  # without a branch, so that it is done in vectors
        total += np.float64(weights[i]) if weights[i] >= bound else 0.0
    return total


@compiled
def lightest_of_nucleus(weights, wanted):  # type: ignore[no-untyped-def]
    """The largest bound such that the weights from it on weigh ``wanted`` together.

    Found bit by bit: numbers from 0 to 1 are in the same order as their bits, so no weight need be sorted.
    """
    low = np.uint32(0)  # everything reaches 0
    for bit in range(29, -1, -1):
        middle = np.uint32(low | np.uint32(np.uint32(1) << np.uint32(bit)))
        if total_from(weights, from_bits(middle)) >= wanted:
            low = middle
    return from_bits(low)


__all__ = ["CHUNK", "Scratch", "draw_rows", "find_likeliest", "find_peaks_of", "make_scratch", "measure_rows"]
