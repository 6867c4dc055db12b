"""Paged attention, whole and split, against plain attention over gathered keys."""

from __future__ import annotations

import random as chance
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.kernels.attention import HEAD_SIZES, attention, choose_tile, cut_tiles
from engine.kernels.split_attention import MAX_SPLITS, choose_splits, split_attention
from tests.kernels.interpreted.close import TYPES, assert_near, random

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


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


@st.composite
def cases(draw: st.DrawFn, single: bool = False) -> Case:
    block_size = draw(st.sampled_from(BLOCK_SIZES))
    # On both sides of a block's end, and anything.
    length = st.one_of(
        st.sampled_from([1, block_size - 1, block_size, block_size + 1, 2 * block_size]).filter(lambda n: n <= 300),
        st.integers(1, 150))
    requests = []
    for _ in range(draw(st.integers(1, 4))):
        context = draw(length)
        requests.append((context, 1 if single or draw(st.booleans()) else draw(st.integers(1, min(context, 60)))))
    return Case(
        tuple(requests), draw(st.sampled_from(HEAD_SIZES)), draw(st.sampled_from([1, 2])),
        draw(st.sampled_from([1, 3, 4, 8])), block_size, draw(st.sampled_from(TYPES)),
        draw(st.sampled_from([0, 0, 1, 7, 40])), draw(st.integers(2, 9)), draw(st.integers(0, 99)),
    )  # fmt: skip


@dataclass
class Pool:
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    starts: list[int]
    contexts: list[int]


