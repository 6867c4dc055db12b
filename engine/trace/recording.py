"""Writes a run into an MCAP file while it happens, from a thread of its own.

    metadata "cutaway.run"      the RunInfo, as JSON
    channel "step"              every StepEvents, as MessagePack; the message's sequence is the step, its time the
                                run's
    channel "snapshot"          the EngineState every 128 steps, at each knob change, and at the start of a recording
                                that begins in the middle of a run
    attachment "cutaway.index"  what a viewer needs of the last 2,048 steps without reading them (see index.py)
    metadata "cutaway.end"      how many steps were written and how many were lost, when the file is closed; the name
                                of the file in which the recording goes on, if it does; and that a checksum of all data
                                follows, after which comes one of the summary: every byte of the file is in one of them

The file itself grows, chunk by chunk, and a chunk is closed at least every half second: whatever happens to the
program, everything up to the last chunk is there. A file that has become large is closed, and the recording goes on
in a new one beside it, which can be opened on its own.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from mcap.writer import CompressionType, Writer

from engine.trace.events import RunInfo, StepEvents, encode_step
from engine.trace.growing_file import GrowingFile, InUse
from engine.trace.index import INDEX_MEDIA_TYPE, INDEX_NAME, INDEX_STEPS, BlockBuilder, ChunkMap, pack_block
from engine.trace.redact import without_prompts
from engine.trace.source import SNAPSHOT_INTERVAL, Notice
from engine.trace.state import CONTRADICTIONS, EngineState, Snapshot, encode_snapshot

CHUNK_BYTES = 160 * 1024
"""A chunk is closed when it holds this much, before compression."""

FLUSH_SECONDS = 0.3
POLL_SECONDS = 0.1
MAX_QUEUED_STEPS = 20_000
"""Some minutes of a busy engine: a disk that hangs for longer ends the recording."""

MAX_FILE_BYTES = 4 << 30
MAX_FILE_CHUNKS = 50_000
"""Beyond either of them the recording goes on in a new file: an index is read whole when its file is opened."""

CHECKSUM = "crc32"
"""The checksum that follows the data: said before it, so that a checksum that was erased is missed."""

RUN_METADATA = "cutaway.run"
END_METADATA = "cutaway.end"
STEP_TOPIC = "step"
SNAPSHOT_TOPIC = "snapshot"


class Recorder:
    """Records from the next :meth:`put` on until :meth:`close`.

    ``state`` is the engine's state when the recording begins in the middle of a run (it is copied); without it the
    first step must be the run's first. An existing file is replaced, unless another recorder writes it. Without
    ``prompt_text`` neither the prompts' texts nor their tokens are written, only how long they are.

    Nothing here raises because of the disk: when the file cannot be written (any more), ``error`` says why, the
    recording is over, and what is on the disk stays readable. Attributes to read at any time, from any thread:
    ``path``, ``error``, ``dropped`` (steps that are not in the file), ``steps_written`` and ``bytes_written`` (what
    is safe on its way to the disk), ``paths`` (the file, and those in which the recording went on), and
    ``cpu_ns``, processor time that recording has taken.
    """

    def __init__(self, path: str | os.PathLike[str], info: RunInfo, state: EngineState | None = None, *,
                 max_queued_steps: int = MAX_QUEUED_STEPS, prompt_text: bool = True,
                 max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = Path(path)
        self.paths = [self.path]
        self.cpu_ns = 0
        self.error: Notice | None = None
        self.failure: Exception | None = None  # that the system made, if it was one
        self.dropped = 0
        self.steps_written = 0
        self._info = info if prompt_text else msgspec.structs.replace(info, prompt_text=False)
        self._prompt_text = prompt_text
        self._initial = state.snapshot() if state is not None else None
        self._state: EngineState | None = state.copy() if state is not None else EngineState(info)
        if not prompt_text:
            for request in self._state.requests.values():
                request.prompt_text, request.prompt_token_ids = "", [0] * request.num_prompt_tokens
            self._initial = self._state.snapshot() if state is not None else None
        self._max_file_bytes = max_file_bytes
        self._builder: BlockBuilder | None = None
        self._earlier_bytes = 0  # in files that were closed because they had become large
        self._queue: deque[StepEvents] = deque()
        self._max_queued = max_queued_steps
        self._closing = False
        self._wake = threading.Event()
        self._file: GrowingFile | None = None
        try:
            self._file = GrowingFile(self.path)
        except OSError as error:
            self._fail(error)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def bytes_written(self) -> int:
        return self._earlier_bytes + (self._file.size if self._file is not None else 0)

    @property
    def queued(self) -> int:
        """Steps that wait to be written."""
        return len(self._queue)

    def put(self, events: StepEvents) -> None:
        """Hand a step over. Never blocks and never raises; costs well under a microsecond. For one thread at a time.

        A step that finds the queue full ends the recording, because what follows a gap could not be replayed.
        """
        if self.error is not None or self._closing:
            self.dropped += 1
        elif len(self._queue) >= self._max_queued:
            self.dropped += 1
            self.error = Notice("The disk does not keep up: the recording ends at step {step}. The run goes on.",
                                step=events.step - 1)
        else:
            self._queue.append(events)

    def wait_for_room(self) -> None:
        """Block until the queue is at most half full, for those who make steps faster than any engine."""
        while len(self._queue) > self._max_queued // 2 and self._thread.is_alive():
            self._wake.set()
            time.sleep(0.002)

    def close(self, timeout: float = 30.0) -> bool:
        """Write what is queued, finish the file, and wait for that. False if the disk did not get done in time."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # ---- the recorder's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._file is None:
            self._discard_queue()
            return
        try:
            writer = self._begin_file(self._file, self._initial)
            writer = self._write_all(writer)
            self._finish_file(writer)
        except Exception as error:  # whatever it is, the run must not suffer from it
            self._fail(error)
            self._file.cut_back()
        finally:
            self._file.close()
            self._discard_queue()
            self.cpu_ns = time.thread_time_ns()

    def _begin_file(self, file: GrowingFile, initial: Snapshot | None) -> _StepWriter:
        writer = _open_writer(file, self._info)
        if initial is not None:
            writer.add_snapshot(initial)
        writer.flush()
        self._builder = BlockBuilder(self._state) if self._state is not None else None
        return writer

    def _finish_file(self, writer: _StepWriter, goes_on: str = "") -> None:
        state, builder = self._state, self._builder
        if state is not None and builder is not None and builder.count:
            if writer.last_snapshot != state.step:
                writer.add_snapshot(state.snapshot())
            self._add_block(writer, builder)
        writer.finish(self.steps_written, self.dropped, goes_on)

    def _add_block(self, writer: _StepWriter, builder: BlockBuilder) -> None:
        first = builder.first_step
        block, rows = builder.take()
        writer.add_block(first, lambda chunks: pack_block(first, block, rows, chunks))

    def _go_on(self, writer: _StepWriter) -> _StepWriter:
        """Close the file and begin the next one."""
        assert self._file is not None
        assert self._state is not None
        number = len(self.paths) + 1
        while (path := self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")).exists():
            number += 1
        file = GrowingFile(path)
        self._finish_file(writer, path.name)
        self._file.close()
        self._earlier_bytes += self._file.size
        self._file = file
        self.paths.append(path)
        return self._begin_file(file, self._state.snapshot())

    def _write_all(self, writer: _StepWriter) -> _StepWriter:
        written = 0
        open_since: float | None = None  # when the first step came into the chunk that is not closed yet
        while True:
            closing = self._closing or self.error is not None  # read before the queue: nothing is added afterwards
            while self._queue:
                events = self._queue.popleft()
                if not self._prompt_text:
                    events = without_prompts(events)
                if open_since is None:
                    open_since = time.monotonic()
                closed = writer.add_step(events)
                snapshot = self._advance(events)
                if snapshot is not None:
                    closed = writer.add_snapshot(snapshot) or closed
                written += 1
                if snapshot is not None and self._builder is not None and self._builder.count >= INDEX_STEPS:
                    writer.flush()
                    closed = True
                    self._add_block(writer, self._builder)
                    if writer.num_chunks > MAX_FILE_CHUNKS or writer.size > self._max_file_bytes:
                        writer = self._go_on(writer)
                if closed:
                    self.steps_written, open_since = written, None
                elif time.monotonic() - open_since > FLUSH_SECONDS:
                    break
                if written % 8 == 0:
                    time.sleep(0)  # let the engine have the interpreter
            if open_since is not None and (closing or time.monotonic() - open_since > FLUSH_SECONDS):
                writer.flush()
                self.steps_written, open_since = written, None
            if closing and not self._queue:
                return writer
            if not self._queue:
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()

    def _advance(self, events: StepEvents) -> Snapshot | None:
        """Keep the state up to date; a snapshot if one is due."""
        if self._state is None:
            return None
        try:
            self._state.apply(events)
            if self._builder is not None:
                self._builder.append(events, self._state)
        except CONTRADICTIONS:
            # The steps are what counts, so they go on; the reader will say where they break.
            self._state = self._builder = None
            return None
        due = (events.step + 1) % SNAPSHOT_INTERVAL == 0 or events.knobs
        return self._state.snapshot() if due else None

    def _discard_queue(self) -> None:
        self.dropped += len(self._queue)
        self._queue.clear()

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.failure = error
            self.error = _explain(error, self.path)


class _StepWriter:
    """Steps and snapshots into chunks. ``add_...`` return whether the chunk was closed with it."""

    def __init__(self, file: GrowingFile, writer: Writer, step_channel: int, snapshot_channel: int) -> None:
        self._file = file
        self._writer = writer
        self._step_channel = step_channel
        self._snapshot_channel = snapshot_channel
        self.num_chunks = 0
        self.last_snapshot = -2
        self._chunks = ChunkMap([], [], [], [])  # since the last block
        self._open_first = -1  # the first step in the chunk that is not closed yet
        self._open_snapshots: list[int] = []

    @property
    def size(self) -> int:
        return self._file.size

    def add_step(self, events: StepEvents) -> bool:
        if self._open_first < 0:
            self._open_first = events.step
        return self._add(self._step_channel, events.step, events.end_ns, encode_step(events))

    def add_snapshot(self, snapshot: Snapshot) -> bool:
        self._open_snapshots.append(snapshot.step)
        self.last_snapshot = snapshot.step
        return self._add(self._snapshot_channel, max(0, snapshot.step), snapshot.time_ns, encode_snapshot(snapshot))

    def _add(self, channel: int, step: int, time_ns: int, data: bytes) -> bool:
        before = self._file.size
        self._writer.add_message(channel, log_time=time_ns, data=data, publish_time=time_ns,
                                 sequence=step & 0xFFFFFFFF)
        return self._note_closed(before)

    def _note_closed(self, before: int) -> bool:
        """Whether a chunk was closed since the file had the size ``before``; then it begins there."""
        if self._file.size == before:
            return False
        if self._open_first >= 0:
            self._chunks.offsets.append(before)
            self._chunks.firsts.append(self._open_first)
        self._chunks.snapshot_steps.extend(self._open_snapshots)
        self._chunks.snapshot_offsets.extend([before] * len(self._open_snapshots))
        self._open_first, self._open_snapshots = -1, []
        self.num_chunks += 1
        self._file.flush()
        return True

    def flush(self) -> None:
        """Close the chunk."""
        before = self._file.size
        self._writer.flush()  # flushes the file too
        self._note_closed(before)

    def add_block(self, first_step: int, pack: Callable[[ChunkMap], bytes]) -> None:
        """Write an index block about the chunks since the last one, from ``first_step`` on."""
        self.flush()
        chunks = self._chunks
        while chunks.snapshot_steps and chunks.snapshot_steps[0] < first_step:  # the initial one, which opens the file
            del chunks.snapshot_steps[0], chunks.snapshot_offsets[0]
        self._writer.add_attachment(0, 0, INDEX_NAME, INDEX_MEDIA_TYPE, pack(chunks))
        self._file.flush()
        self._chunks = ChunkMap([], [], [], [])

    def finish(self, steps: int, dropped: int, goes_on: str = "") -> None:
        self.flush()
        content = {"steps": str(steps), "dropped": str(dropped), "checksum": CHECKSUM}
        if goes_on:
            content["goes_on"] = goes_on
        self._writer.add_metadata(END_METADATA, content)
        self._writer.finish()
        self._file.flush()


def _open_writer(file: GrowingFile, info: RunInfo) -> _StepWriter:
    writer = Writer(file, chunk_size=CHUNK_BYTES, compression=CompressionType.ZSTD, enable_data_crcs=True)
    writer.start(profile="", library=f"cutaway {info.version}")
    described = msgspec.json.encode(info).decode()
    writer.add_metadata(RUN_METADATA, {"schema": str(info.schema), "info": described})
    file.flush()
    channels = []
    for topic, kind in ((STEP_TOPIC, StepEvents), (SNAPSHOT_TOPIC, Snapshot)):
        schema: dict[str, Any] = msgspec.json.schema(kind)
        schema_id = writer.register_schema(f"cutaway.{kind.__name__}", "jsonschema", msgspec.json.encode(schema))
        # The header once more: in a chunk it has a checksum, and the summary repeats it at the file's end.
        channels.append(writer.register_channel(topic, "msgpack", schema_id, {"info": described}))
    return _StepWriter(file, writer, *channels)


def _explain(error: Exception, path: Path) -> Notice:
    if isinstance(error, InUse):
        return Notice("Another recording is written to {path}: choose another name. The run goes on unrecorded.",
                      path=path)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return Notice("The disk is full: the recording {path} ends here. The run goes on.", path=path)
    if number == errno.EFBIG:
        return Notice("The file {path} may not become larger: the recording ends here. The run goes on.", path=path)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Notice("{path} may not be written: choose another folder. The run goes on unrecorded.", path=path)
    if number in (errno.ENOENT, errno.ENOTDIR):
        return Notice("The folder of {path} does not exist. The run goes on unrecorded.", path=path)
    if number == errno.EISDIR:
        return Notice("{path} is a folder: name a file. The run goes on unrecorded.", path=path)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return Notice("The recording {path} cannot be written any more ({reason}). The run goes on.", path=path,
                  reason=reason)
