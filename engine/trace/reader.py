"""Opens recordings, whole ones and what is left of others.

Everything up to the last whole chunk opens. What is missing stands in ``warnings``; a file of which nothing can be
shown raises :class:`RecordingError`. The file is never changed.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import zstandard

from engine.trace.events import SCHEMA_VERSION, RunInfo, StepEvents, decode_step
from engine.trace.mcap_file import (
    CHANNEL,
    CHUNK,
    DATA_END,
    MAGIC,
    MESSAGE,
    METADATA,
    CutOff,
    Damage,
    Record,
    has_end,
    parse_channel,
    parse_message,
    parse_metadata,
    read_body,
    read_chunk,
    records_in,
    scan,
)
from engine.trace.recording import END_METADATA, RUN_METADATA, SNAPSHOT_TOPIC, STEP_TOPIC
from engine.trace.source import SNAPSHOT_INTERVAL, Notice, PagedRun
from engine.trace.state import CONTRADICTIONS, EngineState, Snapshot, decode_snapshot, encode_snapshot

MAX_METADATA_BYTES = 1 << 20
MAX_PER_STEP = 1 << 16
"""More than this of anything in one step is taken for damage."""

MAX_TIME_NS = 1 << 62
MAX_NUMBER = (1 << 31) - 1
UNPACKED_CHUNKS_KEPT = 4


class RecordingError(Exception):
    """The file cannot be shown. The argument is a :class:`Notice` that says why and what to do."""


class _Chunk(NamedTuple):
    """A chunk with ``num_steps`` usable steps in it."""

    record: Record
    num_steps: int


class _Place(NamedTuple):
    """A message: the chunk, and where in the unpacked chunk its data stands."""

    record: Record
    start: int
    end: int


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording. Raises :class:`RecordingError`."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise RecordingError(Notice("{path} is a folder, not a recording.", path=path))
        if not stat.S_ISREG(mode):
            raise RecordingError(Notice("{path} is not an ordinary file.", path=path))
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise RecordingError(Notice("There is no file {path}.", path=path)) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        return _Opening(path, file).open()
    except OSError as error:
        file.close()
        raise _unreadable(path, error) from None
    except BaseException:
        file.close()
        raise


def _unreadable(path: Path, error: OSError | ValueError) -> RecordingError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RecordingError(Notice("{path} cannot be read: {reason}.", path=path, reason=reason))


class Recording(PagedRun):
    """A recorded run. ``path`` is its file, which stays open until :meth:`close`.

    If the file is changed or becomes unreadable while it is open, ``events`` and ``state_at`` raise
    :class:`RecordingError`.
    """

    def __init__(self, path: Path, file: BinaryIO, info: RunInfo) -> None:
        super().__init__(info)
        self.path = path
        self._file = file
        self._chunks: list[_Chunk] = []
        self._chunk_firsts: list[int] = []  # the first step of each
        self._step_channels: set[int] = set()
        self._snapshots: list[_Place | bytes] = []  # in the file, or made while opening, packed
        self._unpacked: OrderedDict[int, bytes] = OrderedDict()

    def close(self) -> None:
        self._file.close()

    def _page_of(self, step: int) -> int:
        return bisect_right(self._chunk_firsts, step) - 1

    def _load_page(self, page: int) -> tuple[int, list[StepEvents]]:
        chunk = self._chunks[page]
        steps: list[StepEvents] = []
        try:
            for kind, body in records_in(self._unpack(chunk.record)):
                if kind != MESSAGE:
                    continue
                message = parse_message(body)
                if message.channel_id in self._step_channels:
                    steps.append(decode_step(message.data))
                    if len(steps) == chunk.num_steps:  # what comes after them may be the damage that ends the run
                        break
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, error) from None
        return self._chunk_firsts[page], steps

    def _load_snapshot(self, index: int) -> Snapshot:
        place = self._snapshots[index]
        if isinstance(place, bytes):
            return decode_snapshot(zstandard.ZstdDecompressor().decompress(place))
        try:
            return decode_snapshot(memoryview(self._unpack(place.record))[place.start:place.end])
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, error) from None

    def _unpack(self, record: Record) -> bytes:
        data = self._unpacked.get(record.offset)
        if data is None:
            data = self._unpacked[record.offset] = read_chunk(self._file, record)
            if len(self._unpacked) > UNPACKED_CHUNKS_KEPT:
                self._unpacked.popitem(last=False)
        else:
            self._unpacked.move_to_end(record.offset)
        return data


class _Opening:
    """Reads a file once from front to back and makes a :class:`Recording` of it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.warnings: list[str] = []
        self.stopped = False  # at something that cannot be read; what comes after it is not looked at
        self.damaged = False  # stopped by more than the end of a file that was cut off
        self.info: RunInfo | None = None
        self.info_from_chunk = False
        self.newer_schema = False
        self.ended = False
        self.end_metadata: dict[str, str] = {}
        self.topics: dict[int, str] = {}
        self.recording: Recording | None = None
        self.state: EngineState | None = None
        self.first_snapshot: Snapshot | None = None
        self.snapshot_found = False
        self.in_chunk = 0  # usable steps in the chunk that is being read

    # ---- the whole file ------------------------------------------------------------------------------------------

    def open(self) -> Recording:
        self._check_magic()
        offset = len(MAGIC)
        try:
            for record in scan(self.file, self.size):
                offset = record.offset - 9
                self._take_record(record)
                offset = record.end
                if self.stopped:
                    break
        except CutOff:
            self._stop(Notice("The file is cut off: what came after step {step} is lost.", step=self._last())
                       if self._last() >= 0 else Notice("The file is cut off before the end of its first steps."))
            self.damaged = False
        except Damage as damage:
            self._stop(Notice("The file is damaged at byte {offset} ({problem}): the {rest} bytes from there on, after "
                              "step {step}, are not shown.", offset=offset, problem=damage, rest=self.size - offset,
                              step=self._last()))
        recording = self._require_recording()
        if self.damaged and recording.last_step < 0:
            raise RecordingError(Notice("{path} cannot be shown: not one step of it can be read. {problem}",
                                        path=self.path, problem=self.warnings[-1]))
        self._judge_end(recording)
        recording.warnings = self.warnings
        return recording

    def _check_magic(self) -> None:
        head = self.file.read(len(MAGIC))
        if not head:
            raise RecordingError(Notice("{path} is empty.", path=self.path))
        if head != MAGIC:
            if MAGIC.startswith(head):
                raise RecordingError(Notice("{path} was cut off before anything was recorded.", path=self.path))
            raise RecordingError(Notice("{path} is not a recording (it is no MCAP file).", path=self.path))

    def _take_record(self, record: Record) -> None:
        if record.kind == CHUNK:
            self._take_chunk(record)
        elif record.kind == METADATA and record.length <= MAX_METADATA_BYTES:
            body = read_body(self.file, record)
            try:
                name, content = parse_metadata(body)
            except Damage:
                return  # it has no checksum, and the first chunk repeats what matters
            if name == RUN_METADATA and self.info is None:
                self.info = _parse_info(content.get("info", ""))
            elif name == END_METADATA:
                self.end_metadata = content
        elif record.kind == MESSAGE:
            self._stop(Notice("The file holds messages outside of chunks, which Cutaway never writes: what comes after "
                              "step {step} is not shown.", step=self._last()))
        elif record.kind == DATA_END:
            self.ended = True

    def _take_chunk(self, record: Record) -> None:
        data = read_chunk(self.file, record)
        self.in_chunk = 0
        at = 0
        try:
            for kind, body in records_in(data):
                at += 9 + len(body)
                if kind == CHANNEL:
                    self._take_channel(body)
                elif kind == MESSAGE:
                    message = parse_message(body)
                    topic = self.topics.get(message.channel_id)
                    if topic == STEP_TOPIC:
                        self._take_step(message.data)
                    elif topic == SNAPSHOT_TOPIC:
                        self._take_snapshot(message.data, _Place(record, at - len(message.data), at))
                if self.stopped:
                    break
        finally:
            if self.in_chunk and self.recording is not None:
                self.recording._chunks.append(_Chunk(record, self.in_chunk))
                self.recording._chunk_firsts.append(self._last() + 1 - self.in_chunk)

    def _take_channel(self, body: memoryview) -> None:
        number, channel = parse_channel(body)
        if channel.topic not in (STEP_TOPIC, SNAPSHOT_TOPIC) or channel.encoding != "msgpack":
            return
        self.topics[number] = channel.topic
        if not self.info_from_chunk and self.recording is None:
            info = _parse_info(channel.metadata.get("info", ""))
            if info is not None:  # better than the metadata record, which has no checksum
                self.info, self.info_from_chunk = info, True

    def _require_recording(self) -> Recording:
        """The recording, begun with the header; RecordingError if there is none."""
        if self.recording is not None:
            return self.recording
        if self.info is None:
            if self.stopped:
                raise RecordingError(Notice("{path} cannot be shown, because its beginning is damaged. {problem}",
                                            path=self.path, problem=self.warnings[-1]))
            raise RecordingError(Notice("{path} is an MCAP file, but not a recording of Cutaway.", path=self.path))
        if self.info.schema > SCHEMA_VERSION:
            self.newer_schema = True
            self.warnings.append(Notice(
                "The recording was made by Cutaway {version} and has schema {schema}; this version knows schema "
                "{known}. What it does not know is not shown.", version=self.info.version, schema=self.info.schema,
                known=SCHEMA_VERSION))
        self.recording = recording = Recording(self.path, self.file, self.info)
        recording._step_channels = {number for number, topic in self.topics.items() if topic == STEP_TOPIC}
        try:
            state = (EngineState(self.info) if self.first_snapshot is None
                     else EngineState.from_snapshot(self.info, self.first_snapshot))
        except CONTRADICTIONS as error:
            raise RecordingError(Notice("{path} cannot be shown: its header contradicts itself ({problem}).",
                                        path=self.path, problem=error)) from None
        self.state = state
        recording._snapshot_steps.append(state.step)
        recording._snapshots.append(zstandard.compress(encode_snapshot(state.snapshot()), 1))
        recording.series.prime(state)
        recording.timeline.prime(state)
        return recording

    def _judge_end(self, recording: Recording) -> None:
        last = recording.last_step
        if not self.stopped and not self.ended and last < 0:
            self.warnings.append(Notice("The recording was not closed, and no step had been written."))
        elif not self.stopped and not self.ended:
            self.warnings.append(Notice("The recording was not closed: what happened in the last moments, after step "
                                        "{step}, may be missing.", step=last))
        elif self.ended and not has_end(self.file, self.size):
            self.warnings.append(Notice("The end of the file is missing, but no step."))
            self.ended = False
        dropped = self.end_metadata.get("dropped", "0")
        if dropped not in ("", "0"):
            self.warnings.append(Notice("{count} steps after step {step} are missing: they could not be written in "
                                        "time.", count=dropped[:20], step=last))
        recording.complete = self.ended and not self.stopped and dropped in ("", "0")
        if not self.snapshot_found and last - recording.first_step >= 2 * SNAPSHOT_INTERVAL:
            self.warnings.append(Notice("The snapshots are missing; they were made anew from the steps."))
        if recording.first_step < 0 and self.ended:
            self.warnings.append(Notice("There is no step in the recording."))

    def _last(self) -> int:
        return self.recording.last_step if self.recording is not None else -1

    def _stop(self, warning: Notice) -> None:
        self.warnings.append(warning)
        self.stopped = self.damaged = True

    # ---- steps and snapshots -------------------------------------------------------------------------------------

    def _take_step(self, data: memoryview) -> None:
        try:
            events = decode_step(data)
        except (ValueError, RecursionError) as error:
            if self._require_recording().last_step < 0 and self.newer_schema:
                raise RecordingError(Notice("{path} needs Cutaway {version} or later.", path=self.path,
                                            version=self._require_recording().info.version)) from None
            self._stop(Notice("The step after step {step} cannot be read ({problem}): nothing from there on is shown.",
                              step=self._last(), problem=error))
            return
        recording = self._require_recording()
        state = self.state
        assert state is not None
        if recording.first_step < 0 and events.step != state.step + 1:
            raise RecordingError(Notice("{path} begins with step {step}, and the state before it is missing.",
                                        path=self.path, step=events.step))
        problem = _find_implausible(events, state)
        if not problem:
            try:
                state.apply(events)
                recording.series.append(events, state)
                recording.timeline.append(events, state)
            except CONTRADICTIONS as error:
                problem = f"{type(error).__name__}: {error}"
        if problem:
            self._stop(Notice("Step {step} contradicts the steps before it ({problem}): nothing from there on is "
                              "shown.", step=events.step, problem=problem))
            return
        if recording._first < 0:
            recording._first = events.step
        recording._last = events.step
        self.in_chunk += 1
        if (events.step + 1) % SNAPSHOT_INTERVAL == 0:
            recording._snapshot_steps.append(events.step)
            recording._snapshots.append(zstandard.compress(encode_snapshot(state.snapshot()), 1))

    def _take_snapshot(self, data: memoryview, place: _Place) -> None:
        """Use a snapshot from the file where it is what the steps say; otherwise the steps are believed."""
        try:
            snapshot = decode_snapshot(data)
        except (ValueError, RecursionError):
            return
        if self.recording is None:
            self.first_snapshot = snapshot
            self.snapshot_found = True
            return
        assert self.state is not None
        if snapshot.step != self.recording.last_step or snapshot != self.state.snapshot():
            return
        self.snapshot_found = True
        if self.recording._snapshot_steps[-1] == snapshot.step:
            self.recording._snapshots[-1] = place
        else:
            self.recording._snapshot_steps.append(snapshot.step)
            self.recording._snapshots.append(place)


