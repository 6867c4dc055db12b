"""The part of the MCAP format that recordings use, read with distrust: a file may be cut, damaged or made up.

    magic | header | metadata | chunk | message indexes | chunk | message indexes | attachment | ... | data end
          | summary | footer | magic

A record is one byte of type, eight bytes of length and the content. Messages stand in compressed chunks, each with
a checksum. A recording whose program was killed has no summary: then the attachments are found by going from record
to record. No length in the file is believed before it is compared with what is there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import zstandard

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
MESSAGE_INDEX, ATTACHMENT, ATTACHMENT_INDEX, METADATA, SUMMARY_OFFSET, DATA_END = 0x07, 0x09, 0x0A, 0x0C, 0x0E, 0x0F

MAX_CHUNK_BYTES = 128 << 20
"""Largest chunk that is read, compressed or not: a snapshot of a pool of a million blocks takes 40 MB."""

MAX_RECORDS_WITHOUT_CHUNK = 100_000
MAX_SUMMARY_BYTES = 64 << 20


class Damage(ValueError):
    """What is at this place in the file is not what the format demands."""


class CutOff(Damage):
    """The file ends in the middle of a record."""


class Record(NamedTuple):
    """Where a record is: its type, the place of its content in the file, and the length of that."""

    kind: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Message(NamedTuple):
    """``log_time`` is in nanoseconds; ``data`` is a view into the chunk."""

    channel_id: int
    sequence: int
    log_time: int
    data: memoryview


class Channel(NamedTuple):
    topic: str
    encoding: str
    metadata: dict[str, str]


class Footer(NamedTuple):
    """Where the summary begins (0: there is none) and where its offsets do, and the checksum of both (0: none)."""

    summary_start: int
    offsets_start: int
    checksum: int


class Attachment(NamedTuple):
    """``record`` is the whole attachment; its data stands at ``offset`` in the file and has ``length`` bytes."""

    record: Record
    name: str
    offset: int
    length: int


def scan(file: BinaryIO, size: int, start: int = len(MAGIC)) -> Iterator[Record]:
    """The records of the data section from ``start`` on, in order; the last one is DATA_END if the file has one.

    Raises Damage at the first record that does not fit in the file, or is none.
    """
    offset, idle = start, 0
    while offset < size:
        file.seek(offset)
        head = file.read(9)
        if len(head) < 9:
            raise CutOff("the file ends in the middle of a record")
        kind, length = struct.unpack("<BQ", head)
        if length > size - offset - 9:
            raise CutOff("the file ends in the middle of a record")
        if kind == 0:
            raise Damage("there is no record where one should begin")
        yield Record(kind, offset + 9, length)
        if kind == DATA_END:
            return
        idle = 0 if kind == CHUNK else idle + 1
        if idle > MAX_RECORDS_WITHOUT_CHUNK:
            raise Damage("records without any content")
        offset += 9 + length


def record_at(file: BinaryIO, offset: int, size: int) -> Record:
    """The record that begins at ``offset``. Raises Damage."""
    file.seek(offset)
    head = file.read(9)
    if len(head) < 9:
        raise CutOff("the file became shorter while it was read")
    kind, length = struct.unpack("<BQ", head)
    if length > size - offset - 9:
        raise Damage("there is no record where one should begin")
    return Record(kind, offset + 9, length)


def read_body(file: BinaryIO, record: Record) -> bytes:
    if record.length > MAX_CHUNK_BYTES:
        raise Damage(f"a record of {record.length:,} bytes")
    file.seek(record.offset)
    body = file.read(record.length)
    if len(body) != record.length:
        raise CutOff("the file became shorter while it was read")
    return body


def read_chunk(file: BinaryIO, record: Record) -> bytes:
    """The records in a chunk, unpacked and checked. Raises Damage."""
    body = read_body(file, record)
    fields = _Fields(memoryview(body))
    _start, _end, size, checksum = fields.take("<QQQI")
    compression = fields.text()
    (length,) = fields.take("<Q")
    packed = fields.bytes(length)
    if size > MAX_CHUNK_BYTES:
        raise Damage(f"a chunk of {size:,} bytes")
    if compression == "zstd":
        data = _unpack_zstd(packed, size)
    elif compression == "":
        data = bytes(packed)
    else:
        raise Damage(f"a chunk compressed with {compression[:20]!r}, which is not known here")
    if len(data) != size or (checksum and zlib.crc32(data) != checksum):
        raise Damage("the checksum of a chunk is wrong")
    return data


def _unpack_zstd(packed: memoryview, size: int) -> bytes:
    try:
        # The size that the frame itself states is what the decompressor allocates.
        if zstandard.frame_content_size(packed) not in (size, -1):
            raise Damage("a chunk of another size than it says")
        return zstandard.ZstdDecompressor(max_window_size=MAX_CHUNK_BYTES).decompress(packed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise Damage(f"a chunk cannot be unpacked ({error})") from None


def records_in(chunk: bytes) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each record in an unpacked chunk. Raises Damage."""
    view = memoryview(chunk)
    offset = 0
    while offset < len(view):
        if offset + 9 > len(view):
            raise Damage("a chunk ends in the middle of a record")
        kind, length = struct.unpack_from("<BQ", view, offset)
        offset += 9
        if length > len(view) - offset:
            raise Damage("a chunk ends in the middle of a record")
        yield kind, view[offset:offset + length]
        offset += length


