"""Compiled choices: rows of logits in, tokens and log probabilities out, without the interpreter lock.

Import this module through :mod:`engine.model.fused`, which says where compiled code is kept.

A row comes with its peaks, the largest logit of each chunk of it: whoever looks for large logits passes over every
chunk that cannot hold one. A row fills whole vectors: what only pads it is -infinity. Arrays are C-contiguous.

Nothing is sorted. A bound, the k-th largest logit or the lightest weight of a nucleus, is found by narrowing the range
that it lies in, each time with one pass that counts or adds up what is above; the last passes go over the few numbers
that are left in the range. What is computed of a row depends on nothing but the row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from engine.model.fused_ir import SCORES
from engine.model.fused_kernels import (
    CHUNK,
    address,
    compiled,
    entry,
    find_largest,
    find_peaks,
    from_bits,
)
from engine.sampler_ir import count_from, exp_chunks, exp_vectors, lanes_within, lowest_bit, sum_chunks, sum_from

Array = Any  # of NumPy; numba finds the types out by itself


class Scratch(NamedTuple):
    """Room to work in, for rows of one width."""

    weights: Array  # float32, whole chunks of them: what of the last chunk is not in a row is 0
    sums: Array  # float64 (chunks,): what each chunk of the weights weighs
    chunks: Array  # int64 (chunks,): some of the chunks
    close: Array  # float32 (width,): numbers among which a bound is looked for
    picked: Array  # int32 (width,): tokens that were collected


def make_scratch(width: int) -> Scratch:
    def floats(count: int) -> np.ndarray:
        return np.zeros(count, dtype=np.float32)

    chunks = -(-width // CHUNK)
    return Scratch(floats(chunks * CHUNK), np.zeros(chunks, dtype=np.float64), np.zeros(chunks, dtype=np.int64),
                   floats(chunks * CHUNK), np.zeros(width, dtype=np.int32))


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
        totals[r] = largest + math.log(weigh(row, tops, largest, np.float32(1.0), largest - FARTHEST, scratch))
        if counts[r] == 0:
            continue
        found = collect(row, tops, kth_largest_logit(row, tops, largest, counts[r], scratch), scratch)
        for place in range(counts[r]):
            best = 0
            for i in range(1, found):
                if scratch.close[i] > scratch.close[best]:
                    best = i
            tokens[r, place] = scratch.picked[best]
            values[r, place] = scratch.close[best]
            scratch.close[best] = -np.inf


@compiled
def collect(row, peaks, bound, scratch):  # type: ignore[no-untyped-def]
    """The tokens whose logits are at least ``bound`` into ``picked``, their logits into ``close``; how many."""
    found = 0
    for chunk in range(peaks.shape[0]):
        if peaks[chunk] >= bound:
            for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, row.shape[0])):
                scratch.picked[found] = i  # without a branch: whether it stays there is seen by the next
                scratch.close[found] = row[i]
                found += row[i] >= bound
    return found


FARTHEST = 88.0  # in logits over temperature below the largest: what is farther weighs nothing that float32 can hold
MARGIN = 1e-3  # in logits over temperature, more than weights are ever rounded


@compiled
def draw(row, peaks, temperature, top_k, top_p, min_p, uniform, scratch):  # type: ignore[no-untyped-def]
    largest = row[find_largest(row, peaks)]
    bound = largest - FARTHEST * temperature
    if min_p > 0.0:
        bound = max(bound, largest + temperature * math.log(min_p))
    if 0 < top_k < row.shape[0]:
        bound = max(bound, float(kth_largest_logit(row, peaks, largest, top_k, scratch)))
    total = weigh(row, peaks, largest, np.float32(1.0 / temperature), bound, scratch)
    lightest = np.float32(0.0)
    if top_p < 1.0:
        lightest = lightest_of_nucleus(peaks, largest, temperature, bound, top_p, total, scratch)
        bound = max(bound, largest + temperature * (math.log(lightest) - MARGIN))
        total = drop(peaks, bound, lightest, scratch)
    return walk(scratch, lightest, uniform * total)


# ---- weights: of the chunks whose peaks reach a bound; those of others are never read --------------------------------


@compiled
def list_chunks(peaks, bound, listed):  # type: ignore[no-untyped-def]
    """The chunks whose peaks reach ``bound``, into ``listed``; how many."""
    count = 0
    for chunk in range(peaks.shape[0]):
        listed[count] = chunk  # without a branch: whether it stays there is seen by the next
        count += peaks[chunk] >= bound
    return count


@compiled
def weigh(row, peaks, largest, scale, bound, scratch):  # type: ignore[no-untyped-def]
    """``exp((x - largest) * scale)`` of each logit from ``bound`` on into the weights, 0 of others beside them.

    Each chunk's sum goes into ``sums``; returns the total.
    """
    sums, source, target = scratch.sums, address(row), address(scratch.weights)
    for chunk in range(peaks.shape[0]):
        sums[chunk] = 0.0
    least = at_least(bound)
    whole = row.shape[0] // CHUNK
    count = list_chunks(peaks[:whole], bound, scratch.chunks)
    exp_chunks(source, target, address(sums), address(scratch.chunks), count, largest, scale, least)
    if whole < peaks.shape[0] and peaks[whole] >= bound:  # a last chunk that is shorter
        start, vectors = 4 * CHUNK * whole, (row.shape[0] - CHUNK * whole) // SCORES
        sums[whole] = exp_vectors(source + start, target + start, vectors, largest, scale, least)
    total = 0.0
    for chunk in range(peaks.shape[0]):
        total += sums[chunk]
    return total


@compiled
def at_least(bound):  # type: ignore[no-untyped-def]
    """The first float32 that is at least the float64 ``bound``."""
    near = np.float32(bound)
    return near if near >= bound else at_order(order_of(near) + 1)


@compiled
def drop(peaks, bound, lightest, scratch):  # type: ignore[no-untyped-def]
    """Leave only the weights from ``lightest`` on, which are in chunks whose peaks reach ``bound``; their total."""
    total = 0.0
    for chunk in range(peaks.shape[0]):
        scratch.sums[chunk] = 0.0
    for i in range(list_chunks(peaks, bound, scratch.chunks)):
        chunk = scratch.chunks[i]
        weight = sum_from(address(scratch.weights) + 4 * CHUNK * chunk, CHUNK // SCORES, lightest)
        scratch.sums[chunk] = weight
        total += weight
    return total


@compiled
def walk(scratch, lightest, target):  # type: ignore[no-untyped-def]
    """Where the sum of the weights from ``lightest`` on passes ``target``; the last of them if nowhere."""
    weights, sums = scratch.weights, scratch.sums
    reached = before = 0.0
    chosen = -1
    for chunk in range(sums.shape[0]):
        if sums[chunk] > 0:
            chosen, before = chunk, reached
            reached += sums[chunk]
            if reached > target:
                break
    if chosen < 0:
        return 0  # nothing but NaN
    reached = before
    last = chosen * CHUNK
    for i in range(last, last + CHUNK):
        if weights[i] >= lightest and weights[i] > 0:
            last = i
            reached += weights[i]
            if reached > target:
                break
    return last


# ---- the k-th largest logit ------------------------------------------------------------------------------------------

SAMPLE = 2048  # of a row's logits, to guess where the k-th largest of all is
FEW = 100  # for so many the peaks alone are a good guess


@compiled
def kth_largest_logit(row, peaks, largest, k, scratch):  # type: ignore[no-untyped-def]
    """A bound that the ``k`` largest logits and what equals the last of them reach; -infinity if there are fewer."""
    low, high = np.float32(-np.inf), np.float32(np.inf)
    above = 0  # how many reach `high`: fewer than k
    if k <= peaks.shape[0]:  # so many chunks have a peak that is at least the k-th largest peak: so many logits have
        for i in range(peaks.shape[0]):
            scratch.close[i] = peaks[i]
        low = kth_largest(scratch.close, peaks.shape[0], k, low, largest)
    if k > FEW:
        stride = max(1, row.shape[0] // SAMPLE)
        size = row.shape[0] // stride
        for i in range(size):
            scratch.close[i] = row[i * stride]
        share = k / row.shape[0]
        spread = 2.5 * math.sqrt(size * share * (1.0 - share)) + 2.0
        for sign in (1, -1):
            rank = int(size * share + sign * spread)
            if 1 <= rank <= size:
                guess = kth_largest(scratch.close, size, rank, np.float32(-np.inf), largest)
                if low < guess < high:
                    count = count_from(address(row), row.shape[0] // SCORES, guess)
                    if count >= k:
                        low = guess
                    else:
                        high, above = guess, count
    return kth_largest(scratch.close, gather(row, peaks, low, low, high, scratch), k - above, low, largest)


@compiled
def kth_largest(values, count, k, low, high):  # type: ignore[no-untyped-def]
    """A bound that the ``k`` largest of the first ``count`` values and what equals the last of them reach.

    At least k reach ``low``, and none is above ``high``. Whole vectors must fit into ``values``.
    """
    vectors = fill(values, count, np.float32(-np.inf))
    first, last = order_of(low), order_of(high) + 1
    while last - first > 1:
        middle = (first + last) // 2
        reach = count_from(address(values), vectors, at_order(middle))
        if reach >= k:
            first = middle
            if reach == k:
                break
        else:
            last = middle
    return at_order(first)


@compiled
def fill(values, count, with_what):  # type: ignore[no-untyped-def]
    """Fill ``values`` from ``count`` on up to whole vectors; how many these are."""
    vectors = (count + SCORES - 1) // SCORES
    for i in range(count, vectors * SCORES):
        values[i] = with_what
    return vectors


@compiled
def gather(numbers, peaks, bound, low, high, scratch):  # type: ignore[no-untyped-def]
    """Numbers from ``low`` to below ``high`` into ``close``; how many. They are in chunks whose peaks reach ``bound``.
    """
    count = list_chunks(peaks, bound, scratch.chunks)
    found = 0
    for i in range(count):
        first = CHUNK * scratch.chunks[i]
        found = sift(numbers, first, min(first + CHUNK, numbers.shape[0]), low, high, scratch.close, found)
    return found


@compiled
def sift(numbers, first, last, low, high, close, found):  # type: ignore[no-untyped-def]
    """Of one chunk's numbers, or the beginning of it, those from ``low`` to below ``high``, behind the first ``found``.

    ``close`` may be ``numbers`` while no more has been found than looked at. Returns how many are found then.
    """
    lanes = np.int64(0)
    for vector in range((last - first) // SCORES):
        lanes |= lanes_within(address(numbers) + 4 * (first + SCORES * vector), low, high) << (SCORES * vector)
    while lanes != 0:  # once for each that is found, so that the processor guesses only once a chunk when it ends
        close[found] = numbers[first + lowest_bit(lanes)]
        found += 1
        lanes &= lanes - 1
    return found


@compiled
def order_of(x):  # type: ignore[no-untyped-def]
    """The place of a float32 among all of them: whole numbers in the same order, 0 for 0.0 and -1 for -0.0."""
    bits = np.int64(np.float32(x).view(np.int32))
    return bits if bits >= 0 else np.int64(-0x80000001) - bits


@compiled
def at_order(place):  # type: ignore[no-untyped-def]
    """The float32 at that place."""
    bits = place if place >= 0 else np.int64(-0x80000001) - place
    return from_bits(np.uint32(bits & 0xFFFFFFFF))


# ---- the nucleus -----------------------------------------------------------------------------------------------------

FEW_WEIGHTS = 2048  # may be left in a range before it is looked at one by one


@compiled
def lightest_of_nucleus(peaks, largest, temperature, bound, top_p, total, scratch):  # type: ignore[no-untyped-def]
    """The largest bound such that the weights from it on weigh ``top_p`` of the ``total``."""
    wanted = top_p * total
    # A weight of e^-x is at x. The bound is between `near`, from where on they weigh `above`, which is too little, and
    # `far`, from where on they weigh `reached`. What weighs the most is tried first, because few chunks have any of it.
    near, far = 0.0, (largest - bound) / temperature
    high, low = np.float32(np.inf), np.float32(0.999 * math.exp(-far))
    above, reached = 0.0, total
    while reached - above > FEW_WEIGHTS * low and far - near > 0.01:
        at = min(max(2.0, 2.0 * near), (near + far) / 2)
        lightest = np.float32(math.exp(-at))
        weight = weight_from(peaks, max(bound, largest - temperature * (at + MARGIN)), lightest, scratch)
        if weight >= wanted:
            far, low, reached = at, lightest, weight
        else:
            near, high, above = at, lightest, weight

    close = scratch.close
    found = gather(scratch.weights, peaks, max(bound, largest - temperature * (far + MARGIN)), low, high, scratch)
    least, most = low, low
    for i in range(found):
        least, most = (min(least, close[i]), max(most, close[i])) if i > 0 else (close[i], close[i])
    first, last = order_of(least), order_of(most) + 1
    passes = 0
    beyond = above  # what the weights from the place `last` on weigh
    vectors = fill(close, found, np.float32(0.0))
    while last - first > 1:
        middle = (first + last) // 2
        weight = above + sum_from(address(close), vectors, at_order(middle))
        if weight >= wanted:
            first = middle
        else:
            last, beyond = middle, weight
        passes += 1
        if passes % 4 == 0:
            above, found = beyond, 0
            low, high = at_order(first), at_order(last)
            for start in range(0, SCORES * vectors, CHUNK):
                found = sift(close, start, min(start + CHUNK, SCORES * vectors), low, high, close, found)
            vectors = fill(close, found, np.float32(0.0))
    return at_order(first)


@compiled
def weight_from(peaks, bound, lightest, scratch):  # type: ignore[no-untyped-def]
    """What the weights from ``lightest`` on weigh, which are all in chunks whose peaks reach ``bound``."""
    count = list_chunks(peaks, bound, scratch.chunks)
    return sum_chunks(address(scratch.weights), address(scratch.chunks), count, lightest)


__all__ = ["CHUNK", "Scratch", "draw_rows", "find_likeliest", "find_peaks_of", "make_scratch", "measure_rows"]
