"""What the engine looks like after a step, computed from its events and from nothing else.

:meth:`EngineState.apply` is the only thing in the program that turns events into a picture: the live view, replay,
comparison, export and the tests all go through it. A state can be frozen into a :class:`Snapshot` and thawed again;
two states are equal when their snapshots are.
"""

from __future__ import annotations

from bisect import insort
from enum import IntEnum

import msgspec
import numpy as np

from engine.trace.events import (
    Allocated,
    Arrived,
    Cached,
    CacheReset,
    Evicted,
    Finished,
    Freed,
    Hit,
    Logprobs,
    PoolEvent,
    PoolRebuilt,
    RunInfo,
    Scheduled,
    StepEvents,
)

NUM_COLOURS = 12
MAX_BLOCKS = 1 << 22
"""A pool larger than this is taken for damage: events must not make a reader allocate without bound."""

FINISHED_KEPT = 64
"""How many finished requests a state remembers in full; the counters remember all of them."""


CONTRADICTIONS = (KeyError, ValueError, IndexError, TypeError, OverflowError)
"""What :meth:`EngineState.apply` may raise on events that cannot have happened."""


class Touch(IntEnum):
    """The last thing that happened to a block, for the picture's motion."""

    NONE = 0
    ALLOCATED = 1
    HIT = 2
    FREED = 3
    CACHED = 4
    EVICTED = 5
    PREEMPTED = 6


class RequestView(msgspec.Struct, array_like=True):
    """A request as events tell it. Times are run-clock nanoseconds, -1 for what has not happened yet.

    ``status`` is "waiting", "running", "preempted" (waiting again) or "finished". ``num_computed_tokens`` tokens have
    their keys and values in the cache. ``scheduled_tokens`` is its share of the latest step, 0 if it had none.
    """

    request_id: str
    order: int
    colour: int
    arrival_ns: int
    arrival_step: int
    prompt_token_ids: list[int]
    prompt_text: str
    max_tokens: int
    temperature: float
    priority: int
    source: str
    status: str = "waiting"
    num_computed_tokens: int = 0
    scheduled_tokens: int = 0
    output_token_ids: list[int] = []
    text: str = ""
    blocks: list[int] = []
    hit_tokens: int = 0
    resumed_hit_tokens: int = 0
    lost_tokens: int = 0
    num_preemptions: int = 0
    num_chunks: int = 0
    chunked: bool = False
    first_scheduled_ns: int = -1
    first_token_ns: int = -1
    last_token_ns: int = -1
    finished_ns: int = -1
    finished_step: int = -1
    finish_reason: str = ""
    stop: str | int | None = None  # the stop string or stop token that ended it
    logprobs: list[float] = []  # of the output tokens, if the request asked for them
    latest_logprobs: Logprobs | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_prefill(self) -> bool:
        """True while a prompt is computed, or recomputed: while more than its newest output token is missing."""
        return self.num_computed_tokens < max(self.num_prompt_tokens, self.num_tokens - 1)

    @property
    def ttft_ns(self) -> int:
        """Arrival to first token, or -1."""
        return self.first_token_ns - self.arrival_ns if self.first_token_ns >= 0 else -1


class Counters(msgspec.Struct, array_like=True):
    """Totals since the run began."""

    steps: int = 0
    arrived: int = 0
    refused: int = 0
    finished: int = 0
    aborted: int = 0
    output_tokens: int = 0
    scheduled_tokens: int = 0
    hit_tokens: int = 0  # served by the prefix cache, first-timers and returners
    queried_tokens: int = 0  # prompt tokens that could have been served, of first-timers and returners
    preemptions: int = 0
    lost_tokens: int = 0
    evictions: int = 0  # blocks
    chunked_prefills: int = 0  # admissions whose prefill took more than one step
    knob_changes: int = 0


# Looking a member up costs microseconds in Python 3.11, and it is done for every event.
_ALLOCATED, _HIT, _FREED = int(Touch.ALLOCATED), int(Touch.HIT), int(Touch.FREED)
_CACHED, _EVICTED, _PREEMPTED = int(Touch.CACHED), int(Touch.EVICTED), int(Touch.PREEMPTED)


def is_prefill_share(scheduled: Scheduled, num_prompt_tokens: int) -> bool:
    """Whether this share of a step computes a prompt, or recomputes after a preemption, rather than decodes."""
    return bool(scheduled.num_tokens > 1 or scheduled.admission or not scheduled.samples
                or scheduled.num_computed_tokens < num_prompt_tokens)


