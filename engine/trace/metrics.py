"""Figures of a run, step by step: token budget, pool, queues, latency, and the marks for the scrubber.

Everything is computed when a step is appended and kept in growing arrays, so that a chart only slices. A step costs
about 120 bytes plus 4 for each request in it plus 4 for each token, and some tens of microseconds.

Percentiles are nearest-rank: each is a latency that really was measured. Latencies are run-clock time, so they hold
no pause. TTFT runs from arrival to the first token; ITL from one token of a request to its next, preemptions included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.trace.columns import PagedColumn, Table
from engine.trace.events import Evicted, StepEvents
from engine.trace.marks import MARK_KINDS as MARK_KINDS
from engine.trace.marks import Mark as Mark
from engine.trace.marks import MarkList as MarkList
from engine.trace.state import EngineState, is_prefill_share

ITL_WINDOW = 64
"""Steps over which the rolling ITL percentiles and the rolling throughput are taken."""

TTFT_WINDOW = 256
"""Steps over which the rolling TTFT percentile is taken: first tokens are rarer than tokens."""

class LatencySummary(NamedTuple):
    """Milliseconds and rates over a window of steps; NaN where nothing was measured."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    output_tokens_per_s: float
    steps_per_s: float


class LatencyCurves(NamedTuple):
    """Rolling values, one a step (float32, NaN where none): views, free to take at every frame."""

    step: np.ndarray
    ttft_p50_ms: np.ndarray
    itl_p50_ms: np.ndarray
    itl_p99_ms: np.ndarray
    tokens_per_s: np.ndarray