def parse_message(body: memoryview) -> Message:
    if len(body) < 22:
        raise Damage("a message without its head")
    channel_id, sequence, log_time, _publish_time = struct.unpack_from("<HIQQ", body)
    return Message(channel_id, sequence, log_time, body[22:])


def parse_channel(body: memoryview) -> tuple[int, Channel]:
    fields = _Fields(body)
    channel_id, _schema_id = fields.take("<HH")
    return channel_id, Channel(fields.text(), fields.text(), fields.text_map())


def parse_header(body: bytes) -> tuple[str, str]:
    """The profile, and the name of the program that wrote the file."""
    fields = _Fields(memoryview(body))
    return fields.text(), fields.text()


def parse_message_index(body: bytes) -> tuple[int, list[tuple[int, int]]]:
    """The channel, and the time and the place in the chunk of each of its messages."""
    fields = _Fields(memoryview(body))
    channel_id, length = fields.take("<HI")
    entries = fields.bytes(length)
    if length % 16:
        raise Damage("an index of messages that ends in the middle of an entry")
    return channel_id, list(struct.iter_unpack("<QQ", entries))


def parse_metadata(body: bytes) -> tuple[str, dict[str, str]]:
    """The record's name and content."""
    fields = _Fields(memoryview(body))
    return fields.text(), fields.text_map()


def parse_attachment(file: BinaryIO, record: Record) -> Attachment:
    """Where an attachment's data stands; the data is not read."""
    file.seek(record.offset)
    fields = _Fields(memoryview(file.read(min(record.length, 1024))))
    fields.take("<QQ")
    name = fields.text()
    fields.text()
    (length,) = fields.take("<Q")
    if fields.at + length + 4 > record.length:
        raise Damage("an attachment is shorter than it says")
    return Attachment(record, name, record.offset + fields.at, length)


def attachments_in_summary(file: BinaryIO, size: int) -> list[Record] | None:
    """Where the attachments are, in order, as the summary at the end has it; None when there is none to be trusted."""
    if not has_end(file, size):
        return None
    start, offsets_start, checksum = read_footer(file, size)
    end = size - len(MAGIC) - 20 - 9
    if not 0 < start <= offsets_start <= end or end - start > MAX_SUMMARY_BYTES:
        return None
    file.seek(start)
    summary = file.read(end - start)
    if not checksum or zlib.crc32(struct.pack("<BQQQ", FOOTER, 20, start, offsets_start),
                                  zlib.crc32(summary)) != checksum:
        return None
    found: list[Record] = []
    for kind, body in records_in(summary[offsets_start - start:]):
        group, at, length = struct.unpack_from("<BQQ", body)
        if kind == SUMMARY_OFFSET and group == ATTACHMENT_INDEX:
            for _kind, entry in records_in(summary[at - start:at - start + length]):
                offset, whole = struct.unpack_from("<QQ", entry)
                if not len(MAGIC) <= offset < offset + whole <= start:
                    return None
                found.append(Record(ATTACHMENT, offset + 9, whole - 9))
    return found


def read_footer(file: BinaryIO, size: int) -> Footer:
    """The footer of a file that :func:`has_end`."""
    file.seek(size - len(MAGIC) - 20)
    return Footer(*struct.unpack("<QQI", file.read(20)))


def has_end(file: BinaryIO, size: int) -> bool:
    """Whether the file was closed properly: it ends with a footer and the magic."""
    tail = 9 + 20 + len(MAGIC)
    if size < tail:
        return False
    file.seek(size - tail)
    data = file.read(tail)
    return len(data) == tail and data[:9] == struct.pack("<BQ", FOOTER, 20) and data.endswith(MAGIC)


class _Fields:
    """Takes one field after another from a record; Damage where it is too short."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        return self._at

    def take(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.bytes(struct.calcsize(layout)))

    def bytes(self, count: int) -> memoryview:
        if count > len(self._data) - self._at:
            raise Damage("a record is shorter than it says")
        self._at += count
        return self._data[self._at - count:self._at]

    def text(self) -> str:
        (length,) = self.take("<I")
        try:
            return str(self.bytes(length), "utf-8")
        except UnicodeDecodeError:
            raise Damage("a text that is not UTF-8") from None

    def text_map(self) -> dict[str, str]:
        (length,) = self.take("<I")
        end = self._at + length
        found: dict[str, str] = {}
        while self._at < end:
            key = self.text()
            found[key] = self.text()
        return found
