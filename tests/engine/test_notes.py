"""Notes: kept beside a recording or in a copy of it, never in a broken file, and never about another run."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcap.reader import make_reader

from engine.trace.events import RunInfo
from engine.trace.history import LiveHistory
from engine.trace.mcap_file import attachments_in_summary
from engine.trace.notes import (
    MAX_TEXT,
    Note,
    NoteBook,
    decode_notes,
    encode_notes,
    notes_path,
    read_notes,
    write_notes,
)
from engine.trace.notes_copy import NOTES_METADATA, NotesError, copy_with_notes, read_embedded_notes
from engine.trace.reader import open_recording
from engine.trace.recording import Recorder
from tests.engine.trace_runs import RandomRun

TEXTS = ("why here?", "抢占发生在这里 🙂", 'quotes " and \\ and\nlines')


@pytest.fixture(scope="module")
def run() -> LiveHistory:
    made = RandomRun(5, arrival_rate=0.3, knob_rate=0.02)
    history = LiveHistory(made.info)
    for events in made.steps(400):
        history.append(events)
    return history


@pytest.fixture(scope="module")
def recording(run: LiveHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("notes") / "run 录像.mcap"
    recorder = Recorder(path, run.info)
    for step in range(run.first_step, run.last_step + 1):
        recorder.put(run.events(step))
    assert recorder.close()
    return path


def book() -> NoteBook:
    notes = NoteBook()
    notes.add(TEXTS[0], 40)
    notes.add(TEXTS[1], 7, request_id="r3")
    notes.add(TEXTS[2], 40, block=12)
    return notes


def test_notes_are_in_order_of_their_steps_and_found_by_step() -> None:
    notes = book()
    assert notes.steps == (7, 40, 40)
    assert [n.text for n in notes.at(40)] == [TEXTS[0], TEXTS[2]]
    assert (notes.step_after(-1), notes.step_after(7), notes.step_after(40)) == (7, 40, None)
    assert (notes.step_before(7), notes.step_before(40), notes.step_before(99)) == (None, 7, 40)
    assert [n.step for n in notes.between(8, 40)] == [40, 40]


def test_every_change_is_one_and_nothing_else_is() -> None:
    notes = book()
    before = notes.revision
    note = notes.at(7)[0]
    notes.edit(note.note_id, TEXTS[1], request_id="r3")
    notes.remove("nothing")
    assert notes.revision == before
    notes.edit(note.note_id, "  other  ", block=5)
    assert notes.at(7)[0] == note._replace(text="other", request_id=None, block=5)
    notes.remove(note.note_id)
    assert notes.revision == before + 2
    assert notes.steps == (40, 40)
    with pytest.raises(KeyError):
        notes.edit(note.note_id, "gone")
    with pytest.raises(ValueError, match="without a text"):
        notes.add("  \n", 3)
    assert len(notes.add("x" * (MAX_TEXT + 5), 3).text) == MAX_TEXT


def test_they_come_back_from_beside_the_recording(run: LiveHistory, tmp_path: Path) -> None:
    path, notes = notes_path(tmp_path / "运行.mcap"), book()
    assert path.name == "运行.mcap.notes.json"
    write_notes(path, notes, run.info)
    assert not notes.changed
    again, warnings = read_notes(path, run.info)
    assert list(again) == list(notes)
    assert (warnings, again.changed) == ([], False)
    for note in list(again):
        again.remove(note.note_id)
    write_notes(path, again, run.info)
    assert len(read_notes(path, run.info)[0]) == 0
    assert os.listdir(tmp_path) == [path.name]  # nothing else is left lying about


def test_no_notes_make_no_file(run: LiveHistory, tmp_path: Path) -> None:
    write_notes(tmp_path / "a.notes.json", NoteBook(), run.info)
    assert os.listdir(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_file(run: LiveHistory, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    path, notes = tmp_path / "a.notes.json", book()
    write_notes(path, notes, run.info)
    before = path.read_bytes()
    notes.add("one more", 3)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_notes(path, notes, run.info)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]
    assert notes.changed


def test_notes_about_another_run_are_neither_shown_nor_lost(run: LiveHistory, tmp_path: Path) -> None:
    path, other = tmp_path / "a.notes.json", open_info(run, "2001-01-01T00:00:00+00:00")
    write_notes(path, book(), other)
    found, warnings = read_notes(path, run.info)
    assert len(found) == 0
    assert "another run" in warnings[0]
    found.add("mine", 1)
    write_notes(path, found, run.info)
    assert [n.text for n in read_notes(path, run.info)[0]] == ["mine"]
    assert len(read_notes(tmp_path / "a.notes.json.1", other)[0]) == 3


def open_info(run: LiveHistory, created: str) -> RunInfo:
    return msgspec.structs.replace(run.info, created=created)


def test_a_file_in_part_gives_that_part(run: LiveHistory, tmp_path: Path) -> None:
    path = tmp_path / "a.notes.json"
    content = json.loads(encode_notes(book(), run.info))
    good = content["notes"][0]
    content["notes"] += [None, 3, {}, {**good, "step": -1}, {**good, "step": 2 ** 60}, {**good, "step": True},
                         {**good, "text": 5}, {**good, "text": " "}, {**good, "request": 9, "block": "x", "id": 1}]
    content["version"] = 9
    path.write_text(json.dumps(content), "utf-8")
    found, warnings = read_notes(path, run.info)
    assert len(found) == 4
    assert len({n.note_id for n in found}) == 4
    assert len(warnings) == 2
    assert "8 notes" in warnings[0]
    found.add("new", 0)
    write_notes(path, found, run.info)
    assert json.loads((tmp_path / "a.notes.json.1").read_text("utf-8")) == content  # nothing unread is lost


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b'{"format": 1}',
                                  b'{"format": "cutaway.notes", "notes": 5}'])
def test_what_is_no_file_of_notes_is_refused_and_kept(data: bytes, run: LiveHistory, tmp_path: Path) -> None:
    path = tmp_path / "a.notes.json"
    path.write_bytes(data)
    found, warnings = read_notes(path, run.info)
    assert (len(found), len(warnings)) == (0, 1)
    found.add("new", 0)
    write_notes(path, found, run.info)
    assert (tmp_path / "a.notes.json.1").read_bytes() == data


def test_a_folder_instead_of_a_file_says_why(run: LiveHistory, tmp_path: Path) -> None:
    (tmp_path / "a.notes.json").mkdir()
    found, warnings = read_notes(tmp_path / "a.notes.json", run.info)
    assert (len(found), len(warnings)) == (0, 1)
    with pytest.raises(FileNotFoundError):
        write_notes(tmp_path / "nowhere" / "a.notes.json", book(), run.info)


@given(st.lists(st.tuples(st.integers(0, 2 ** 53), st.text(min_size=1).filter(str.strip), st.none() | st.text(),
                          st.none() | st.integers(0, 10 ** 9))))
def test_any_text_survives(made: list[tuple[int, str, str | None, int | None]]) -> None:
    notes = NoteBook()
    for step, text, request, block in made:
        if text.encode("utf-8", "replace").decode() == text:
            notes.add(text, step, request_id=None if request is None else request.encode("utf-8", "replace").decode(),
                      block=block)
    found = decode_notes(encode_notes(notes, INFO))
    assert found is not None
    assert found.notes == list(notes)
    assert found.skipped == 0


INFO = RandomRun(0).info


def test_they_come_back_from_a_copy_and_the_copy_is_the_same_run(run: LiveHistory, recording: Path,
                                                                 tmp_path: Path) -> None:
    before = recording.read_bytes()
    copy = tmp_path / "copy.mcap"
    copy_with_notes(recording, copy, book(), run.info)
    assert read_embedded_notes(recording) == []
    assert [n.text for n in read_embedded_notes(copy)] == [TEXTS[1], TEXTS[0], TEXTS[2]]
    assert recording.read_bytes() == before
    assert same_run(copy, run)
    assert os.listdir(tmp_path) == ["copy.mcap"]


def same_run(path: Path, run: LiveHistory) -> bool:
    found = open_recording(path)
    try:
        return (found.warnings == [] and found.last_step == run.last_step
                and all(found.events(s) == run.events(s) for s in range(run.last_step + 1))
                and found.state_at(run.last_step) == run.state)
    finally:
        found.close()


def test_a_copy_of_a_copy_holds_the_newer_notes_alone(run: LiveHistory, recording: Path, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{n}.mcap" for n in (1, 2, 3))
    copy_with_notes(recording, first, [Note("a", 3, "a secret that was taken out again")], run.info)
    copy_with_notes(first, second, [Note("b", 4, "new")], run.info)
    assert [n.text for n in read_embedded_notes(second)] == ["new"]
    assert b"a secret" not in second.read_bytes()
    copy_with_notes(second, third, [], run.info)
    assert read_embedded_notes(third) == []
    assert same_run(third, run)


def test_other_programs_find_the_notes_through_the_summary(run: LiveHistory, recording: Path, tmp_path: Path) -> None:
    first, copy = tmp_path / "first.mcap", tmp_path / "copy.mcap"
    copy_with_notes(recording, first, [Note("a", 3, "old")], run.info)
    copy_with_notes(first, copy, book(), run.info)
    with open(copy, "rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        records = list(reader.iter_metadata())
        assert [r.name for r in records].count(NOTES_METADATA) == 1
        assert summary.statistics.metadata_count == len(summary.metadata_indexes) == len(records)
        assert TEXTS[1] in next(r for r in records if r.name == NOTES_METADATA).metadata["notes"]
        assert sum(1 for _ in reader.iter_messages(log_time_order=False)) == summary.statistics.message_count


def test_a_recording_that_was_cut_off_takes_notes_along_and_stays_one(run: LiveHistory, recording: Path,
                                                                      tmp_path: Path) -> None:
    whole = recording.read_bytes()
    for length in range(len(whole) // 4, len(whole), len(whole) // 9):
        cut, copy = tmp_path / f"{length}.mcap", tmp_path / f"{length}-copy.mcap"
        cut.write_bytes(whole[:length])
        copy_with_notes(cut, copy, book(), run.info)
        assert len(read_embedded_notes(copy)) == 3
        try:
            before = open_recording(cut)
        except Exception:
            continue
        after = open_recording(copy)
        assert after.last_step == before.last_step
        only_the_summary = "no step" in before.warnings[0]  # of that the copy has a new one
        assert bool(after.warnings) != only_the_summary
        before.close()
        after.close()


def test_copies_that_cannot_be_made_say_why_and_leave_nothing(run: LiveHistory, recording: Path,
                                                              tmp_path: Path) -> None:
    with pytest.raises(NotesError, match="the recording itself"):
        copy_with_notes(recording, recording, book(), run.info)
    other = tmp_path / "other.mcap"
    other.write_bytes(b"no recording at all")
    with pytest.raises(NotesError, match="no MCAP file"):
        copy_with_notes(other, tmp_path / "copy.mcap", book(), run.info)
    with pytest.raises(FileNotFoundError):
        copy_with_notes(recording, tmp_path / "nowhere" / "copy.mcap", book(), run.info)
    assert os.listdir(tmp_path) == ["other.mcap"]
    assert read_embedded_notes(tmp_path / "nothing.mcap") == []


def test_a_copy_keeps_the_index(run: LiveHistory, recording: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.mcap"
    copy_with_notes(recording, copy, book(), run.info)
    found = []
    for path in (recording, copy):
        with open(path, "rb") as file:
            found.append(attachments_in_summary(file, path.stat().st_size))
    assert found[0]
    assert found[0] == found[1]


def test_damage_never_raises(run: LiveHistory, recording: Path, tmp_path: Path) -> None:
    copy, beside = tmp_path / "copy.mcap", tmp_path / "a.notes.json"
    copy_with_notes(recording, copy, book(), run.info)
    rng = random.Random(3)
    embedded, text = copy.read_bytes(), encode_notes(book(), run.info)
    where = embedded.rindex(NOTES_METADATA.encode(), 0, embedded.rindex(TEXTS[0].encode()))
    for _ in range(150):
        broken = bytearray(embedded)
        at = rng.choice((rng.randrange(where - 20, len(embedded)), rng.randrange(len(embedded))))
        broken[at] ^= 1 << rng.randrange(8)
        copy.write_bytes(broken[:rng.choice((len(broken), rng.randrange(where, len(broken))))])
        assert len(read_embedded_notes(copy)) <= 3
        broken = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(text))] = rng.randrange(256)
        beside.write_bytes(broken[:rng.choice((len(text), rng.randrange(len(text))))])
        found, warnings = read_notes(beside, run.info)
        assert len(found) == 3 or warnings
