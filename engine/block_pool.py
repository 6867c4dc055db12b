"""The pool of KV blocks: who holds which, which are free and in what order, which can be found by their content.

    free queue:  head <-> 7 <-> 3 <-> 12 <-> ... <-> 5 <-> tail      blocks are taken from the head
                          without a hash      with one: those freed first are evicted first

A free block may still carry a hash. Then its keys and values are still there, and a request with the same prefix can
take it out of the middle of the queue. Being taken from the head for other tokens evicts it.

Every operation costs the blocks that it touches and nothing else, whatever the size of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct

import msgspec

from engine.trace.events import Allocated, Cached, CacheReset, Evicted, Freed, Hit, PoolEvent

NOT_QUEUED = -1

_first_number = Struct("<Q").unpack_from


class KVBlock(msgspec.Struct, gc=False, eq=False):
    """A physical block: how many requests hold it, the hash of its content, its neighbours in the free queue.

    The neighbours are ids, not references: a pool has tens of thousands of blocks, and with references among them
    the garbage collector would walk through all of them, for milliseconds, again and again.
    """

    block_id: int
    ref_count: int = 0
    block_hash: bytes | None = None
    prev_free: int = NOT_QUEUED
    next_free: int = NOT_QUEUED


class FreeBlockQueue:
    """Free blocks in a doubly linked ring, so that one can leave from the middle when it is hit.

    ``blocks[i]`` must be the block with id ``i``. Block 0, which is never free, closes the ring: it stands before
    the first and after the last. All blocks but it are free at first, in the order of their ids.
    """

    __slots__ = ("_blocks", "_end", "num_blocks")

    def __init__(self, blocks: Sequence[KVBlock]) -> None:
        self._blocks = blocks
        self._end = blocks[0]
        self._end.prev_free = self._end.next_free = 0
        self.num_blocks = 0
        self.append(blocks[1:])

    def __iter__(self) -> Iterator[KVBlock]:
        block_id = self._end.next_free
        while block_id:
            block = self._blocks[block_id]
            yield block
            block_id = block.next_free

    def take_first(self) -> KVBlock:
        """Take the block at the head. The caller has checked that there is one."""
        blocks, end = self._blocks, self._end
        block = blocks[end.next_free]
        if block is end:
            raise RuntimeError("a block asked for, none is free")
        end.next_free = after = block.next_free
        blocks[after].prev_free = 0
        block.prev_free = block.next_free = NOT_QUEUED
        self.num_blocks -= 1
        return block

    def take(self, count: int) -> list[KVBlock]:
        """Take ``count`` blocks from the head. The caller has checked that there are so many."""
        if count > self.num_blocks:
            raise RuntimeError(f"{count} blocks asked for, {self.num_blocks} are free")
        blocks, end = self._blocks, self._end
        taken: list[KVBlock] = []
        block_id = end.next_free
        for _ in range(count):
            block = blocks[block_id]
            block_id = block.next_free
            block.prev_free = block.next_free = NOT_QUEUED
            taken.append(block)
        end.next_free = block_id
        blocks[block_id].prev_free = 0
        self.num_blocks -= count
        return taken

    def remove(self, block: KVBlock) -> None:
        """Take one block out, wherever it stands."""
        before, after = block.prev_free, block.next_free
        if before == NOT_QUEUED:
            raise RuntimeError(f"block {block.block_id} is not in the free queue")
        self._blocks[before].next_free = after
        self._blocks[after].prev_free = before
        block.prev_free = block.next_free = NOT_QUEUED
        self.num_blocks -= 1

    def append(self, blocks: Sequence[KVBlock]) -> None:
        """Put blocks at the tail, in the order given."""
        last = self._blocks[self._end.prev_free]
        self._insert(last, blocks, self._end)

    def prepend(self, blocks: Sequence[KVBlock]) -> None:
        """Put blocks at the head, keeping their order: the first of them will be taken next."""
        first = self._blocks[self._end.next_free]
        self._insert(self._end, blocks, first)

    def _insert(self, before: KVBlock, blocks: Sequence[KVBlock], after: KVBlock) -> None:
        for block in blocks:
            before.next_free = block.block_id
            block.prev_free = before.block_id
            before = block
        before.next_free = after.block_id
        after.prev_free = before.block_id
        self.num_blocks += len(blocks)


class BlockPool:
    """Blocks 0 to ``num_blocks`` - 1, of which block 0, the null block, is never handed out.

    Whatever happens to blocks is told in :meth:`take_events`, in the order in which it happened.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool of {num_blocks} blocks has none to hand out")
        self.num_blocks = num_blocks
        self.blocks = [KVBlock(i) for i in range(num_blocks)]
        self.free_queue = FreeBlockQueue(self.blocks)
        # Two blocks may have the same content. The one that was entered first serves; the rest wait behind it.
        self._cached: dict[bytes, KVBlock | dict[int, KVBlock]] = {}
        self._events: list[PoolEvent] = []

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        return self.free_queue.num_blocks

    def free_block_ids(self) -> list[int]:
        """The free blocks in the order in which they will be handed out. Costs the length of the queue."""
        return [block.block_id for block in self.free_queue]

    def find(self, block_hash: bytes) -> KVBlock | None:
        """The block that serves this content, or None."""
        found = self._cached.get(block_hash)
        if found is None or isinstance(found, KVBlock):
            return found
        return next(iter(found.values()))

    # ---- what happens to blocks ----------------------------------------------------------------------------------

    def hit(self, request_id: str, blocks: Sequence[KVBlock]) -> None:
        """One more reference on each of these cached blocks; those that were free leave the queue."""
        remove = self.free_queue.remove
        for block in blocks:
            if block.ref_count == 0:
                remove(block)
            block.ref_count += 1
        self._events.append(Hit(request_id, [block.block_id for block in blocks]))

    def allocate(self, request_id: str, count: int) -> list[int]:
        """Take ``count`` blocks from the head of the queue and return their ids; cached ones are evicted."""
        evicted: list[int] = []
        evicted_hashes: list[int] = []
        block_ids: list[int] = []
        for block in self.free_queue.take(count):
            block_hash = block.block_hash
            if block_hash is not None:
                self._forget(block, block_hash)
                evicted.append(block.block_id)
                evicted_hashes.append(event_hash(block_hash))
            block.ref_count = 1
            block_ids.append(block.block_id)
        if evicted:
            self._events.append(Evicted(evicted, evicted_hashes))
        self._events.append(Allocated(request_id, block_ids))
        return list(block_ids)

    def allocate_one(self, request_id: str) -> int:
        """:meth:`allocate` for a single block, as decoding needs them: one call for each block of each request."""
        block = self.free_queue.take_first()
        block_id, block_hash = block.block_id, block.block_hash
        if block_hash is not None:
            self._forget(block, block_hash)
            self._events.append(Evicted([block_id], [event_hash(block_hash)]))
        block.ref_count = 1
        self._events.append(Allocated(request_id, [block_id]))
        return block_id

    def cache(self, request_id: str, block_ids: list[int], hashes: Sequence[bytes]) -> None:
        """Full blocks get their hashes and can be found from now on. ``block_ids`` becomes part of the event."""
        short = [self._enter(block_id, block_hash) for block_id, block_hash in zip(block_ids, hashes, strict=True)]
        self._events.append(Cached(request_id, block_ids, short))

    def cache_one(self, request_id: str, block_id: int, block_hash: bytes) -> None:
        """:meth:`cache` for a single block."""
        self._events.append(Cached(request_id, [block_id], [self._enter(block_id, block_hash)]))

    def free(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Release a block table from its tail to its head, so that of its cached blocks the last are evicted first.

        Blocks that nobody holds any more join the queue: hashed ones at its tail, the others at its head.
        """
        released = block_ids[::-1]
        with_hash: list[KVBlock] = []
        without: list[KVBlock] = []
        blocks = self.blocks
        for block_id in released:
            block = blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                (without if block.block_hash is None else with_hash).append(block)
            elif block.ref_count < 0:
                raise RuntimeError(f"{block!r} was freed by {request_id} and is held by nobody")
        self.free_queue.prepend(without)
        self.free_queue.append(with_hash)
        self._events.append(Freed(request_id, list(released)))

    def reset_cache(self) -> bool:
        """Forget every hash, if all blocks are free; say whether it was done. The queue stays as it is."""
        if self.num_free_blocks != self.num_usable_blocks:
            return False
        for found in self._cached.values():
            for block in (found,) if isinstance(found, KVBlock) else found.values():
                block.block_hash = None
        self._cached.clear()
        self._events.append(CacheReset())
        return True

    def take_events(self) -> list[PoolEvent]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        return events

    def _enter(self, block_id: int, block_hash: bytes) -> int:
        """Give a block its hash and return it as events carry it."""
        block = self.blocks[block_id]
        block.block_hash = block_hash
        there = self._cached.setdefault(block_hash, block)
        if there is not block:
            if isinstance(there, KVBlock):
                self._cached[block_hash] = {there.block_id: there, block_id: block}
            else:
                there[block_id] = block
        return _first_number(block_hash)[0] or 1  # event_hash, without another call

    def _forget(self, block: KVBlock, block_hash: bytes) -> None:
        block.block_hash = None
        there = self._cached[block_hash]
        if isinstance(there, KVBlock):
            del self._cached[block_hash]
            return
        del there[block.block_id]
        if len(there) == 1:
            self._cached[block_hash] = next(iter(there.values()))

    # ---- checking ------------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless everything adds up, given the block tables of all requests. Scans the pool."""
        held = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), f"a block stands twice in {table}"
            for block_id in table:
                held[block_id] += 1
        free = self.free_block_ids()
        assert len(set(free)) == len(free) == self.num_free_blocks, "the free queue holds a block twice"
        assert held[0] == 0, "the null block was handed out"
        assert 0 not in free, "the null block is in the free queue"
        for block in self.blocks:
            assert block.ref_count == held[block.block_id], f"{block!r} is held by {held[block.block_id]} requests"
        assert set(free) == {b.block_id for b in self.blocks[1:] if b.ref_count == 0}, "a block is lost"
        entered: dict[int, bytes] = {}
        for block_hash, found in self._cached.items():
            assert isinstance(found, KVBlock) or len(found) > 1
            for block in (found,) if isinstance(found, KVBlock) else found.values():
                assert block.block_id not in entered, f"{block!r} can be found by two hashes"
                entered[block.block_id] = block_hash
        assert entered == {b.block_id: b.block_hash for b in self.blocks if b.block_hash is not None}


def event_hash(block_hash: bytes) -> int:
    """A block hash as events carry it: its first 8 bytes as an unsigned number, never 0 (which means: no hash)."""
    return int(_first_number(block_hash)[0]) or 1
