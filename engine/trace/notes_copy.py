"""Notes inside of a recording: written into a copy of it, as a metadata record of MCAP, and read back.

The copy is the recording byte for byte up to the end of its data; then the notes; then its summary again, with every
place in it that has moved put right. Notes that are in the recording already are replaced. A recording that was cut off
stays one: what can be read of it is copied, and the notes follow. And one that was damaged stays damaged: where its
checksums are wrong, those of the copy are.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from engine.trace.events import RunInfo
from engine.trace.mcap_file import (
    DATA_END,
    FOOTER,
    MAGIC,
    METADATA,
    Damage,
    Footer,
    Record,
    has_end,
    parse_metadata,
    read_body,
    read_footer,
    scan,
)
from engine.trace.notes import MAX_FILE_BYTES, Note, decode_notes, encode_notes
from engine.trace.source import Notice

NOTES_METADATA = "cutaway.notes"
STATISTICS, METADATA_INDEX, SUMMARY_OFFSET = 0x0B, 0x0D, 0x0E
METADATA_COUNT_AT = 8 + 2 + 4 + 4  # in the statistics, after the numbers of messages, schemas, channels, attachments
COPY_BYTES = 1 << 20


class NotesError(Exception):
    """The copy cannot be made. The argument is a :class:`Notice` that says why."""


def read_embedded_notes(path: Path) -> list[Note]:
    """The notes in the recording ``path``; none if it has none, or if they cannot be read. Never raises."""
    try:
        with open(path, "rb") as file:
            record = _find(file).notes
            if record is None:
                return []
            found = decode_notes(parse_metadata(read_body(file, record))[1].get("notes", ""))
    except (OSError, ValueError):
        return []
    return found.notes if found is not None else []


def copy_with_notes(source: Path, target: Path, notes: Iterable[Note], info: RunInfo) -> None:
    """Write the recording ``source`` with ``notes`` in it to ``target``: wholly or not at all. ``source`` stays as it
    is. Raises :class:`NotesError`, and OSError if a file cannot be read or written."""
    if target.exists() and os.path.samefile(source, target):
        raise NotesError(Notice("The copy needs a name or a place of its own: {path} is the recording itself.",
                                path=target))
    name = target.with_name(f".copy-{uuid.uuid4().hex}.part")
    try:
        with open(source, "rb") as old, open(name, "xb") as new:
            _copy(source, old, new, encode_notes(notes, info))
            new.flush()
            os.fsync(new.fileno())
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


class _Layout(NamedTuple):
    """Where things are: the notes; the end of what comes before them, or where they would be; and the data's end."""

    notes: Record | None
    data_end: int
    after: Record | None  # the DATA_END record, if there is one
    whole: bool


def _find(file: BinaryIO) -> _Layout:
    size = _size(file)
    if file.read(len(MAGIC)) != MAGIC:
        raise Damage("no MCAP file")
    notes: Record | None = None
    end, after = len(MAGIC), None
    try:
        for record in scan(file, size):
            if record.kind == DATA_END:
                after = record
            else:
                is_notes = record.kind == METADATA and _is_notes(file, record)
                notes = record if is_notes else None  # notes are last: what comes before other things is not ours
                end = record.offset - 9 if is_notes else record.end
    except Damage:
        pass  # what comes after this is lost already
    return _Layout(notes, end, after, after is not None and has_end(file, size))


def _is_notes(file: BinaryIO, record: Record) -> bool:
    if record.length > 2 * MAX_FILE_BYTES:
        return False
    file.seek(record.offset)
    name = NOTES_METADATA.encode()
    return file.read(4 + len(name)) == struct.pack("<I", len(name)) + name


