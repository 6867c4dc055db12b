"""Makes a recorded run of a file: from its index, and from front to back where there is none.

Small files are read whole all the same. A record after another is taken until the file ends, or something cannot be
read: what comes after that is not looked at, and ``warnings`` say what is missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import zstandard

from engine.trace import opening_index
from engine.trace.events import SCHEMA_VERSION, RunInfo
from engine.trace.index import BlockBuilder
from engine.trace.integrity import is_as_written, is_consistent
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
from engine.trace.opening_index import IndexedPart
from engine.trace.plausible import find_implausible, parse_info, read_snapshot, read_step
from engine.trace.recorded import HARMLESS, INDEX_REBUILT, Place, Recording, RecordingError
from engine.trace.recording import END_METADATA, RUN_METADATA, SNAPSHOT_TOPIC, STEP_TOPIC
from engine.trace.source import SNAPSHOT_INTERVAL, Notice
from engine.trace.state import CONTRADICTIONS, EngineState, Snapshot, encode_snapshot

MAX_METADATA_BYTES = 1 << 20
READ_WHOLE_BYTES = 256 << 10
"""Files up to this size are read whole: it takes less than a second, and finds every contradiction."""


class Opening:
    """Makes a :class:`Recording` of the file at ``path``, which is open as ``file``: see :meth:`open`."""

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
        self.as_written: bool | None = None  # to the last byte; None: nobody has looked, or the file does not tell

    # ---- the whole file ------------------------------------------------------------------------------------------

    def open(self) -> Recording:
        self._check_magic()
        small = self.size <= opening_index.CHECK_BYTES
        if small:
            self.as_written = is_as_written(self.file, self.size)
        start = len(MAGIC)
        if self.size > READ_WHOLE_BYTES:
            start = IndexedPart(self).take()
        if not self.stopped:
            self.take_records(start, self.size)
        recording = self.require_recording()
        if self.damaged and recording.last_step < 0:
            raise RecordingError(Notice("{path} cannot be shown: not one step of it can be read. {problem}",
                                        path=self.path, problem=self.warnings[-1]))
        self._judge_end(recording)
        recording.warnings = [*self.warnings, *recording.warnings]  # which met with damage while it was opened
        recording.checksum_expected = "checksum" in self.end_metadata
        recording.checked = small or not self.ended
        if small and self.ended and not self.stopped and recording.complete and INDEX_REBUILT not in self.warnings:
            self._look_at_the_rest(recording)
        return recording

    def _look_at_the_rest(self, recording: Recording) -> None:
        """Everything that is shown was read and is right; and what nobody reads?"""
        if self.as_written is None:
            self.as_written = not recording.checksum_expected and is_consistent(self.file, self.size)
        if not self.as_written:
            recording.warnings.append(HARMLESS)

    def take_records(self, start: int, end: int) -> None:
        """Take everything from ``start`` up to ``end``, or to what ends the recording."""
        offset = start
        try:
            for record in scan(self.file, self.size, start):
                offset = record.offset - 9
                if offset >= end:
                    return
                self.take_record(record)
                offset = record.end
                if self.stopped:
                    return
        except CutOff:
            self.stop(Notice("The file is cut off: what came after step {step} is lost.", step=self.last_step())
                       if self.last_step() >= 0 else Notice("The file is cut off before the end of its first steps."))
            self.damaged = False
        except Damage as damage:
            self.stop(Notice("The file is damaged at byte {offset} ({problem}): the {rest} bytes from there on, after "
                             "step {step}, are not shown.", offset=offset, problem=damage, rest=self.size - offset,
                             step=self.last_step()))

    def require_state(self) -> EngineState:
        """The state after the last step that was taken."""
        recording = self.require_recording()
        if self.state is None:
            self.state = recording.state_at(recording._last)
        return self.state

    def _check_magic(self) -> None:
        head = self.file.read(len(MAGIC))
        if not head:
            raise RecordingError(Notice("{path} is empty.", path=self.path))
        if head != MAGIC:
            if MAGIC.startswith(head):
                raise RecordingError(Notice("{path} was cut off before anything was recorded.", path=self.path))
            raise RecordingError(Notice("{path} is not a recording (it is no MCAP file).", path=self.path))

    def take_record(self, record: Record) -> None:
        if record.kind == CHUNK:
            self._take_chunk(record)
        elif record.kind == METADATA and record.length <= MAX_METADATA_BYTES:
            body = read_body(self.file, record)
            try:
                name, content = parse_metadata(body)
            except Damage:
                return  # it has no checksum, and the first chunk repeats what matters
            if name == RUN_METADATA and self.info is None:
                self.info = parse_info(content.get("info", ""))
            elif name == END_METADATA:
                self.end_metadata = content
        elif record.kind == MESSAGE:
            self.stop(Notice("The file holds messages outside of chunks, which Cutaway never writes: what comes after "
                             "step {step} is not shown.", step=self.last_step()))
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
                    self.take_channel(body)
                elif kind == MESSAGE:
                    message = parse_message(body)
                    topic = self.topics.get(message.channel_id)
                    if topic == STEP_TOPIC:
                        self._take_step(message.data)
                    elif topic == SNAPSHOT_TOPIC:
                        self.take_snapshot(message.data, Place(record.offset - 9, at - len(message.data), at))
                if self.stopped:
                    break
        finally:
            if self.in_chunk and self.recording is not None:
                self.recording._chunk_offsets.append(record.offset - 9)
                self.recording._chunk_firsts.append(self.last_step() + 1 - self.in_chunk)

    def take_channel(self, body: memoryview) -> None:
        number, channel = parse_channel(body)
        if channel.topic not in (STEP_TOPIC, SNAPSHOT_TOPIC) or channel.encoding != "msgpack":
            return
        self.topics[number] = channel.topic
        if not self.info_from_chunk and self.recording is None:
            info = parse_info(channel.metadata.get("info", ""))
            if info is not None:  # better than the metadata record, which has no checksum
                self.info, self.info_from_chunk = info, True

    def require_recording(self) -> Recording:
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
        recording.complete &= self.ended and not self.stopped and dropped in ("", "0")
        if not self.snapshot_found and last - recording.first_step >= 2 * SNAPSHOT_INTERVAL:
            self.warnings.append(Notice("The snapshots are missing; they were made anew from the steps."))
        if recording.first_step < 0 and self.ended:
            self.warnings.append(Notice("There is no step in the recording."))

    def last_step(self) -> int:
        return self.recording.last_step if self.recording is not None else -1

    def stop(self, warning: Notice) -> None:
        self.warnings.append(warning)
        self.stopped = self.damaged = True

    # ---- steps and snapshots -------------------------------------------------------------------------------------

    def _take_step(self, data: memoryview) -> None:
        try:
            events = read_step(data)
        except (ValueError, RecursionError) as error:
            if self.require_recording().last_step < 0 and self.newer_schema:
                raise RecordingError(Notice("{path} needs Cutaway {version} or later.", path=self.path,
                                            version=self.require_recording().info.version)) from None
            self.stop(Notice("The step after step {step} cannot be read ({problem}): nothing from there on is shown.",
                             step=self.last_step(), problem=error))
            return
        recording = self.require_recording()
        state = self.state
        assert state is not None
        if recording.first_step < 0 and events.step != state.step + 1:
            raise RecordingError(Notice("{path} begins with step {step}, and the state before it is missing.",
                                        path=self.path, step=events.step))
        problem = find_implausible(events, state)
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
            self.stop(Notice("Step {step} contradicts the steps before it ({problem}): nothing from there on is "
                             "shown.", step=events.step, problem=problem))
            return
        if recording._first < 0:
            recording._first = events.step
        recording._last = events.step
        self.in_chunk += 1
        if (events.step + 1) % SNAPSHOT_INTERVAL == 0:
            recording._snapshot_steps.append(events.step)
            recording._snapshots.append(zstandard.compress(encode_snapshot(state.snapshot()), 1))

    def take_snapshot(self, data: memoryview, place: Place) -> None:
        """Use a snapshot from the file where it is what the steps say; otherwise the steps are believed."""
        try:
            snapshot = read_snapshot(data)
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