class Snapshot(msgspec.Struct, array_like=True):
    """A frozen :class:`EngineState`. Arrays are little-endian bytes."""

    step: int
    time_ns: int
    knobs: dict[str, int | float | bool | str]
    requests: list[RequestView]
    running: list[str]
    waiting: list[str]
    finished: list[str]
    counters: Counters
    next_order: int
    next_colour: int
    num_blocks: int
    block_size: int
    ref_count: bytes
    block_hash: bytes
    fill: bytes
    free_rank: bytes
    touch: bytes
    touch_step: bytes
    holders: dict[int, list[str]]
    stopped_by: str
    stopped_at: str


class EngineState:
    """The engine after one step.

    Per-block arrays have length ``num_blocks``, block 0 (the null block) included:

    ``ref_count`` int32, ``block_hash`` uint64 (0: not cached), ``fill`` int32 (tokens in it), ``owner_colour`` int8
    (colour of its first holder, -1 when free), ``free_rank`` int64 (order in the free queue, smallest is next; only
    meaningful where ``ref_count`` is 0), ``touch`` uint8 (:class:`Touch`) and ``touch_step`` int64.
    ``holders`` maps each block in use to the requests that hold it, first holder first.
    """

    def __init__(self, info: RunInfo) -> None:
        self.info = info
        self.step = -1
        self.time_ns = 0
        self.knobs = dict(info.knobs)
        self.requests: dict[str, RequestView] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.finished: list[str] = []
        self.counters = Counters()
        self.stopped_by = ""
        self.stopped_at = ""
        self._next_order = 0
        self._next_colour = 0
        self._worn = [0] * NUM_COLOURS  # how many unfinished requests wear each colour
        self._evicted: set[int] = set()  # just now: the allocation that they made room for follows
        self._rebuild(int(self.knobs["num_blocks"]), int(self.knobs["block_size"]))

    # ---- reading -------------------------------------------------------------------------------------------------

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

    def active(self) -> list[RequestView]:
        """Running, then waiting requests, each in queue order."""
        return [self.requests[r] for r in self.running] + [self.requests[r] for r in self.waiting]

    # ---- applying ------------------------------------------------------------------------------------------------

    def apply(self, events: StepEvents) -> None:
        """Move from the state after step ``events.step - 1`` to the state after ``events.step``.

        Events that contradict the state (which only damaged ones do) raise one of :data:`CONTRADICTIONS` and leave
        it in between.
        """
        for request_id in reversed(self.finished):  # those that had their last share in the step before
            request = self.requests[request_id]
            if request.finished_step < self.step:
                break
            request.scheduled_tokens = 0
        self.step = events.step
        self.time_ns = events.end_ns
        self.stopped_by = events.stopped_by
        self.stopped_at = events.stopped_at
        for request_id in self.running:
            self.requests[request_id].scheduled_tokens = 0
        for change in events.knobs:
            self.knobs[change.name] = change.new
            self.counters.knob_changes += 1
            if change.name == "policy":
                self._sort_waiting()
        for arrived in events.arrived:
            self._arrive(arrived)
        self.counters.refused += len(events.refused)

        # Requests that finish give their blocks up last; until then the step's own figures refer to those blocks.
        preempted = {p.request_id for p in events.preempted}
        before_end = len(events.pool) - self._count_last_releases(events)
        for event in events.pool[:before_end]:
            self._apply_pool(event, preempted)

        for finish in events.aborted:
            self._finish(finish, events)
        for victim in events.preempted:
            self._preempt(victim.request_id, victim.lost_tokens)
        self._schedule(events)
        requests, end_ns = self.requests, events.end_ns
        for sampled in events.sampled:
            request = requests[sampled.request_id]
            request.output_token_ids.append(sampled.token_id)
            if sampled.text:
                request.text += sampled.text
            if sampled.logprobs is not None:
                request.logprobs.append(sampled.logprobs.sampled.logprob)
                request.latest_logprobs = sampled.logprobs
            request.last_token_ns = end_ns
            if request.first_token_ns < 0:
                request.first_token_ns = end_ns
        self.counters.output_tokens += len(events.sampled)
        for event in events.pool[before_end:]:
            self._apply_pool(event, preempted)
        for finish in events.finished:
            self._finish(finish, events)
        self.counters.steps += 1

    def _arrive(self, arrived: Arrived) -> None:
        if arrived.request_id in self.requests:
            raise ValueError(f"there is a request {arrived.request_id} already")
        request = RequestView(
            request_id=arrived.request_id, order=self._next_order, colour=self._pick_colour(),
            arrival_ns=arrived.arrival_ns, arrival_step=self.step, prompt_token_ids=arrived.prompt_token_ids,
            prompt_text=arrived.prompt_text, max_tokens=arrived.max_tokens, temperature=arrived.temperature,
            priority=arrived.priority, source=arrived.source)
        self._next_order += 1
        self.requests[arrived.request_id] = request
        self.counters.arrived += 1
        self._enqueue(request, at_head=False)

    def _pick_colour(self) -> int:
        """The colour that the fewest unfinished requests wear; among equals the one after the last given."""
        colour = min(range(NUM_COLOURS), key=lambda c: (self._worn[c], (c - self._next_colour) % NUM_COLOURS))
        self._worn[colour] += 1
        self._next_colour = (colour + 1) % NUM_COLOURS
        return colour

    def _enqueue(self, request: RequestView, *, at_head: bool) -> None:
        if self.knobs.get("policy") == "priority":
            insort(self.waiting, request.request_id, key=self._priority_key)
        elif at_head:
            self.waiting.insert(0, request.request_id)
        else:
            self.waiting.append(request.request_id)

    def _priority_key(self, request_id: str) -> tuple[int, int]:
        request = self.requests[request_id]
        return request.priority, request.order

    def _sort_waiting(self) -> None:
        if self.knobs.get("policy") == "priority":
            self.waiting.sort(key=self._priority_key)
        else:
            self.waiting.sort(key=lambda request_id: self.requests[request_id].order)

    def _preempt(self, request_id: str, lost_tokens: int) -> None:
        request = self.requests[request_id]
        self.running.remove(request_id)
        request.status = "preempted"
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.lost_tokens += lost_tokens
        request.chunked = False
        self._enqueue(request, at_head=True)
        self.counters.preemptions += 1
        self.counters.lost_tokens += lost_tokens

    def _schedule(self, events: StepEvents) -> None:
        requests, size = self.requests, self.block_size
        total = 0
        written: list[int] = []  # blocks that get tokens, and how many they hold then
        fills: list[int] = []
        for share in events.scheduled:
            request = requests[share.request_id]
            num_tokens, start = share.num_tokens, share.num_computed_tokens
            if share.admission:
                self._admit(request, share, events.start_ns)
            if not share.samples and not request.chunked:
                request.chunked = True
                self.counters.chunked_prefills += 1
            if is_prefill_share(share, len(request.prompt_token_ids)):
                request.num_chunks += 1
            end = start + num_tokens
            request.num_computed_tokens = end
            request.scheduled_tokens = num_tokens
            total += num_tokens
            last = (end - 1) // size
            for index in range(start // size, last):
                written.append(request.blocks[index])
                fills.append(size)
            written.append(request.blocks[last])
            fills.append(end - last * size)
        self.counters.scheduled_tokens += total
        if written:
            self.fill[written] = fills

    def _admit(self, request: RequestView, share: Scheduled, start_ns: int) -> None:
        self.waiting.remove(share.request_id)
        self.running.append(share.request_id)
        request.status = "running"
        self.counters.hit_tokens += share.hit_tokens
        if self.knobs.get("enable_prefix_caching", True):
            self.counters.queried_tokens += request.num_tokens
        if share.admission == "first":
            request.hit_tokens = share.hit_tokens
            request.first_scheduled_ns = start_ns
        else:
            request.resumed_hit_tokens += share.hit_tokens

    def _finish(self, finish: Finished, events: StepEvents) -> None:
        request = self.requests[finish.request_id]
        (self.running if request.status == "running" else self.waiting).remove(finish.request_id)
        request.status = "finished"
        request.text += finish.text
        request.finish_reason = finish.reason
        request.stop = finish.stop
        request.finished_ns = events.end_ns
        request.finished_step = events.step
        self.finished.append(finish.request_id)
        self._worn[request.colour] -= 1
        if finish.reason == "abort":
            self.counters.aborted += 1
        else:
            self.counters.finished += 1
        if len(self.finished) > FINISHED_KEPT:
            del self.requests[self.finished.pop(0)]

    # ---- the pool ------------------------------------------------------------------------------------------------

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

    @staticmethod
    def _count_last_releases(events: StepEvents) -> int:
        """How many pool events, at the end, are the finished requests giving back blocks that the step still used.

        Counted from the end: a request may also have been preempted, resumed and finished in this very step.
        """
        finished = {f.request_id for f in events.finished}
        count = 0
        for event in reversed(events.pool):
            if count == len(finished) or not isinstance(event, Freed) or event.request_id not in finished:
                break
            count += 1
        return count

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

    # ---- snapshots -----------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Freeze. The free queue's ranks are renumbered, so that equal queues give equal snapshots."""
        rank = np.zeros(self.num_blocks, np.int64)
        rank[self.free_queue()] = np.arange(1, self.num_free_blocks + 1)
        return Snapshot(
            step=self.step, time_ns=self.time_ns, knobs=dict(self.knobs),
            requests=[_copy_of(r, self.step) for r in self.requests.values()],
            running=list(self.running), waiting=list(self.waiting), finished=list(self.finished),
            counters=msgspec.structs.replace(self.counters), next_order=self._next_order,
            next_colour=self._next_colour, num_blocks=self.num_blocks, block_size=self.block_size,
            ref_count=_to_bytes(self.ref_count), block_hash=_to_bytes(self.block_hash), fill=_to_bytes(self.fill),
            free_rank=_to_bytes(rank), touch=_to_bytes(self.touch), touch_step=_to_bytes(self.touch_step),
            holders={b: list(h) for b, h in sorted(self.holders.items())},
            stopped_by=self.stopped_by, stopped_at=self.stopped_at)

    @classmethod
    def from_snapshot(cls, info: RunInfo, snapshot: Snapshot, *, copy: bool = True) -> EngineState:
        """Thaw. The snapshot is copied, so it can be thawed again, unless it is the caller's to give away.

        Raises ValueError if it contradicts itself.
        """
        state = cls.__new__(cls)
        state.info = info
        state.step, state.time_ns, state.knobs = snapshot.step, snapshot.time_ns, dict(snapshot.knobs)
        state.requests = {r.request_id: _copy_of(r, snapshot.step) if copy else r for r in snapshot.requests}
        state.running, state.waiting = list(snapshot.running), list(snapshot.waiting)
        state.finished = list(snapshot.finished)
        state.counters = msgspec.structs.replace(snapshot.counters)
        state.stopped_by, state.stopped_at = snapshot.stopped_by, snapshot.stopped_at
        state._next_order, state._next_colour = snapshot.next_order, snapshot.next_colour
        state._rebuild(snapshot.num_blocks, snapshot.block_size)
        for name in ("ref_count", "block_hash", "fill", "free_rank", "touch", "touch_step"):
            array, data = getattr(state, name), getattr(snapshot, name)
            if len(data) != array.nbytes:
                raise ValueError(f"snapshot of step {snapshot.step}: {name} does not fit {snapshot.num_blocks} blocks")
            array[:] = np.frombuffer(data, array.dtype.newbyteorder("<"))
        state.holders = {b: list(h) for b, h in snapshot.holders.items()} if copy else snapshot.holders
        try:
            for block, holders in state.holders.items():
                state.owner_colour[block] = state.requests[holders[0]].colour
            state._evicted = set()
            state._worn = [0] * NUM_COLOURS
            for request in state.active():
                state._worn[request.colour] += 1
        except (KeyError, IndexError) as error:
            raise ValueError(f"snapshot of step {snapshot.step} contradicts itself: {error!r}") from None
        state._last_rank = snapshot.num_blocks + 1
        return state

    def copy(self) -> EngineState:
        return self.from_snapshot(self.info, self.snapshot())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineState) and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]


def _place(blocks: list[int]) -> list[int] | int:
    """What to index an array with: one block, as most events have, several times faster than a list of one."""
    return blocks[0] if len(blocks) == 1 else blocks


def _copy_of(request: RequestView, step: int) -> RequestView:
    """A copy whose lists can grow on their own. What ended before ``step`` never changes again: that is shared."""
    if -1 < request.finished_step < step:
        return request
    return msgspec.structs.replace(request, output_token_ids=list(request.output_token_ids),
                                   blocks=list(request.blocks), logprobs=list(request.logprobs))


def _to_bytes(array: np.ndarray) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes | memoryview) -> Snapshot:
    """Raises :class:`msgspec.DecodeError` (a ValueError) when the bytes are not a snapshot."""
    return _decoder.decode(data)
