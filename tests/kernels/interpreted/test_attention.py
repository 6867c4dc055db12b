"""Paged attention, whole and split, against plain attention over gathered keys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.kernels.attention import HEAD_SIZES, choose_tile, cut_tiles
from engine.kernels.split_attention import MAX_SPLITS, choose_splits
from tests.kernels.interpreted.close import TYPES, assert_near
from tests.kernels.paged import Case, make_pool, padded, reference, run_split, run_whole

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


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
@example(Case(((290, 1), (1, 1), (100, 1)), splits=MAX_SPLITS))
@example(Case(((290, 1), (5, 1), (256, 1)), head_size=128, splits=4, block_size=64, dtype=torch.bfloat16))
def test_split_contexts(case: Case) -> None:
    pool, scale = make_pool(case), case.head_size**-0.5
    assert_near(run_split(case, pool, scale), reference(case, pool, scale))


@pytest.mark.parametrize("run", [run_whole, run_split])
def test_a_padded_request_gets_zeros_and_disturbs_nobody(run) -> None:  # type: ignore[no-untyped-def]
    case = Case(((40, 1), (9, 1)))
    pool = make_pool(case)
    expected = reference(case, pool, 0.1)
    found = run(case, padded(pool), 0.1)
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


def test_more_parts_than_can_be_merged_are_refused() -> None:
    case = Case(((40, 1),), splits=MAX_SPLITS + 1)
    with pytest.raises(ValueError, match="65 parts: from 1 to 64 can be merged"):
        run_split(case, make_pool(case), 0.1)


def test_when_contexts_are_split() -> None:
    assert choose_splits(requests=1, kv_heads=8, longest=32_768, processors=132) == 33
    assert choose_splits(requests=1, kv_heads=1, longest=200_000, processors=132) == MAX_SPLITS
    assert choose_splits(requests=1, kv_heads=8, longest=600, processors=132) == 2
    assert choose_splits(requests=1, kv_heads=8, longest=100, processors=132) == 1  # short
    assert choose_splits(requests=256, kv_heads=8, longest=32_768, processors=132) == 1  # many


def test_every_token_is_in_one_tile() -> None:
    tile = choose_tile(64, torch.bfloat16, 3, single=False)
    requests, tokens = cut_tiles([0, 1, 1, 48], 3, tile)
    assert requests.tolist() == [0, 2, 2, 2]
    assert tokens.tolist() == [0, 0, 21, 42]
    requests, tokens = cut_tiles([0, 1, 30, 31], 3, tile, left_out=[0, 2])
    assert requests.tolist() == [1, 1]
    assert tokens.tolist() == [0, 21]
