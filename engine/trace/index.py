"""The index of a recording: what a viewer needs of 2,048 steps, without reading them.

A block is an attachment of the MCAP file and stands right after the chunks that it is about, so that a file that was
cut off still has the blocks of everything but its last steps. It has two parts, each with a checksum of its own:

    "CWIX" | version | length and checksum of the head | length and checksum of the detail | head | detail

The head (read when the file is opened) holds the columns of the steps, the marks without their labels, and where the
chunks and snapshots are. The detail (read when its steps are looked at) holds the shares of every step, the latencies
between tokens, the labels of the marks, and the rows of the timeline.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import zstandard

from engine.trace.events import StepEvents
from engine.trace.mcap_file import Damage
from engine.trace.metrics import TTFT_WINDOW, BlockDetail, SeriesBlock, StepSeries
from engine.trace.state import EngineState
from engine.trace.timeline import Timeline, TimelineRow

INDEX_STEPS = 2048
"""Steps in a block."""

INDEX_NAME = "cutaway.index"
INDEX_MEDIA_TYPE = "application/x-cutaway-index"
MAX_BLOCK_STEPS = 1 << 16
MAX_PART_BYTES = 32 << 20
"""Unpacked. A block of 2,048 steps with 256 requests each takes some 5 MB."""

_FRAME = struct.Struct("<4sIIIII")
_MAGIC = b"CWIX"
_VERSION = 1
FRAME_BYTES = _FRAME.size


class ChunkMap(NamedTuple):
    """Where chunks begin in the file with the first step of each, and the steps and the chunks of the snapshots."""

    offsets: list[int]
    firsts: list[int]
    snapshot_steps: list[int]
    snapshot_offsets: list[int]


class BlockRows(NamedTuple):
    """Timeline rows that ended within a block, and those that were open at its end."""

    finished: list[TimelineRow]
    open: list[TimelineRow]


class IndexBlock(NamedTuple):
    """The head of a block, unpacked. The series' detail in it is empty: see :func:`unpack_detail`."""

    first_step: int
    last_step: int
    chunks: ChunkMap
    series: SeriesBlock


class _Head(msgspec.Struct, array_like=True):
    first_step: int
    count: int
    chunk_offsets: bytes
    chunk_firsts: bytes
    snapshot_steps: bytes
    snapshot_offsets: bytes
    columns: dict[str, bytes]
    ttft_step: bytes
    ttft_ns: bytes
    mark_step: bytes
    mark_kind: bytes


class _Detail(msgspec.Struct, array_like=True):
    segments: bytes
    itl_ns: bytes
    labels: list[str]
    rows: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(_Head)
_detail_decoder = msgspec.msgpack.Decoder(_Detail)
_rows_decoder = msgspec.msgpack.Decoder(tuple[list[TimelineRow], list[TimelineRow]])


class BlockBuilder:
    """Series and timeline of the steps that are in no block yet."""

    def __init__(self, state: EngineState) -> None:
        self.series = StepSeries()
        self.timeline = Timeline(INDEX_STEPS, collect=True)
        self.series.prime(state)
        self.timeline.prime(state)
        self.first_step = state.step + 1  # the first step that is in no block
        self._last = state.step

    @property
    def count(self) -> int:
        return self._last + 1 - self.first_step

    def append(self, events: StepEvents, state: EngineState) -> None:
        self.series.append(events, state)
        self.timeline.append(events, state)
        self._last = events.step

    def take(self) -> tuple[SeriesBlock, BlockRows]:
        """The block of the steps since the last call. What the rolling figures need of them stays."""
        series = self.series
        block = series.cut_block(series.index_of(self.first_step), series.n)
        rows = BlockRows(self.timeline.take_finished(), list(self.timeline.open_rows()))
        series.forget_before(self._last + 1 - TTFT_WINDOW)
        self.first_step = self._last + 1
        return block, rows


def pack_block(first_step: int, block: SeriesBlock, rows: BlockRows, chunks: ChunkMap) -> bytes:
    """The bytes of a block."""
    columns = dict(block.columns)
    del columns["step"]  # they follow one another
    start_ns = columns["start_ns"]
    columns["end_ns"] = columns["end_ns"] - start_ns
    columns["start_ns"] = np.diff(start_ns, prepend=0)
    head = _Head(first_step, len(start_ns), _bytes(chunks.offsets, "<i8"), _bytes(chunks.firsts, "<i8"),
                 _bytes(chunks.snapshot_steps, "<i8"), _bytes(chunks.snapshot_offsets, "<i8"),
                 {name: _bytes(values) for name, values in columns.items()}, _bytes(block.ttft_step),
                 _bytes(block.ttft_ns), _bytes(block.mark_step), _bytes(block.mark_kind))
    return _frame(_encoder.encode(head), pack_detail(block.detail, rows))


def pack_detail(detail: BlockDetail, rows: BlockRows) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(_encoder.encode(_Detail(
        _bytes(detail.segments), _bytes(detail.itl_ns), detail.labels, msgspec.Raw(_encoder.encode(tuple(rows))))))


def _frame(head: bytes, detail: bytes) -> bytes:
    head = zstandard.ZstdCompressor(level=1).compress(head)
    return _FRAME.pack(_MAGIC, _VERSION, len(head), zlib.crc32(head), len(detail), zlib.crc32(detail)) + head + detail


class Frame(NamedTuple):
    """Where the parts of a block are, counted from its beginning."""

    head_length: int
    head_crc: int
    detail_length: int
    detail_crc: int

    @property
    def detail_start(self) -> int:
        return FRAME_BYTES + self.head_length


