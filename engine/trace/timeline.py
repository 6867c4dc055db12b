"""The life of every request as spans of time: waiting, prefill chunk by chunk, decode, preempted.

Memory is bounded: beyond :data:`MAX_ROWS` requests the oldest finished ones are forgotten.
"""

from __future__ import annotations

import msgspec

from engine.trace.events import StepEvents
from engine.trace.state import EngineState, is_prefill_share

MAX_ROWS = 20_000
"""Rows kept. A row costs about 1 kB."""


class Span(msgspec.Struct, gc=False):
    """A stretch of a request's life, in run-clock nanoseconds and in steps (inclusive).

    ``kind`` is "waiting", "prefill" (one span for each chunk), "decode" (one for consecutive steps) or "preempted".
    A span that is not over yet ends, for now, at the end of the newest step.
    """

    kind: str
    start_ns: int
    end_ns: int
    first_step: int
    last_step: int


class TimelineRow(msgspec.Struct):
    """One request. ``finished_ns`` is -1 while it lives; ``spans`` ascend and do not overlap."""

    request_id: str
    colour: int
    arrival_ns: int
    num_prompt_tokens: int = 0
    finished_ns: int = -1
    spans: list[Span] = []


class Timeline:
    """All rows in order of arrival. Not for several threads at once.

    ``rows`` is the list; ``forgotten`` counts rows dropped at its front; ``end_ns`` is the end of the newest step.
    """

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self.rows: list[TimelineRow] = []
        self.forgotten = 0
        self.end_ns = 0
        self.max_rows = max_rows
        self._by_id: dict[str, TimelineRow] = {}
        self._open: dict[str, Span] = {}  # waiting and preempted spans, which grow without being scheduled
        self._last_busy_step = -1  # the last step in which anything was scheduled

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
            self._by_id[finish.request_id].finished_ns = end_ns
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
            self._by_id[finish.request_id].finished_ns = end_ns
        for span in self._open.values():
            span.end_ns = end_ns
            span.last_step = step
        if events.scheduled:
            self._last_busy_step = step
        self.end_ns = end_ns
        if len(self.rows) > self.max_rows + self.max_rows // 8:
            self._forget()

    def _add_row(self, request_id: str, colour: int, arrival_ns: int, num_prompt_tokens: int) -> TimelineRow:
        row = TimelineRow(request_id, colour, arrival_ns, num_prompt_tokens)
        self.rows.append(row)
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

    def _forget(self) -> None:
        surplus = len(self.rows) - self.max_rows
        kept: list[TimelineRow] = []
        for row in self.rows:
            if surplus and row.finished_ns >= 0:
                surplus -= 1
                self.forgotten += 1
                if self._by_id.get(row.request_id) is row:
                    del self._by_id[row.request_id]
            else:
                kept.append(row)
        self.rows = kept
