"""Whether a recording's bytes are those that were written, also where nobody reads them.

A file that was closed holds two checksums that cover all of it: one of everything up to the end of the data, behind
that, and one of the summary, in the footer. Comparing them takes reading the file and little more. Recordings from
before the first of them was written are looked through record by record: each chunk and each attachment has a checksum
of its own, and what is said of chunks twice has to be the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO

from engine.trace.mcap_file import (
    ATTACHMENT,
    CHANNEL,
    CHUNK,
    DATA_END,
    FOOTER,
    HEADER,
    MAGIC,
    MAX_SUMMARY_BYTES,
    MESSAGE,
    MESSAGE_INDEX,
    METADATA,
    Damage,
    Record,
    has_end,
    parse_attachment,
    parse_channel,
    parse_header,
    parse_message,
    parse_message_index,
    parse_metadata,
    read_body,
    read_chunk,
    read_footer,
    records_in,
    scan,
)

READ_BYTES = 1 << 20
DATA_END_BYTES = 9 + 4
METADATA_KEYS = {"schema", "info", "steps", "dropped", "goes_on", "notes", "checksum"}

Stop = Callable[[], bool]


def never() -> bool:
    return False


def is_as_written(file: BinaryIO, size: int, stop: Stop = never) -> bool | None:
    """Whether a closed file is, to the byte, what was written. None if it does not say: if it was not closed, or was
    written without a checksum; and when asked to ``stop``."""
    if not has_end(file, size):
        return None
    footer = read_footer(file, size)
    tail = size - len(MAGIC) - 20 - 9  # where the footer's record begins
    after_data = footer.summary_start or tail
    if not len(MAGIC) + DATA_END_BYTES <= after_data <= tail or tail - after_data > MAX_SUMMARY_BYTES:
        return False
    file.seek(after_data - DATA_END_BYTES)
    kind, length, data_checksum = struct.unpack("<BQI", file.read(DATA_END_BYTES))
    if (kind, length) != (DATA_END, 4):
        return False
    file.seek(after_data)
    summary = file.read(tail - after_data)
    stated = struct.pack("<BQQQ", FOOTER, 20, footer.summary_start, footer.offsets_start)
    if footer.checksum and zlib.crc32(stated, zlib.crc32(summary)) != footer.checksum:
        return False
    if not (footer.checksum and data_checksum):
        return None
    found = _checksum(file, after_data - DATA_END_BYTES, stop)
    return None if found is None else found == data_checksum


def _checksum(file: BinaryIO, end: int, stop: Stop) -> int | None:
    """Of everything before ``end``; None when asked to stop, or when the file has become shorter."""
    file.seek(0)
    checksum, left = 0, end
    while left:
        piece = file.read(min(left, READ_BYTES))
        if not piece or stop():
            return None
        checksum = zlib.crc32(piece, checksum)
        left -= len(piece)
    return checksum


def is_consistent(file: BinaryIO, size: int, stop: Stop = never) -> bool | None:
    """Whether nothing in the data of a file says that it was changed; None when asked to stop.

    Slower than :func:`is_as_written`, and not as sure: a text that nothing else repeats can have become another one.
    """
    look = _Look(file)
    try:
        for record in scan(file, size):
            if stop():
                return None
            look.at(record)
    except Damage:
        return False
    return True


class _Look:
    """Looks at one record after another. What has no checksum must say what is said elsewhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ours = False  # other programs that rewrite a recording write other things
        self._stated: dict[int, list[tuple[int, int]]] = {}  # what the message indexes after a chunk have to say
        self._described: set[str] = set()  # the run's header, which is in the file several times

    def at(self, record: Record) -> None:
        """Raises Damage."""
        if record.kind == CHUNK:
            stated, self._stated = self._stated, {}
            data = read_chunk(self._file, record)
            if self._ours:
                self._look_into(record, data)
                if any(stated.values()):
                    raise Damage("the index of the messages of the chunk before it is missing")
        elif record.kind == ATTACHMENT:
            self._look_at_attachment(record)
        elif self._ours or record.kind == HEADER:
            self._look_at_other(record)

    def _look_into(self, record: Record, data: bytes) -> None:
        """Compare the times that a chunk states with those of its messages, and keep where these are."""
        times: list[int] = []
        at = 0
        for kind, body in records_in(data):
            if kind == MESSAGE:
                message = parse_message(body)
                self._stated.setdefault(message.channel_id, []).append((message.log_time, at))
                times.append(message.log_time)
            elif kind == CHANNEL:
                self._described.add(parse_channel(body)[1].metadata.get("info", ""))
            at += 9 + len(body)
        self._file.seek(record.offset)
        first, last = struct.unpack("<QQ", self._file.read(16))
        if times and (first, last) != (min(times), max(times)):
            raise Damage("a chunk states other times than its messages have")
        if len(self._described) > 1:
            raise Damage("the run is described in two ways")

    def _look_at_attachment(self, record: Record) -> None:
        parse_attachment(self._file, record)
        body = read_body(self._file, record)
        (checksum,) = struct.unpack("<I", body[-4:])
        if checksum and zlib.crc32(memoryview(body)[:-4]) != checksum:
            raise Damage("the checksum of an attachment is wrong")

    def _look_at_other(self, record: Record) -> None:
        if record.kind == MESSAGE_INDEX:
            channel, entries = parse_message_index(read_body(self._file, record))
            if sorted(entries) != sorted(self._stated.pop(channel, ())):
                raise Damage("the index of a chunk's messages is not what the chunk holds")
        elif record.kind == HEADER:
            profile, library = parse_header(read_body(self._file, record))
            self._ours = not profile and library.startswith("cutaway ")
        elif record.kind == METADATA:
            name, content = parse_metadata(read_body(self._file, record))
            if not name.startswith("cutaway.") or not set(content) <= METADATA_KEYS:
                raise Damage("what is said of the recording is not as it was written")
            if "info" in content:
                self._described.add(content["info"])
        elif record.kind != DATA_END:
            raise Damage("a record of a kind that is never written")
