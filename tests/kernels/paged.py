"""Paged caches with poison in what was not written, and what attention over them must give, in float32."""

from __future__ import annotations

import random as chance
from dataclasses import dataclass

import numpy as np
import torch

from engine.kernels.attention import attention, choose_tile, cut_tiles
from engine.kernels.split_attention import split_attention
from tests.kernels.interpreted.close import random


@dataclass(frozen=True)
class Case:
    """Requests are (tokens in the context, of which new); the last ones share the first one's whole blocks."""

    requests: tuple[tuple[int, int], ...]
    head_size: int = 64
    kv_heads: int = 2
    group: int = 3
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int = 0
    splits: int = 3
    seed: int = 0


@dataclass
class Pool:
    """A case's queries, cache and tables, all on one device but for the lists."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    starts: list[int]
    contexts: list[int]

    def on_device(self, numbers: list[int] | np.ndarray) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.queries.device)


def make_pool(case: Case, device: str = "cpu") -> Pool:
    """Blocks in an order that is nobody's, NaN in everything that was not written, the null block included."""
    size = case.block_size
    needed = [-(-context // size) for context, _ in case.requests]
    ids = list(range(1, sum(needed) + 1))
    chance.Random(case.seed).shuffle(ids)
    tables = torch.zeros((len(needed), max(needed) + 1), dtype=torch.int32)
    shape = (len(ids) + 1, case.kv_heads, size, case.head_size)
    written = torch.zeros((len(ids) + 1, size), dtype=torch.bool)
    whole = case.requests[0][0] // size
    for r, (context, _) in enumerate(case.requests):
        own = [ids.pop() for _ in range(needed[r])]
        if r:
            shared = min(whole, context // size)
            own[:shared] = tables[0, :shared].tolist()
        blocks, positions = torch.tensor(own), torch.arange(context)
        tables[r, : len(own)] = blocks
        written[blocks[positions // size], positions % size] = True
    keys, values = (
        random(*shape, dtype=case.dtype, seed=case.seed + offset).masked_fill_(~written[:, None, :, None], torch.nan)
        for offset in (1000, 2000)
    )
    starts = [0]
    for _, new in case.requests:
        starts.append(starts[-1] + new)
    heads = case.kv_heads * case.group
    queries = 2 * random(starts[-1], heads, case.head_size, dtype=case.dtype, seed=case.seed)
    return Pool(queries.to(device), keys.to(device), values.to(device), tables.to(device), starts,
                [context for context, _ in case.requests])  # fmt: skip


def reference(case: Case, pool: Pool, scale: float) -> torch.Tensor:
    """In float32, request by request, from keys and values that lie one after the other."""
    outputs = []
    device = pool.queries.device
    for r, (context, new) in enumerate(case.requests):
        blocks = pool.tables[r, : -(-context // case.block_size)].long()

        def gather(cache: torch.Tensor, blocks: torch.Tensor = blocks, context: int = context) -> torch.Tensor:
            tokens = cache[blocks].transpose(1, 2).flatten(0, 1)[:context].float()
            return tokens.repeat_interleave(case.group, dim=1)  # (context, heads, head size)

        queries = pool.queries[pool.starts[r] : pool.starts[r + 1]].float()
        scores = torch.einsum("qhd,khd->hqk", queries, gather(pool.keys)) * scale
        positions, own = (torch.arange(*span, device=device) for span in ((0, context), (context - new, context)))
        seen = positions <= own[:, None]
        if case.window:
            seen &= positions > own[:, None] - case.window
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, gather(pool.values)))
    return torch.cat(outputs)


def run_whole(case: Case, pool: Pool, scale: float) -> torch.Tensor:
    single = all(new == 1 for _, new in case.requests)
    tile = choose_tile(case.head_size, case.dtype, case.group, single)
    requests, tokens = (pool.on_device(part) for part in cut_tiles(pool.starts, case.group, tile))
    return attention(
        pool.queries, pool.keys, pool.values, requests, tokens, pool.on_device(pool.starts),
        pool.on_device(pool.contexts), pool.tables, tile=tile, scale=scale, window=case.window,
    )  # fmt: skip


def run_split(case: Case, pool: Pool, scale: float) -> torch.Tensor:
    return split_attention(
        pool.queries, pool.keys, pool.values, pool.on_device(pool.contexts), pool.tables, splits=case.splits,
        tile=choose_tile(case.head_size, case.dtype, case.group, single=True), scale=scale, window=case.window,
    )  # fmt: skip


def padded(pool: Pool) -> Pool:
    """With one more request of one token and no context, as a batch is padded."""
    return Pool(
        torch.cat((pool.queries, torch.full_like(pool.queries[:1], 3.0))), pool.keys, pool.values,
        torch.cat((pool.tables, torch.zeros_like(pool.tables[:1]))), [*pool.starts, pool.starts[-1] + 1],
        [*pool.contexts, 0],
    )  # fmt: skip


def make_cache(
    blocks: int, kv_heads: int, block_size: int, head_size: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    return torch.full((blocks, kv_heads, block_size, head_size), float("nan"), dtype=dtype, device=device)


def make_slots(tokens: int, block_size: int, seed: int) -> torch.Tensor:
    """Slots of three blocks, none twice, never in the null block; about a fourth of the tokens has none."""
    generator = torch.Generator().manual_seed(seed)
    slots = block_size + torch.randperm(3 * block_size, generator=generator)[:tokens]
    return torch.where(torch.rand(tokens, generator=generator) < 0.25, -1, slots)


def as_slots(cache: torch.Tensor) -> torch.Tensor:
    """The cache as (slots, kv heads, head size)."""
    return cache.transpose(1, 2).flatten(0, 1)
