"""A recorded run that is open: any step of it, and the engine after any step, read from the file when it is asked for.

:func:`engine.trace.reader.open_recording` opens one. What could be checked then was; damage elsewhere is found when one
looks there, and told in ``warnings``.
"""

from __future__ import annotations

import os
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
import zstandard

from engine.trace.events import RunInfo, StepEvents
from engine.trace.index import BlockRows, Frame, IndexBlock, unpack_detail
from engine.trace.integrity import is_as_written, is_consistent, never
from engine.trace.mcap_file import CHUNK, MESSAGE, Damage, parse_message, read_chunk, record_at, records_in
from engine.trace.metrics import BlockDetail
from engine.trace.plausible import find_absurd, read_snapshot, read_step
from engine.trace.source import Notice, PagedRun
from engine.trace.state import CONTRADICTIONS, EngineState, Snapshot, decode_snapshot

UNPACKED_CHUNKS_KEPT = 4
DETAILS_KEPT = 24
MAX_WARNINGS = 20

INDEX_REBUILT = Notice("A part of the index is damaged; it was made anew from the steps.")
HARMLESS = Notice("Something in the file was changed after it was written, but nothing that a step or a chart needs: "
                  "everything is shown.")


class RecordingError(Exception):
    """The file cannot be shown. The argument is a :class:`Notice` that says why and what to do."""


class Place(NamedTuple):
    """A snapshot: the place of the chunk in the file, and where in the unpacked chunk its data stands, if known."""

    chunk: int
    start: int = -1
    end: int = -1


class Block(NamedTuple):
    """A block of the index: the steps in it, and where its details are."""

    head: IndexBlock
    frame: Frame
    offset: int


class _LostSnapshot(Damage):
    """The snapshot ``index`` cannot be read: its chunk, at ``offset``, is damaged."""

    def __init__(self, index: int, offset: int, problem: Exception) -> None:
        super().__init__(str(problem))
        self.index = index
        self.offset = offset


class _Steps:
    """The steps of a chunk, decoded as they are asked for."""

    def __init__(self, packed: list[memoryview]) -> None:
        self._steps: list[memoryview | StepEvents] = list(packed)

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> StepEvents:
        step = self._steps[index]
        if isinstance(step, memoryview):
            step = read_step(step)
            problem = find_absurd(step)
            if problem:
                raise Damage(problem)
            self._steps[index] = step
        return step