def nearest_rank(values: np.ndarray, *percentages: int) -> list[float]:
    """Percentiles of ``values``, each one of the values; NaN for an empty array."""
    count = len(values)
    if not count:
        return [float("nan")] * len(percentages)
    ranks = [max(0, -(-count * p // 100) - 1) for p in percentages]
    ordered = np.partition(values, ranks)
    return [float(ordered[r]) for r in ranks]


class _PerStep:
    """A column of :class:`StepSeries`: reading it gives a view of length ``n``."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, series: StepSeries | None, owner: type | None = None) -> np.ndarray:
        assert series is not None
        return series._steps.view(self.name)


class _Known(msgspec.Struct, gc=False):
    """What the series has to remember of a request that is not finished."""

    colour: int
    num_prompt_tokens: int
    arrival_ns: int
    last_token_ns: int  # -1 before the first token


class BlockDetail(NamedTuple):
    """What is looked at only for the steps in sight: shares (packed), latencies between tokens, and marks' labels."""

    segments: np.ndarray
    itl_ns: np.ndarray
    labels: list[str]


class SeriesBlock(NamedTuple):
    """Some consecutive rows of a :class:`StepSeries`, as they stand in a recording's index.

    ``columns`` are those of the steps; ``_segment_end`` and ``_itl_end`` count from the beginning of the block.
    """

    columns: dict[str, np.ndarray]
    ttft_step: np.ndarray
    ttft_ns: np.ndarray
    mark_step: np.ndarray
    mark_kind: np.ndarray
    detail: BlockDetail


class StepSeries:
    """Growing columns, one row for each step. Not for several threads at once.

    Per-step arrays (views of length ``n``, valid until the next append): ``step`` int32, ``start_ns`` and ``end_ns``
    int64; int32: ``decode_tokens`` and ``prefill_tokens`` scheduled in the step, ``budget`` (max_num_batched_tokens),
    ``running`` and ``waiting`` requests after it, ``used_blocks`` after it of ``usable_blocks`` (without the null
    block), and what happened in it: ``hit_tokens``, ``preemptions``, ``evictions`` (blocks), ``finished`` requests
    (aborted ones not counted) and ``output_tokens``. float32: the rolling curves (see :class:`LatencyCurves`).

    ``ttft_step``/``ttft_ns`` and ``itl_step``/``itl_ns`` hold one entry a measured latency, in step order; nanoseconds
    are float32 there (7 digits). ``marks`` is a :class:`MarkList`.
    """

    step = _PerStep(np.int32)
    start_ns = _PerStep(np.int64)
    end_ns = _PerStep(np.int64)
    decode_tokens = _PerStep(np.int32)
    prefill_tokens = _PerStep(np.int32)
    budget = _PerStep(np.int32)
    running = _PerStep(np.int32)
    waiting = _PerStep(np.int32)
    used_blocks = _PerStep(np.int32)
    usable_blocks = _PerStep(np.int32)
    hit_tokens = _PerStep(np.int32)
    preemptions = _PerStep(np.int32)
    evictions = _PerStep(np.int32)
    finished = _PerStep(np.int32)
    output_tokens = _PerStep(np.int32)
    ttft_p50_ms = _PerStep(np.float32)
    itl_p50_ms = _PerStep(np.float32)
    itl_p99_ms = _PerStep(np.float32)
    tokens_per_s = _PerStep(np.float32)
    _segment_end = _PerStep(np.int64)
    _itl_end = _PerStep(np.int64)

    def __init__(self, capacity: int = 256) -> None:
        self._steps = Table(capacity, **self.column_types())
        self._segments = PagedColumn(np.uint32)  # tokens << 8 | prefill << 7 | colour
        self._ttft = Table(step=np.int32, ns=np.float32)
        self._itl = PagedColumn(np.float32)
        self._known: dict[str, _Known] = {}
        self._itl_steps = np.empty(0, np.int32)
        self._window_tokens = 0
        self._itl_window = (-1, -1)
        self._itl_rolled = [float("nan"), float("nan")]
        self._ttft_first = 0
        self._ttft_rolled = float("nan")
        self.marks = MarkList()

    @classmethod
    def column_types(cls) -> dict[str, type]:
        """Names and types of the columns of a step, those for its own use included."""
        return {name: column.dtype for name, column in vars(cls).items() if isinstance(column, _PerStep)}

    @property
    def n(self) -> int:
        return len(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    # ---- feeding -------------------------------------------------------------------------------------------------

    def prime(self, state: EngineState) -> None:
        """Tell an empty series of the requests that were there before its first step."""
        for request in state.active():
            self._known[request.request_id] = _Known(request.colour, request.num_prompt_tokens, request.arrival_ns,
                                                     request.last_token_ns)

    def append(self, events: StepEvents, state: EngineState) -> None:
        """Take in the step ``events``; ``state`` is the engine after it."""
        known = self._known
        for arrived in events.arrived:
            request = state.requests.get(arrived.request_id)
            known[arrived.request_id] = _Known(request.colour if request is not None else 0,
                                               len(arrived.prompt_token_ids), arrived.arrival_ns, -1)
        packed: list[int] = []
        prefill = decode = hits = 0
        for share in events.scheduled:
            request_known = known[share.request_id]
            word = share.num_tokens << 8 | request_known.colour
            if is_prefill_share(share, request_known.num_prompt_tokens):
                word |= 0x80
                prefill += share.num_tokens
            else:
                decode += share.num_tokens
            hits += share.hit_tokens
            packed.append(word)
        if packed:
            self._segments.extend(packed)
        first_token = self._take_latencies(events)
        evicted = self._take_marks(events)
        for gone in (*events.finished, *events.aborted):
            known.pop(gone.request_id, None)

        at = self._steps.reserve()
        columns = self._steps.columns
        columns["step"][at] = events.step
        columns["start_ns"][at] = events.start_ns
        columns["end_ns"][at] = events.end_ns
        columns["decode_tokens"][at] = decode
        columns["prefill_tokens"][at] = prefill
        columns["budget"][at] = state.knobs.get("max_num_batched_tokens", 0)
        columns["running"][at] = len(state.running)
        columns["waiting"][at] = len(state.waiting)
        columns["used_blocks"][at] = state.num_used_blocks
        columns["usable_blocks"][at] = state.num_blocks - 1
        columns["hit_tokens"][at] = hits
        columns["preemptions"][at] = len(events.preempted)
        columns["evictions"][at] = evicted
        columns["finished"][at] = len(events.finished)
        columns["output_tokens"][at] = len(events.sampled)
        columns["_segment_end"][at] = self._segments.end
        columns["_itl_end"][at] = self._itl.end
        self._roll(at, first_token)

    def _take_latencies(self, events: StepEvents) -> bool:
        """Measure the tokens of the step; returns whether a first token was among them."""
        between: list[int] = []
        first: list[int] = []
        for sampled in events.sampled:
            request = self._known[sampled.request_id]
            if request.last_token_ns < 0:
                first.append(events.end_ns - request.arrival_ns)
            else:
                between.append(events.end_ns - request.last_token_ns)
            request.last_token_ns = events.end_ns
        if between:
            self._itl.extend(between)
        if first:
            at = self._ttft.reserve(len(first))
            self._ttft.columns["ns"][at:at + len(first)] = first
            self._ttft.columns["step"][at:at + len(first)] = events.step
        return bool(first)

    def _take_marks(self, events: StepEvents) -> int:
        """Mark what is worth it; returns how many blocks were evicted."""
        step, add = events.step, self.marks.add
        for change in events.knobs:
            add(step, "knob", f"{change.name} {_knob_text(change.old)} → {_knob_text(change.new)}")
        for refused in events.refused:
            add(step, "refused", refused.request_id)
        for victim in events.preempted:
            add(step, "preemption", victim.request_id)
        for share in events.scheduled:
            if share.hit_tokens:
                add(step, "hit", share.request_id)
            if not share.samples:
                add(step, "chunk", share.request_id)
        evicted = 0
        for event in events.pool:
            if isinstance(event, Evicted):
                evicted += len(event.blocks)
        if evicted:
            add(step, "eviction", str(evicted))
        for gone in (*events.aborted, *events.finished):
            add(step, "finish", gone.request_id)
        return evicted

    def _roll(self, at: int, first_token: bool) -> None:
        """Fill the rolling columns of the newest row, which is at ``at`` in the columns."""
        columns, low = self._steps.columns, self._steps.low
        start = at - ITL_WINDOW  # the last row before the window
        first = int(columns["_itl_end"][start]) if start >= low else self._itl.first
        window = (first, int(columns["_itl_end"][at]))
        if window != self._itl_window:  # otherwise the values are those of the step before
            self._itl_window = window
            self._itl_rolled = nearest_rank(self._itl.between(*window), 50, 99)
        columns["itl_p50_ms"][at] = self._itl_rolled[0] / 1e6
        columns["itl_p99_ms"][at] = self._itl_rolled[1] / 1e6

        oldest = int(columns["step"][at]) - TTFT_WINDOW
        ttft = self._ttft
        shift = ttft.low - ttft.dropped  # from the count since the run began to the place in the columns
        first = max(self._ttft_first, ttft.dropped)
        while first + shift < ttft.high and ttft.columns["step"][first + shift] <= oldest:
            first += 1
        if first_token or first != self._ttft_first:
            self._ttft_first = first
            self._ttft_rolled = nearest_rank(ttft.columns["ns"][first + shift:ttft.high], 50)[0]
        columns["ttft_p50_ms"][at] = self._ttft_rolled / 1e6

        self._window_tokens += int(columns["output_tokens"][at])
        if start >= low:
            self._window_tokens -= int(columns["output_tokens"][start])
        began = int(columns["end_ns"][start] if start >= low else columns["start_ns"][low])
        elapsed = int(columns["end_ns"][at]) - began
        columns["tokens_per_s"][at] = self._window_tokens / elapsed * 1e9 if elapsed > 0 else np.nan

    def forget_before(self, step: int) -> None:
        """Drop the rows of steps before ``step``, so that a run of days stays in bounds."""
        count = max(0, min(self.n, int(np.searchsorted(self.step, step))))
        if not count:
            return
        last = self._steps.low + count - 1
        self._segments.forget_before(int(self._steps.columns["_segment_end"][last]))
        self._itl.forget_before(int(self._steps.columns["_itl_end"][last]))
        self._ttft.drop(int(np.searchsorted(self._ttft.view("step"), step)))
        self._steps.drop(count)
        self._itl_steps = np.empty(0, np.int32)
        self._window_tokens = int(self.output_tokens[-ITL_WINDOW:].sum())
        self.marks.drop_before(step)

    # ---- blocks: the older part, put away --------------------------------------------------------------------------

    def cut_block(self, first: int, end: int) -> SeriesBlock:
        """A copy of rows ``first`` to ``end - 1``; nothing of them may have been put away yet."""
        steps = self.step
        low, high = int(steps[first]), int(steps[end - 1]) + 1
        ttft = slice(*np.searchsorted(self.ttft_step, (low, high)).tolist())
        marks = slice(*np.searchsorted(self.marks.steps, (low, high)).tolist())
        itl_start = int(self._itl_end[first - 1]) if first else self._itl.first
        columns = {name: self._steps.view(name)[first:end].copy() for name in self._steps.columns}
        columns["_segment_end"] -= int(self._segment_end[first - 1]) if first else self._segments.first
        columns["_itl_end"] -= itl_start
        return SeriesBlock(
            columns, self.ttft_step[ttft].copy(), self.ttft_ns[ttft].copy(), self.marks.steps[marks].copy(),
            self.marks.kinds[marks].copy(),
            BlockDetail(self._packed(first, end).copy(), self._itl_between(first, end).copy(),
                        [mark.label for mark in self.marks[marks]]))

    def put_away_before(self, step: int, load: Callable[[], BlockDetail]) -> None:
        """Details of steps before ``step`` that are in memory can be had from ``load`` from now on."""
        last = int(np.searchsorted(self.step, step)) - 1
        self._segments.put_away(int(self._segment_end[last]), lambda: load().segments)
        self._itl.put_away(int(self._itl_end[last]), lambda: load().itl_ns)
        marks = int(np.searchsorted(self.marks.steps, step))
        self.marks.put_away(self.marks.num_dropped + marks, lambda: load().labels)

    def extend_put_away(self, block: SeriesBlock, load: Callable[[], BlockDetail]) -> None:
        """Take in a block of steps of which the details can be had from ``load``; before the first :meth:`append`."""
        count = len(block.columns["step"])
        at = self._steps.reserve(count)
        for name, values in block.columns.items():
            column = self._steps.columns[name][at:at + count]
            column[:] = values
            if name == "_segment_end":
                column += self._segments.end
            elif name == "_itl_end":
                column += self._itl.end
        self._segments.add_put_away(int(self._segment_end[-1]), lambda: load().segments)
        self._itl.add_put_away(int(self._itl_end[-1]), lambda: load().itl_ns)
        at = self._ttft.reserve(len(block.ttft_step))
        self._ttft.columns["step"][at:at + len(block.ttft_step)] = block.ttft_step
        self._ttft.columns["ns"][at:at + len(block.ttft_ns)] = block.ttft_ns
        self.marks.add_put_away(block.mark_step, block.mark_kind, lambda: load().labels)

    def resume(self) -> None:
        """After the last :meth:`extend_put_away`: make what the rolling figures of the next steps build on."""
        self._window_tokens = int(self.output_tokens[-ITL_WINDOW:].sum())
        if self.n:
            self._ttft_first = int(np.searchsorted(self.ttft_step, int(self.step[-1]) - TTFT_WINDOW, "right"))
            self._ttft_rolled = nearest_rank(self.ttft_ns[self._ttft_first:], 50)[0]

    # ---- reading -------------------------------------------------------------------------------------------------

    def index_of(self, step: int) -> int:
        """The row of ``step``; of the last step before it if it has none; -1 before the first."""
        steps = self.step
        if not len(steps):
            return -1
        guess = step - int(steps[0])  # steps follow one another without a gap, as a rule
        if 0 <= guess < len(steps) and steps[guess] == step:
            return guess
        return int(np.searchsorted(steps, step, "right")) - 1

    def segments(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The shares of row ``index`` in scheduling order: colours uint8[k], tokens int32[k], is_prefill bool[k]."""
        packed = self._packed(index, index + 1)
        return (packed & 0x7F).astype(np.uint8), (packed >> 8).astype(np.int32), (packed & 0x80) != 0

    def segments_between(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The shares of rows ``first`` to ``end - 1`` at once, for drawing many bars in one go.

        Returns offsets int64[rows + 1] into the other three, and colours, tokens and is_prefill as :meth:`segments`.
        """
        first, end = max(0, first), min(self.n, end)
        if end <= first:
            return np.zeros(1, np.int64), np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, bool)
        packed = self._packed(first, end)
        ends = self._segment_end[first:end]
        offsets = np.empty(len(ends) + 1, np.int64)
        offsets[0] = 0
        offsets[1:] = ends - (int(ends[-1]) - len(packed))
        return offsets, (packed & 0x7F).astype(np.uint8), (packed >> 8).astype(np.int32), (packed & 0x80) != 0

    def _packed(self, first: int, end: int) -> np.ndarray:
        if not 0 <= first < end <= self.n:
            raise IndexError(f"rows {first} to {end} of {self.n}")
        ends = self._segment_end
        start = int(ends[first - 1]) if first else self._segments.first
        return self._segments.between(start, int(ends[end - 1]))

    @property
    def ttft_step(self) -> np.ndarray:
        return self._ttft.view("step")

    @property
    def ttft_ns(self) -> np.ndarray:
        return self._ttft.view("ns")

    @property
    def itl_ns(self) -> np.ndarray:
        return self._itl.between(self._itl.first, self._itl.end)

    @property
    def itl_step(self) -> np.ndarray:
        """The step of each entry of ``itl_ns``. Made on demand (they would double the memory); kept until it grows."""
        if len(self._itl_steps) != self._itl.end - self._itl.first:
            counts = np.diff(self._itl_end, prepend=self._itl.first)
            self._itl_steps = np.repeat(self.step, counts)
        return self._itl_steps

    def _itl_between(self, first: int, end: int) -> np.ndarray:
        """ITLs measured in rows ``first`` to ``end - 1``."""
        ends = self._itl_end
        start = int(ends[first - 1]) if first else self._itl.first
        return self._itl.between(start, int(ends[end - 1]))

    def latency(self, until_step: int, window: int) -> LatencySummary:
        """Latencies and rates over the ``window`` steps that end with ``until_step``."""
        end = self.index_of(until_step) + 1
        first = max(0, end - window)
        nan = float("nan")
        if end <= first:
            return LatencySummary(nan, nan, nan, nan, nan, nan)
        steps = self.step
        low, high = np.searchsorted(self.ttft_step, (steps[first], steps[end - 1] + 1))
        ttft = nearest_rank(self.ttft_ns[low:high], 50, 99)
        itl = nearest_rank(self._itl_between(first, end), 50, 99)
        ends = self.end_ns
        elapsed = int(ends[end - 1]) - int(ends[first - 1] if first else self.start_ns[0])
        rate = 1e9 / elapsed if elapsed > 0 else nan
        return LatencySummary(ttft[0] / 1e6, ttft[1] / 1e6, itl[0] / 1e6, itl[1] / 1e6,
                              int(self.output_tokens[first:end].sum()) * rate, (end - first) * rate)

    def latency_curves(self, until_step: int | None = None) -> LatencyCurves:
        """The rolling curves up to ``until_step``, or all of them."""
        end = self.n if until_step is None else self.index_of(until_step) + 1
        return LatencyCurves(self.step[:end], self.ttft_p50_ms[:end], self.itl_p50_ms[:end], self.itl_p99_ms[:end],
                             self.tokens_per_s[:end])


def _knob_text(value: int | float | bool | str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
