"""The life of every request as spans of time: waiting, prefill chunk by chunk, decode, preempted.

Memory is bounded: beyond :data:`MAX_ROWS` requests the oldest finished ones are forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

import msgspec

from engine.trace.events import StepEvents
from engine.trace.state import EngineState, is_prefill_share

MAX_ROWS = 20_000
"""Rows kept. A row costs about 1 kB."""


class Span(msgspec.Struct, array_like=True, gc=False):
    """A stretch of a request's life, in run-clock nanoseconds and in steps (inclusive).

    ``kind`` is "waiting", "prefill" (one span for each chunk), "decode" (one for consecutive steps) or "preempted".
    A span that is not over yet ends, for now, at the end of the newest step.
    """

    kind: str
    start_ns: int
    end_ns: int
    first_step: int
    last_step: int


class TimelineRow(msgspec.Struct, array_like=True):
    """One request. ``finished_ns`` is -1 while it lives; ``spans`` ascend and do not overlap."""

    request_id: str
    colour: int
    arrival_ns: int
    num_prompt_tokens: int = 0
    finished_ns: int = -1
    spans: list[Span] = []


WINDOW_BLOCKS = 12
"""Blocks whose rows are in memory when older steps are looked at."""


class Timeline:
    """All rows in order of arrival. Not for several threads at once.

    ``rows`` is the list; ``end_ns`` is the end of the newest step. The rows of older steps may be on the disk, in
    blocks: then ``rows`` are those around the step that was looked at last (see :meth:`look_at`). ``forgotten`` is
    another number whenever rows are not any more what they were: then they must be read anew from the beginning.
    """

    def __init__(self, max_rows: int = MAX_ROWS, *, collect: bool = False) -> None:
        self.end_ns = 0
        self.max_rows = max_rows
        self._newest: list[TimelineRow] = []
        self._forgotten = 0
        self._by_id: dict[str, TimelineRow] = {}
        self._open: dict[str, Span] = {}  # waiting and preempted spans, which grow without being scheduled
        self._last_busy_step = -1  # the last step in which anything was scheduled
        self._finished: list[TimelineRow] | None = [] if collect else None
        self._forgotten_until = -1  # up to this step the newest rows do not tell everything
        self._block_lasts: list[int] = []
        self._block_loads: list[Callable[[], tuple[list[TimelineRow], list[TimelineRow]]]] = []
        self._window = -1  # the first block of those whose rows are shown; -1: the newest rows
        self._window_rows: list[TimelineRow] | None = None

    @property
    def rows(self) -> list[TimelineRow]:
        if self._window < 0:
            return self._newest
        if self._window_rows is None:
            self._window_rows = self._load_window(self._window)
        return self._window_rows

    @property
    def forgotten(self) -> int:
        return self._forgotten if self._window < 0 else -1 - self._window

    # ---- blocks: the older part, put away --------------------------------------------------------------------------

    def add_block(self, last_step: int, load: Callable[[], tuple[list[TimelineRow], list[TimelineRow]]]) -> None:
        """Steps up to ``last_step`` can be had from ``load``: rows that ended in the block, and rows still open."""
        self._block_lasts.append(last_step)
        self._block_loads.append(load)

    def resume(self, open_rows: list[TimelineRow], state: EngineState, last_busy_step: int) -> None:
        """Go on after the last block, at ``state``; ``open_rows`` are the rows that are open there."""
        for row in open_rows:
            self._newest.append(row)
            self._by_id[row.request_id] = row
            request = state.requests.get(row.request_id)
            if request is not None and request.status in ("waiting", "preempted") and row.spans:
                self._open[row.request_id] = row.spans[-1]
        self.end_ns = state.time_ns
        self._last_busy_step = last_busy_step
        self._forgotten_until = state.step

    def look_at(self, step: int) -> None:
        """Have the rows around ``step`` in ``rows``."""
        if step > self._forgotten_until or not self._block_lasts:
            self._window, self._window_rows = -1, None
            return
        block = bisect_left(self._block_lasts, step)
        window = max(0, block // 4 * 4 - 4)
        if window != self._window:
            self._window, self._window_rows = window, None

    def _load_window(self, first: int) -> list[TimelineRow]:
        rows: dict[str, TimelineRow] = {}
        still_open: list[TimelineRow] = []
        end = min(first + WINDOW_BLOCKS, len(self._block_lasts))
        for load in self._block_loads[first:end]:
            finished, still_open = load()
            rows |= {row.request_id: row for row in finished}
        if end == len(self._block_lasts):
            still_open = self._newest
        for row in still_open:
            rows.setdefault(row.request_id, row)
        return sorted(rows.values(), key=lambda row: row.arrival_ns)

    def open_rows(self) -> Iterator[TimelineRow]:
        return (row for row in self._by_id.values() if row.finished_ns < 0)

    def take_finished(self) -> list[TimelineRow]:
        """Rows that have ended since the last call, if they are collected. They are forgotten here."""
        taken, self._finished = self._finished or [], []
        return taken

    # ---- feeding ---------------------------------------------------------------------------------------------------

    def row(self, request_id: str) -> TimelineRow | None:
        return self._by_id.get(request_id)

    def prime(self, state: EngineState) -> None:
        """Tell an empty timeline of the requests that were there before its first step: their past is one gap."""
        for request in sorted(state.active(), key=lambda r: r.order):
            row = self._add_row(request.request_id, request.colour, request.arrival_ns, request.num_prompt_tokens)
            if request.status != "running":
                kind = "waiting" if request.status == "waiting" else "preempted"
                self._begin(row, kind, request.arrival_ns if kind == "waiting" else state.time_ns, state.step)
        self.end_ns = state.time_ns
        self._last_busy_step = state.step

    def append(self, events: StepEvents, state: EngineState) -> None:
        """Take in the step ``events``; ``state`` is the engine after it."""
        step, start_ns, end_ns = events.step, events.start_ns, events.end_ns
        for arrived in events.arrived:
            request = state.requests.get(arrived.request_id)
            row = self._add_row(arrived.request_id, request.colour if request is not None else 0,
                                arrived.arrival_ns, len(arrived.prompt_token_ids))
            self._begin(row, "waiting", arrived.arrival_ns, step)
        for finish in events.aborted:
            self._end(finish.request_id, start_ns, step)
            self._finish(finish.request_id, end_ns)
        for victim in events.preempted:
            self._begin(self._by_id[victim.request_id], "preempted", start_ns, step)
        for share in events.scheduled:
            row = self._by_id[share.request_id]
            if share.admission:
                self._end(share.request_id, start_ns, step)
            spans = row.spans
            if is_prefill_share(share, row.num_prompt_tokens):
                spans.append(Span("prefill", start_ns, end_ns, step, step))
            elif spans and spans[-1].kind == "decode" and spans[-1].last_step >= self._last_busy_step:
                spans[-1].end_ns = end_ns
                spans[-1].last_step = step
            else:
                spans.append(Span("decode", start_ns, end_ns, step, step))
        for finish in events.finished:
            self._end(finish.request_id, end_ns, step)
            self._finish(finish.request_id, end_ns)
        for span in self._open.values():
            span.end_ns = end_ns
            span.last_step = step
        if events.scheduled:
            self._last_busy_step = step
        self.end_ns = end_ns
        if len(self._newest) > self.max_rows + self.max_rows // 8:
            self._forget()

    def _add_row(self, request_id: str, colour: int, arrival_ns: int, num_prompt_tokens: int) -> TimelineRow:
        row = TimelineRow(request_id, colour, arrival_ns, num_prompt_tokens)
        self._newest.append(row)
        self._by_id[request_id] = row
        return row

    def _begin(self, row: TimelineRow, kind: str, start_ns: int, step: int) -> None:
        span = Span(kind, start_ns, start_ns, step, step)
        row.spans.append(span)
        self._open[row.request_id] = span

    def _end(self, request_id: str, end_ns: int, step: int) -> None:
        span = self._open.pop(request_id, None)
        if span is not None:
            span.end_ns = max(span.start_ns, end_ns)
            span.last_step = step

    def _finish(self, request_id: str, end_ns: int) -> None:
        row = self._by_id[request_id]
        row.finished_ns = end_ns
        if self._finished is not None:
            self._finished.append(row)

    def _forget(self) -> None:
        surplus = len(self._newest) - self.max_rows
        kept: list[TimelineRow] = []
        for row in self._newest:
            if surplus and row.finished_ns >= 0:
                surplus -= 1
                self._forgotten += 1
                if row.spans:
                    self._forgotten_until = max(self._forgotten_until, row.spans[-1].last_step)
                if self._by_id.get(row.request_id) is row:
                    del self._by_id[row.request_id]
            else:
                kept.append(row)
        self._newest = kept
