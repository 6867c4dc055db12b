"""The pool of blocks and its free queue."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.block_pool import BlockPool, FreeBlockQueue, KVBlock, event_hash
from engine.trace.events import Allocated, Cached, CacheReset, Evicted, Freed, Hit


def make_queue(count: int) -> tuple[list[KVBlock], FreeBlockQueue]:
    blocks = [KVBlock(i) for i in range(count + 1)]
    return blocks, FreeBlockQueue(blocks)


def ids(queue: FreeBlockQueue) -> list[int]:
    return [block.block_id for block in queue]


class TestFreeBlockQueue:
    def test_takes_from_the_head_and_gives_back_at_both_ends(self) -> None:
        blocks, queue = make_queue(5)
        assert [b.block_id for b in queue.take(2)] == [1, 2]
        queue.append([blocks[2]])
        queue.prepend([blocks[1]])
        assert ids(queue) == [1, 3, 4, 5, 2]
        queue.remove(blocks[4])
        assert ids(queue) == [1, 3, 5, 2]
        assert queue.num_blocks == 4

    def test_can_be_emptied_and_filled_again(self) -> None:
        blocks, queue = make_queue(3)
        assert queue.take(0) == []
        queue.take(3)
        assert ids(queue) == []
        assert queue.num_blocks == 0
        queue.prepend(blocks[2:])
        queue.append([])
        assert ids(queue) == [2, 3]

    def test_more_than_there_are_and_what_is_not_in_it_are_errors(self) -> None:
        blocks, queue = make_queue(3)
        with pytest.raises(RuntimeError, match="4 blocks asked for, 3 are free"):
            queue.take(4)
        queue.take(1)
        with pytest.raises(RuntimeError, match="block 1 is not in the free queue"):
            queue.remove(blocks[1])

    @given(st.lists(st.tuples(st.sampled_from(["take", "remove", "append", "prepend"]), st.integers(0, 9))))
    def test_is_a_list(self, operations: list[tuple[str, int]]) -> None:
        blocks, queue = make_queue(9)
        model = list(range(1, 10))
        out: list[int] = []
        for name, number in operations:
            if name == "take":
                count = min(number, len(model))
                assert [b.block_id for b in queue.take(count)] == model[:count]
                out += model[:count]
                del model[:count]
            elif name == "remove":
                if number in model:
                    queue.remove(blocks[number])
                    model.remove(number)
                    out.append(number)
            else:
                back, out = out[:number], out[number:]
                getattr(queue, name)([blocks[i] for i in back])
                model = model + back if name == "append" else back + model
            assert ids(queue) == model
            assert queue.num_blocks == len(model)


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


class TestBlockPool:
    def test_the_null_block_is_never_handed_out(self) -> None:
        pool = BlockPool(4)
        assert pool.num_free_blocks == pool.num_usable_blocks == 3
        assert pool.allocate("a", 3) == [1, 2, 3]
        with pytest.raises(RuntimeError):
            pool.allocate("a", 1)
        with pytest.raises(ValueError, match="none to hand out"):
            BlockPool(1)

    def test_release_goes_from_the_tail_hashed_blocks_behind_the_others_in_front(self) -> None:
        pool = BlockPool(8)
        table = pool.allocate("a", 5)
        pool.cache("a", [1, 3], [digest(1), digest(3)])
        pool.free("a", table)
        assert pool.free_block_ids() == [5, 4, 2, 6, 7, 3, 1]
        pool.check([])

    def test_a_shared_block_stays_until_the_last_holder_leaves(self) -> None:
        pool = BlockPool(5)
        first = pool.allocate("a", 2)
        pool.cache("a", [1], [digest(1)])
        found = pool.find(digest(1))
        assert found is not None
        pool.hit("b", [found])
        second = [1, *pool.allocate("b", 1)]
        pool.check([first, second])
        pool.free("a", first)
        assert pool.blocks[1].ref_count == 1
        pool.check([second])
        pool.free("b", second)
        assert pool.free_block_ids() == [3, 2, 4, 1]
        pool.check([])

    def test_of_two_blocks_with_one_content_the_first_serves_and_then_the_other(self) -> None:
        pool = BlockPool(4)
        for name in ("a", "b", "c"):
            pool.cache(name, pool.allocate(name, 1), [digest(9)])
        assert pool.find(digest(9)) is pool.blocks[1]
        pool.free("b", [2])
        assert pool.allocate("d", 1) == [2]
        assert pool.find(digest(9)) is pool.blocks[1]
        pool.free("a", [1])
        assert pool.allocate("e", 1) == [1]
        assert pool.find(digest(9)) is pool.blocks[3]
        pool.free("c", [3])
        pool.allocate("f", 1)
        assert pool.find(digest(9)) is None
        pool.check([[2], [1], [3]])

    def test_events_tell_everything_in_order(self) -> None:
        pool = BlockPool(4)
        table = pool.allocate("a", 2)
        pool.cache("a", table[:1], [digest(7)])
        pool.free("a", table)
        found = pool.find(digest(7))
        assert found is not None
        pool.hit("b", [found])
        pool.free("b", [1])
        pool.allocate("c", 3)
        assert pool.take_events() == [
            Allocated("a", [1, 2]), Cached("a", [1], [7]), Freed("a", [2, 1]), Hit("b", [1]), Freed("b", [1]),
            Evicted([1], [7]), Allocated("c", [2, 3, 1])]
        assert pool.take_events() == []

    def test_events_keep_their_own_lists(self) -> None:
        pool = BlockPool(6)
        table = pool.allocate("a", 2)
        table += pool.allocate("a", 1)
        pool.free("a", table)
        table.clear()
        assert pool.take_events() == [Allocated("a", [1, 2]), Allocated("a", [3]), Freed("a", [3, 2, 1])]

    def test_reset_needs_an_idle_pool(self) -> None:
        pool = BlockPool(4)
        table = pool.allocate("a", 1)
        pool.cache("a", table, [digest(1)])
        assert not pool.reset_cache()
        pool.free("a", table)
        queue = pool.free_block_ids()
        pool.take_events()
        assert pool.reset_cache()
        assert pool.find(digest(1)) is None
        assert pool.free_block_ids() == queue
        assert pool.take_events() == [CacheReset()]
        pool.check([])

    def test_freeing_twice_is_an_error(self) -> None:
        pool = BlockPool(4)
        pool.allocate("a", 1)
        pool.free("a", [1])
        with pytest.raises(RuntimeError, match="held by nobody"):
            pool.free("a", [1])

    def test_check_finds_what_does_not_add_up(self) -> None:
        pool = BlockPool(4)
        table = pool.allocate("a", 2)
        pool.check([table])
        with pytest.raises(AssertionError):
            pool.check([])
        with pytest.raises(AssertionError):
            pool.check([table, [1]])
        pool.cache("a", [1], [digest(1)])
        pool.blocks[1].block_hash = digest(2)
        with pytest.raises(AssertionError):
            pool.check([table])

    def test_a_large_pool_is_no_work_for_the_garbage_collector(self) -> None:
        pool = BlockPool(100)
        pool.cache("a", pool.allocate("a", 50), [digest(i + 1) for i in range(50)])
        assert not any(gc.is_tracked(block) for block in pool.blocks)


def test_event_hashes_are_never_zero() -> None:
    assert event_hash(bytes(16)) == 1
    assert event_hash(b"\xff" * 16) == 2**64 - 1
    assert event_hash(b"\x02" + bytes(7) + b"\x09" * 8) == 2
