"""A run as a Perfetto trace (protobuf), for ui.perfetto.dev and for Perfetto's SQL.

One process, with

- a track for each request: the slice ``request`` from arrival to end, and inside it ``waiting``, ``prefill`` (one for
  each chunk), ``decode`` (consecutive steps in one) and ``preempted``; instants ``first token`` and ``finished``. A
  flow leads from a ``preempted`` slice to the slice with which the request resumes;
- a track of the engine's steps, with the phases of each inside, and a track of instants for knobs;
- counters: budget and its use, blocks in use and usable, running, waiting, tokens/s over the last second.

Timestamps are nanoseconds on the run's clock and ascend through the file; on one track slices nest.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from engine.trace.events import Evicted, Finished, PhaseTimes, Scheduled, StepEvents
from engine.trace.export.files import ExportError, new_file
from engine.trace.export.walk import events_of, state_before, step_range
from engine.trace.source import Notice, RunSource
from engine.trace.state import EngineState, is_prefill_share

LOOK_BACK = 256
"""Steps. An arrival further back than this is told late, because the file is written in the order of time."""

STEPS_AT_ONCE = 16
IDLE_NS = 1_000_000
"""Between steps further apart than this no budget is in use."""

RATE_WINDOW_NS = 1_000_000_000

PROCESS, STEPS, KNOBS, REQUESTS, COUNTERS = 1, 2, 3, 4, 5
FIRST_COUNTER, FIRST_REQUEST = 10, 1000
COUNTER_NAMES = {"scheduled tokens": "tokens", "max_num_batched_tokens": "tokens", "KV blocks in use": "blocks",
                 "KV blocks usable": "blocks", "running": "requests", "waiting": "requests", "tokens/s": "tokens/s"}
SHARED_AXES = {"scheduled tokens": "budget", "max_num_batched_tokens": "budget", "KV blocks in use": "blocks",
               "KV blocks usable": "blocks"}


def export_perfetto(source: RunSource, path: Path, *, first: int | None = None, last: int | None = None,
                    overwrite: bool = False) -> Generator[float]:
    """Write the steps ``first`` to ``last``. Yields the share that is done; raises ``ExportError``."""
    start, stop = step_range(source, first, last)
    with new_file(path, overwrite=overwrite) as part, part.open("wb") as file:
        trace = _Trace(file)
        run = _Run(trace, source, start)
        for step in range(start, stop + 1):
            run.add(events_of(source, step))
            if (step - start) % STEPS_AT_ONCE == STEPS_AT_ONCE - 1:
                yield (step - start + 1) / (stop - start + 1)
        run.end()
    yield 1.0


class _Trace:
    """Writes packets; events are held back in a heap until no earlier one can come."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
        except ImportError:
            raise ExportError(Notice("Perfetto traces need the package {package}: install it with pip.",
                                     package="perfetto")) from None
        self._file = file
        self._new_packet = protos.TracePacket
        self._packet = protos.TracePacket()
        self.begin, self.end = protos.TrackEvent.TYPE_SLICE_BEGIN, protos.TrackEvent.TYPE_SLICE_END
        self.instant, self._counter = protos.TrackEvent.TYPE_INSTANT, protos.TrackEvent.TYPE_COUNTER
        self.explicit, self.unmerged = protos.TrackDescriptor.EXPLICIT, \
            protos.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
        self._held: list[tuple[int, int, bytes]] = []
        self._count = 0
        self._written_to = 0
        self._latest: dict[int, int] = {}
        self._packet.sequence_flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED

    def track(self, uuid: int, name: str, parent: int = 0, rank: int = 0) -> Any:
        """Begin a descriptor; fill in what else it needs, then call :meth:`put_track`."""
        descriptor = self._packet.track_descriptor
        descriptor.uuid = uuid
        descriptor.name = name
        if parent:
            descriptor.parent_uuid = parent
            descriptor.sibling_order_rank = rank
            descriptor.sibling_merge_behavior = self.unmerged
        return descriptor

    def put_track(self) -> None:
        self._write(self._take())

    def event(self, kind: int, track: int, time_ns: int, name: str = "", notes: Mapping[str, Any] | None = None, *,
              starts_flow: int = 0, ends_flow: int = 0) -> None:
        """Events of one track are given in their order; one that is earlier than the one before is moved to it."""
        event = self._packet.track_event
        event.type = kind
        event.track_uuid = track
        if name:
            event.name = name
        if starts_flow:
            event.flow_ids.append(starts_flow)
        if ends_flow:
            event.terminating_flow_ids.append(ends_flow)
        for key, value in (notes or {}).items():
            _annotate(event.debug_annotations.add(), key, value)
        self._hold(track, time_ns)

    def count(self, track: int, time_ns: int, value: float) -> None:
        event = self._packet.track_event
        event.type = self._counter
        event.track_uuid = track
        if isinstance(value, int):
            event.counter_value = value
        else:
            event.double_counter_value = value
        self._hold(track, time_ns)

    def _hold(self, track: int, time_ns: int) -> None:
        time_ns = max(time_ns, self._written_to, self._latest.get(track, 0))
        self._latest[track] = time_ns
        self._packet.timestamp = time_ns
        self._count += 1
        heapq.heappush(self._held, (time_ns, self._count, self._take()))

    def forget(self, track: int) -> None:
        """No more events will come for this track."""
        self._latest.pop(track, None)

    def release(self, until_ns: int) -> None:
        """Write what is older than ``until_ns``: nothing older will come."""
        held = self._held
        while held and held[0][0] < until_ns:
            self._written_to, _, packet = heapq.heappop(held)
            self._write(packet)

    def finish(self) -> None:
        while self._held:
            self._write(heapq.heappop(self._held)[2])

    def _take(self) -> bytes:
        packet = self._packet
        packet.trusted_packet_sequence_id = 1
        data: bytes = packet.SerializeToString()
        self._packet = self._new_packet()  # one that is cleared and used again keeps the memory of all it ever held
        return data

    def _write(self, packet: bytes) -> None:
        """A trace is nothing but its packets, each as field 1 (a length, then the message)."""
        length = len(packet)
        head = bytearray(b"\x0a")
        while length > 0x7F:
            head.append(length & 0x7F | 0x80)
            length >>= 7
        head.append(length)
        self._file.write(bytes(head))
        self._file.write(packet)