def _copy(source: Path, old: BinaryIO, new: BinaryIO, content: bytes) -> None:
    try:
        layout = _find(old)
    except Damage:
        raise NotesError(Notice("{path} is not a recording (it is no MCAP file).", path=source)) from None
    old.seek(0)
    checksum = 0
    for piece in _pieces(source, old, layout.data_end):
        new.write(piece)
        checksum = zlib.crc32(piece, checksum)
    body = _text(NOTES_METADATA) + _map({"notes": content})
    notes = _record(METADATA, body)
    new.write(notes)
    if layout.after is None:
        return  # it was cut off, and says so
    right = checksum
    for piece in _pieces(source, old, layout.after.offset - 9 - layout.data_end):  # the notes there were
        right = zlib.crc32(piece, right)
    (stated,) = struct.unpack("<I", read_body(old, layout.after)[:4].ljust(4, b"\0"))
    checksum = zlib.crc32(notes, checksum) ^ right ^ stated if stated else 0
    new.write(_record(DATA_END, struct.pack("<I", checksum)))
    summary = b""
    if layout.whole:
        added = struct.pack("<QQ", layout.data_end, 9 + len(body)) + _text(NOTES_METADATA)
        summary = _summary(_read_summary(old, layout.after), added, new.tell(), read_footer(old, _size(old)))
    new.write(summary or _record(FOOTER, bytes(20)))
    new.write(MAGIC)


def _pieces(source: Path, file: BinaryIO, count: int) -> Iterator[bytes]:
    """The next ``count`` bytes."""
    while count:
        piece = file.read(min(count, COPY_BYTES))
        if not piece:
            raise NotesError(Notice("{path} became shorter while it was read.", path=source))
        yield piece
        count -= len(piece)


def _read_summary(file: BinaryIO, data_end: Record) -> bytes:
    """Everything between the end of the data and the footer."""
    size = _size(file) - (9 + 20 + len(MAGIC))
    file.seek(data_end.end)
    return file.read(max(0, size - data_end.end))


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 9 <= len(data):
        kind, length = struct.unpack_from("<BQ", data, at)
        if length > len(data) - at - 9:
            return
        yield kind, data[at + 9:at + 9 + length]
        at += 9 + length


def _summary(old: bytes, added: bytes, start: int, footer_before: Footer) -> bytes:
    """The summary and the footer, for a file in which the summary begins at ``start``; empty if there is none."""
    groups: dict[int, list[bytes]] = {}
    replaced = False
    for kind, body in _records(old):
        if kind == METADATA_INDEX and body[16:] == _text(NOTES_METADATA):
            replaced = True
        elif kind != SUMMARY_OFFSET:  # those are made anew
            groups.setdefault(kind, []).append(body)
    if not groups:
        return b""
    groups.setdefault(METADATA_INDEX, []).append(added)
    if not replaced:
        groups[STATISTICS] = [_count_metadata(body) for body in groups.get(STATISTICS, [])]
    data, offsets = b"", b""
    for kind, bodies in groups.items():
        group = b"".join(_record(kind, body) for body in bodies)
        if group:
            offsets += _record(SUMMARY_OFFSET, struct.pack("<BQQ", kind, start + len(data), len(group)))
        data += group
    before = _footer(footer_before.summary_start, footer_before.offsets_start)
    wrong = zlib.crc32(old + before) ^ footer_before.checksum if footer_before.checksum else 0
    footer = _footer(start, start + len(data))
    data += offsets
    return data + footer + struct.pack("<I", zlib.crc32(data + footer) ^ wrong)


def _footer(start: int, offsets_start: int) -> bytes:
    """The footer's record but for the checksum, which is about it too."""
    return struct.pack("<BQQQ", FOOTER, 20, start, offsets_start)


def _count_metadata(statistics: bytes) -> bytes:
    if len(statistics) < METADATA_COUNT_AT + 4:
        return statistics
    (count,) = struct.unpack_from("<I", statistics, METADATA_COUNT_AT)
    at = METADATA_COUNT_AT
    return statistics[:at] + struct.pack("<I", (count + 1) & 0xFFFFFFFF) + statistics[at + 4:]


def _record(kind: int, body: bytes) -> bytes:
    return struct.pack("<BQ", kind, len(body)) + body


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _map(entries: dict[str, bytes]) -> bytes:
    return _bytes(b"".join(_text(key) + _bytes(value) for key, value in entries.items()))