class Recording(PagedRun):
    """A recorded run. ``path`` is its file, which stays open until :meth:`close`.

    If the file is changed or becomes unreadable while it is open, ``events`` and ``state_at`` raise
    :class:`RecordingError`; so they do for damage that opening did not look for. ``goes_on`` is the file that holds
    the rest, if it was written to several. ``checksum_expected`` says that the file holds a checksum of all its data.
    """

    def __init__(self, path: Path, file: BinaryIO, info: RunInfo) -> None:
        super().__init__(info)
        self.path = path
        self.goes_on: Path | None = None
        self.checked = False
        self.checksum_expected = False
        self._telling = threading.Lock()  # check() may run in a thread of its own
        self._told: set[int] = set()  # where in the file, by what warnings tell
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._chunk_offsets: list[int] = []
        self._chunk_firsts: list[int] = []  # the first step of each
        self._step_channels: set[int] = set()
        self._snapshot_channels: set[int] = set()
        self._snapshots: list[Place | bytes] = []  # in the file, or made while opening, packed
        self._unpacked: OrderedDict[int, bytes] = OrderedDict()
        self._block_places: list[tuple[Frame, int]] = []
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
        page = self._page_of(step)
        self._tell(self._chunk_offsets[page] if page >= 0 else 0, notice)
        return RecordingError(notice)

    def _tell(self, offset: int, notice: Notice, *, missing: bool = True) -> None:
        """Tell once of what is wrong at ``offset`` in the file, and whether something of the run is missing by it."""
        with self._telling:
            self.complete = self.complete and not missing
            if offset not in self._told and len(self.warnings) < MAX_WARNINGS:
                self._told.add(offset)
                self.warnings = [*self.warnings, notice]

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _reach(self, step: int) -> EngineState:
        while True:
            try:
                return super()._reach(step)
            except _LostSnapshot as lost:
                if lost.index == 0:
                    raise
                self._tell_snapshot(lost.offset, lost)
                del self._snapshot_steps[lost.index], self._snapshots[lost.index]  # the one before it will do

    def _tell_snapshot(self, offset: int, problem: Exception) -> None:
        self._tell(offset, Notice("A snapshot is damaged (at byte {offset}: {problem}): the steps after it take longer "
                                  "to reach.", offset=offset, problem=problem), missing=False)

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
        try:
            return self._read_snapshot(place, self._snapshot_steps[index])
        except (Damage, msgspec.DecodeError, RecursionError) as error:
            raise _LostSnapshot(index, place.chunk, error) from None

    def _read_snapshot(self, place: Place, step: int) -> Snapshot:
        chunk = self._unpack(place.chunk)
        if place.start >= 0:
            return read_snapshot(memoryview(chunk)[place.start:place.end])
        for kind, body in records_in(chunk):
            if kind == MESSAGE:
                message = parse_message(body)
                if message.channel_id in self._snapshot_channels and message.sequence == step:
                    snapshot = read_snapshot(message.data)
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

    def _add_block(self, block: Block) -> None:
        self._block_places.append((block.frame, block.offset))
        series, rows = block.head.series, block.head.chunks
        self._chunk_offsets += rows.offsets
        self._chunk_firsts += rows.firsts
        self._snapshot_steps += rows.snapshot_steps
        self._snapshots += [Place(offset) for offset in rows.snapshot_offsets]
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
            self._tell_block(offset, error)
            detail = (BlockDetail(np.zeros(shape[0], np.uint32), np.full(shape[1], np.nan, np.float32),
                                  [""] * shape[2]), lambda: BlockRows([], []))
        self._details[offset] = detail
        if len(self._details) > DETAILS_KEPT:
            self._details.popitem(last=False)
        return detail

    def _tell_block(self, offset: int, problem: Exception) -> None:
        self._tell(offset, Notice("A part of the index is damaged (at byte {offset}: {problem}): some charts are empty "
                                  "there.", offset=offset, problem=problem))

    def _rows(self, frame: Frame, offset: int, shape: tuple[int, int, int]) -> BlockRows:
        try:
            return self._detail(frame, offset, shape)[1]()
        except (ValueError, RecursionError):
            return BlockRows([], [])

    # ---- looking where nobody has looked -----------------------------------------------------------------------------

    def check(self, stop: Callable[[], bool] = never, *, thorough: bool = False) -> None:
        """Compare the file with its checksums: see :meth:`RunSource.check`. It is read once, and once more if it is
        not what was written, to see what of the run that costs."""
        if self.checked:
            return
        try:
            with open(self.path, "rb") as file:
                if os.path.samestat(os.fstat(file.fileno()), os.fstat(self._file.fileno())):  # else it was replaced
                    self._check(file, stop, thorough)
        except (OSError, ValueError):
            return  # what cannot be read is told when somebody wants to see it

    def _check(self, file: BinaryIO, stop: Callable[[], bool], thorough: bool) -> None:
        unchanged = is_as_written(file, self._size, stop)
        if unchanged is None:
            if self.checksum_expected:
                unchanged = False
            elif thorough:
                unchanged = is_consistent(file, self._size, stop)
            else:
                return
        if unchanged is False and not stop() and not self._tell_damage(file, stop) and not stop():
            with self._telling:
                self.warnings = [*self.warnings, HARMLESS]
        self.checked = not stop()

    def _tell_damage(self, file: BinaryIO, stop: Callable[[], bool]) -> bool:
        """Whether anything that is shown cannot be read; ``warnings`` tell what."""
        found = INDEX_REBUILT in self.warnings
        snapshots = {place.chunk for place in list(self._snapshots) if isinstance(place, Place)}
        for offset in sorted(snapshots.union(self._chunk_offsets)):
            if stop():
                return found
            try:
                record = record_at(file, offset, self._size)
                if record.kind != CHUNK:
                    raise Damage("there is no chunk where one should be")
                read_chunk(file, record)
            except Damage as problem:
                found = True
                self._tell_chunk(offset, problem)
        for frame, offset in self._block_places:
            file.seek(offset + frame.detail_start)
            if zlib.crc32(file.read(frame.detail_length)) != frame.detail_crc:
                found = True
                self._tell_block(offset, Damage("the checksum of an index block is wrong"))
        return found

    def _tell_chunk(self, offset: int, problem: Damage) -> None:
        page = bisect_right(self._chunk_offsets, offset) - 1
        if page < 0 or self._chunk_offsets[page] != offset:
            self._tell_snapshot(offset, problem)
            return
        last = self._chunk_firsts[page + 1] - 1 if page + 1 < len(self._chunk_firsts) else self._last
        self._tell(offset, Notice("The steps {first} to {last} cannot be shown: the file is damaged at byte {offset} "
                                  "({problem}).", first=self._chunk_firsts[page], last=last, offset=offset,
                                  problem=problem))