def _annotate(annotation: Any, name: str, value: Any) -> None:
    annotation.name = name
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    else:
        annotation.string_value = str(value)


class _Track:
    """A request's track: which slice is open inside ``request``, "" for none, and, of a decode, where it ends."""

    def __init__(self, uuid: int, num_prompt_tokens: int) -> None:
        self.uuid = uuid
        self.num_prompt_tokens = num_prompt_tokens
        self.open = ""
        self.decoded_to_ns = 0
        self.decode_step = -1  # the last step of the open decode
        self.flow = 0  # from the preemption that the request has not come back from
        self.has_token = False
        self.output_tokens = 0


class _Run:
    """Turns steps into events of the trace. ``state`` is the engine after the latest step added."""

    def __init__(self, trace: _Trace, source: RunSource, first: int) -> None:
        self.trace = trace
        self.state: EngineState = state_before(source, first)
        self._tracks: dict[str, _Track] = {}
        self._next_uuid = FIRST_REQUEST
        self._flows = 0
        self._counters: dict[str, tuple[int, float | None]] = {}
        self._last_busy_step = self.state.step
        self._last_end_ns = self.state.time_ns
        self._began_ns: int | None = None
        self._recent: deque[int] = deque(maxlen=LOOK_BACK)
        self._sampled: deque[tuple[int, int]] = deque()  # (when, how many), within the rate's window
        self._in_window = 0
        self._describe(source)
        for request in sorted(self.state.active(), key=lambda r: r.order):
            track = self._add_request(request.request_id, request.arrival_ns, request.num_prompt_tokens,
                                      {"prompt_tokens": request.num_prompt_tokens, "priority": request.priority,
                                       "source": request.source})
            track.has_token, track.output_tokens = request.first_token_ns >= 0, len(request.output_token_ids)
            if request.status == "waiting":
                self._open(track, "waiting", request.arrival_ns)
            elif request.status == "preempted":
                self._preempt(track, self.state.time_ns, {})

    def _describe(self, source: RunSource) -> None:
        trace, info = self.trace, source.info
        process = trace.track(PROCESS, "")
        process.ClearField("name")
        process.process.pid = 1
        process.process.process_name = " · ".join(part for part in ("Cutaway", info.scenario, info.model.name) if part)
        process.child_ordering = trace.explicit
        trace.put_track()
        for rank, (uuid, name) in enumerate(((COUNTERS, "Counters"), (KNOBS, "Knobs"), (STEPS, "Engine steps"),
                                             (REQUESTS, "Requests"))):
            trace.track(uuid, name, PROCESS, rank).child_ordering = trace.explicit
            trace.put_track()
        for number, (name, unit) in enumerate(COUNTER_NAMES.items()):
            self._counters[name] = FIRST_COUNTER + number, None
            counter = trace.track(FIRST_COUNTER + number, name, COUNTERS, number).counter
            counter.unit_name = unit
            if name in SHARED_AXES:
                counter.y_axis_share_key = SHARED_AXES[name]
            trace.put_track()
        trace.event(trace.instant, KNOBS, self.state.time_ns, "knobs at the start", self.state.knobs)

    def add(self, events: StepEvents) -> None:
        """Take in the next step."""
        trace, start_ns, end_ns = self.trace, events.start_ns, events.end_ns
        self.state.apply(events)
        self._recent.append(start_ns)
        if self._began_ns is None:
            self._began_ns = start_ns
        self._add_step(events)
        for change in events.knobs:
            trace.event(trace.instant, KNOBS, start_ns, f"{change.name} {change.old} → {change.new}",
                        {"knob": change.name, "old": change.old, "new": change.new})
        for arrived in events.arrived:
            track = self._add_request(arrived.request_id, arrived.arrival_ns, len(arrived.prompt_token_ids),
                                      {"prompt_tokens": len(arrived.prompt_token_ids), "priority": arrived.priority,
                                       "source": arrived.source, "max_tokens": arrived.max_tokens})
            self._open(track, "waiting", arrived.arrival_ns)
        for finish in events.aborted:
            self._finish(finish, start_ns, end_ns)
        for victim in events.preempted:
            self._preempt(self._tracks[victim.request_id], start_ns,
                          {"cause": victim.cause, "for_request": victim.for_request,
                           "lost_tokens": victim.lost_tokens, "freed_blocks": victim.freed_blocks})
        for share in events.scheduled:
            self._add_share(self._tracks[share.request_id], share, events)
        for sampled in events.sampled:
            track = self._tracks[sampled.request_id]
            track.output_tokens += 1
            if not track.has_token:
                track.has_token = True
                trace.event(trace.instant, track.uuid, end_ns, "first token")
        if events.scheduled:
            self._last_busy_step = events.step
        for finish in events.finished:
            self._finish(finish, end_ns, end_ns)
        self._close_stale(events)
        self._count(events)
        self._last_end_ns = end_ns
        decoding = (t.decoded_to_ns for t in self._tracks.values() if t.open == "decode")
        trace.release(min(self._recent[0], min(decoding, default=start_ns)))

    def end(self) -> None:
        """Close every slice and write what is held back."""
        for track in self._tracks.values():
            self._close(track, self._last_end_ns)
            self.trace.event(self.trace.end, track.uuid, self._last_end_ns,
                             notes={"output_tokens": track.output_tokens, "unfinished": True})
        self.trace.finish()

    # ---- steps and counters --------------------------------------------------------------------------------------

    def _add_step(self, events: StepEvents) -> None:
        trace, start_ns, end_ns = self.trace, events.start_ns, events.end_ns
        notes: dict[str, Any] = {"step": events.step, "tokens": sum(s.num_tokens for s in events.scheduled),
                                 "sampled": len(events.sampled)}
        evicted = sum(len(e.blocks) for e in events.pool if isinstance(e, Evicted))
        for name, value in (("evicted_blocks", evicted), ("refused", len(events.refused)),
                            ("hit_tokens", sum(s.hit_tokens for s in events.scheduled)),
                            ("stopped_by", events.stopped_by), ("stopped_at", events.stopped_at)):
            if value:
                notes[name] = value
        trace.event(trace.begin, STEPS, start_ns, f"step {events.step}", notes)
        at = start_ns
        for phase in PhaseTimes.__struct_fields__:
            length = getattr(events.phases, phase)
            if length > 0 and at < end_ns:
                trace.event(trace.begin, STEPS, at, phase)
                at = min(end_ns, at + length)
                trace.event(trace.end, STEPS, at)
        trace.event(trace.end, STEPS, end_ns)

    def _count(self, events: StepEvents) -> None:
        state, start_ns, end_ns = self.state, events.start_ns, events.end_ns
        if start_ns - self._last_end_ns > IDLE_NS:
            self._set("scheduled tokens", self._last_end_ns, 0)
        self._set("max_num_batched_tokens", start_ns, int(state.knobs.get("max_num_batched_tokens", 0)))
        self._set("scheduled tokens", start_ns, sum(s.num_tokens for s in events.scheduled))
        self._set("KV blocks usable", start_ns, state.num_blocks - 1)
        self._set("KV blocks in use", end_ns, state.num_used_blocks)
        self._set("running", end_ns, len(state.running))
        self._set("waiting", end_ns, len(state.waiting))
        self._sampled.append((end_ns, len(events.sampled)))
        self._in_window += len(events.sampled)
        while self._sampled[0][0] <= end_ns - RATE_WINDOW_NS:
            self._in_window -= self._sampled.popleft()[1]
        window_ns = min(RATE_WINDOW_NS, end_ns - (self._began_ns or 0))
        if window_ns > 0:
            self._set("tokens/s", end_ns, round(self._in_window * 1e9 / window_ns, 3))

    def _set(self, name: str, time_ns: int, value: float) -> None:
        uuid, before = self._counters[name]
        if value != before:
            self._counters[name] = uuid, value
            self.trace.count(uuid, time_ns, value)

    # ---- requests ------------------------------------------------------------------------------------------------

    def _add_request(self, request_id: str, arrival_ns: int, num_prompt_tokens: int,
                     notes: Mapping[str, Any]) -> _Track:
        track = self._tracks[request_id] = _Track(self._next_uuid, num_prompt_tokens)
        self._next_uuid += 1
        self.trace.track(track.uuid, request_id, REQUESTS, track.uuid - FIRST_REQUEST)
        self.trace.put_track()
        self.trace.event(self.trace.begin, track.uuid, arrival_ns, "request", {"request_id": request_id, **notes})
        return track

    def _open(self, track: _Track, name: str, time_ns: int, notes: Mapping[str, Any] | None = None, *,
              starts_flow: int = 0) -> None:
        ends_flow, track.flow = track.flow, 0
        track.open = name
        self.trace.event(self.trace.begin, track.uuid, time_ns, name, notes, starts_flow=starts_flow,
                         ends_flow=ends_flow)

    def _close(self, track: _Track, time_ns: int) -> None:
        """End the slice that is open; a decode ends with its last step."""
        if track.open:
            self.trace.event(self.trace.end, track.uuid, track.decoded_to_ns if track.open == "decode" else time_ns)
            track.open = ""

    def _preempt(self, track: _Track, time_ns: int, notes: Mapping[str, Any]) -> None:
        self._close(track, time_ns)
        self._flows += 1
        self._open(track, "preempted", time_ns, notes, starts_flow=self._flows)
        track.flow = self._flows

    def _add_share(self, track: _Track, share: Scheduled, events: StepEvents) -> None:
        start_ns, end_ns = events.start_ns, events.end_ns
        if share.admission:
            self._close(track, start_ns)
        if is_prefill_share(share, track.num_prompt_tokens):
            self._close(track, start_ns)
            notes: dict[str, Any] = {"step": events.step, "tokens": share.num_tokens,
                                     "computed_before": share.num_computed_tokens, "last_chunk": share.samples}
            if share.admission:
                notes |= {"admission": share.admission, "hit_tokens": share.hit_tokens}
            self._open(track, "prefill", start_ns, notes)
            self._close(track, end_ns)
            return
        if track.open != "decode":
            self._close(track, start_ns)
            self._open(track, "decode", start_ns, {"first_step": events.step})
        track.decoded_to_ns, track.decode_step = end_ns, events.step

    def _close_stale(self, events: StepEvents) -> None:
        """End the decodes of requests that a busy step left out."""
        for request_id in self.state.running if events.scheduled else ():
            track = self._tracks.get(request_id)
            if track is not None and track.open == "decode" and track.decode_step < events.step:
                self._close(track, track.decoded_to_ns)

    def _finish(self, finish: Finished, inner_ns: int, end_ns: int) -> None:
        trace, track = self.trace, self._tracks.pop(finish.request_id)
        self._close(track, inner_ns)
        trace.event(trace.instant, track.uuid, end_ns, "finished", {"reason": finish.reason})
        trace.event(trace.end, track.uuid, end_ns, notes={"output_tokens": track.output_tokens})
        trace.forget(track.uuid)
