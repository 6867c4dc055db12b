"""The fused forward pass: one compiled function from token ids to logits, without the interpreter lock.

Every thread runs :func:`forward` from its first line to its last, each on its share of the rows or columns, and waits
for the others at barriers. Import this module through :mod:`engine.model.fused`, which says where compiled code is
kept. Addresses are integers; arrays are C-contiguous.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from engine.model.fused_ir import (
    ATTENTION_ROWS,
    GEMM_ROWS,
    HALF,
    LANES,
    PANEL,
    SCORES,
    atomic_add,
    atomic_load,
    atomic_store,
    call,
    gate_rows,
    gemm_tile,
    relax,
    row_exp,
    row_max,
    score_tile,
    value_tile,
)

entry = numba.njit(nogil=True, cache=True, error_model="numpy")
compiled = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
# Only where nobody is hurt by another order of summation, because that order depends on nothing but a row's length.
compiled_loosely = numba.njit(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True,
    fastmath={"reassoc", "contract", "nsz"},
)  # fmt: skip

Array = Any  # of NumPy; numba finds the types out by itself

CHUNK = 4 * SCORES  # of logits, of which the largest is noted
AHEAD = 3 * SCORES  # how many positions ahead keys are fetched
ROWS_AT_ONCE = 32 * GEMM_ROWS  # rows of a product whose inputs stay in the second-level cache


class Shape(NamedTuple):
    """The model in numbers, and how its cache is laid out."""

    bf16: int  # 1: weights and cache are bfloat16; 0: float32
    num_layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    qk_norm: int
    num_blocks: int
    block_size: int


class Weights(NamedTuple):
    """Packed matrices by address, everything else as float32 arrays. Biases that a model lacks are zeros."""

    embedding_u16: Array  # (vocab, hidden), of which one is the table and the other a view of the same bytes
    embedding_f32: Array
    matrices: Array  # int64 (layers, 4): qkv, output, gate_up, down
    head: int
    input_norm: Array  # (layers, hidden)
    mlp_norm: Array
    final_norm: Array  # (hidden,)
    query_norm: Array  # (layers, head size)
    key_norm: Array
    qkv_bias: Array  # (layers, columns as packed)
    output_bias: Array
    gate_up_bias: Array
    down_bias: Array
    head_bias: Array  # (vocab,)
    cos: Array  # (positions, head size / 2)
    sin: Array


class Step(NamedTuple):
    """One step, as :class:`engine.runner.StepInput` has it."""

    token_ids: Array
    positions: Array
    query_starts: Array
    context_lens: Array
    block_tables: Array
    sample_rows: Array


class Buffers(NamedTuple):
    """What the layers hand on; widths are rounded up to whole panels."""

    hidden: Array  # (tokens, hidden)
    normed: Array
    qkv: Array
    attended: Array
    gated: Array
    logits: Array  # (samples, vocab), minus infinity where a row is wider than the vocabulary
    peaks: Array  # (samples, chunks): the largest logit of every CHUNK of them
    best: Array  # int64 (samples,): the token with the largest logit
    items: Array  # int64 (items, 4), pieces of attention: a request, its first row, its first and last + 1 kv head
    counters: Array  # int64 (layers + 1): how many pieces are taken in each layer; at last how many there are
    zeros: Array  # (PANEL,)
    scratch: Array  # (threads, floats)


@compiled
def address(array):  # type: ignore[no-untyped-def]
    """Where the array begins, as a signed number: with unsigned ones Numba would calculate in floating point."""
    return np.int64(array.ctypes.data)


@compiled
def barrier(sync, threads, yield_address):  # type: ignore[no-untyped-def]
    """Wait until all threads are here. ``sync`` is int64[16]: the arrivals, and on a line of its own the round."""
    if threads == 1:
        return
    arrivals = address(sync)
    rounds = arrivals + 64
    current = atomic_load(rounds)
    if atomic_add(arrivals, 1) == threads - 1:
        atomic_store(arrivals, 0)
        atomic_store(rounds, current + 1)
        return
    spins = 0
    while atomic_load(rounds) == current:
        spins += 1
        if spins >= 512:
            call(yield_address)  # somebody else may need the core that the last thread is waiting for
        else:
            relax()


@compiled
def linear(bf16, x, x_stride, weight, depth, first, last, rows, out, out_stride, bias, residual, residual_stride, tile):  # type: ignore[no-untyped-def]
    """``out = x @ weight + bias + residual`` for the panels ``first`` to ``last``; a weight is packed by panels.

    With ``tile`` not 0, a scratch of GEMM_ROWS x PANEL, the product's panels hold a gate and what it gates.
    """
    step_bytes = PANEL * (2 if bf16 else 4)
    panel_bytes = depth * step_bytes
    for start in range(0, rows, ROWS_AT_ONCE):
        end = min(rows, start + ROWS_AT_ONCE)
        tiles = -(-(end - start) // GEMM_ROWS)
        for panel in range(first, last):
            row = start
            packed = weight + panel * panel_bytes
            extra = bias + panel * PANEL * 4
            for i in range(tiles):
                count = (end - row + tiles - i - 1) // (tiles - i)  # tiles of equal size, give or take one
                source = x + row * x_stride
                # Each tile fetches its part of the next panel, so that memory never rests and is never waited for.
                fetch = packed + panel_bytes + panel_bytes // tiles * i
                fetch_step = step_bytes // tiles
                before, target, target_stride = residual, tile, PANEL * 4
                if tile == 0:
                    target, target_stride = out + row * out_stride + panel * PANEL * 4, out_stride
                if residual_stride != 0:
                    before += row * residual_stride + panel * PANEL * 4
                gemm_tile(
                    bf16, count, source, x_stride, packed, depth, fetch, fetch_step, target, target_stride, extra,
                    before, residual_stride,
                )  # fmt: skip
                if tile != 0:
                    gate_rows(count, tile, out + row * out_stride + panel * LANES * 4, out_stride)
                row += count


@compiled_loosely
def rms_norm(x, weight, eps, out):  # type: ignore[no-untyped-def]
    """Scale ``x`` to a root mean square of one, then by ``weight``; ``out`` may be ``x``."""
    count = weight.shape[0]
    total = np.float32(0.0)
    for i in range(count):
        total += x[i] * x[i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(count) + eps)
    for i in range(count):
        out[i] = x[i] * factor * weight[i]


@compiled
def rotate(x, cos, sin):  # type: ignore[no-untyped-def]
    """Turn the pairs ``(i, i + half)`` of one head by their angles, in place."""
    half = cos.shape[0]
    for i in range(half):
        first, second = x[i], x[i + half]
        x[i] = first * cos[i] - second * sin[i]
        x[i + half] = second * cos[i] + first * sin[i]


@compiled
def from_bits(bits):  # type: ignore[no-untyped-def]
    """The float32 that has these 32 bits."""
    return np.uint32(bits).view(np.float32)


@compiled
def to_bf16(x):  # type: ignore[no-untyped-def]
    """The 16 bits of ``x`` rounded to bfloat16, to the nearest and ties to even."""
    bits = np.float32(x).view(np.uint32)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@compiled
def embed(shape, weights, token, out):  # type: ignore[no-untyped-def]
    """Look a token's embedding up."""
    if shape.bf16:
        row = weights.embedding_u16[token]
        for i in range(shape.hidden):
            out[i] = from_bits(np.uint32(row[i]) << np.uint32(16))
    else:
        for i in range(shape.hidden):
            out[i] = weights.embedding_f32[token, i]


