"""The part of opening a recording that reads its index instead of its steps.

A block of the index that is damaged is made anew from the steps that it is about, and the ones after it are used again.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from engine.trace.index import FRAME_BYTES, INDEX_NAME, INDEX_STEPS, BlockBuilder, parse_frame, unpack_head
from engine.trace.mcap_file import (
    ATTACHMENT,
    CHANNEL,
    CHUNK,
    MAGIC,
    MESSAGE,
    Attachment,
    Damage,
    attachments_in_summary,
    parse_attachment,
    parse_message,
    read_chunk,
    records_in,
    scan,
)
from engine.trace.metrics import TTFT_WINDOW, StepSeries
from engine.trace.recorded import INDEX_REBUILT, Block, Place, RecordingError
from engine.trace.recording import SNAPSHOT_TOPIC, STEP_TOPIC
from engine.trace.source import Notice
from engine.trace.state import CONTRADICTIONS

if TYPE_CHECKING:
    from engine.trace.opening import Opening

CHECK_BYTES = 16 << 20
"""Files up to this size are checked when they are opened, to the last byte; larger ones later: `Recording.check`."""


class IndexedPart:
    """Takes from the index what it tells, for an :class:`engine.trace.opening.Opening`."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.file = opening.file
        self.size = opening.size

    def take(self) -> int:
        """Take what the index tells; returns where in the file it ends."""
        start = len(MAGIC)
        blocks = self._index_blocks()
        if not blocks:
            return start
        try:
            self._take_beginning()
        except Damage:  # which will be told when the file is read from there
            return start
        if self.opening.recording is None:
            return start
        recording, wrong = self.opening.recording, 0
        recording.series = StepSeries((len(blocks) + 2) * INDEX_STEPS)
        recording.series.prime(self.opening.require_state())
        for attachment in blocks:
            block = self._read_block(attachment)
            where = attachment.record.offset - 9
            if block is not None and self._is_next(block, start, where):
                recording._add_block(block)
                self.opening.state, self.opening.snapshot_found = None, True
            else:
                wrong += 1
                if not self._rebuild_block(start, where):
                    break
            start = attachment.record.end
        else:
            self._resume_series()
        if wrong:
            self.opening.warnings.append(INDEX_REBUILT)
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

    def _read_block(self, attachment: Attachment) -> Block | None:
        """None for one that is damaged."""
        try:
            self.file.seek(attachment.offset)
            frame = parse_frame(self.file.read(FRAME_BYTES), attachment.length)
            return Block(unpack_head(frame, self.file.read(frame.head_length), self.size), frame, attachment.offset)
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
                        self.opening.take_channel(body)
                    elif kind == MESSAGE:
                        message = parse_message(body)
                        topic = self.opening.topics.get(message.channel_id)
                        if topic == SNAPSHOT_TOPIC and self.opening.recording is None:
                            place = Place(record.offset - 9, at - len(message.data), at)
                            self.opening.take_snapshot(message.data, place)
                        if topic == STEP_TOPIC:
                            break
                if len(set(self.opening.topics.values())) == 2:
                    self.opening.require_recording()
                    return
            else:
                self.opening.take_record(record)
            if record.offset > 8 << 20:
                return

    def _is_next(self, block: Block, start: int, end: int) -> bool:
        """Whether the block tells of the steps that follow, and its chunks are between ``start`` and ``end``."""
        recording = self.opening.require_recording()
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
        if self.opening.as_written or self.size > CHECK_BYTES:
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
        recording = self.opening.require_recording()
        first = recording._last + 1 if recording._first >= 0 else recording._snapshot_steps[0] + 1
        before = max(first - TTFT_WINDOW, recording._snapshot_steps[0] + 1)  # what the rolling figures build on
        try:
            self.opening.state = state = recording.state_at(before - 1)
            builder = BlockBuilder(state)
            for step in range(before, first):
                events = recording.events(step)
                state.apply(events)
                builder.append(events, state)
            builder.first_step = first
        except (RecordingError, Damage, *CONTRADICTIONS) as problem:
            self.opening.state = None
            self.opening.stop(Notice("The file is damaged: what came after step {step} cannot be shown ({problem}).",
                                     step=self.opening.last_step(), problem=problem))
            self._resume_series()
            return False
        self.opening.builder = builder
        try:
            self.opening.take_records(start, end)
        finally:
            self.opening.builder = None
        if builder.count:
            block, rows = builder.take()
            recording.series.extend_put_away(block, lambda: block.detail)
            recording.timeline.add_block(recording._last, lambda: rows)
        if self.opening.stopped or recording._last < first:
            if not self.opening.stopped:
                self.opening.stop(Notice("The file is damaged: what came after step {step} is missing.",
                                         step=self.opening.last_step()))
            self._resume_series()
            return False
        return True

    def _resume_series(self) -> None:
        """Make series and timeline ready for the steps after the last block."""
        recording = self.opening.require_recording()
        state = self.opening.require_state()
        series, timeline = recording.series, recording.timeline
        series.prime(state)
        series.resume()
        if timeline._block_loads:
            _finished, still_open = timeline._block_loads[-1]()
            busy = np.flatnonzero(series.prefill_tokens + series.decode_tokens)
            timeline.resume(list(still_open), state, int(series.step[busy[-1]]) if len(busy) else -1)
