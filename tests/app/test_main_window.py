"""The window: opens, plays, steps, scrubs, records, switches its looks, and ends cleanly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton, QWidget

from app.application import make_application
from app.main_window import MainWindow
from app.session import LiveSession, ReplaySession
from app.settings import Settings
from app.translation import Language
from engine.trace.conditions import EVENT_KINDS
from engine.trace.history import LiveHistory
from engine.trace.knobs import KnobError
from engine.trace.notes import notes_path, read_notes
from engine.trace.reader import open_recording
from tests.app.conftest import STEPS
from tests.app.live import BUSY
from tests.widgets.pointer import hover
from widgets.inspector import Inspector
from widgets.request_list import RequestList
from widgets.theme import DARK, LIGHT, theme, themes
from widgets.transport import TransportStatus


def shown_step(window: MainWindow) -> int:
    return window.transport.status.step


def status(window: MainWindow) -> TransportStatus:
    return window.transport.status


def press(window: MainWindow, key: Qt.Key, shift: bool = False) -> None:
    QTest.keyClick(window, key, Qt.KeyboardModifier.ShiftModifier if shift else Qt.KeyboardModifier.NoModifier)


def test_it_opens_a_recording_steps_and_scrubs(window: MainWindow, recording: Path, run: LiveHistory,
                                               qtbot: Any) -> None:
    assert window.open_recording(recording, play=False)
    qtbot.waitUntil(lambda: shown_step(window) == 0)
    assert status(window).source == "replay"
    assert status(window).model == "tokens"
    right, left, end, home = Qt.Key.Key_Right, Qt.Key.Key_Left, Qt.Key.Key_End, Qt.Key.Key_Home
    for key, shift, expected in ((right, False, 1), (right, True, 11), (left, False, 10), (left, True, 0),
                                 (end, False, STEPS - 1), (home, False, 0)):
        press(window, key, shift)
        qtbot.waitUntil(lambda expected=expected: shown_step(window) == expected)
    window.transport.seek.emit(150)
    qtbot.waitUntil(lambda: shown_step(window) == 150)
    assert window.session is not None
    assert window.session.view is not None
    assert window.session.view.state == run.state_at(150)
    assert recording in window.settings.recent


def test_space_plays_and_pauses_at_the_same_step(window: MainWindow, recording: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    window.transport.speed_changed.emit(1 / 8)
    press(window, Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: shown_step(window) > 20)
    press(window, Qt.Key.Key_Space)
    assert window.session is not None
    at = window.session.time.step
    qtbot.wait(100)
    qtbot.waitUntil(lambda: not status(window).playing)
    assert shown_step(window) == at


def test_a_panel_can_send_the_view_to_a_step(window: MainWindow, recording: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    window.selection.step_requested.emit(77)
    qtbot.waitUntil(lambda: shown_step(window) == 77)


def test_typing_a_prompt_neither_plays_nor_records(window: MainWindow, live: Callable[..., LiveSession],
                                                   qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 5)
    qtbot.waitUntil(lambda: window.knobs.prompt.isEnabled())
    window.activateWindow()
    window.knobs.prompt.setFocus()
    QTest.keyClicks(window.knobs.prompt, "or so, are you?")
    assert window.knobs.prompt.toPlainText() == "or so, are you?"
    assert session.time.playing
    assert session.recorder is None
    QTest.keyClick(window.knobs.prompt, Qt.Key.Key_Return)

    def arrived() -> bool:
        view = session.view
        return view is not None and any(r.prompt_text == "or so, are you?" for r in view.state.requests.values())

    qtbot.waitUntil(arrived)


def test_a_live_run_is_followed_paused_and_looked_back_on(window: MainWindow, live: Callable[..., LiveSession],
                                                          qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: shown_step(window) > 30)
    assert status(window).source == "live"
    assert status(window).following
    window.transport.seek.emit(10)
    qtbot.waitUntil(lambda: shown_step(window) == 10)
    edge = session.time.last_step
    qtbot.waitUntil(lambda: session.time.last_step > edge + 20)
    assert shown_step(window) == 10
    press(window, Qt.Key.Key_End)
    qtbot.waitUntil(lambda: status(window).following)
    press(window, Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: session.engine.status == "paused")
    qtbot.waitUntil(lambda: status(window).source == "paused")


def test_knobs_turn_and_refusals_are_told(window: MainWindow, live: Callable[..., LiveSession], qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 5)
    window.knobs.knob_changed.emit("max_num_seqs", 3)
    qtbot.waitUntil(lambda: session.view is not None and session.view.state.knobs["max_num_seqs"] == 3)
    window.knobs.knob_changed.emit("num_blocks", 3)
    assert "num_blocks" in window.banner.text
    assert session.view is not None
    assert session.view.state.knobs["num_blocks"] != 3


def test_a_knob_that_the_engine_refuses_goes_back(window: MainWindow, live: Callable[..., LiveSession],
                                                  qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 5)
    before = BUSY["num_blocks"]
    qtbot.waitUntil(lambda: window.knobs.values()["num_blocks"] == before)

    def no_room(num_blocks: int, block_size: int) -> None:
        raise KnobError("no room for that")

    session.engine._engine._check_pool_fits_memory = no_room  # type: ignore[method-assign]
    window.knobs._turned("num_blocks", 65536)
    window.knobs._let_go()
    assert window.knobs.values()["num_blocks"] == 65536
    qtbot.waitUntil(lambda: window.banner.text == "no room for that")
    assert window.knobs.values()["num_blocks"] == before


def fail_engine(session: LiveSession) -> None:
    def broken(plan: object) -> list[int]:
        raise RuntimeError("a matrix of no size")

    session.engine._engine._runner.execute = broken  # type: ignore[method-assign]


def test_a_failing_engine_is_told_in_any_language_and_its_recording_is_safe(
        window: MainWindow, live: Callable[..., LiveSession], qtbot: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    session = live(record=path)
    qtbot.waitUntil(lambda: session.time.step > 20)
    fail_engine(session)
    qtbot.waitUntil(lambda: "a matrix of no size" in window.banner.text)
    assert window.banner.text.startswith("The engine stopped")
    qtbot.waitUntil(lambda: status(window).recording == "off")  # and not only when the window is closed
    recorded = open_recording(path)
    assert recorded.complete
    assert recorded.last_step == session.time.last_step
    recorded.close()
    press(window, Qt.Key.Key_Home)
    qtbot.waitUntil(lambda: shown_step(window) == 0)
    window.set_language("zh")
    qtbot.waitUntil(lambda: "引擎" in window.banner.text)
    window.banner.dismiss()
    window.set_language("en")
    qtbot.wait(400)
    assert not window.banner.text  # what was put away stays away


def test_while_a_run_is_loaded_nothing_of_the_one_before_is_shown(
        window: MainWindow, live: Callable[..., LiveSession], recording: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    window.with_session("seek", 60)
    requests = window.panels["requests"]
    assert isinstance(requests, RequestList)
    qtbot.waitUntil(lambda: bool(requests._rows))
    live(hold_s=0.5)
    assert not requests._rows
    assert not window.presenter.failed
    assert window.panels["block_table"].value.startswith("0 / 63")  # the pool that was asked for, empty


def test_a_step_that_cannot_be_shown_is_told_once(window: MainWindow, recording: Path, qtbot: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    window.open_recording(recording, play=False)
    session = window.session
    assert session is not None
    with monkeypatch.context() as patch:
        patch.setattr(session, "advance", lambda now: 1 / 0)
        qtbot.waitUntil(lambda: "division by zero" in window.banner.text)
        window.banner.dismiss()
        qtbot.wait(150)
        assert not window.banner.text
    window.with_session("seek", 20)
    qtbot.waitUntil(lambda: shown_step(window) == 20)


def test_a_panel_that_fails_leaves_the_others_and_recovers(window: MainWindow, recording: Path, qtbot: Any,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    window.open_recording(recording, play=False)
    qtbot.waitUntil(lambda: shown_step(window) == 0)
    with monkeypatch.context() as patch:
        patch.setattr(type(window.panels["block_table"]), "paint_content", lambda *_: 1 / 0)
        window.with_session("seek", 50)
        qtbot.waitUntil(lambda: "ZeroDivisionError" in window.banner.text)
        assert list(window.presenter.failed) == ["block_table"]
        assert window.panels["block_table"].title in window.banner.text
        window.with_session("seek", 60)
        qtbot.waitUntil(lambda: shown_step(window) == 60)
    window.open_recording(recording, play=False)
    assert not window.presenter.failed
    qtbot.wait(100)
    assert not window.presenter.failed


def test_r_records_and_stops(window: MainWindow, live: Callable[..., LiveSession], qtbot: Any, tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.main_window.recordings_folder", lambda: tmp_path / "my recordings")
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 10)
    press(window, Qt.Key.Key_R)
    qtbot.waitUntil(lambda: status(window).recording == "on")
    at = session.time.step
    qtbot.waitUntil(lambda: session.time.step > at + 20)
    press(window, Qt.Key.Key_R)
    qtbot.waitUntil(lambda: status(window).recording == "off")
    (path,) = (tmp_path / "my recordings").glob("*.mcap")
    recorded = open_recording(path)
    assert recorded.first_step == 0
    assert recorded.last_step >= at
    recorded.close()
    qtbot.waitUntil(lambda: path.name in window.banner.text)


def test_a_recording_that_fails_is_told_and_the_run_goes_on(window: MainWindow, live: Callable[..., LiveSession],
                                                            qtbot: Any, tmp_path: Path) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 5)
    window.record_to(tmp_path / "nowhere" / "x.mcap")
    qtbot.waitUntil(lambda: bool(window.banner.text))
    assert "nowhere" in window.banner.text
    at = session.time.step
    qtbot.waitUntil(lambda: session.time.step > at + 20)


def test_what_is_no_recording_leaves_what_is_shown(window: MainWindow, recording: Path, tmp_path: Path,
                                                   qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    session = window.session
    bad = tmp_path / "bad.mcap"
    bad.write_bytes(b"this is no recording")
    for path in (bad, tmp_path / "not there.mcap", tmp_path):
        assert not window.open_recording(path)
        assert path.name in window.banner.text
        assert window.session is session


def test_a_recording_dropped_on_the_window_opens(window: MainWindow, recording: Path, qtbot: Any) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(recording))])
    window.dropEvent(QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton,
                                Qt.KeyboardModifier.NoModifier))
    qtbot.waitUntil(lambda: isinstance(window.session, ReplaySession))
    assert recording.stem in window.windowTitle()


def test_without_a_model_it_says_so_and_offers_recordings(window: MainWindow, live: Callable[..., LiveSession],
                                                          recording: Path, qtbot: Any,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window.preparation, "_recordings", lambda: [(recording, "Shared prefix")])
    live(failure=RuntimeError("no network, no model"))
    qtbot.waitUntil(window.card.isVisible)
    texts = [label.text() for label in window.card.findChildren(type(window.card._title))]
    assert any("no network, no model" in text for text in texts)
    button = next(b for b in window.card.findChildren(type(window.card._retry)) if "Shared prefix" in b.text())
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: isinstance(window.session, ReplaySession))
    assert not window.card.isVisible()


def test_preparing_a_model_shows_progress_and_can_be_cancelled(window: MainWindow, live: Callable[..., LiveSession],
                                                               qtbot: Any) -> None:
    session = live(hold_s=30)
    qtbot.waitUntil(window.card.isVisible)
    QTest.mouseClick(window.card._cancel, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not session.engine.is_alive())
    qtbot.waitUntil(window.card._retry.isVisible)


def test_closing_in_mid_step_ends_everything_in_time(window: MainWindow, live: Callable[..., LiveSession], qtbot: Any,
                                                     tmp_path: Path) -> None:
    session = live(record=tmp_path / "run.mcap", delay_s=0.4)
    qtbot.waitUntil(lambda: session.time.step >= 1)
    began = time.monotonic()
    window.close()
    assert time.monotonic() - began < 3
    assert window.ended_cleanly
    assert not session.engine.is_alive()
    assert "recorder" not in [t.name for t in threading.enumerate()]
    recorded = open_recording(tmp_path / "run.mcap")
    assert recorded.complete
    assert recorded.last_step >= 1
    recorded.close()


def test_another_run_replaces_the_one_before(window: MainWindow, live: Callable[..., LiveSession], recording: Path,
                                             qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 5)
    window.open_recording(recording)
    qtbot.waitUntil(lambda: not session.engine.is_alive())
    qtbot.waitUntil(lambda: shown_step(window) > 3)
    assert not window.knobs.control("max_num_seqs").isEnabled()


def test_theme_and_language_switch_while_running(window: MainWindow, live: Callable[..., LiveSession],
                                                 qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 5)
    assert theme() is DARK
    dark = window.grab().toImage().pixelColor(3, window.height() // 2)
    window.set_theme("light")
    assert theme() is LIGHT
    light = window.grab().toImage().pixelColor(3, window.height() // 2)
    assert light.lightness() > dark.lightness() + 100
    window.set_language("zh")
    qtbot.waitUntil(lambda: window.commands.file.title() != "&File")
    assert window.panels["requests"].title != "Requests"
    window.set_language("en")
    qtbot.waitUntil(lambda: window.commands.file.title() == "&File")
    assert window.panels["requests"].title == "Requests"
    assert window.settings.theme == "light"
    assert window.settings.language == "en"
    at = session.time.step
    qtbot.waitUntil(lambda: session.time.step > at + 10)


def test_panels_hide_and_come_back_and_the_layout_is_remembered(window: MainWindow, tmp_path: Path,
                                                                qtbot: Any) -> None:
    window.docks.docks["insights"].toggleViewAction().trigger()
    assert not window.panels["insights"].isVisible()
    window.resize(1300, 800)
    window.close()
    make_application()
    again = MainWindow(Settings(tmp_path / "settings.ini"), Language("en"))
    again.show()
    assert not again.panels["insights"].isVisible()
    assert again.panels["inspector"].isVisible()
    again.docks.reset()
    assert again.panels["insights"].isVisible()
    again.close()
    again.deleteLater()


def test_every_panel_has_room_at_every_size(window: MainWindow, recording: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    for width, height in ((1024, 640), (1440, 900), (2560, 1440)):
        window.resize(width, height)
        qtbot.wait(30)
        assert (window.width(), window.height()) == (width, height)
        for name, panel in window.panels.items():
            assert panel.width() >= 180, (name, width)
            assert panel.height() >= 90, (name, height)
            corner = panel.mapTo(window, QPoint(panel.width(), panel.height()))
            assert corner.x() <= width, name
            assert corner.y() <= height, name


def test_frames_are_timed_and_leave_the_engine_room(window: MainWindow, live: Callable[..., LiveSession],
                                                    qtbot: Any) -> None:
    live(delay_s=0.02)
    qtbot.waitUntil(lambda: window.clock.frames > 10, timeout=20_000)
    times = window.clock.times_ms()
    assert len(times) == window.clock.frames
    assert (times > 0).all()
    assert times.min() <= window.clock.recent_ms() <= times.max()
    assert 0 < window.clock.frames_per_s <= 61
    window.clock.stop()
    before = window.clock.frames
    qtbot.wait(100)
    assert window.clock.frames == before


def test_keys_move_between_events_loop_and_write_notes(window: MainWindow, recording: Path, run: LiveHistory,
                                                       tmp_path: Path, qtbot: Any) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(recording.read_bytes())
    window.open_recording(path, play=False)
    session = window.session
    assert session is not None
    qtbot.waitUntil(lambda: shown_step(window) == 0)
    events = sorted({m.step for m in run.series.marks if m.kind in EVENT_KINDS} - {0})
    for step in (events[0], events[1], events[2]):
        press(window, Qt.Key.Key_N)
        qtbot.waitUntil(lambda step=step: shown_step(window) == step)
    press(window, Qt.Key.Key_P)
    qtbot.waitUntil(lambda: shown_step(window) == events[1])
    QTest.keyClicks(window, "[")
    press(window, Qt.Key.Key_Right, shift=True)
    QTest.keyClicks(window, "]")
    qtbot.waitUntil(lambda: status(window).loop == (events[1], events[1] + 10))
    QTest.keyClicks(window, "]")
    assert session.time.loop_end is None
    window.selection.select(request_id="r2")
    press(window, Qt.Key.Key_M)
    editor = window.note_taking.editor
    assert editor is not None
    QTest.keyClicks(editor.text, "N and P and [ ] are text here")
    editor.save.click()
    assert [(n.step, n.request_id) for n in session.notes] == [(events[1] + 10, "r2")]
    assert (tmp_path / "a.mcap.notes.json").exists()
    assert window.transport.scrubber.describe_notes(0, STEPS)[0].endswith("N and P and [ ] are text here")
    press(window, Qt.Key.Key_M, shift=True)
    notes = window.note_taking.list
    assert notes is not None
    assert len(notes.notes) == 1
    press(window, Qt.Key.Key_Home)
    notes.list.setCurrentRow(0)
    notes.list.itemClicked.emit(notes.list.item(0))
    qtbot.waitUntil(lambda: shown_step(window) == events[1] + 10)
    window.note_taking.save_copy(tmp_path / "copy.mcap")
    qtbot.waitUntil(lambda: "copy.mcap" in window.banner.text)
    notes.delete.click()
    assert len(session.notes) == 0
    window.open_recording(tmp_path / "copy.mcap", play=False)
    assert window.session is not None
    assert [n.text for n in window.session.notes] == ["N and P and [ ] are text here"]
    assert len(notes.notes) == 1


def test_notes_that_cannot_be_saved_are_told(window: MainWindow, recording: Path, tmp_path: Path, qtbot: Any,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    window.open_recording(recording, play=False)
    qtbot.waitUntil(lambda: shown_step(window) == 0)

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("app.session.write_notes", refuse)
    press(window, Qt.Key.Key_M)
    editor = window.note_taking.editor
    assert editor is not None
    editor.text.setPlainText("here")
    editor.save.click()
    assert "Permission denied" in window.banner.text
    window.note_taking.save_copy(recording)
    qtbot.waitUntil(lambda: "the recording itself" in window.banner.text)


def drag(qtbot: Any, panel: QWidget, start: QPoint, end: QPoint) -> None:
    qtbot.mousePress(panel, Qt.MouseButton.LeftButton, pos=start)
    hover(panel, end)
    qtbot.mouseRelease(panel, Qt.MouseButton.LeftButton, pos=end)


def test_panning_a_chart_detaches_the_engine_goes_on_and_end_follows_again(
        window: MainWindow, live: Callable[..., LiveSession], qtbot: Any) -> None:
    session = live()
    visible = window.selection.visible
    qtbot.waitUntil(lambda: shown_step(window) > 60)
    for name in ("token_budget", "timeline"):
        panel = window.panels[name]
        qtbot.waitUntil(lambda panel=panel: panel.steps_in_sight() is not None)  # it has been painted
        for _ in range(5):  # so that not all of the run is in sight
            press(window, Qt.Key.Key_Plus)
        drag(qtbot, panel, QPoint(200, 90), QPoint(260, 90))
        assert visible.held
        at = session.time.step
        held = visible.range_at(at, 0)
        qtbot.waitUntil(lambda at=at: session.time.last_step > at + 10)
        assert (session.time.step, session.time.attached) == (at, False)
        assert visible.range_at(at, 0) == held
        assert panel.chip.isVisible()  # type: ignore[attr-defined]
        if name == "token_budget":
            press(window, Qt.Key.Key_End)
        else:
            panel.chip.click()  # type: ignore[attr-defined]
        qtbot.waitUntil(lambda: status(window).following)
        assert not visible.held
    press(window, Qt.Key.Key_Plus)  # zooming at the live edge leaves nothing
    first = visible.range_at(session.time.step, 0)
    assert first is not None
    qtbot.waitUntil(lambda: shown_step(window) > first[1] + 5)
    assert status(window).following
    assert not visible.held
    later = visible.range_at(shown_step(window), 0)
    assert later is not None
    assert later[1] == shown_step(window)
    window.selection.visible.pan(later, -10, 0, session.time.last_step)
    at = session.time.step
    press(window, Qt.Key.Key_M)
    editor = window.note_taking.editor
    assert editor is not None
    editor.text.setPlainText("while it runs")
    editor.save.click()
    assert "not recorded" in window.banner.text


def test_layouts_keep_what_is_looked_at_and_what_the_user_changed(window: MainWindow, recording: Path,
                                                                  tmp_path: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    window.session.seek(120)  # type: ignore[union-attr]
    qtbot.waitUntil(lambda: shown_step(window) == 120)
    window.selection.select(block=5)
    window.selection.visible.hold(100, 150, 0, STEPS - 1)
    assert window.docks.current == "tune"

    def shown() -> set[str]:
        return {name for name, panel in window.panels.items() if panel.isVisible()}

    everything = shown()
    assert everything == set(window.panels)
    key = {"stage": Qt.Key.Key_1, "tune": Qt.Key.Key_2, "teach": Qt.Key.Key_3}
    QTest.keyClick(window, key["stage"], Qt.KeyboardModifier.ControlModifier)
    assert window.docks.current == "stage"
    assert shown() == {"block_table", "token_budget", "requests", "insights"}
    assert themes.scale > 1.4
    assert window.selection.block == 5
    assert shown_step(window) == 120
    assert window.selection.visible.range_at(120, 0) == (100, 150)
    window.docks.docks["inspector"].toggleViewAction().trigger()  # the user wants it here
    window.docks.resize_type(1)
    larger = themes.scale
    window._layout_tabs.choose("teach")
    assert shown() == everything - {"knobs", "latency"}
    qtbot.waitUntil(lambda: window.panels["timeline"]._view is not None)  # type: ignore[attr-defined]
    QTest.keyClick(window, key["tune"], Qt.KeyboardModifier.ControlModifier)
    assert (shown(), themes.scale) == (everything, 1.0)
    window.close()
    again = MainWindow(Settings(tmp_path / "settings.ini"), Language("en"))
    again.show()
    assert again.docks.current == "tune"
    again.docks.choose("stage")
    assert again.panels["inspector"].isVisible()
    assert themes.scale == larger
    again.close()
    third = MainWindow(Settings(tmp_path / "settings.ini"), Language("en"))
    third.show()
    assert third.docks.current == "stage"
    assert themes.scale == larger
    third.docks.reset()
    assert not third.panels["inspector"].isVisible()
    assert themes.scale == third.docks.designed_scale < larger
    third.close()
    for other in (again, third):
        other.deleteLater()


def test_on_a_larger_screen_the_stage_has_larger_type(window: MainWindow, qtbot: Any) -> None:
    window.docks.choose("stage")
    before = themes.scale
    window.resize(2400, 1350)
    qtbot.waitUntil(lambda: themes.scale > before)
    window.docks.choose("tune")
    assert themes.scale == 1.0


def test_notes_are_in_the_inspector_and_a_deleted_one_comes_back(window: MainWindow, recording: Path, tmp_path: Path,
                                                                 qtbot: Any) -> None:
    path = tmp_path / "b.mcap"
    path.write_bytes(recording.read_bytes())
    window.open_recording(path, play=False)
    session, inspector = window.session, window.panels["inspector"]
    assert session is not None
    assert isinstance(inspector, Inspector)
    session.notes.add("the first chunk", 40, request_id="r2")
    session.notes.add("nothing of note", 90)
    session.seek(90)
    qtbot.waitUntil(lambda: [card.note.text for card in inspector.notes.cards] == ["nothing of note"])
    assert inspector.notes.isVisible()
    window.selection.select(request_id="r2")
    (card,) = inspector.notes.cards
    assert card.note.text == "the first chunk"
    card.go.click()
    qtbot.waitUntil(lambda: shown_step(window) == 40)
    qtbot.waitUntil(lambda: not inspector.notes.cards[0].go.isEnabled())  # one is there
    inspector.notes.cards[0].edit.click()
    editor = window.note_taking.editor
    assert editor is not None
    editor.text.setPlainText("the very first chunk")
    editor.save.click()
    assert inspector.notes.cards[0].text.text() == "the very first chunk"
    inspector.notes.cards[0].delete.click()
    assert inspector.notes.cards == []
    assert inspector.notes.isHidden()
    undo = next(b for b in window.banner.findChildren(QPushButton) if b.text() == "Undo")
    undo.click()
    assert inspector.notes.cards[0].text.text() == "the very first chunk"
    assert [n.text for n in read_notes(notes_path(path), session.source.info)[0]] == [  # type: ignore[union-attr]
        "the very first chunk", "nothing of note"]


def test_a_changed_layout_keeps_its_proportions_and_its_floating_panels(window: MainWindow, qtbot: Any) -> None:
    window.docks.docks["latency"].toggleViewAction().trigger()
    qtbot.wait(30)
    height = window.panels["block_table"].height()
    share = height / window.height()
    window.docks.choose("teach")
    window.resize(2400, 1400)
    window.docks.choose("tune")
    qtbot.waitUntil(lambda: window.panels["block_table"].height() > height)
    assert window.panels["block_table"].height() / window.height() == pytest.approx(share, abs=0.05)
    window.docks.docks["insights"].setFloating(True)
    window.docks.choose("teach")
    assert not window.docks.docks["insights"].isFloating()
    window.docks.choose("tune")
    assert window.docks.docks["insights"].isFloating()
    window.docks.reset()
    assert not window.docks.docks["insights"].isFloating()
    assert window.panels["latency"].isVisible()


def test_the_choice_of_layouts_stands_at_the_right_in_every_language_and_size(window: MainWindow, qtbot: Any) -> None:
    def gap() -> int:
        tabs = window._layout_tabs
        return window._menu_bar.width() - tabs.mapTo(window._menu_bar, QPoint(tabs.width(), 0)).x()

    qtbot.waitUntil(lambda: 0 <= gap() <= 8)
    for code in ("zh", "en"):
        window.set_language(code)
        qtbot.waitUntil(lambda: 0 <= gap() <= 8)
    window.docks.resize_type(3)
    qtbot.waitUntil(lambda: 0 <= gap() <= 8)
    window.resize(1100, 700)
    qtbot.waitUntil(lambda: 0 <= gap() <= 8)


def test_the_keys_are_the_runs_from_the_start(window: MainWindow, recording: Path, qtbot: Any) -> None:
    window.activateWindow()
    window.open_recording(recording, play=False)
    qtbot.waitUntil(lambda: QApplication.focusWidget() is not None)
    layout = window.docks.current
    qtbot.keyClick(QApplication.focusWidget(), Qt.Key.Key_Right)
    qtbot.waitUntil(lambda: window.transport.status.step == 1)
    assert window.docks.current == layout
