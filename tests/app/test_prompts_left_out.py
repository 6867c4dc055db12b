"""What prompts say stays out of recordings where the user, or the command line, says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import app.comparing
from app.compare_window import CompareWindow
from app.dialogs import SettingsDialog
from app.main_window import MainWindow
from app.session import LiveSession
from app.settings import Settings
from engine.trace.reader import open_recording
from engine.worker import RunSpec
from tests.app.live import BUSY, TokenThread
from tests.engine.recorded_runs import make_model
from tests.engine.tiny_tokenizer import make_tokenizer

SPEC = RunSpec(scenario="shared-prefix", knobs=BUSY)


@pytest.fixture
def start(window: MainWindow, tmp_path: Path, qtbot: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Start a live run as the window does; only the model is none."""
    monkeypatch.setattr("app.session.EngineThread", lambda spec, models: TokenThread(spec, tmp_path / "tokens"))

    def begin(record: Path | None = None, **changes: Any) -> LiveSession:
        session = window.start_live(replace(SPEC, **changes), record)
        qtbot.waitUntil(lambda: session.time.step > 5)
        return session

    return begin


@pytest.fixture
def dialog(window: MainWindow, qtbot: Any) -> Iterator[Callable[[], SettingsDialog]]:
    shown: list[SettingsDialog] = []

    def show() -> SettingsDialog:
        window.asking.show_settings()
        shown.append(window.findChildren(SettingsDialog)[-1])
        return shown[-1]

    yield show
    for each in shown:
        each.close()


def holds_prompts(path: Path) -> bool:
    """Whether a recording holds what prompts say. Its header, its steps and its snapshots must tell the same."""
    recording = open_recording(path)
    try:
        arrived = [a for s in range(recording.first_step, recording.last_step + 1) for a in recording.events(s).arrived]
        assert arrived
        state = recording.state_at(recording.last_step)
        told = {bool(a.prompt_text) for a in arrived} | {any(a.prompt_token_ids) for a in arrived}
        told |= {bool(r.prompt_text) for r in state.requests.values()} | {recording.info.prompt_text}
        assert len(told) == 1, "some of it does and some does not"
        return told.pop()
    finally:
        recording.close()


def record(session: LiveSession, path: Path, qtbot: Any, steps: int = 20) -> Path:
    """Record a few steps more, to the end of the file."""
    session.start_recording(path)
    last = session.time.step
    qtbot.waitUntil(lambda: session.time.step > last + steps)
    session.stop_recording()
    recorder = session.recorder
    assert recorder is not None
    qtbot.waitUntil(lambda: not recorder.is_alive())
    return path


def strip_says(window: MainWindow) -> str:
    return " ".join(f"{i.label} {i.value} {i.note}" for i in window.strip_feed._right())


def test_the_switch_acts_on_the_recordings_that_follow(window: MainWindow, start: Any, dialog: Any, qtbot: Any,
                                                       tmp_path: Path) -> None:
    session = start()
    assert holds_prompts(record(session, tmp_path / "with.mcap", qtbot))
    assert "without prompts" not in strip_says(window)
    switch = dialog().leave_prompts_out
    assert switch.isEnabled()
    assert not switch.isChecked()
    session.start_recording(tmp_path / "going on.mcap")
    switch.click()
    going_on, last = session.recorder, session.time.step
    qtbot.waitUntil(lambda: session.time.step > last + 20)
    assert "without prompts" not in strip_says(window)  # it began before
    session.stop_recording()
    qtbot.waitUntil(lambda: not going_on.is_alive())
    assert holds_prompts(tmp_path / "going on.mcap")
    session.start_recording(tmp_path / "without.mcap")
    assert "without prompts" in strip_says(window)
    last = session.time.step
    qtbot.waitUntil(lambda: session.time.step > last + 20)
    session.stop_recording()
    qtbot.waitUntil(lambda: not session.recorder.is_alive())
    assert "without prompts" in strip_says(window)
    assert not holds_prompts(tmp_path / "without.mcap")
    assert any(r.prompt_text for r in session.view.state.requests.values())  # the window shows them all the same
    window.open_recording(tmp_path / "without.mcap", play=False)
    assert "without prompts" in strip_says(window)


def test_the_switch_is_remembered_and_holds_for_the_next_run(window: MainWindow, start: Any, dialog: Any, qtbot: Any,
                                                             tmp_path: Path) -> None:
    dialog().leave_prompts_out.click()
    session = start(tmp_path / "from the first step.mcap")
    session.stop_recording()
    qtbot.waitUntil(lambda: not session.recorder.is_alive())
    assert not holds_prompts(tmp_path / "from the first step.mcap")
    window.settings.sync()
    again = Settings(tmp_path / "settings.ini")
    assert not again.keep_prompts
    again.keep_prompts = True
    again.sync()
    assert Settings(tmp_path / "settings.ini").keep_prompts
    assert Settings(remember=False).keep_prompts


def test_the_command_line_goes_before_the_switch(window: MainWindow, start: Any, dialog: Any, qtbot: Any,
                                                 recording: Path, tmp_path: Path) -> None:
    session = start(record_prompt_text=False)
    window.set_keep_prompts(True)
    assert not holds_prompts(record(session, tmp_path / "a.mcap", qtbot))
    switch = dialog().leave_prompts_out
    assert switch.isChecked()
    assert not switch.isEnabled()
    assert "--no-prompt-text" in switch.toolTip()
    # Another scenario, and one chosen after a recording was looked at, are of the same start of the program.
    for number in range(2):
        window.start_scenario("burst")
        session = window.session
        assert isinstance(session, LiveSession)
        qtbot.waitUntil(lambda s=session: s.time.step > 5)
        assert not holds_prompts(record(session, tmp_path / f"b{number}.mcap", qtbot))
        window.open_recording(recording, play=False)


def test_reruns_and_sweeps_leave_prompts_out_too(window: MainWindow, start: Any, qtbot: Any, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """What was typed into a live run is in its history: running it again must not bring it into a file."""
    folder = tmp_path / "recordings"
    monkeypatch.setattr(app.comparing, "recordings_folder", lambda: folder)
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    window.comparing.load = lambda info, job: make_model(tokenizer)
    session = start()
    session.toggle_play()
    qtbot.waitUntil(lambda: session.engine.status == "paused")
    window.set_keep_prompts(False)
    dialog = window.comparing.rerun()
    assert dialog is not None
    dialog.run_button.click()
    qtbot.waitUntil(lambda: any(folder.glob("*.mcap")), timeout=20_000)
    compared: list[CompareWindow] = []

    def opened() -> bool:
        compared[:] = [w for w in window.comparing.windows if isinstance(w, CompareWindow)]
        return bool(compared)

    qtbot.waitUntil(opened, timeout=20_000)
    assert not holds_prompts(next(folder.glob("*.mcap")))
    qtbot.waitUntil(lambda: "requests in both" in compared[0].table.note, timeout=20_000)
    assert len(compared[0].comparison.deltas()) > 5  # they are found again without
    compared[0].close()
    sweep = window.comparing.sweep()
    sweep.ranges[0].setText("64, 96")
    sweep.run_button.click()
    qtbot.waitUntil(lambda: len(sweep.points) == 2 and not sweep.task.busy, timeout=30_000)
    paths = [p.path for p in sweep.points if p.path is not None]
    assert len(paths) == 2
    assert not any(map(holds_prompts, paths))
    sweep.close()
    window.comparing.shut_down()
