"""The pool of KV blocks as events tell it: who holds which, what is cached, and in which order blocks are free."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from engine.trace.events import Allocated, Cached, CacheReset, Evicted, Freed, Hit, PoolEvent, PoolRebuilt

if TYPE_CHECKING:
    from engine.trace.state import Counters, RequestView

MAX_BLOCKS = 1 << 22
"""A pool larger than this is taken for damage: events must not make a reader allocate without bound."""


class Touch(IntEnum):
    """The last thing that happened to a block, for the picture's motion."""

    NONE = 0
    ALLOCATED = 1
    HIT = 2
    FREED = 3
    CACHED = 4
    EVICTED = 5
    PREEMPTED = 6


# Looking a member up costs microseconds in Python 3.11, and it is done for every event.
_ALLOCATED, _HIT, _FREED = int(Touch.ALLOCATED), int(Touch.HIT), int(Touch.FREED)
_CACHED, _EVICTED, _PREEMPTED = int(Touch.CACHED), int(Touch.EVICTED), int(Touch.PREEMPTED)


class PoolState:
    """The blocks; :class:`engine.trace.state.EngineState` adds the requests that hold them.

    Per-block arrays have length ``num_blocks``, block 0 (the null block) included:

    ``ref_count`` int32, ``block_hash`` uint64 (0: not cached), ``fill`` int32 (tokens in it), ``owner_colour`` int8
    (colour of its first holder, -1 when free), ``free_rank`` int64 (order in the free queue, smallest is next; only
    meaningful where ``ref_count`` is 0), ``touch`` uint8 (:class:`Touch`) and ``touch_step`` int64.
    ``holders`` maps each block in use to the requests that hold it, first holder first.
    """

    step: int
    requests: dict[str, RequestView]
    running: list[str]
    counters: Counters
    _evicted: set[int]  # just now: the allocation that they made room for follows

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out: free and cached-but-free; the null block does not count."""
        return self.num_blocks - 1 - len(self.holders)

    @property
    def num_used_blocks(self) -> int:
        return len(self.holders)

    @property
    def kv_usage(self) -> float:
        """Share of the pool's usable blocks that requests hold, 0 to 1."""
        return len(self.holders) / max(1, self.num_blocks - 1)

    def free_queue(self) -> list[int]:
        """The free blocks in the order in which they will be handed out."""
        free = np.flatnonzero(self.ref_count[1:] == 0) + 1
        return free[np.argsort(self.free_rank[free], kind="stable")].tolist()

    # ---- applying ------------------------------------------------------------------------------------------------

    def _rebuild(self, num_blocks: int, block_size: int) -> None:
        if not 1 <= num_blocks <= MAX_BLOCKS or block_size < 1:
            raise ValueError(f"there is no pool of {num_blocks} blocks of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_count = np.zeros(num_blocks, np.int32)
        self.block_hash = np.zeros(num_blocks, np.uint64)
        self.fill = np.zeros(num_blocks, np.int32)
        self.owner_colour = np.full(num_blocks, -1, np.int8)
        self.free_rank = np.arange(num_blocks, dtype=np.int64)
        self.touch = np.zeros(num_blocks, np.uint8)
        self.touch_step = np.full(num_blocks, -1, np.int64)
        self.holders: dict[int, list[str]] = {}
        self._first_rank, self._last_rank = 0, num_blocks

    def _apply_pool(self, event: PoolEvent, preempted: set[str]) -> None:
        if isinstance(event, Allocated):
            self._hold(event.request_id, event.blocks, _ALLOCATED)
            self.fill[_place(event.blocks)] = 0
        elif isinstance(event, Hit):
            self._hold(event.request_id, event.blocks, _HIT)
        elif isinstance(event, Freed):
            self._release(event, _PREEMPTED if event.request_id in preempted else _FREED)
        elif isinstance(event, Cached):
            at = _place(event.blocks)
            self.block_hash[at] = event.hashes[0] if isinstance(at, int) else np.array(event.hashes, np.uint64)
            self.fill[at] = self.block_size
            self._mark(event.blocks, _CACHED)
        elif isinstance(event, Evicted):
            at = _place(event.blocks)
            self.block_hash[at] = 0
            self.fill[at] = 0
            self._mark(event.blocks, _EVICTED)
            self._evicted = set(event.blocks)
            self.counters.evictions += len(event.blocks)
        elif isinstance(event, CacheReset):
            self.block_hash[:] = 0
            self.fill[self.ref_count == 0] = 0
        elif isinstance(event, PoolRebuilt):
            for request_id in self.running:
                self.requests[request_id].blocks = []
            self._rebuild(event.num_blocks, event.block_size)

    def _mark(self, blocks: list[int], touch: int) -> None:
        at = _place(blocks)
        self.touch[at] = touch
        self.touch_step[at] = self.step

    def _hold(self, request_id: str, blocks: list[int], touch: int) -> None:
        request = self.requests[request_id]
        request.blocks.extend(blocks)
        self.ref_count[_place(blocks)] += 1
        for block in blocks:
            holders = self.holders.setdefault(block, [])
            if not holders:
                self.owner_colour[block] = request.colour
            holders.append(request_id)
        if touch == _ALLOCATED and self._evicted:  # the eviction that preceded the allocation is the news
            blocks = [b for b in blocks if b not in self._evicted]
            self._evicted = set()
        self._mark(blocks, touch)

    def _release(self, event: Freed, touch: int) -> None:
        self.requests[event.request_id].blocks = []
        self.ref_count[_place(event.blocks)] -= 1
        to_head: list[int] = []
        released: list[int] = []
        for block in event.blocks:
            holders = self.holders[block]
            holders.remove(event.request_id)
            if holders:
                self.owner_colour[block] = self.requests[holders[0]].colour
                continue
            del self.holders[block]
            self.owner_colour[block] = -1
            released.append(block)
            if self.block_hash[block]:
                self.free_rank[block] = self._last_rank
                self._last_rank += 1
            else:
                to_head.append(block)
        for block in reversed(to_head):
            self._first_rank -= 1
            self.free_rank[block] = self._first_rank
            self.fill[block] = 0
        self._mark(released, touch)  # a block that others still hold goes nowhere


def _place(blocks: list[int]) -> list[int] | int:
    """What to index an array with: one block, as most events have, several times faster than a list of one."""
    return blocks[0] if len(blocks) == 1 else blocks
