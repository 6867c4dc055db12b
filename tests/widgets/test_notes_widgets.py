"""Editors for a note and for a condition on a gauge, and the list of notes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from engine.trace.conditions import GAUGES, parse_gauge
from engine.trace.notes import Note
from widgets.conditions import GaugeEditor, condition_text
from widgets.notes import NoteEditor, NoteList, note_heading
from widgets.transport import EDIT_GAUGE, TransportBar, TransportStatus

NOTES = [Note("a", 12, "the first eviction", block=17), Note("b", 1234, "why is r12 out?", request_id="r12")]


@pytest.fixture
def parent(qtbot: QtBot) -> QWidget:
    result = QWidget()
    qtbot.addWidget(result)
    return result


def test_a_note_is_saved_with_what_it_is_about(parent: QWidget, qtbot: QtBot) -> None:
    editor = NoteEditor(parent, 12, [("r3", None), (None, None)])
    editor.show()
    saved: list[object] = []
    editor.saved.connect(lambda text, about: saved.append((text, about)))
    assert not editor.save.isEnabled()
    assert not editor.delete.isVisible()
    QTest.keyClicks(editor.text, "n p m here")
    QTest.keyClick(editor.text, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert saved == [("n p m here", ("r3", None))]


def test_nothing_is_saved_without_a_text_or_after_escape(parent: QWidget, qtbot: QtBot) -> None:
    editor = NoteEditor(parent, 12, [(None, None)])
    editor.show()
    saved: list[str] = []
    editor.saved.connect(saved.append)
    QTest.keyClicks(editor.text, "   ")
    QTest.keyClick(editor.text, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert editor.isVisible()
    QTest.keyClicks(editor.text, "something")
    QTest.keyClick(editor, Qt.Key.Key_Escape)
    assert not editor.isVisible()
    assert saved == []


def test_a_note_is_changed_and_deleted(parent: QWidget, qtbot: QtBot) -> None:
    editor = NoteEditor(parent, 12, [(None, 17), (None, None)], NOTES[0])
    editor.show()
    assert editor.text.toPlainText() == NOTES[0].text
    editor.about.setCurrentIndex(1)
    with qtbot.waitSignal(editor.saved) as blocker:
        editor.save.click()
    assert blocker.args == [NOTES[0].text, (None, None)]
    other = NoteEditor(parent, 12, [(None, None)], NOTES[0])
    other.show()
    with qtbot.waitSignal(other.deleted):
        other.delete.click()


def test_the_list_leads_to_steps_and_keeps_its_choice(parent: QWidget, qtbot: QtBot) -> None:
    notes = NoteList(parent)
    notes.show_notes(NOTES)
    notes.show()
    assert not notes.edit.isEnabled()
    item = notes.list.item(1)
    assert item.text() == "step 1,234 · request r12\nwhy is r12 out?"
    with qtbot.waitSignal(notes.chosen) as blocker:
        at = notes.list.visualItemRect(item).center()
        qtbot.mouseClick(notes.list.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(at))
    assert blocker.args == [NOTES[1]]
    notes.show_notes([NOTES[1]])
    assert notes.current() == NOTES[1]
    with qtbot.waitSignal(notes.delete_asked) as blocker:
        notes.delete.click()
    assert blocker.args == [NOTES[1]]
    notes.show_notes([])
    assert notes.current() is None
    assert not notes.delete.isEnabled()


def test_headings() -> None:
    assert [note_heading(n) for n in NOTES] == ["step 12 · block 17", "step 1,234 · request r12"]
    assert note_heading(Note("c", 3, "x")) == "step 3"


def test_a_gauge_is_chosen_in_the_editor_and_shown_in_the_menu(qtbot: QtBot) -> None:
    bar = TransportBar()
    qtbot.addWidget(bar)
    bar.resize(1400, 48)
    bar.show()
    bar.set_status(TransportStatus("live", playing=True, following=True, step=9, last_step=9))
    next(a for a, o in zip(bar.until.build_menu().actions(), bar.until.options, strict=True)
         if o is not None and o[0] == EDIT_GAUGE).trigger()
    editor = bar.gauge_editor
    assert editor is not None
    assert editor.isVisible()
    editor.gauge.setCurrentIndex(editor.gauge.findData("waiting"))
    editor.direction.setCurrentIndex(1)
    editor.value.setValue(3)
    with qtbot.waitSignal(bar.run_until_changed) as blocker:
        editor.run.click()
    assert blocker.args == ["waiting<3"]
    assert not editor.isVisible()
    bar.set_status(TransportStatus("live", playing=True, step=9, last_step=9, until="waiting<3"))
    assert bar.until.texts[1] == "waiting requests < 3"
    assert ("waiting<3", "waiting requests < 3") in bar.until.options
    bar.edit_gauge()
    assert editor.condition() == "waiting<3"


def test_the_flag_is_raised_where_there_is_a_note_and_tells_it(qtbot: QtBot) -> None:
    bar = TransportBar()
    qtbot.addWidget(bar)
    bar.scrubber.describe_notes = lambda first, last: [f"note of {first} to {last}"]
    status = TransportStatus("replay", step=9, last_step=90, notes=(3, 9, 9, 12))
    bar.set_status(status)
    assert bar.notes._primary
    assert bar.notes.toolTip().startswith("note of 9 to 9\n")
    bar.set_status(replace(status, step=10))
    assert not bar.notes._primary
    assert "note of" not in bar.notes.toolTip()


@pytest.mark.parametrize("name", list(GAUGES))
def test_every_gauge_has_a_value_to_begin_with_and_a_name(name: str, parent: QWidget) -> None:
    editor = GaugeEditor(parent)
    editor.gauge.setCurrentIndex(editor.gauge.findData(name))
    gauge = parse_gauge(editor.condition())
    assert gauge is not None
    assert (gauge.name, gauge.value) == (name, GAUGES[name].usual)
    assert condition_text(editor.condition()) not in (editor.condition(), "")
    assert "_" not in condition_text(editor.condition())