def _parse_info(text: str) -> RunInfo | None:
    try:
        info = msgspec.json.decode(text.encode(), type=RunInfo)
    except (ValueError, RecursionError):
        return None
    for name in ("num_blocks", "block_size", "max_num_batched_tokens"):
        if not _is_count(info.knobs.get(name)):
            return None
    return info


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_NUMBER


def _find_implausible(events: StepEvents, state: EngineState) -> str:
    """What no engine can have said, in words; "" if it can. What contradicts the state is left to the state."""
    if events.step != state.step + 1:
        return f"step {events.step} follows step {state.step}"
    if not state.time_ns <= events.start_ns <= events.end_ns < MAX_TIME_NS:
        return "time runs backwards"
    if max(len(events.knobs), len(events.arrived), len(events.refused), len(events.aborted), len(events.preempted),
           len(events.scheduled), len(events.pool), len(events.sampled), len(events.finished)) > MAX_PER_STEP:
        return "more happened in it than can"
    for change in events.knobs:
        if change.name in ("num_blocks", "block_size", "max_num_batched_tokens") and not _is_count(change.new):
            return f"{change.name} became {change.new!r}"
    for arrived in events.arrived:
        if not 0 <= arrived.arrival_ns <= events.end_ns:
            return f"{arrived.request_id} arrived later than now"
    for share in events.scheduled:
        if not (0 < share.num_tokens < 1 << 24 and 0 <= share.num_computed_tokens <= MAX_NUMBER
                and 0 <= share.hit_tokens <= MAX_NUMBER):
            return f"{share.num_tokens} tokens of {share.request_id} were scheduled"
    for victim in events.preempted:
        if not _is_count(victim.lost_tokens):
            return f"{victim.request_id} lost {victim.lost_tokens} tokens"
    for event in events.pool:
        blocks = getattr(event, "blocks", None)
        if blocks and min(blocks) < 1:
            return "a block that does not exist"
    return ""
