"""Notes about the run that is shown: written with M, listed, kept beside the recording or in a copy of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog

from app.engine_texts import say
from app.session import ReplaySession, Session
from engine.trace.notes import Note
from engine.trace.notes_copy import NotesError, copy_with_notes
from widgets.inspector import Inspector
from widgets.notes import About, NoteEditor, NoteList, note_heading

if TYPE_CHECKING:
    from app.main_window import MainWindow

TOLD_AT_MOST = 4  # notes in a tooltip
TOLD_CHARACTERS = 120


class NoteTaking(QObject):
    """Looks after the notes of the session that ``window`` shows."""

    _copied = Signal(object, object)  # the path, and None or what went wrong

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self.editor: NoteEditor | None = None
        self.list: NoteList | None = None
        self._told_unsaved = False
        self._copied.connect(self._tell_copied)
        window.transport.notes_requested.connect(self.show_list)
        window.transport.scrubber.describe_notes = self.describe
        inspector = window.panels["inspector"]
        assert isinstance(inspector, Inspector)
        self._inspector = inspector
        inspector.find_notes = self.find
        inspector.notes.chosen.connect(self._go_to)
        inspector.notes.edit_asked.connect(self.edit)
        inspector.notes.delete_asked.connect(lambda note: self._delete(window.session, note))

    def set_session(self, session: Session | None) -> None:
        """Another run is shown: what is open about the one before goes."""
        self._told_unsaved = False
        if self.editor is not None:
            self.editor.close()
        self._update_list()
        if isinstance(session, ReplaySession) and session.note_warnings:
            self._window.banner.tell(" ".join(map(say, session.note_warnings)), "warning")

    # ---- writing -------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Open the editor for a note about the step in view, or about the request or the block that is selected."""
        session = self._window.session
        if session is None or session.time.step < 0:
            return
        selection = self._window.selection
        choices: list[About] = [(None, None)]
        if selection.block is not None:
            choices.insert(0, (None, selection.block))
        if selection.request_id is not None:
            choices.insert(0, (selection.request_id, None))
        self._open(NoteEditor(self._window, session.time.step, choices))

    def edit(self, note: Note) -> None:
        choices: list[About] = [(None, None)]
        if (note.request_id, note.block) != (None, None):
            choices.insert(0, (note.request_id, note.block))
        self._open(NoteEditor(self._window, note.step, choices, note))

    def _open(self, editor: NoteEditor) -> None:
        session = self._window.session
        if self.editor is not None:
            self.editor.close()
        self.editor = editor
        note, step = editor.note, editor.step

        def save(text: str, about: About) -> None:
            if session is None:
                return
            try:
                if note is None:
                    session.notes.add(text, step, request_id=about[0], block=about[1])
                elif session.notes.get(note.note_id) is not None:
                    session.notes.edit(note.note_id, text, request_id=about[0], block=about[1])
            except ValueError:
                self._window.banner.tell(self.tr("There are too many notes: delete some first."), "warning")
            self._changed(session)

        editor.saved.connect(save)
        editor.deleted.connect(lambda: self._delete(session, note))
        editor.destroyed.connect(lambda: self._forget(editor))
        editor.show()
        editor.activateWindow()

    def _forget(self, editor: NoteEditor) -> None:
        if self.editor is editor:
            self.editor = None

    def _delete(self, session: Session | None, note: Note | None) -> None:
        if session is not None and note is not None:
            session.notes.remove(note.note_id)
            self._window.banner.tell(self.tr("The note about {place} is deleted.").format(place=note_heading(note)),
                                     "info", [(self.tr("Undo"), lambda: self._put_back(session, note))], passing=True)
            self._changed(session)

    def _put_back(self, session: Session, note: Note) -> None:
        session.notes.put_back(note)
        self._changed(session)

    def _changed(self, session: Session) -> None:
        """Keep the notes where they belong, and say so if that is not possible."""
        self._update_list()
        try:
            session.save_notes()
        except OSError as failure:
            text = self.tr("The notes could not be saved beside the recording ({reason}). Save a copy of the recording "
                           "with them in it, or they are lost at the end.").format(reason=failure.strerror or failure)
            actions = [(self.tr("Save a copy…"), self.choose_copy)] if isinstance(session, ReplaySession) else []
            self._window.banner.tell(text, "warning", actions)
            return
        if not session.notes_files and session.notes.changed and not self._told_unsaved:
            self._told_unsaved = True
            text = self.tr("This run is not recorded: its notes go with it. R records it, with them.")
            self._window.banner.tell(text, "info")

    # ---- the list ------------------------------------------------------------------------------------------------

    def show_list(self) -> None:
        if self.list is None:
            self.list = NoteList(self._window)
            self.list.chosen.connect(self._go_to)
            self.list.chosen.connect(self._select)
            self.list.edit_asked.connect(self.edit)
            self.list.delete_asked.connect(lambda note: self._delete(self._window.session, note))
            self.list.new_asked.connect(self.write)
        self._update_list()
        self.list.show()
        self.list.activateWindow()

    def _go_to(self, note: Note) -> None:
        self._window.with_session("seek", note.step)

    def find(self, request_id: str | None, block: int | None, step: int) -> list[Note]:
        """The notes about a request, or a block, or else those of a step, whatever they are about."""
        session = self._window.session
        if session is None or not len(session.notes):
            return []
        if request_id is None and block is None:
            return session.notes.at(step)
        return session.notes.about(request_id=request_id, block=block if request_id is None else None)

    def _select(self, note: Note) -> None:
        """What the note is about, shown by all panels."""
        if note.request_id is not None:
            self._window.selection.select(request_id=note.request_id)
        elif note.block is not None:
            self._window.selection.select(block=note.block)

    def _update_list(self) -> None:
        session = self._window.session
        self._inspector.notes_changed()
        if self.list is not None:
            self.list.show_notes(list(session.notes) if session is not None else [])

    def describe(self, first: int, last: int) -> list[str]:
        """The notes of steps ``first`` to ``last``, one a line, for a tooltip."""
        session = self._window.session
        notes = session.notes.between(first, last) if session is not None else []
        lines = []
        for note in notes[:TOLD_AT_MOST]:
            text = " ".join(note.text.split())
            short = text if len(text) <= TOLD_CHARACTERS else text[:TOLD_CHARACTERS - 1] + "…"
            lines.append(f"{note_heading(note)}: {short}")
        if len(notes) > TOLD_AT_MOST:
            lines.append(self.tr("and {count} more notes").format(count=len(notes) - TOLD_AT_MOST))
        return lines

    # ---- a copy with notes ---------------------------------------------------------------------------------------

    def choose_copy(self) -> None:
        """Ask where a copy of the recording with its notes goes."""
        session = self._window.session
        if not isinstance(session, ReplaySession) or session.path is None:
            return
        start = session.path.with_name(f"{session.path.stem}-notes{session.path.suffix}")
        name, _ = QFileDialog.getSaveFileName(self._window, self.tr("Save a copy with notes"), str(start),
                                              self.tr("Recordings (*.mcap)"))
        if name:
            self.save_copy(Path(name))

    def save_copy(self, path: Path) -> None:
        """Write a copy of the recording with its notes to ``path``, in a thread: it may be large."""
        session = self._window.session
        if not isinstance(session, ReplaySession) or session.path is None or session.source is None:
            return
        source, info, notes = session.path, session.source.info, list(session.notes)

        def copy() -> None:
            problem: str | None = None
            try:
                copy_with_notes(source, path, notes, info)
            except NotesError as refusal:
                problem = say(refusal)
            except OSError as failure:
                problem = failure.strerror or str(failure)
            self._copied.emit(path, problem)

        thread = threading.Thread(target=copy, name="notes-copy", daemon=True)
        thread.start()
        self._window.wait_at_the_end_for(thread)

    def _tell_copied(self, path: Path, problem: str | None) -> None:
        window = self._window
        if problem is None:
            window.banner.tell(self.tr("The copy with notes is in {path}.").format(path=path), "good",
                               [(self.tr("Open it"), lambda: window.open_recording(path))])
        else:
            window.banner.tell(self.tr("{path} could not be written: {reason}").format(path=path, reason=problem),
                               "bad", [(self.tr("Choose…"), self.choose_copy)])