@compiled
def cache_row(shape, kv_u16, kv_f32, start, offset, keys, values):  # type: ignore[no-untyped-def]
    """Write one token's keys and values, all heads, to ``offset`` in the block that starts at element ``start``.

    A block of a layer holds its keys and then its values, each by head. Keys of a head lie in half tiles of positions
    (pairs of dimensions, HALF positions, 2); values by position, dimensions in panels whose halves alternate.
    """
    size = shape.head_size
    head_elements = shape.block_size * size
    key_base = offset // HALF * HALF * size
    lane = offset % HALF
    for head in range(shape.kv_heads):
        key_at = start + head * head_elements + key_base
        value_at = start + (shape.kv_heads + head) * head_elements + offset * size
        if shape.bf16:
            for i in range(size):
                kv_u16[key_at + (i // 2 * HALF + lane) * 2 + i % 2] = to_bf16(keys[head * size + i])
            for panel in range(0, size, PANEL):
                for i in range(LANES):
                    kv_u16[value_at + panel + 2 * i] = to_bf16(values[head * size + panel + i])
                    kv_u16[value_at + panel + 2 * i + 1] = to_bf16(values[head * size + panel + LANES + i])
        else:
            for i in range(size):
                kv_f32[key_at + i * HALF + lane] = keys[head * size + i]
                kv_f32[value_at + i] = values[head * size + i]


@compiled
def half_tiles(keys, table, position, limit, block_size, block_bytes, half_bytes):  # type: ignore[no-untyped-def]
    """Where the keys of SCORES positions from ``position`` on lie; those from ``limit`` on may be anything."""
    position = min(position, (limit - 1) // SCORES * SCORES)
    tile_a = keys + table[position // block_size] * block_bytes + position % block_size // HALF * half_bytes
    second = position + HALF
    if second >= limit:
        return tile_a, tile_a
    return tile_a, keys + table[second // block_size] * block_bytes + second % block_size // HALF * half_bytes


@compiled
def attend(shape, step, buffers, layer_address, item, scale, thread):  # type: ignore[no-untyped-def]
    """One piece of attention: up to ATTENTION_ROWS rows of one request for some of its key-value heads.

    A row is one query head of one token; rows of a token lie together, because they read the same keys. Scores of all
    positions are kept until their largest is known, so nothing is ever rescaled. Heads take turns at each tile,
    because their keys lie side by side and memory likes to be read in long runs.
    """
    request, first_row, first_head, last_head = item[0], item[1], item[2], item[3]
    size, block_size = shape.head_size, shape.block_size
    group = shape.heads // shape.kv_heads
    element = 2 if shape.bf16 else 4
    first_token = step.query_starts[request]
    rows = min(ATTENTION_ROWS, (step.query_starts[request + 1] - first_token) * group - first_row)
    table = step.block_tables[request]

    scratch = buffers.scratch[thread]
    queries = scratch[GEMM_ROWS * PANEL :]
    output = queries[(last_head - first_head) * rows * size :]
    scores = output[(last_head - first_head) * rows * size :]
    last_token = first_token + (first_row + rows - 1) // group
    limit = step.positions[last_token] + 1  # rows attend to their own position and all before it
    score_width = (limit + SCORES - 1) // SCORES * SCORES + SCORES  # not a power of two, which would crowd the cache
    for kv_head in range(first_head, last_head):
        for r in range(rows):
            token = first_token + (first_row + r) // group
            source = (kv_head * group + (first_row + r) % group) * size
            start = ((kv_head - first_head) * rows + r) * size
            for i in range(size):
                queries[start + i] = buffers.qkv[token, source + i]
                output[start + i] = np.float32(0.0)

    head_bytes = block_size * size * element
    block_bytes = 2 * shape.kv_heads * head_bytes
    half_bytes = HALF * size * element
    keys = layer_address + first_head * head_bytes
    values = keys + shape.kv_heads * head_bytes
    query_address, output_address, score_address = address(queries), address(output), address(scores)
    for position in range(0, limit, SCORES):
        tile_a, tile_b = half_tiles(keys, table, position, limit, block_size, block_bytes, half_bytes)
        next_a, next_b = half_tiles(keys, table, position + AHEAD, limit, block_size, block_bytes, half_bytes)
        for head in range(last_head - first_head):
            shift = head * head_bytes
            score_tile(
                shape.bf16, rows, query_address + head * rows * size * 4, size * 4, tile_a + shift, tile_b + shift,
                next_a + shift, next_b + shift, size // 2,
                score_address + (head * rows * score_width + position) * 4, score_width * 4,
            )  # fmt: skip

    for row in range((last_head - first_head) * rows):
        seen = step.positions[first_token + (first_row + row % rows) // group] + 1
        vectors = (seen + SCORES - 1) // SCORES
        start = row * score_width
        for i in range(seen, vectors * SCORES):
            scores[start + i] = -np.inf
        largest = row_max(score_address + start * 4, vectors)
        total = row_exp(score_address + start * 4, vectors, largest, scale)
        for i in range(vectors * SCORES, limit):
            scores[start + i] = np.float32(0.0)
        queries[row] = np.float32(1.0) / total  # the queries have served

    for position in range(0, limit, block_size):
        block = values + table[position // block_size] * block_bytes
        following = values + table[min(position + block_size, limit - 1) // block_size] * block_bytes
        count = min(block_size, limit - position)
        for head in range(last_head - first_head):
            for panel in range(0, size, PANEL):
                shift = head * head_bytes + panel * element
                value_tile(
                    shape.bf16, rows, score_address + (head * rows * score_width + position) * 4, score_width * 4,
                    block + shift, following + shift, size * element, count,
                    output_address + (head * rows * size + panel) * 4, size * 4,
                )  # fmt: skip

    for kv_head in range(first_head, last_head):
        for r in range(rows):
            token = first_token + (first_row + r) // group
            target = (kv_head * group + (first_row + r) % group) * size
            row = (kv_head - first_head) * rows + r
            for i in range(size):
                buffers.attended[token, target + i] = output[row * size + i] * queries[row]


@compiled
def share_out(shape, step, buffers, threads):  # type: ignore[no-untyped-def]
    """Cut the step's attention into pieces that threads take one after the other.

    A request with one token is one piece, unless there are so few that threads would stand idle. Longer chunks are
    cut by rows and by key-value heads.
    """
    group = shape.heads // shape.kv_heads
    requests = step.context_lens.shape[0]
    count = 0
    for request in range(requests):
        rows = (step.query_starts[request + 1] - step.query_starts[request]) * group
        together = rows <= min(group, ATTENTION_ROWS) and (threads == 1 or requests >= 4 * threads)
        heads = shape.kv_heads if together else 1
        for row in range(0, rows, ATTENTION_ROWS):
            for head in range(0, shape.kv_heads, heads):
                item = buffers.items[count]
                item[0], item[1], item[2], item[3] = request, row, head, head + heads
                count += 1
    for layer in range(shape.num_layers):
        buffers.counters[layer] = 0
    buffers.counters[shape.num_layers] = count


@compiled
def find_peaks(row, peaks):  # type: ignore[no-untyped-def]
    """The largest logit of each chunk of a row, which fills whole vectors, into ``peaks``."""
    for chunk in range(peaks.shape[0]):
        start = chunk * CHUNK
        size = min(CHUNK, row.shape[0] - start)
        peaks[chunk] = row_max(address(row) + 4 * start, size // SCORES)


@compiled
def find_largest(row, peaks):  # type: ignore[no-untyped-def]
    """Where the largest logit stands, the first of several."""
    best = 0
    for chunk in range(1, peaks.shape[0]):
        if peaks[chunk] > peaks[best]:
            best = chunk
    for i in range(best * CHUNK, min((best + 1) * CHUNK, row.shape[0])):
        if row[i] == peaks[best]:
            return i
    return 0  # nothing but NaN


@entry
def forward(thread, threads, sync, yield_address, shape, eps, scale, weights, step, buffers, kv, kv_u16, kv_f32):  # type: ignore[no-untyped-def]
    """Logits of the step's sampled rows into ``buffers.logits``; keys and values into the cache at address ``kv``."""
    tokens, samples = step.token_ids.shape[0], step.sample_rows.shape[0]
    first_row, last_row = thread * tokens // threads, (thread + 1) * tokens // threads
    size, heads, kv_heads = shape.head_size, shape.heads, shape.kv_heads
    block_elements = 2 * kv_heads * shape.block_size * size
    layer_elements = block_elements * shape.num_blocks
    element = 2 if shape.bf16 else 4
    hidden, normed, qkv = buffers.hidden, buffers.normed, buffers.qkv
    attended, gated = buffers.attended, buffers.gated
    hidden_stride, normed_stride, qkv_stride = hidden.shape[1] * 4, normed.shape[1] * 4, qkv.shape[1] * 4
    attended_stride, gated_stride = attended.shape[1] * 4, gated.shape[1] * 4
    zeros = address(buffers.zeros)
    no = tokens - tokens  # a 0 that Numba does not see, so that it does not make a second version of `linear` for it
    tile = address(buffers.scratch[thread])
    qkv_panels, hidden_panels = qkv.shape[1] // PANEL, hidden.shape[1] // PANEL
    inner_panels, vocab_panels = gated.shape[1] // LANES, buffers.logits.shape[1] // PANEL

    for row in range(first_row, last_row):
        embed(shape, weights, step.token_ids[row], hidden[row])
    if thread == 0:
        share_out(shape, step, buffers, threads)
    request = 0
    for layer in range(shape.num_layers):
        for row in range(first_row, last_row):
            rms_norm(hidden[row], weights.input_norm[layer], eps, normed[row])
        barrier(sync, threads, yield_address)
        linear(
            shape.bf16, address(normed), normed_stride, weights.matrices[layer, 0], shape.hidden,
            thread * qkv_panels // threads, (thread + 1) * qkv_panels // threads, tokens,
            address(qkv), qkv_stride, address(weights.qkv_bias[layer]), zeros, no, no,
        )  # fmt: skip
        barrier(sync, threads, yield_address)
        request = 0
        for row in range(first_row, last_row):
            while step.query_starts[request + 1] <= row:
                request += 1
            position = step.positions[row]
            cos, sin = weights.cos[position], weights.sin[position]
            for head in range(heads + kv_heads):
                x = qkv[row, head * size : (head + 1) * size]
                if shape.qk_norm:
                    rms_norm(x, weights.query_norm[layer] if head < heads else weights.key_norm[layer], eps, x)
                rotate(x, cos, sin)
            block = step.block_tables[request, position // shape.block_size]
            cache_row(
                shape, kv_u16, kv_f32, layer * layer_elements + block * block_elements, position % shape.block_size,
                qkv[row, heads * size : (heads + kv_heads) * size], qkv[row, (heads + kv_heads) * size :],
            )  # fmt: skip
        barrier(sync, threads, yield_address)
        layer_address = kv + layer * layer_elements * element
        counter = address(buffers.counters) + layer * 8
        while True:
            item = atomic_add(counter, 1)
            if item >= buffers.counters[shape.num_layers]:
                break
            attend(shape, step, buffers, layer_address, buffers.items[item], scale, thread)
        barrier(sync, threads, yield_address)
        linear(
            shape.bf16, address(attended), attended_stride, weights.matrices[layer, 1], heads * size,
            thread * hidden_panels // threads, (thread + 1) * hidden_panels // threads, tokens,
            address(hidden), hidden_stride, address(weights.output_bias[layer]),
            address(hidden), hidden_stride, no,
        )  # fmt: skip
        barrier(sync, threads, yield_address)
        for row in range(first_row, last_row):
            rms_norm(hidden[row], weights.mlp_norm[layer], eps, normed[row])
        barrier(sync, threads, yield_address)
        linear(
            shape.bf16, address(normed), normed_stride, weights.matrices[layer, 2], shape.hidden,
            thread * inner_panels // threads, (thread + 1) * inner_panels // threads, tokens,
            address(gated), gated_stride, address(weights.gate_up_bias[layer]), zeros, no, tile,
        )  # fmt: skip
        barrier(sync, threads, yield_address)
        linear(
            shape.bf16, address(gated), gated_stride, weights.matrices[layer, 3], shape.inner,
            thread * hidden_panels // threads, (thread + 1) * hidden_panels // threads, tokens,
            address(hidden), hidden_stride, address(weights.down_bias[layer]),
            address(hidden), hidden_stride, no,
        )  # fmt: skip
        barrier(sync, threads, yield_address)
    for sample in range(thread * samples // threads, (thread + 1) * samples // threads):
        rms_norm(hidden[step.sample_rows[sample]], weights.final_norm, eps, normed[sample])
    barrier(sync, threads, yield_address)
    linear(
        shape.bf16, address(normed), normed_stride, weights.head, shape.hidden,
        thread * vocab_panels // threads, (thread + 1) * vocab_panels // threads, samples,
        address(buffers.logits), buffers.logits.shape[1] * 4, address(weights.head_bias), zeros, no, no,
    )  # fmt: skip
    barrier(sync, threads, yield_address)
    for sample in range(thread * samples // threads, (thread + 1) * samples // threads):
        find_peaks(buffers.logits[sample], buffers.peaks[sample])
        buffers.best[sample] = find_largest(buffers.logits[sample], buffers.peaks[sample])
    barrier(sync, threads, yield_address)
