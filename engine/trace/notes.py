"""What somebody wrote down about a run: notes pinned to a step, to a request or to a block at a step.

They are kept beside the recording, in ``<name of the file>.notes.json``, so that the recording itself is never changed;
:mod:`engine.trace.notes_copy` writes them into a copy of it. A file of notes says which run it is about: a recording
that was replaced by another of the same name does not inherit the notes.

    {"format": "cutaway.notes", "version": 1, "run": "...",
     "notes": [{"id": "...", "step": 12, "request": "r3", "block": null, "text": "...", "made": "..."}]}
"""

from __future__ import annotations

import json
import os
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from engine.trace.events import RunInfo
from engine.trace.source import Notice

FORMAT, VERSION = "cutaway.notes", 1
MAX_FILE_BYTES = 16 << 20
MAX_NOTES = 10_000
MAX_TEXT = 20_000
MAX_NUMBER = 1 << 53  # the largest whole number that JSON keeps everywhere


class Note(NamedTuple):
    """``step`` is where it belongs in time; ``request_id`` or ``block`` is what it is about, both None: the step.

    ``made`` is UTC, ISO 8601.
    """

    note_id: str
    step: int
    text: str
    request_id: str | None = None
    block: int | None = None
    made: str = ""


class NoteBook:
    """The notes about one run, in order of their steps. ``revision`` grows with every change."""

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self._notes = sorted(notes, key=lambda note: note.step)
        self._steps = [note.step for note in self._notes]
        self.revision = 0
        self.saved_revision = 0
        self._steps_of, self._steps_then = 0, tuple(self._steps)

    @property
    def changed(self) -> bool:
        """Whether there is something that was not saved."""
        return self.revision != self.saved_revision

    @property
    def steps(self) -> tuple[int, ...]:
        """The step of every note, ascending."""
        if self._steps_of != self.revision:
            self._steps_of, self._steps_then = self.revision, tuple(self._steps)
        return self._steps_then

    def add(self, text: str, step: int, *, request_id: str | None = None, block: int | None = None) -> Note:
        """Write a note down. Raises ValueError if there is no text, or if there are too many notes already."""
        if len(self._notes) >= MAX_NOTES:
            raise ValueError(f"there are {MAX_NOTES} notes already")
        made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        note = Note(uuid.uuid4().hex[:12], step, _text(text), request_id, block, made)
        self._put(note)
        self.revision += 1
        return note

    def edit(self, note_id: str, text: str, *, request_id: str | None = None, block: int | None = None) -> None:
        """Replace what a note says and what it is about. Raises KeyError if there is none, ValueError for no text."""
        old = self.get(note_id)
        if old is None:
            raise KeyError(note_id)
        new = old._replace(text=_text(text), request_id=request_id, block=block)
        if new != old:
            self._notes[self._notes.index(old)] = new
            self.revision += 1

    def remove(self, note_id: str) -> None:
        """Take a note away; nothing happens if it is gone already."""
        note = self.get(note_id)
        if note is not None:
            index = self._notes.index(note)
            del self._notes[index], self._steps[index]
            self.revision += 1

    def put_back(self, note: Note) -> None:
        """Take back that ``note`` was removed; nothing happens if it is there."""
        if self.get(note.note_id) is None and len(self._notes) < MAX_NOTES:
            self._put(note)
            self.revision += 1

    def touch(self) -> None:
        """What is here belongs into another file than the one that it was saved in."""
        if self._notes:
            self.revision += 1

    def get(self, note_id: str) -> Note | None:
        return next((note for note in self._notes if note.note_id == note_id), None)

    def at(self, step: int) -> list[Note]:
        """The notes of one step, in the order in which they were made."""
        return self.between(step, step)

    def between(self, first: int, last: int) -> list[Note]:
        """The notes of steps ``first`` to ``last``, inclusive."""
        return self._notes[bisect_left(self._steps, first):bisect_right(self._steps, last)]

    def about(self, *, request_id: str | None = None, block: int | None = None) -> list[Note]:
        """The notes about a request, or about a block, in order of their steps."""
        return [note for note in self._notes if (request_id is not None and note.request_id == request_id)
                or (block is not None and note.block == block)]

    def step_after(self, step: int) -> int | None:
        """The first step after ``step`` that has a note."""
        index = bisect_right(self._steps, step)
        return self._steps[index] if index < len(self._steps) else None

    def step_before(self, step: int) -> int | None:
        """The last step before ``step`` that has a note."""
        index = bisect_left(self._steps, step)
        return self._steps[index - 1] if index else None

    def _put(self, note: Note) -> None:
        index = bisect_right(self._steps, note.step)
        self._notes.insert(index, note)
        self._steps.insert(index, note.step)

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes)