def make_pool(case: Case) -> Pool:
    """Blocks in an order that is nobody's, NaN in everything that was not written, the null block included."""
    size = case.block_size
    needed = [-(-context // size) for context, _ in case.requests]
    ids = list(range(1, sum(needed) + 1))
    chance.Random(case.seed).shuffle(ids)
    tables = torch.zeros((len(needed), max(needed) + 1), dtype=torch.int32)
    shape = (len(ids) + 1, case.kv_heads, size, case.head_size)
    keys = torch.full(shape, float("nan"), dtype=case.dtype)
    values = torch.full(shape, float("nan"), dtype=case.dtype)
    whole = case.requests[0][0] // size
    for r, (context, _) in enumerate(case.requests):
        own = [ids.pop() for _ in range(needed[r])]
        if r:
            shared = min(whole, context // size)
            own[:shared] = tables[0, :shared].tolist()
        tables[r, : len(own)] = torch.tensor(own)
        for position in range(context):
            block, offset = own[position // size], position % size
            if keys[block, 0, offset, 0].isnan():
                seed = case.seed + 1000 * r + position
                keys[block, :, offset] = random(case.kv_heads, case.head_size, dtype=case.dtype, seed=seed)
                values[block, :, offset] = random(case.kv_heads, case.head_size, dtype=case.dtype, seed=seed + 500)
    starts = [0]
    for _, new in case.requests:
        starts.append(starts[-1] + new)
    heads = case.kv_heads * case.group
    queries = 2 * random(starts[-1], heads, case.head_size, dtype=case.dtype, seed=case.seed)
    return Pool(queries, keys, values, tables, starts, [context for context, _ in case.requests])


def reference(case: Case, pool: Pool, scale: float) -> torch.Tensor:
    """In float32, request by request, from keys and values that lie one after the other."""
    outputs = []
    for r, (context, new) in enumerate(case.requests):
        blocks = pool.tables[r, : -(-context // case.block_size)].long()

        def gather(cache: torch.Tensor, blocks: torch.Tensor = blocks, context: int = context) -> torch.Tensor:
            tokens = cache[blocks].transpose(1, 2).flatten(0, 1)[:context].float()
            return tokens.repeat_interleave(case.group, dim=1)  # (context, heads, head size)

        queries = pool.queries[pool.starts[r] : pool.starts[r + 1]].float()
        scores = torch.einsum("qhd,khd->hqk", queries, gather(pool.keys)) * scale
        positions, own = torch.arange(context), torch.arange(context - new, context)
        seen = positions <= own[:, None]
        if case.window:
            seen &= positions > own[:, None] - case.window
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, gather(pool.values)))
    return torch.cat(outputs)


def run_whole(case: Case, pool: Pool, scale: float) -> torch.Tensor:
    single = all(new == 1 for _, new in case.requests)
    tile = choose_tile(case.head_size, case.dtype, case.group, single)
    requests, tokens = (torch.tensor(part, dtype=torch.int32) for part in cut_tiles(pool.starts, case.group, tile))
    return attention(
        pool.queries, pool.keys, pool.values, requests, tokens, torch.tensor(pool.starts, dtype=torch.int32),
        torch.tensor(pool.contexts, dtype=torch.int32), pool.tables, tile=tile, scale=scale, window=case.window,
    )  # fmt: skip


def run_split(case: Case, pool: Pool, scale: float) -> torch.Tensor:
    return split_attention(
        pool.queries, pool.keys, pool.values, torch.tensor(pool.contexts, dtype=torch.int32), pool.tables,
        splits=case.splits, tile=choose_tile(case.head_size, case.dtype, case.group, single=True), scale=scale,
        window=case.window,
    )  # fmt: skip


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
@example(Case(((1, 1),)))
@example(Case(((16, 16), (17, 1), (33, 20), (16, 1)), head_size=80, block_size=16))
@example(Case(((40, 40), (64, 9)), head_size=256, group=1, block_size=8, dtype=torch.bfloat16))
@example(Case(((300, 3), (256, 1)), head_size=96, group=8, block_size=256, dtype=torch.float16))
@example(Case(((100, 70), (90, 1)), group=20, kv_heads=1))
def test_mixed_batches(case: Case) -> None:
    pool, scale = make_pool(case), case.head_size**-0.5
    assert_near(run_whole(case, pool, scale), reference(case, pool, scale))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(cases(single=True))
@example(Case(((1, 1), (2, 1)), splits=8))
@example(Case(((290, 1), (5, 1), (256, 1)), head_size=128, splits=4, block_size=64, dtype=torch.bfloat16))
def test_split_contexts(case: Case) -> None:
    pool, scale = make_pool(case), case.head_size**-0.5
    assert_near(run_split(case, pool, scale), reference(case, pool, scale))


@pytest.mark.parametrize("run", [run_whole, run_split])
def test_a_padded_request_gets_zeros_and_disturbs_nobody(run) -> None:  # type: ignore[no-untyped-def]
    case = Case(((40, 1), (9, 1)))
    pool = make_pool(case)
    expected = reference(case, pool, 0.1)
    padded = Pool(torch.cat((pool.queries, torch.full_like(pool.queries[:1], 3.0))), pool.keys, pool.values,
                  torch.cat((pool.tables, torch.zeros_like(pool.tables[:1]))), [0, 1, 2, 3], [40, 9, 0])
    found = run(case, padded, 0.1)
    assert_near(found[:2], expected)
    assert not found[2].any()


def test_large_scores_do_not_overflow() -> None:
    case = Case(((50, 5), (33, 1)))
    pool = make_pool(case)
    pool.queries *= 1000
    assert_near(run_whole(case, pool, 1.0), reference(case, pool, 1.0))


def test_this_test_would_notice_a_wrong_position() -> None:
    case = Case(((40, 5), (33, 1)))
    pool = make_pool(case)
    expected = reference(case, pool, 0.125)
    pool.contexts[0] -= 1
    with pytest.raises(AssertionError):
        assert_near(run_whole(case, pool, 0.125), expected)


def test_when_contexts_are_split() -> None:
    assert choose_splits(requests=1, kv_heads=8, longest=32_768, processors=132) == 33
    assert choose_splits(requests=1, kv_heads=1, longest=200_000, processors=132) == MAX_SPLITS
    assert choose_splits(requests=1, kv_heads=8, longest=600, processors=132) == 2
    assert choose_splits(requests=1, kv_heads=8, longest=100, processors=132) == 1  # short
    assert choose_splits(requests=256, kv_heads=8, longest=32_768, processors=132) == 1  # many


def test_every_token_is_in_one_tile() -> None:
    tile = choose_tile(64, torch.bfloat16, 3, single=False)
    requests, tokens = cut_tiles([0, 1, 1, 48], 3, tile)
    assert requests == [0, 2, 2, 2]
    assert tokens == [0, 0, 21, 42]
