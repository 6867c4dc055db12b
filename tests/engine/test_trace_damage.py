"""Recordings cut, damaged, foreign or made up: each opens in part with a warning, or is refused with a reason."""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard
from mcap.writer import CompressionType, Writer

from engine.trace import mcap_file
from engine.trace.events import (
    SCHEMA_VERSION,
    Allocated,
    Arrived,
    KnobChange,
    PoolRebuilt,
    RunInfo,
    Scheduled,
    StepEvents,
    encode_step,
)
from engine.trace.growing_file import GrowingFile
from engine.trace.reader import Recording, RecordingError, open_recording
from engine.trace.recording import _open_writer
from engine.trace.source import SNAPSHOT_INTERVAL
from engine.trace.state import EngineState, Snapshot, encode_snapshot
from tests.engine.trace_runs import RandomRun

PER_CHUNK = 4
STEPS = 6 * PER_CHUNK


class Original:
    """A small whole recording, as bytes, and what it holds."""

    def __init__(self, folder: Path) -> None:
        run = RandomRun(29, prompt_tokens=(1, 60))
        self.info = run.info
        path = folder / "whole.mcap"
        file = GrowingFile(path)
        writer = _open_writer(file, run.info)
        state = EngineState(run.info)
        self.steps: list[StepEvents] = run.steps(STEPS)
        self.states: list[Snapshot] = []
        for events in self.steps:  # in chunks of PER_CHUNK steps, as a recorder writes them but for the clock
            state.apply(events)
            self.states.append(state.snapshot())
            writer.add_step(events)
            if events.step in (9, 17):
                writer.add_snapshot(state.snapshot())
            if events.step % PER_CHUNK == PER_CHUNK - 1:
                writer.flush()
        writer.finish(STEPS, 0)
        file.close()
        self.data = path.read_bytes()
        with open(path, "rb") as whole:
            records = list(mcap_file.scan(whole, len(self.data)))
        self.chunks = [r for r in records if r.kind == mcap_file.CHUNK]
        self.data_end = records[-1].offset - 9


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("whole"))


def try_to_open(path: Path, data: bytes, limit_s: float = 2.0) -> Recording | None:
    """Open ``data`` as a file. None if it was refused properly; anything else but a recording fails the test."""
    path.write_bytes(data)
    start = time.monotonic()
    recording, refusal = None, ""
    try:
        recording = open_recording(path)
    except RecordingError as error:
        refusal = str(error)
    assert recording is not None or len(refusal) > 10
    assert time.monotonic() - start < limit_s
    assert path.read_bytes() == data
    return recording