def _text(text: str) -> str:
    text = text.strip()[:MAX_TEXT]
    if not text:
        raise ValueError("a note without a text")
    return text


# ---- the file beside the recording ---------------------------------------------------------------------------------


def notes_path(recording: Path) -> Path:
    """Where the notes about the recording ``recording`` are kept."""
    return recording.with_name(recording.name + ".notes.json")


def run_identity(info: RunInfo) -> str:
    """What tells one run from another."""
    return f"{info.created} {info.wall_start_ns}"


def read_notes(path: Path, info: RunInfo) -> tuple[NoteBook, list[Notice]]:
    """The notes in the file of notes ``path``, and what is to be said about them. Never raises: a file that cannot be
    read gives no notes, and of one that can be read in part, that part."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return NoteBook(), []
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return NoteBook(), [Notice("The notes in {path} cannot be read: {reason}.", path=path, reason=reason)]
    if len(data) > MAX_FILE_BYTES:
        return NoteBook(), [Notice("{path} is too large to be a file of notes.", path=path)]
    found = decode_notes(data)
    if found is None:
        return NoteBook(), [Notice("{path} is no file of notes; it is kept under another name when you write one.",
                                   path=path)]
    if found.run and found.run != run_identity(info):
        return NoteBook(), [Notice("The notes in {path} are about another run and are not shown.", path=path)]
    warnings = []
    if found.skipped:
        warnings.append(Notice("{count} notes in {path} cannot be read.", count=found.skipped, path=path))
    if found.newer:
        warnings.append(Notice("The notes in {path} were written by a later version of Cutaway; what this one does not "
                               "know of them is not shown.", path=path))
    return NoteBook(found.notes), warnings


def write_notes(path: Path, notes: NoteBook, info: RunInfo) -> None:
    """Save the notes about the run ``info``: all of them or none, never half a file. Raises OSError.

    A file that is there already and is not an older state of these notes is kept under another name.
    """
    revision = notes.revision
    if not revision and not path.exists():
        return  # nothing was ever written down; without notes left, a file says that those in the recording are gone
    _keep_foreign(path, info)
    name = path.with_name(f".notes-{uuid.uuid4().hex}.part")
    try:
        with open(name, "xb") as file:
            file.write(encode_notes(notes, info))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    notes.saved_revision = revision


def encode_notes(notes: Iterable[Note], info: RunInfo) -> bytes:
    """The notes as JSON, UTF-8."""
    listed = [{"id": n.note_id, "step": n.step, "request": n.request_id, "block": n.block, "text": n.text,
               "made": n.made} for n in notes]
    content = {"format": FORMAT, "version": VERSION, "run": run_identity(info), "notes": listed}
    return json.dumps(content, ensure_ascii=False, indent=1).encode("utf-8", "replace")


class Decoded(NamedTuple):
    """``skipped`` counts the notes that are none; ``newer`` says that a later version wrote the file."""

    notes: list[Note]
    run: str
    skipped: int
    newer: bool


def decode_notes(data: bytes | str) -> Decoded | None:
    """What :func:`encode_notes` wrote, as far as it can be understood; None if it is something else."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("notes"), list):
        return None
    run, version = content.get("run"), content.get("version")
    items = content["notes"]
    notes: dict[str, Note] = {}
    for item in items[:MAX_NOTES]:
        note = _parse(item)
        if note is not None:
            if note.note_id in notes:
                note = note._replace(note_id=uuid.uuid4().hex[:12])
            notes[note.note_id] = note
    return Decoded(list(notes.values()), run if isinstance(run, str) else "", len(items) - len(notes),
                   isinstance(version, int) and version > VERSION)


def _parse(item: Any) -> Note | None:
    if not isinstance(item, dict) or not _is_count(item.get("step")):
        return None
    step: int = item["step"]
    text, request, block = item.get("text"), item.get("request"), item.get("block")
    note_id, made = item.get("id"), item.get("made")
    if not isinstance(text, str) or not text.strip():
        return None
    return Note(note_id[:64] if isinstance(note_id, str) and note_id else uuid.uuid4().hex[:12], step, _text(text),
                request if isinstance(request, str) else None, block if _is_count(block) else None,
                made[:40] if isinstance(made, str) else "")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def _keep_foreign(path: Path, info: RunInfo) -> None:
    """Rename what stands at ``path`` if writing there would lose something that these notes do not hold."""
    try:
        with open(path, "rb") as file:
            found = decode_notes(file.read(MAX_FILE_BYTES + 1))
    except FileNotFoundError:
        return
    if found is not None and found.run in ("", run_identity(info)) and not found.skipped and not found.newer:
        return
    for number in range(1, 100):
        other = path.with_name(f"{path.name}.{number}")
        if not other.exists():
            os.replace(path, other)
            return
    raise FileExistsError(17, "too many files of notes", str(path))
