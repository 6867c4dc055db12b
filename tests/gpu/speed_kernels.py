"""How long each kernel takes, what it moves, and what share of a copy's bandwidth (or a matrix product's rate) that is.

Bytes are the fewest that the work needs: each input read once, each output written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from engine.kernels import operations as kernels
from engine.kernels.attention import attention, choose_tile, cut_tiles
from engine.kernels.cache import reshape_and_cache, rotate_and_cache
from engine.kernels.experts import experts
from engine.kernels.sampling import argmax, draw, penalise
from engine.kernels.split_attention import choose_splits, split_attention
from engine.model.config import ModelConfig
from tests.gpu.deadline import Deadline
from tests.gpu.measure import Meter
from tests.gpu.models import LLAMA_8B, SMOLLM2, TINY, Size
from tests.gpu.report import Report, Row

SECTION = "kernels"
BLOCK = 16


class Work(NamedTuple):
    """Something to time: ``moved`` bytes at least, ``operations`` where these are what limits it."""

    name: str
    run: Callable[[], object]
    moved: float
    operations: float = 0.0


def time_kernels(report: Report, meter: Meter, small: bool, deadline: Deadline) -> None:
    """A row for each kernel, at the sizes of the 8B model; attention also at those of the smallest."""
    with torch.inference_mode():
        for size, attention_only in ((TINY, False),) if small else ((LLAMA_8B, False), (SMOLLM2, True)):
            for work in _all_work(size, meter, small, attention_only):
                if deadline.over:
                    deadline.stop(f"not {work.name} and what follows")
                    return
                _time(report, meter, work)


def _time(report: Report, meter: Meter, work: Work) -> None:
    seconds = meter.time(work.run)
    if work.operations:
        share, of = meter.share_of_products(work.operations, seconds), "product"
    else:
        share, of = meter.share_of_bandwidth(work.moved, seconds), "copy"
    report.add(Row(SECTION, work.name, seconds=seconds, moved=work.moved, operations=work.operations or None,
                   share=share, of=of if share is not None else ""))  # fmt: skip


def _all_work(size: Size, meter: Meter, small: bool, attention_only: bool) -> Iterator[Work]:
    """One after the other, so that only one at a time has its memory."""
    shape, device = size.config, meter.device
    if not attention_only:
        for tokens in (3,) if small else (256, 8192):
            yield from _row_work(shape, device, tokens)
            yield from _cache_work(shape, device, tokens)
    prefix = f"{size.name}: " if attention_only else ""
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count if meter.on_gpu else 8
    for requests, context in ((2, 20),) if small else ((256, 1024), (64, 1024)):
        yield _decode_work(prefix, shape, device, requests, context)
    yield _split_work(prefix, shape, device, 40 if small else 32768, processors)
    yield _prefill_work(prefix, shape, device, 20 if small else 4096)
    if not attention_only:
        yield _expert_work(device, *((3, 4, 2, 40, 24) if small else (64, 128, 8, 2048, 768)))
        yield from _sampling_work(shape, device, 2 if small else 256, small)


def _random(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


def _row_work(shape: ModelConfig, device: str, tokens: int) -> Iterator[Work]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    x, residual, weight = _random(device, tokens, hidden), _random(device, tokens, hidden), _random(device, hidden)
    row = 2 * tokens * hidden
    yield Work(f"rms_norm {tokens} x {hidden}", lambda: kernels.rms_norm(x, weight, 1e-5), 2 * row)
    yield Work(f"add and rms_norm {tokens} x {hidden}",
               lambda: kernels.add_rms_norm(x, residual, weight, 1e-5), 4 * row)
    gate_up = _random(device, tokens, 2 * inner)
    yield Work(f"silu and multiply {tokens} x {inner}", lambda: kernels.gated(gate_up, "silu"), 3 * 2 * tokens * inner)


def _cache_work(shape: ModelConfig, device: str, tokens: int) -> Iterator[Work]:
    heads, kv_heads, head = shape.num_heads, shape.num_kv_heads, shape.head_size
    cached_keys, cached_values = (_random(device, tokens // BLOCK + 2, kv_heads, BLOCK, head) for _ in range(2))
    slots = BLOCK + torch.randperm(tokens, device=device)
    qkv = _random(device, tokens, heads + 2 * kv_heads, head)
    _, keys, values = qkv.split((heads, kv_heads, kv_heads), dim=1)
    cached = 2 * 2 * tokens * kv_heads * head
    yield Work(f"reshape_and_cache {tokens} tokens",
               lambda: reshape_and_cache(keys, values, cached_keys, cached_values, slots), 2 * cached)
    cos, sin = (torch.randn(tokens, head // 2, device=device) for _ in range(2))
    moved = 2 * (2 * tokens * heads * head + cached) + 4 * tokens * head + 8 * tokens
    yield Work(f"rotate_and_cache {tokens} tokens",
               lambda: rotate_and_cache(qkv, cos, sin, slots, cached_keys, cached_values, heads), moved)


class _Pool(NamedTuple):
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    contexts: torch.Tensor


def _pool(shape: ModelConfig, device: str, requests: int, context: int) -> _Pool:
    """Every request has its own blocks, scattered over the pool."""
    blocks = -(-context // BLOCK)
    size = (requests * blocks + 1, shape.num_kv_heads, BLOCK, shape.head_size)
    keys, values = (_random(device, *size) for _ in range(2))
    tables = (1 + torch.randperm(requests * blocks, device=device)).view(requests, blocks).int()
    return _Pool(keys, values, tables, torch.full((requests,), context, dtype=torch.int32, device=device))


def _read(shape: ModelConfig, tokens: int) -> int:
    """Bytes of the keys and values of so many tokens in one layer."""
    return 2 * 2 * tokens * shape.num_kv_heads * shape.head_size


def _attend(shape: ModelConfig, pool: _Pool, starts: list[int]) -> Callable[[], torch.Tensor]:
    device = str(pool.keys.device)
    group, single = shape.num_heads // shape.num_kv_heads, starts[-1] == len(starts) - 1
    tile = choose_tile(shape.head_size, torch.bfloat16, group, single)
    starts_there, requests, tokens = (
        torch.tensor(part, dtype=torch.int32, device=device) for part in (starts, *cut_tiles(starts, group, tile)))
    queries = _random(device, starts[-1], shape.num_heads, shape.head_size)
    return lambda: attention(queries, pool.keys, pool.values, requests, tokens, starts_there, pool.contexts,
                             pool.tables, tile=tile, scale=shape.attention_scale)  # fmt: skip


def _decode_work(prefix: str, shape: ModelConfig, device: str, requests: int, context: int) -> Work:
    run = _attend(shape, _pool(shape, device, requests, context), list(range(requests + 1)))
    queries = 2 * 2 * requests * shape.num_heads * shape.head_size
    return Work(f"{prefix}attention, {requests} decodes at {context}", run, _read(shape, requests * context) + queries)


def _split_work(prefix: str, shape: ModelConfig, device: str, context: int, processors: int) -> Work:
    pool = _pool(shape, device, 1, context)
    splits = max(2, choose_splits(1, shape.num_kv_heads, context, processors))
    group = shape.num_heads // shape.num_kv_heads
    tile = choose_tile(shape.head_size, torch.bfloat16, group, single=True)
    queries = _random(device, 1, shape.num_heads, shape.head_size)
    return Work(
        f"{prefix}split attention, 1 decode at {context}",
        lambda: split_attention(queries, pool.keys, pool.values, pool.contexts, pool.tables, splits=splits, tile=tile,
                                scale=shape.attention_scale),
        _read(shape, context))  # fmt: skip


def _prefill_work(prefix: str, shape: ModelConfig, device: str, tokens: int) -> Work:
    run = _attend(shape, _pool(shape, device, 1, tokens), [0, tokens])
    pairs = tokens * (tokens + 1) // 2
    moved = _read(shape, tokens) + 2 * 2 * tokens * shape.num_heads * shape.head_size
    return Work(f"{prefix}attention, prefill of {tokens}", run, moved, 4.0 * pairs * shape.num_heads * shape.head_size)


def _expert_work(device: str, tokens: int, count: int, each: int, hidden: int, inner: int) -> Work:
    """A mixture of experts (at the sizes of Qwen3-30B-A3B) in a decode step; what it reads are the experts chosen."""
    x, gate_up, down = (_random(device, *shape) for shape in (
        (tokens, hidden), (count, 2 * inner, hidden), (count, hidden, inner)))  # fmt: skip
    weights, chosen = torch.rand(tokens, count, device=device).softmax(-1).topk(each, dim=-1)
    moved = 2 * 3 * inner * hidden * len(chosen.unique())
    return Work(f"experts, {tokens} tokens, {each} of {count}",
                lambda: experts(x, weights.bfloat16(), chosen, gate_up, down, "silu"), moved)  # fmt: skip


def _sampling_work(shape: ModelConfig, device: str, rows: int, small: bool) -> Iterator[Work]:
    vocab = shape.vocab_size
    logits = 2 * torch.randn(rows, vocab, device=device)
    read = 4 * rows * vocab
    yield Work(f"argmax {rows} x {vocab}", lambda: argmax(logits), read)
    # The columns of draw: row, temperature, top-k, top-p, min-p, number.
    for name, bounds in (("temperature", (0.0, 1.0, 0.0)), ("top-k 50, top-p 0.9", (50.0, 0.9, 0.0)),
                         ("top-p 0.9", (0.0, 0.9, 0.0)), ("min-p 0.05", (0.0, 1.0, 0.05)))[: 2 if small else 4]:
        columns = [[row, 1.0, *bounds, (row + 0.5) / rows] for row in range(rows)]
        parameters = torch.tensor(columns, dtype=torch.float64, device=device)
        yield Work(f"draw {rows} x {vocab}, {name}", partial(draw, logits, parameters), read)
    pairs = rows * min(500, vocab // 2)
    each = pairs // rows
    at = torch.arange(rows, device=device).repeat_interleave(each)
    tokens = torch.stack([torch.randperm(vocab, device=device)[:each] for _ in range(rows)]).flatten()
    counts, repetition, frequency, presence = (torch.ones(pairs, device=device) for _ in range(4))
    yield Work(f"penalise {pairs} logits",
               lambda: penalise(logits, at, tokens, counts, repetition, frequency, presence),
               pairs * (2 * 8 + 4 * 4 + 2 * 4))  # fmt: skip
