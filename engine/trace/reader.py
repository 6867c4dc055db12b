"""Opens recordings, whole ones and what is left of others.

Only the index is read, and the steps that it does not cover: those of the last moments when the program was killed,
those of a block of the index that is damaged, and all of them in a recording from before there was an index. Small
files are read whole all the same, and the chunks of middling ones are checked.

Everything up to the last whole chunk opens. What is missing stands in ``warnings``; a file of which nothing can be
shown raises :class:`RecordingError`. Damage in a large file may be found only when one looks there: then ``warnings``
grows, ``complete`` becomes False, and RecordingError is raised. The file is never changed.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
import zstandard

from engine.trace.events import SCHEMA_VERSION, RunInfo, StepEvents, decode_step
from engine.trace.index import (
    FRAME_BYTES,
    INDEX_NAME,
    INDEX_STEPS,
    BlockBuilder,
    BlockRows,
    Frame,
    IndexBlock,
    parse_frame,
    unpack_detail,
    unpack_head,
)
from engine.trace.mcap_file import (
    ATTACHMENT,
    CHANNEL,
    CHUNK,
    DATA_END,
    MAGIC,
    MESSAGE,
    METADATA,
    Attachment,
    CutOff,
    Damage,
    Record,
    attachments_in_summary,
    has_end,
    parse_attachment,
    parse_channel,
    parse_message,
    parse_metadata,
    read_body,
    read_chunk,
    record_at,
    records_in,
    scan,
)
from engine.trace.metrics import TTFT_WINDOW, BlockDetail, StepSeries
from engine.trace.recording import END_METADATA, RUN_METADATA, SNAPSHOT_TOPIC, STEP_TOPIC
from engine.trace.source import SNAPSHOT_INTERVAL, Notice, PagedRun, collector_paused
from engine.trace.state import CONTRADICTIONS, EngineState, Snapshot, decode_snapshot, encode_snapshot

MAX_METADATA_BYTES = 1 << 20
MAX_PER_STEP = 1 << 16
"""More than this of anything in one step is taken for damage."""

MAX_TIME_NS = 1 << 62
MAX_NUMBER = (1 << 31) - 1
READ_WHOLE_BYTES = 256 << 10
"""Files up to this size are read whole: it takes less than a second, and finds every contradiction."""

CHECK_BYTES = 16 << 20
"""In files up to this size the checksum of every chunk is checked when they are opened."""

UNPACKED_CHUNKS_KEPT = 4
DETAILS_KEPT = 24


class RecordingError(Exception):
    """The file cannot be shown. The argument is a :class:`Notice` that says why and what to do."""


class _Place(NamedTuple):
    """A snapshot: the place of the chunk in the file, and where in the unpacked chunk its data stands, if known."""

    chunk: int
    start: int = -1
    end: int = -1


class _Block(NamedTuple):
    """A block of the index: the steps in it, and where its details are."""

    head: IndexBlock
    frame: Frame
    offset: int


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
        with collector_paused():
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


class _Steps:
    """The steps of a chunk, decoded as they are asked for."""

    def __init__(self, packed: list[memoryview]) -> None:
        self._steps: list[memoryview | StepEvents] = list(packed)

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> StepEvents:
        step = self._steps[index]
        if isinstance(step, memoryview):
            step = self._steps[index] = decode_step(step)
            problem = find_absurd(step)
            if problem:
                raise Damage(problem)
        return step


class Recording(PagedRun):
    """A recorded run. ``path`` is its file, which stays open until :meth:`close`.

    If the file is changed or becomes unreadable while it is open, ``events`` and ``state_at`` raise
    :class:`RecordingError`; so they do for damage that opening did not look for. ``goes_on`` is the file that holds
    the rest, if it was written to several.
    """

    def __init__(self, path: Path, file: BinaryIO, info: RunInfo) -> None:
        super().__init__(info)
        self.path = path
        self.goes_on: Path | None = None
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._chunk_offsets: list[int] = []
        self._chunk_firsts: list[int] = []  # the first step of each
        self._step_channels: set[int] = set()
        self._snapshot_channels: set[int] = set()
        self._snapshots: list[_Place | bytes] = []  # in the file, or made while opening, packed
        self._unpacked: OrderedDict[int, bytes] = OrderedDict()
        self._details: OrderedDict[int, tuple[BlockDetail, Callable[[], BlockRows]]] = OrderedDict()

    def close(self) -> None:
        self._file.close()

    def events(self, step: int) -> StepEvents:
        try:
            return super().events(step)
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(error, step) from None

    def state_at(self, step: int) -> EngineState:
        if not self._snapshot_steps[0] <= step <= max(self._last, self._snapshot_steps[0]):
            raise self._no_such(step)
        try:
            return super().state_at(step)
        except (OSError, *CONTRADICTIONS) as error:
            raise self._damaged(error, step) from None

    def _damaged(self, error: Exception, step: int) -> RecordingError:
        notice = Notice("Step {step} cannot be shown: the file {path} cannot be read there ({problem}).", step=step,
                        path=self.path, problem=error)
        self.complete = False
        if len(self.warnings) < 20 and notice not in self.warnings:
            self.warnings = [*self.warnings, notice]
        return RecordingError(notice)

    def _page_of(self, step: int) -> int:
        return bisect_right(self._chunk_firsts, step) - 1

    def _load_page(self, page: int) -> tuple[int, _Steps]:
        first = self._chunk_firsts[page]
        following = self._chunk_firsts[page + 1] if page + 1 < len(self._chunk_firsts) else self._last + 1
        steps: list[memoryview] = []
        for kind, body in records_in(self._unpack(self._chunk_offsets[page])):
            if kind == MESSAGE:
                message = parse_message(body)
                if message.channel_id in self._step_channels:
                    steps.append(message.data)
                    if len(steps) == following - first:  # what comes after them may be the damage that ends the run
                        break
        if len(steps) != following - first:
            raise Damage(f"{len(steps)} steps where {following - first} should be")
        return first, _Steps(steps)

    def _load_snapshot(self, index: int) -> Snapshot:
        place = self._snapshots[index]
        if isinstance(place, bytes):
            return decode_snapshot(zstandard.ZstdDecompressor().decompress(place))
        step = self._snapshot_steps[index]
        chunk = self._unpack(place.chunk)
        if place.start >= 0:
            return decode_snapshot(memoryview(chunk)[place.start:place.end])
        for kind, body in records_in(chunk):
            if kind == MESSAGE:
                message = parse_message(body)
                if message.channel_id in self._snapshot_channels and message.sequence == step:
                    snapshot = decode_snapshot(message.data)
                    if snapshot.step == step:
                        return snapshot
        raise Damage(f"the snapshot of step {step} is missing")

    def _unpack(self, offset: int) -> bytes:
        data = self._unpacked.get(offset)
        if data is None:
            record = record_at(self._file, offset, self._size)
            if record.kind != CHUNK:
                raise Damage("there is no chunk where one should be")
            data = self._unpacked[offset] = read_chunk(self._file, record)
            if len(self._unpacked) > UNPACKED_CHUNKS_KEPT:
                self._unpacked.popitem(last=False)
        else:
            self._unpacked.move_to_end(offset)
        return data

    # ---- blocks of the index ---------------------------------------------------------------------------------------

    def _add_block(self, block: _Block) -> None:
        series, rows = block.head.series, block.head.chunks
        self._chunk_offsets += rows.offsets
        self._chunk_firsts += rows.firsts
        self._snapshot_steps += rows.snapshot_steps
        self._snapshots += [_Place(offset) for offset in rows.snapshot_offsets]
        shape = (int(series.columns["_segment_end"][-1]), int(series.columns["_itl_end"][-1]), len(series.mark_step))
        place = (block.frame, block.offset, shape)
        self.series.extend_put_away(series, lambda: self._detail(*place)[0])
        self.timeline.add_block(block.head.last_step, lambda: self._rows(*place))
        if self._first < 0:
            self._first = block.head.first_step
        self._last = block.head.last_step

    def _detail(self, frame: Frame, offset: int,
                shape: tuple[int, int, int]) -> tuple[BlockDetail, Callable[[], BlockRows]]:
        """The details of a block. Where they are damaged there is nothing to see, and ``warnings`` says so."""
        detail = self._details.get(offset)
        if detail is not None:
            self._details.move_to_end(offset)
            return detail
        try:
            self._file.seek(offset + frame.detail_start)
            detail = unpack_detail(frame, self._file.read(frame.detail_length), *shape)
        except (OSError, ValueError) as error:
            self.complete = False
            self.warnings = [*self.warnings[:20], Notice(
                "A part of the index is damaged (at byte {offset}: {problem}): some charts are empty there.",
                offset=offset, problem=error)]
            detail = (BlockDetail(np.zeros(shape[0], np.uint32), np.full(shape[1], np.nan, np.float32),
                                  [""] * shape[2]), lambda: BlockRows([], []))
        self._details[offset] = detail
        if len(self._details) > DETAILS_KEPT:
            self._details.popitem(last=False)
        return detail

    def _rows(self, frame: Frame, offset: int, shape: tuple[int, int, int]) -> BlockRows:
        try:
            return self._detail(frame, offset, shape)[1]()
        except (ValueError, RecursionError):
            return BlockRows([], [])


class _Opening:
    """Makes a :class:`Recording` of a file: from its index, and from front to back where there is none."""

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
        self.builder: BlockBuilder | None = None  # while the steps of a damaged block of the index are read

    # ---- the whole file ------------------------------------------------------------------------------------------

    def open(self) -> Recording:
        self._check_magic()
        start = len(MAGIC)
        if self.size > READ_WHOLE_BYTES:
            start = self._take_index()
        if not self.stopped:
            self._take_records(start, self.size)
        recording = self._require_recording()
        if self.damaged and recording.last_step < 0:
            raise RecordingError(Notice("{path} cannot be shown: not one step of it can be read. {problem}",
                                        path=self.path, problem=self.warnings[-1]))
        self._judge_end(recording)
        recording.warnings = self.warnings
        return recording

    def _take_records(self, start: int, end: int) -> None:
        """Take everything from ``start`` up to ``end``, or to what ends the recording."""
        offset = start
        try:
            for record in scan(self.file, self.size, start):
                offset = record.offset - 9
                if offset >= end:
                    return
                self._take_record(record)
                offset = record.end
                if self.stopped:
                    return
        except CutOff:
            self._stop(Notice("The file is cut off: what came after step {step} is lost.", step=self._last())
                       if self._last() >= 0 else Notice("The file is cut off before the end of its first steps."))
            self.damaged = False
        except Damage as damage:
            self._stop(Notice("The file is damaged at byte {offset} ({problem}): the {rest} bytes from there on, after "
                              "step {step}, are not shown.", offset=offset, problem=damage, rest=self.size - offset,
                              step=self._last()))

    # ---- the index -------------------------------------------------------------------------------------------------

    def _take_index(self) -> int:
        """Take what the index tells; returns where in the file it ends."""
        start = len(MAGIC)
        blocks = self._index_blocks()
        if not blocks:
            return start
        try:
            self._take_beginning()
        except Damage:  # which will be told when the file is read from there
            return start
        if self.recording is None:
            return start
        recording, wrong = self.recording, 0
        recording.series = StepSeries((len(blocks) + 2) * INDEX_STEPS)
        recording.series.prime(self._require_state())
        for attachment in blocks:
            block = self._read_block(attachment)
            where = attachment.record.offset - 9
            if block is not None and self._is_next(block, start, where):
                recording._add_block(block)
                self.state, self.snapshot_found = None, True
            else:
                wrong += 1
                if not self._rebuild_block(start, where):
                    break
            start = attachment.record.end
        else:
            self._resume_series()
        if wrong:
            self.warnings.append(Notice("A part of the index is damaged; it was made anew from the steps."))
        return start

    def _index_blocks(self) -> list[Attachment]:
        """The blocks in the file, in order."""
        try:
            records = attachments_in_summary(self.file, self.size)
        except (ValueError, struct.error):
            records = None
        if records is None:
            records = []
            with suppress(Damage):  # it is told when the steps from the last block on are read
                records.extend(r for r in scan(self.file, self.size) if r.kind == ATTACHMENT)
        blocks: list[Attachment] = []
        for record in records:
            try:
                attachment = parse_attachment(self.file, record)
            except Damage:
                continue
            if attachment.name == INDEX_NAME:
                blocks.append(attachment)
        return blocks

    def _read_block(self, attachment: Attachment) -> _Block | None:
        """None for one that is damaged."""
        try:
            self.file.seek(attachment.offset)
            frame = parse_frame(self.file.read(FRAME_BYTES), attachment.length)
            return _Block(unpack_head(frame, self.file.read(frame.head_length), self.size), frame, attachment.offset)
        except Damage:
            return None

    def _take_beginning(self) -> None:
        """Take what comes before the first step: the run, the channels, and the state that it begins with."""
        for record in scan(self.file, self.size):
            if record.kind == CHUNK:
                at = 0
                for kind, body in records_in(read_chunk(self.file, record)):
                    at += 9 + len(body)
                    if kind == CHANNEL:
                        self._take_channel(body)
                    elif kind == MESSAGE:
                        message = parse_message(body)
                        topic = self.topics.get(message.channel_id)
                        if topic == SNAPSHOT_TOPIC and self.recording is None:
                            self._take_snapshot(message.data, _Place(record.offset - 9, at - len(message.data), at))
                        if topic == STEP_TOPIC:
                            break
                if len(set(self.topics.values())) == 2:
                    self._require_recording()
                    return
            else:
                self._take_record(record)
            if record.offset > 8 << 20:
                return

    def _is_next(self, block: _Block, start: int, end: int) -> bool:
        """Whether the block tells of the steps that follow, and its chunks are between ``start`` and ``end``."""
        recording = self._require_recording()
        index = block.head
        expected = recording._last + 1 if recording._first >= 0 else recording._snapshot_steps[0] + 1
        chunks = index.chunks
        if index.first_step != expected or not start <= chunks.offsets[0] <= chunks.offsets[-1] < end:
            return False
        if not all(start <= offset < end for offset in chunks.snapshot_offsets):
            return False
        if index.last_step - index.first_step > end - start:
            return False
        if recording._first >= 0 and int(index.series.columns["start_ns"][0]) < int(recording.series.end_ns[-1]):
            return False
        if self.size > CHECK_BYTES:
            return True
        self.file.seek(block.offset + block.frame.detail_start)
        if zlib.crc32(self.file.read(block.frame.detail_length)) != block.frame.detail_crc:
            return False
        try:
            for record in scan(self.file, self.size, start):
                if record.offset > end:
                    return True
                if record.kind == CHUNK:
                    read_chunk(self.file, record)
        except Damage:
            return False
        return True

    def _rebuild_block(self, start: int, end: int) -> bool:
        """Take the steps between two places from themselves. False if that was the end of the recording."""
        recording = self._require_recording()
        first = recording._last + 1 if recording._first >= 0 else recording._snapshot_steps[0] + 1
        before = max(first - TTFT_WINDOW, recording._snapshot_steps[0] + 1)  # what the rolling figures build on
        try:
            self.state = state = recording.state_at(before - 1)
            builder = BlockBuilder(state)
            for step in range(before, first):
                events = recording.events(step)
                state.apply(events)
                builder.append(events, state)
            builder.first_step = first
        except (RecordingError, Damage, *CONTRADICTIONS) as problem:
            self.state = None
            self._stop(Notice("The file is damaged: what came after step {step} cannot be shown ({problem}).",
                              step=self._last(), problem=problem))
            self._resume_series()
            return False
        self.builder = builder
        try:
            self._take_records(start, end)
        finally:
            self.builder = None
        if builder.count:
            block, rows = builder.take()
            recording.series.extend_put_away(block, lambda: block.detail)
            recording.timeline.add_block(recording._last, lambda: rows)
        if self.stopped or recording._last < first:
            if not self.stopped:
                self._stop(Notice("The file is damaged: what came after step {step} is missing.", step=self._last()))
            self._resume_series()
            return False
        return True

    def _require_state(self) -> EngineState:
        """The state after the last step that was taken."""
        recording = self._require_recording()
        if self.state is None:
            self.state = recording.state_at(recording._last)
        return self.state

    def _resume_series(self) -> None:
        """Make series and timeline ready for the steps after the last block."""
        recording = self._require_recording()
        state = self._require_state()
        series, timeline = recording.series, recording.timeline
        series.prime(state)
        series.resume()
        if timeline._block_loads:
            _finished, still_open = timeline._block_loads[-1]()
            busy = np.flatnonzero(series.prefill_tokens + series.decode_tokens)
            timeline.resume(list(still_open), state, int(series.step[busy[-1]]) if len(busy) else -1)

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
                        self._take_snapshot(message.data, _Place(record.offset - 9, at - len(message.data), at))
                if self.stopped:
                    break
        finally:
            if self.in_chunk and self.recording is not None:
                self.recording._chunk_offsets.append(record.offset - 9)
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
        recording._snapshot_channels = {n for n, topic in self.topics.items() if topic == SNAPSHOT_TOPIC}
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
        goes_on = self.end_metadata.get("goes_on", "")
        if goes_on and not {"/", "\\"} & set(goes_on):
            recording.goes_on = self.path.with_name(goes_on)
            self.warnings.append(Notice("The run goes on in {name}.", name=goes_on))
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
                if self.builder is not None:
                    self.builder.append(events, state)
                else:
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
    if not state.time_ns <= events.start_ns:
        return "time runs backwards"
    return find_absurd(events)


def find_absurd(events: StepEvents) -> str:
    """What no step can hold, whatever came before it, in words; "" if there is nothing."""
    if not 0 <= events.start_ns <= events.end_ns < MAX_TIME_NS:
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