def parse_frame(data: bytes, length: int) -> Frame:
    """``data`` is the beginning of a block of ``length`` bytes. Raises Damage."""
    if len(data) < FRAME_BYTES:
        raise Damage("an index block without its head")
    magic, version, *sizes = _FRAME.unpack_from(data)
    frame = Frame(*sizes)
    if magic != _MAGIC or version != _VERSION or frame.detail_start + frame.detail_length > length:
        raise Damage("an index block that is not known here")
    return frame


def unpack_head(frame: Frame, data: bytes, file_size: int) -> IndexBlock:
    """Raises Damage when it is not a head, or one that cannot be true."""
    if len(data) != frame.head_length or zlib.crc32(data) != frame.head_crc:
        raise Damage("the checksum of an index block is wrong")
    try:
        head = _head_decoder.decode(_unpack(data))
        return _check_head(head, file_size)
    except (ValueError, KeyError, OverflowError, RecursionError) as error:
        raise Damage(f"an index block contradicts itself ({error})") from None


def _check_head(head: _Head, file_size: int) -> IndexBlock:
    count, first = head.count, head.first_step
    if not 0 < count <= MAX_BLOCK_STEPS or not 0 <= first < (1 << 31) - MAX_BLOCK_STEPS:
        raise ValueError(f"{count} steps from {first} on")
    columns: dict[str, np.ndarray] = {"step": np.arange(first, first + count, dtype=np.int32)}
    for name, dtype in _COLUMNS.items():
        if name != "step":
            columns[name] = _array(head.columns[name], dtype, count)
    columns["start_ns"] = np.cumsum(columns["start_ns"])
    columns["end_ns"] = columns["start_ns"] + columns["end_ns"]
    for name in ("_segment_end", "_itl_end"):
        if columns[name][0] < 0 or (np.diff(columns[name]) < 0).any():
            raise ValueError(name)
    marks = _array(head.mark_step, np.int32), _array(head.mark_kind, np.uint8)
    ttft = _array(head.ttft_step, np.int32), _array(head.ttft_ns, np.float32)
    if len(marks[0]) != len(marks[1]) or len(ttft[0]) != len(ttft[1]) or (marks[1] > 6).any():
        raise ValueError("marks")
    for steps in (marks[0], ttft[0]):
        if len(steps) and not (first <= steps[0] and steps[-1] < first + count and (np.diff(steps) >= 0).all()):
            raise ValueError("steps")
    chunks = ChunkMap(*(_array(data, np.int64).tolist() for data in (
        head.chunk_offsets, head.chunk_firsts, head.snapshot_steps, head.snapshot_offsets)))
    if (len(chunks.offsets) != len(chunks.firsts) or len(chunks.snapshot_steps) != len(chunks.snapshot_offsets)
            or not chunks.offsets or chunks.firsts[0] != first or chunks.snapshot_steps[-1:] != [first + count - 1]):
        raise ValueError("chunks")
    for ascending, limit in ((chunks.offsets, file_size), (chunks.firsts, first + count),
                             (chunks.snapshot_steps, first + count)):
        if ascending[0] < 0 or ascending[-1] >= limit or any(a >= b for a, b in pairwise(ascending)):
            raise ValueError("chunks")
    empty = BlockDetail(np.empty(0, np.uint32), np.empty(0, np.float32), [])
    return IndexBlock(first, first + count - 1, chunks, SeriesBlock(columns, *ttft, *marks, empty))


def unpack_detail(frame: Frame, data: bytes, num_segments: int, num_itl: int,
                  num_marks: int) -> tuple[BlockDetail, Callable[[], BlockRows]]:
    """The detail of a block, which must hold so many of each, and what reads the rows in it. Raises Damage."""
    if len(data) != frame.detail_length or zlib.crc32(data) != frame.detail_crc:
        raise Damage("the checksum of an index block is wrong")
    return unpack_detail_part(data, num_segments, num_itl, num_marks)


def unpack_detail_part(data: bytes, num_segments: int, num_itl: int,
                       num_marks: int) -> tuple[BlockDetail, Callable[[], BlockRows]]:
    """What :func:`pack_detail` made, which must hold so many of each. Raises Damage."""
    try:
        detail = _detail_decoder.decode(_unpack(data))
        series = BlockDetail(_array(detail.segments, np.uint32, num_segments),
                             _array(detail.itl_ns, np.float32, num_itl), detail.labels)
        if len(detail.labels) != num_marks:
            raise ValueError("labels")
    except (ValueError, RecursionError) as error:
        raise Damage(f"an index block contradicts itself ({error})") from None
    return series, lambda: BlockRows(*_rows_decoder.decode(detail.rows))


_COLUMNS = StepSeries.column_types()


def _bytes(values: np.ndarray | list[int], dtype: str | None = None) -> bytes:
    array = np.asarray(values, dtype)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _array(data: bytes, dtype: type | np.dtype, count: int | None = None) -> np.ndarray:
    wanted = np.dtype(dtype)
    if len(data) % wanted.itemsize or (count is not None and len(data) != count * wanted.itemsize):
        raise ValueError("a column of another length")
    return np.frombuffer(data, wanted.newbyteorder("<")).astype(wanted, copy=False)


def _unpack(data: bytes) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= MAX_PART_BYTES:
            raise Damage("an index block without a size, or too large")
        return zstandard.ZstdDecompressor(max_window_size=MAX_PART_BYTES).decompress(data)
    except zstandard.ZstdError as error:
        raise Damage(f"an index block cannot be unpacked ({error})") from None
