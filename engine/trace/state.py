"""What the engine looks like after a step, computed from its events and from nothing else.

:meth:`EngineState.apply` is the only thing in the program that turns events into a picture: the live view, replay,
comparison, export and the tests all go through it. A state can be frozen into a :class:`Snapshot` and thawed again;
two states are equal when their snapshots are.
"""

from __future__ import annotations

from bisect import insort

import msgspec
import numpy as np

from engine.trace.events import (
    Arrived,
    Finished,
    Freed,
    Logprobs,
    RunInfo,
    Scheduled,
    StepEvents,
)
from engine.trace.pool_state import PoolState

NUM_COLOURS = 12
FINISHED_KEPT = 64
"""How many finished requests a state remembers in full; the counters remember all of them."""


CONTRADICTIONS = (KeyError, ValueError, IndexError, TypeError, OverflowError)
"""What :meth:`EngineState.apply` may raise on events that cannot have happened."""


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


class EngineState(PoolState):
    """The engine after one step: its requests, its queues and its knobs, and the pool."""

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
        self._evicted = set()
        self._rebuild(int(self.knobs["num_blocks"]), int(self.knobs["block_size"]))

    # ---- reading -------------------------------------------------------------------------------------------------

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