def check_part(recording: Recording, original: Original) -> None:
    """What opened is a beginning of the original, and behaves."""
    last = recording.last_step
    assert recording.series.n == last + 1
    for step in sorted({0, last // 2, last} - {-1}):
        if step <= last:
            assert recording.events(step) == original.steps[step]
            assert recording.state_at(step).snapshot() == original.states[step]


def test_the_original_is_whole(original: Original, tmp_path: Path) -> None:
    recording = try_to_open(tmp_path / "a.mcap", original.data)
    assert recording is not None
    assert recording.complete
    assert recording.warnings == []
    assert len(original.chunks) == 6
    assert recording.last_step == STEPS - 1
    check_part(recording, original)
    recording.close()


def test_cut_at_every_byte_of_the_last_chunk(original: Original, tmp_path: Path) -> None:
    """And in many places before and after it. All whole chunks are there, and nothing of the rest."""
    ends = [chunk.end for chunk in original.chunks]
    last = range(original.chunks[-1].offset - 40, ends[-1] + 40)
    elsewhere = random.Random(1).sample(range(ends[0], len(original.data)), 150)
    for cut in (*last, *elsewhere):
        recording = try_to_open(tmp_path / "a.mcap", original.data[:cut])
        assert recording is not None
        assert not recording.complete
        assert recording.warnings
        assert recording.last_step == PER_CHUNK * sum(end <= cut for end in ends) - 1, cut
        recording.close()


def test_cut_in_the_beginning(original: Original, tmp_path: Path) -> None:
    for cut in range(0, original.chunks[0].end, 17):
        recording = try_to_open(tmp_path / "a.mcap", original.data[:cut])
        if recording is not None:
            assert recording.last_step == -1
            assert not recording.complete
            recording.close()


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits(original: Original, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    opened = 0
    for _ in range(75):
        data = bytearray(original.data)
        for _ in range(rng.choice((1, 1, 1, 3, 20))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        recording = try_to_open(tmp_path / "a.mcap", bytes(data))
        if recording is not None:
            opened += 1
            assert recording.complete or recording.warnings
            check_part(recording, original)
            recording.close()
    assert opened > 30


@pytest.mark.parametrize("seed", range(2))
def test_bytes_replaced_removed_and_put_in(original: Original, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        at, count = rng.randrange(len(original.data)), rng.randrange(1, 400)
        filling = rng.choice([b"", bytes(count), b"\xff" * count, rng.randbytes(count), original.data[:count]])
        skipped = rng.choice([0, count])
        data = original.data[:at] + filling + original.data[at + skipped:]
        recording = try_to_open(tmp_path / "a.mcap", data)
        if recording is not None:
            check_part(recording, original)
            recording.close()


def test_flipped_bits_behind_the_checksums(original: Original, tmp_path: Path) -> None:
    """Damage that no checksum catches, because whoever did it made the checksums anew."""
    rng = random.Random(7)
    chunk = original.chunks[2]
    fields = original.data[chunk.offset:chunk.end]
    packed = fields[44:]
    assert fields[28:32] == struct.pack("<I", 4)
    content = zstandard.decompress(packed)
    for _ in range(200):
        broken = bytearray(content)
        for _ in range(rng.choice((1, 1, 4))):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        new = make_chunk(bytes(broken))
        data = original.data[:chunk.offset - 9] + new + original.data[chunk.end:]
        recording = try_to_open(tmp_path / "a.mcap", data)
        assert recording is not None
        assert recording.last_step >= 2 * PER_CHUNK - 1
        for step in range(-1, recording.last_step + 1, 5):
            recording.state_at(step)
        recording.close()


def make_chunk(content: bytes, *, size: int | None = None, checksum: int | None = None, packed: bytes | None = None,
               compression: str = "zstd") -> bytes:
    packed = zstandard.compress(content) if packed is None else packed
    name = compression.encode()
    body = struct.pack("<QQQI", 0, 0, len(content) if size is None else size,
                       zlib.crc32(content) if checksum is None else checksum)
    body += struct.pack("<I", len(name)) + name + struct.pack("<Q", len(packed)) + packed
    return struct.pack("<BQ", mcap_file.CHUNK, len(body)) + body


@pytest.mark.parametrize(("chunk", "reason"), [
    (make_chunk(b"", size=1 << 60), "chunk of"),
    (make_chunk(b"", size=1 << 30, checksum=0, packed=zstandard.compress(bytes(1 << 20))), "chunk of"),
    (make_chunk(b"", size=1000, checksum=0, packed=zstandard.compress(bytes(60 << 20))), "another size"),
    (make_chunk(b"", size=1000, checksum=0,
                packed=zstandard.ZstdCompressor(write_content_size=False).compress(bytes(60 << 20))), "unpacked"),
    (make_chunk(b"x" * 50, checksum=7), "checksum"),
    (make_chunk(b"x" * 50, packed=b"not zstd"), "unpacked"),
    (make_chunk(b"x" * 50, compression="lzma", packed=b"x" * 50), "lzma"),
    (make_chunk(b"x" * 50), "middle of a record"),
    (struct.pack("<BQ", mcap_file.CHUNK, 5) + b"short", "shorter"),
    (struct.pack("<BQ", mcap_file.CHUNK, 1 << 63), "cut off"),
    (bytes(4000), "no record"),
], ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "")
def test_bombs_and_lies_in_a_chunk(original: Original, tmp_path: Path, chunk: bytes, reason: str) -> None:
    data = original.data[:original.chunks[1].end] + chunk + original.data[original.chunks[1].end:]
    recording = try_to_open(tmp_path / "a.mcap", data)
    assert recording is not None
    assert recording.last_step == 2 * PER_CHUNK - 1
    assert reason in recording.warnings[0]
    assert not recording.complete
    check_part(recording, original)
    recording.close()


@pytest.mark.parametrize(("data", "reason"), [
    (b"", "is empty"), (b"\x89", "cut off"), (mcap_file.MAGIC, "not a recording of Cutaway"),
    (bytes(5000), "no MCAP"), (b"\x89PNG\r\n\x1a\n" + bytes(100), "no MCAP"), (b'{"step": 1}\n' * 20, "no MCAP"),
    (b"PK\x03\x04" + bytes(200), "no MCAP"), (b"GGUF" + bytes(100), "no MCAP"),
    (mcap_file.MAGIC + bytes(5000), "damaged"), (mcap_file.MAGIC * 50, "damaged|cut off"),
])
def test_other_formats(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "人.mcap"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=reason) as caught:
        open_recording(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is a folder"):
        open_recording(tmp_path)
    with pytest.raises(RecordingError, match="There is no file"):
        open_recording(tmp_path / "nothing.mcap")
    with pytest.raises(RecordingError, match="not an ordinary file"):
        open_recording("/dev/null")
    with pytest.raises(RecordingError, match="cannot be read"):
        open_recording("a\0b")


def test_an_mcap_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "robot.mcap"
    writer = Writer(str(path))
    writer.start()
    channel = writer.register_channel("step", "json", 0)
    writer.add_message(channel, 0, b"{}", 0)
    writer.finish()
    with pytest.raises(RecordingError, match="not a recording of Cutaway"):
        open_recording(path)


# ---- recordings that were made wrong -----------------------------------------------------------------------------

def write(path: Path, info: RunInfo, messages: list[StepEvents | Snapshot | bytes], *,
          chunked: bool = True, compression: CompressionType = CompressionType.ZSTD) -> None:
    """A whole file with these messages; bytes stand for a step's encoding."""
    writer = Writer(str(path), chunk_size=4096, compression=compression, use_chunking=chunked)
    writer.start()
    writer.add_metadata("cutaway.run", {"info": msgspec.json.encode(info).decode()})
    step = writer.register_channel("step", "msgpack", 0)
    snapshot = writer.register_channel("snapshot", "msgpack", 0)
    for message in messages:
        if isinstance(message, Snapshot):
            writer.add_message(snapshot, 0, encode_snapshot(message), 0)
        else:
            data = message if isinstance(message, bytes) else encode_step(message)
            writer.add_message(step, 0, data, 0)
    writer.finish()


def open_written(path: Path, info: RunInfo, messages: list[StepEvents | Snapshot | bytes]) -> Recording:
    write(path, info, messages)
    return open_recording(path)


def test_a_small_file_that_asks_for_much_memory(original: Original, tmp_path: Path) -> None:
    """Zeros are packed thousands of times smaller, and a list of them takes eight times as much as they do."""
    fields = [msgspec.msgpack.encode(field) for field in msgspec.msgpack.decode(encode_step(original.steps[5]))]
    many = struct.pack(">BI", 0xDD, 50_000_000) + bytes(50_000_000)
    fields[5] = b"\x91\x95" + b"".join((msgspec.msgpack.encode("x"), b"\0", many, b"\xa0", b"\4"))  # a prompt
    bomb = struct.pack(">BH", 0xDC, len(fields)) + b"".join(fields)
    path = tmp_path / "a.mcap"
    write(path, original.info, [*original.steps[:5], bomb, *original.steps[5:]])
    assert path.stat().st_size < 50_000
    recording = try_to_open(path, path.read_bytes())
    assert recording is not None
    assert recording.last_step == 4
    assert "a step of 50,0" in recording.warnings[0]
    recording.close()


def test_snapshots_missing(original: Original, tmp_path: Path) -> None:
    run = RandomRun(29, prompt_tokens=(1, 60))
    steps = run.steps(2 * SNAPSHOT_INTERVAL + 20)
    recording = open_written(tmp_path / "a.mcap", run.info, list(steps))
    assert recording.complete
    assert recording.warnings == ["The snapshots are missing; they were made anew from the steps."]
    for step in (len(steps) - 1, 200, 20, STEPS - 1):
        state = recording.state_at(step)
        assert state.step == step
        if step < len(original.states):
            assert state.snapshot() == original.states[step]
    recording.close()


def test_snapshots_that_lie_are_not_believed(original: Original, tmp_path: Path) -> None:
    lies: list[Callable[[Snapshot], Snapshot]] = [
        lambda s: msgspec.structs.replace(s, running=[]), lambda s: msgspec.structs.replace(s, ref_count=b"\x01"),
        lambda s: msgspec.structs.replace(s, num_blocks=1 << 62), lambda s: msgspec.structs.replace(s, step=7)]
    messages: list[StepEvents | Snapshot | bytes] = []
    for events, state in zip(original.steps, original.states, strict=True):
        messages += [events, lies[events.step % len(lies)](state)]
    recording = open_written(tmp_path / "a.mcap", original.info, messages)
    for step in range(STEPS):
        assert recording.state_at(step).snapshot() == original.states[step]
    recording.close()


def test_a_newer_schema(original: Original, tmp_path: Path) -> None:
    info = msgspec.structs.replace(original.info, schema=SCHEMA_VERSION + 1, version="9.1")
    recording = open_written(tmp_path / "a.mcap", info, list(original.steps))
    assert recording.last_step == STEPS - 1
    assert "9.1" in recording.warnings[0]
    assert f"schema {SCHEMA_VERSION + 1}" in recording.warnings[0]
    recording.close()

    longer = [msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_step(s)), {"new": 1}]) for s in original.steps]
    recording = open_written(tmp_path / "b.mcap", info, list(longer))  # new fields at the end are passed over
    assert recording.last_step == STEPS - 1
    check_part(recording, original)
    recording.close()

    strange = msgspec.msgpack.encode({"all": "different"})
    with pytest.raises(RecordingError, match=r"needs Cutaway 9\.1 or later"):
        open_written(tmp_path / "c.mcap", info, [strange])
    recording = open_written(tmp_path / "d.mcap", info, [*original.steps[:5], strange])
    assert recording.last_step == 4
    assert len(recording.warnings) == 2
    recording.close()


def test_files_rewritten_by_other_tools(original: Original, tmp_path: Path) -> None:
    write(tmp_path / "a.mcap", original.info, list(original.steps), compression=CompressionType.NONE)
    recording = open_recording(tmp_path / "a.mcap")
    assert recording.complete
    check_part(recording, original)
    recording.close()
    write(tmp_path / "b.mcap", original.info, list(original.steps), chunked=False)
    with pytest.raises(RecordingError, match="outside of chunks"):
        open_recording(tmp_path / "b.mcap")


def test_nothing_readable_is_refused(original: Original, tmp_path: Path) -> None:
    data = bytearray(original.data)
    data[original.chunks[0].end - 30] ^= 4
    (tmp_path / "a.mcap").write_bytes(data)
    with pytest.raises(RecordingError, match="not one step of it can be read"):
        open_recording(tmp_path / "a.mcap")
    with pytest.raises(RecordingError, match="not one step of it can be read"):
        open_written(tmp_path / "b.mcap", original.info, [b"\x90", *original.steps])


def test_a_damaged_header_is_made_good_from_the_first_chunk(original: Original, tmp_path: Path) -> None:
    at = original.data.index(b"cutaway.run")
    for damaged in (range(at - 4, at), range(at, at + 30), range(at + 60, at + 90)):
        data = bytearray(original.data)
        for place in damaged:
            data[place] ^= 0x55
        recording = try_to_open(tmp_path / "a.mcap", bytes(data))
        assert recording is not None
        assert recording.info == original.info
        assert recording.last_step == STEPS - 1
        recording.close()


def changed(events: StepEvents, **fields: object) -> StepEvents:
    return msgspec.structs.replace(events, **fields)


@pytest.mark.parametrize("fields", [
    {"step": 1 << 60}, {"step": 11}, {"step": 9}, {"step": -1}, {"start_ns": -5}, {"end_ns": 0}, {"end_ns": 1 << 63},
    {"knobs": [KnobChange("num_blocks", 48, 1 << 60)]}, {"knobs": [KnobChange("max_num_batched_tokens", 1, "many")]},
    {"arrived": [Arrived("x", -1, [1], "", 4)]}, {"arrived": [Arrived("x", 1 << 62, [1], "", 4)]},
    {"arrived": [Arrived("x", 0, [1], "", 4)] * 70_000}, {"arrived": [Arrived("x", 0, [1], "", 4)] * 2},
    {"scheduled": [Scheduled("r1", 1 << 50, 0, True)]}, {"scheduled": [Scheduled("r1", 1, -7, True)]},
    {"scheduled": [Scheduled("nobody", 1, 0, True)]}, {"pool": [Allocated("r1", [-1])]},
    {"pool": [Allocated("r1", [0])]}, {"pool": [Allocated("r1", [1 << 40])]}, {"pool": [PoolRebuilt(1 << 50, 16)]},
    {"pool": [PoolRebuilt(-3, 16)]},
], ids=lambda fields: next(iter(fields)))
def test_absurd_values(original: Original, tmp_path: Path, fields: dict) -> None:
    messages: list[StepEvents | Snapshot | bytes] = [*original.steps]
    messages[10] = changed(original.steps[10], **fields)
    recording = open_written(tmp_path / "a.mcap", original.info, messages)
    assert recording.last_step == 9
    assert recording.series.n == 10
    assert not recording.complete
    assert len(recording.warnings) == 1
    assert "nothing from there on is shown" in recording.warnings[0]
    check_part(recording, original)
    recording.close()


@pytest.mark.parametrize("knobs", [{}, {"num_blocks": 1 << 60, "block_size": 16, "max_num_batched_tokens": 1},
                                   {"num_blocks": 0, "block_size": 16, "max_num_batched_tokens": 1},
                                   {"num_blocks": "many", "block_size": 16, "max_num_batched_tokens": 1}])
def test_absurd_headers(original: Original, tmp_path: Path, knobs: dict) -> None:
    info = msgspec.structs.replace(original.info, knobs=knobs)
    with pytest.raises(RecordingError):
        open_written(tmp_path / "a.mcap", info, list(original.steps))


def test_a_beginning_that_is_missing(original: Original, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="begins with step 5"):
        open_written(tmp_path / "a.mcap", original.info, list(original.steps[5:]))
    recording = open_written(tmp_path / "b.mcap", original.info, [original.states[4], *original.steps[5:]])
    assert (recording.first_step, recording.last_step) == (5, STEPS - 1)
    assert recording.state_at(20).snapshot() == original.states[20]
    recording.close()


def test_a_file_that_changes_under_the_reader(original: Original, tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(original.data)
    recording = open_recording(path)
    with open(path, "r+b") as file:
        file.truncate(original.chunks[0].end)
    with pytest.raises(RecordingError, match="cannot be read"):
        recording.events(20)
    recording.close()
