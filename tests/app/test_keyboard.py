"""The window by keyboard alone: what Tab reaches, what it is called, and that the list of keys is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget

from app.key_list import KeysDialog, key_groups
from app.main_window import MainWindow
from tests.app.conftest import STEPS
from widgets.insights import InsightsPanel
from widgets.inspector import Inspector


def listed() -> set[str]:
    """The keys that the card names, one by one."""
    return {key.replace("−", "-").replace("←", "Left").replace("→", "Right")
            for _, keys in key_groups() for names, _ in keys for key in names.split("  ")}


def test_every_shortcut_is_in_the_list_of_keys(window: MainWindow) -> None:
    assert window.commands.shortcuts() - listed() == {"Ctrl+="}  # Ctrl++ without Shift


def test_f1_and_a_question_mark_show_the_list_and_take_it_away(window: MainWindow, qtbot: Any) -> None:
    for text in ("F1", "?"):
        if text == "F1":
            QTest.keyClick(window, Qt.Key.Key_F1)
        else:
            QTest.keyClicks(window, text)
        dialog = window.findChild(KeysDialog)
        assert dialog is not None
        told = {label.text() for label in dialog.findChildren(QLabel)}
        assert told >= {what for _, keys in key_groups() for _, what in keys}
        QTest.keyClick(dialog, Qt.Key.Key_F1)
        qtbot.waitUntil(lambda: window.findChild(KeysDialog) is None)


def walk(window: MainWindow) -> list[QWidget]:
    """What Tab reaches, in turn, until it comes round."""
    window.activateWindow()
    window.setFocus()
    reached: list[QWidget] = []
    while len(reached) < 100:
        QTest.keyClick(QApplication.focusWidget() or window, Qt.Key.Key_Tab)
        now = QApplication.focusWidget()
        if now is None or now is window or now in reached:
            break
        reached.append(now)
    return reached


@pytest.mark.parametrize("layout", ["tune", "stage", "teach"])
def test_tab_reaches_everything_in_the_order_of_the_window_and_all_of_it_has_a_name(
        window: MainWindow, recording: Path, qtbot: Any, layout: str) -> None:
    window.docks.choose(layout)
    window.open_recording(recording, play=False)
    qtbot.waitUntil(lambda: window.transport.status.step == 0)
    window.selection.visible.hold(10, 60, 0, STEPS - 1)
    assert window.session is not None
    for note in list(window.session.notes):
        window.session.notes.remove(note.note_id)
    window.session.notes.add("look here", 0)
    window.note_taking._update_list()
    window.banner.tell("Something happened.", "good", [("Look", lambda: None)])
    reached = walk(window)
    t = window.transport
    for control in (t.first, t.back, t.play, t.forward, t.last, t.scrubber):
        assert control in reached
    for name, panel in window.panels.items():
        assert (panel in reached) == (panel.isVisible() and name != "knobs"), name
    assert reached[-1] is window._language_button
    assert reached.index(t.play) < reached.index(t.scrubber) < reached.index(window.panels["block_table"])
    inspector = window.panels["inspector"]
    assert isinstance(inspector, Inspector)
    if inspector.isVisible():
        (card,) = inspector.notes.cards
        assert reached[reached.index(inspector) + 1:][:2] == [card.edit, card.delete]  # the step is in view already
    action = next(b for b in window.banner.findChildren(QPushButton) if b.text() == "Look")
    assert reached.index(action) < reached.index(window.panels["block_table"])
    for widget in reached:
        assert widget.accessibleName() or isinstance(widget, QPushButton), widget
    chips = [panel.chip for panel in window.panels.values() if hasattr(panel, "chip") and panel.isVisible()]
    assert set(chips) <= set(reached)


def test_page_keys_move_a_focused_scrubber_and_escape_selects_nothing(window: MainWindow, recording: Path,
                                                                      qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    qtbot.waitUntil(lambda: window.transport.status.step == 0)
    QTest.keyClick(window.transport.scrubber, Qt.Key.Key_PageDown)
    qtbot.waitUntil(lambda: window.transport.status.step == 30)
    QTest.keyClick(window.transport.scrubber, Qt.Key.Key_PageUp)
    qtbot.waitUntil(lambda: window.transport.status.step == 0)
    window.selection.select(request_id="r1")
    QTest.keyClick(window, Qt.Key.Key_Escape)
    assert window.selection.request_id is None


def test_the_links_of_the_insights_are_followed_with_enter(window: MainWindow, recording: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    window.session.seek(STEPS - 1)  # type: ignore[union-attr]
    panel = window.panels["insights"]
    assert isinstance(panel, InsightsPanel)
    qtbot.waitUntil(lambda: bool(panel._links))
    expected = panel._links[0][1]
    QTest.keyClick(panel, Qt.Key.Key_Down)
    QTest.keyClick(panel, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: window.transport.status.step == expected)
