"""Every byte of a closed recording is in a checksum: what was changed is told, also where nobody reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.stream_reader import StreamReader
from mcap.writer import Writer

from engine.trace import mcap_file, recording
from engine.trace.events import StepEvents
from engine.trace.integrity import is_as_written, is_consistent
from engine.trace.notes import Note
from engine.trace.notes_copy import copy_with_notes
from engine.trace.reader import Recording, RecordingError, open_recording
from engine.trace.recorded import HARMLESS
from engine.trace.recording import Recorder
from engine.trace.verify import verify
from tests.engine.trace_runs import RandomRun

STEPS = 300


class Written:
    """A recording, as bytes, and what it holds."""

    def __init__(self, path: Path) -> None:
        run = RandomRun(31)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recording, "CHUNK_BYTES", 8 << 10)
            recorder = Recorder(path, run.info)
            self.steps: list[StepEvents] = run.steps(STEPS, recorder.put)
            assert recorder.close()
        self.path, self.data = path, path.read_bytes()
        with open(path, "rb") as file:
            self.records = list(mcap_file.scan(file, len(self.data)))

    def changed(self, path: Path, at: int, flip: int = 0x10) -> Path:
        data = bytearray(self.data)
        data[at] ^= flip
        path.write_bytes(data)
        return path

    def place_of(self, kind: int) -> mcap_file.Record:
        return next(r for r in self.records if r.kind == kind)


class OlderWriter(Writer):
    def __init__(self, *args: Any, enable_data_crcs: bool, **options: Any) -> None:
        super().__init__(*args, **options)

    def add_metadata(self, name: str, data: dict[str, str]) -> None:
        super().add_metadata(name, {key: value for key, value in data.items() if key != "checksum"})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("integrity") / "new.mcap")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """As recordings were before there was a checksum of all data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "Writer", OlderWriter)
        return Written(tmp_path_factory.mktemp("integrity") / "old.mcap")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is taken for one that is too large to be checked when it is opened."""
    monkeypatch.setattr("engine.trace.opening_index.CHECK_BYTES", 0)
    monkeypatch.setattr("engine.trace.opening.READ_WHOLE_BYTES", 0)


def look_at_all(path: Path, steps: list[StepEvents]) -> list[str]:
    """What a user is told who plays a recording to its end and leaves it open for a while."""
    try:
        opened = open_recording(path)
    except RecordingError as refusal:
        return [str(refusal)]
    for step in range(max(0, opened.first_step), opened.last_step + 1):
        try:
            assert opened.events(step) == steps[step]
            if step % 50 == 0:
                assert opened.state_at(step).step == step
        except RecordingError:
            assert opened.warnings
    opened.check()
    opened.close()
    assert opened.complete or opened.warnings
    return list(opened.warnings)


def test_a_whole_file_is_as_written(written: Written, large: None) -> None:
    with open(written.path, "rb") as file:
        assert is_as_written(file, len(written.data)) is True
        assert is_consistent(file, len(written.data)) is True
        file.seek(0)
        records = list(StreamReader(file, validate_crcs=True).records)  # other programs think so too
        assert len(records) > 10
    opened = open_recording(written.path)
    assert not opened.checked
    opened.check()
    assert opened.checked
    assert opened.warnings == []
    assert opened.complete
    opened.close()


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), as_large=st.booleans(), near_end=st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_changed_bit_is_told(written: Written, tmp_path: Path, at: float, bit: int, as_large: bool,
                                 near_end: bool) -> None:
    size = len(written.data)
    place = size - 1 - int(at * 6000) if near_end else int(at * size)
    path = written.changed(tmp_path / "a.mcap", place, 1 << bit)
    with pytest.MonkeyPatch.context() as patch:
        if as_large:
            patch.setattr("engine.trace.opening_index.CHECK_BYTES", 0)
            patch.setattr("engine.trace.opening.READ_WHOLE_BYTES", 0)
        assert look_at_all(path, written.steps), place


@pytest.mark.parametrize("kind", [mcap_file.HEADER, mcap_file.MESSAGE_INDEX, mcap_file.DATA_END, mcap_file.METADATA])
def test_what_nobody_reads_is_told_as_harmless(written: Written, tmp_path: Path, kind: int) -> None:
    record = written.place_of(kind)
    at = record.end - 1 if kind != mcap_file.METADATA else record.offset + 60
    opened = open_recording(written.changed(tmp_path / "a.mcap", at))
    assert opened.warnings == [HARMLESS]
    assert opened.complete
    assert opened.last_step == STEPS - 1
    found = verify(opened, None)
    assert HARMLESS in found.problems
    assert not found.whole
    opened.close()


def test_a_checksum_that_was_erased_is_missed(written: Written, tmp_path: Path, large: None) -> None:
    record = written.place_of(mcap_file.DATA_END)
    path = tmp_path / "a.mcap"
    path.write_bytes(written.data[:record.offset] + bytes(4) + written.data[record.end:])
    assert look_at_all(path, written.steps) == [HARMLESS]


def chunk_in_the_middle(opened: Recording) -> tuple[int, int, int]:
    """Its place, and its first and last step."""
    page = len(opened._chunk_offsets) // 2
    return opened._chunk_offsets[page], opened._chunk_firsts[page], opened._chunk_firsts[page + 1] - 1


def test_a_check_in_passing_names_the_steps_that_are_lost(written: Written, tmp_path: Path, large: None) -> None:
    opened = open_recording(written.path)
    place, first, last = chunk_in_the_middle(opened)
    opened.close()
    opened = open_recording(written.changed(tmp_path / "a.mcap", place + 400))
    assert opened.complete
    opened.check(lambda: True)  # asked to stop at once
    assert not opened.checked
    assert opened.warnings == []
    opened.check()
    assert not opened.complete
    assert len(opened.warnings) == 1
    assert f"{first} to {last}" in opened.warnings[0]
    with pytest.raises(RecordingError):
        opened.events(first)
    assert len(opened.warnings) == 1  # it was told
    opened.close()


def test_a_snapshot_that_is_lost_is_made_up_for(written: Written, tmp_path: Path, large: None,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_recording(written.path)
    expected = [opened.state_at(step).snapshot() for step in range(STEPS)]
    opened.close()
    opened = open_recording(written.path)
    read = Recording._read_snapshot

    def damaged(self: Recording, place: object, step: int) -> object:
        if step == 127:
            raise mcap_file.Damage("the checksum of a chunk is wrong")
        return read(self, place, step)  # type: ignore[arg-type]

    monkeypatch.setattr(Recording, "_read_snapshot", damaged)
    for step in (200, 128, 299, 127, 60):
        assert opened.state_at(step).snapshot() == expected[step]
    assert len(opened.warnings) == 1
    assert "snapshot is damaged" in opened.warnings[0]
    assert opened.complete
    opened.close()


def test_a_file_that_was_replaced_is_not_checked(written: Written, tmp_path: Path, large: None) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(written.data)
    opened = open_recording(path)
    written.changed(tmp_path / "b.mcap", 500).replace(path)
    opened.check()
    assert opened.warnings == []
    opened.close()


def test_a_damaged_recording_stays_damaged_in_a_copy_with_notes(written: Written, tmp_path: Path) -> None:
    rng = random.Random(1)
    notes = [Note("1", "here", 5)]
    copy, again = tmp_path / "copy.mcap", tmp_path / "again.mcap"
    for path, wrong in ((written.path, False), (tmp_path / "a.mcap", True)):
        if wrong:
            written.changed(path, rng.randrange(200, 900))
        info = open_recording(written.path).info
        copy_with_notes(path, copy, notes, info)
        copy_with_notes(copy, again, [*notes, Note("2", "there", 9)], info)
        for made in (copy, again):
            with open(made, "rb") as file:
                assert is_as_written(file, made.stat().st_size) is not wrong
    # and what is wrong with the summary stays so
    written.changed(tmp_path / "a.mcap", len(written.data) - 400)
    copy_with_notes(tmp_path / "a.mcap", copy, notes, info)
    with open(copy, "rb") as file:
        assert is_as_written(file, copy.stat().st_size) is False


# ---- recordings from before there was a checksum of all data ---------------------------------------------------------


def test_older_recordings_are_looked_through(older: Written, tmp_path: Path) -> None:
    with open(older.path, "rb") as file:
        assert is_as_written(file, len(older.data)) is None
        assert is_consistent(file, len(older.data)) is True
    assert look_at_all(older.path, older.steps) == []
    chunk = older.place_of(mcap_file.CHUNK)
    index = older.place_of(mcap_file.MESSAGE_INDEX)
    for at in (chunk.offset + 3, index.offset + 8, index.end - 2, len(older.data) - 400):
        assert look_at_all(older.changed(tmp_path / "a.mcap", at), older.steps), at


def test_verify_looks_through_a_large_older_recording(older: Written, tmp_path: Path, large: None) -> None:
    index = older.place_of(mcap_file.MESSAGE_INDEX)
    path = older.changed(tmp_path / "a.mcap", index.end - 2)
    opened = open_recording(path)
    opened.check()  # in passing: what would take long is left out
    assert opened.warnings == []
    found = verify(opened, None)
    assert found.problems == [HARMLESS]
    opened.close()


def test_what_other_programs_rewrite_is_left_alone(tmp_path: Path) -> None:
    """They write records that Cutaway never does, and other names."""
    path = tmp_path / "a.mcap"
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start(profile="x", library="other")
        writer.add_metadata("something", {"key": "value"})
        writer.finish()
    with open(path, "rb") as file:
        assert is_as_written(file, path.stat().st_size) is None
        assert is_consistent(file, path.stat().st_size) is True


def test_an_absurd_step_is_refused_every_time(written: Written, tmp_path: Path, large: None,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the first time that somebody asks for it."""
    opened = open_recording(written.path)
    monkeypatch.setattr("engine.trace.recorded.find_absurd", lambda step: "absurd" if step.step == 40 else "")
    for _ in range(2):
        with pytest.raises(RecordingError, match="absurd"):
            opened.events(40)
    assert opened.events(41) == written.steps[41]
    opened.close()
