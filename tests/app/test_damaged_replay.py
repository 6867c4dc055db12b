"""A replay that comes to a place which cannot be read stays where it is, and goes on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.main_window import MainWindow
from app.session import ReplaySession
from engine.trace.reader import Recording, open_recording
from engine.trace.recording import Recorder
from tests.engine.trace_runs import RandomRun

STEPS = 2300


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, int]:
    """A recording that is damaged, and the first step that cannot be read. It opens as large files do, unchecked."""
    monkeypatch.setattr("engine.trace.opening_index.CHECK_BYTES", 0)
    run = RandomRun(31)
    recorder = Recorder(tmp_path / "a.mcap", run.info)
    run.steps(STEPS, recorder.put)
    assert recorder.close()
    recording = open_recording(recorder.path)
    page = recording._page_of(1100)
    first = recording._chunk_firsts[page]
    middle = (recording._chunk_offsets[page] + recording._chunk_offsets[page + 1]) // 2
    recording.close()
    with open(recorder.path, "r+b") as file:
        file.seek(middle)
        file.write(bytes(200))
    return recorder.path, first


def test_a_replay_stops_before_damage(damaged: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "check", lambda self, stop: None)
    path, first = damaged
    recording = open_recording(path)
    assert recording.warnings == []
    session = ReplaySession(recording, path)
    now = 0.0
    session.advance(now)
    assert session.view is not None
    session.seek(first + 5)
    for _ in range(3):
        now += 0.05
        session.advance(now)
    assert session.time.step == session.view.state.step == 0
    session.seek(first - 3)
    session.advance(now)
    session.step_forward(10)
    for _ in range(3):
        now += 0.05
        session.advance(now)
    assert session.time.step == session.view.state.step == first - 1
    assert "cannot be read there" in recording.warnings[0]
    assert session.take_warnings() == recording.warnings
    assert session.take_warnings() == []
    session.seek(STEPS - 1)
    session.advance(now)
    assert session.view.state.step == STEPS - 1
    session.close()


@pytest.mark.parametrize("found", ["in passing", "when one comes there"])
def test_damage_that_is_found_later_is_told_then(window: MainWindow, damaged: tuple[Path, int], found: str, qtbot: Any,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    path, first = damaged
    if found != "in passing":
        monkeypatch.setattr(Recording, "check", lambda self, stop: None)
    assert window.open_recording(path, play=False)
    assert window.session is not None
    if found != "in passing":
        qtbot.wait(300)
        assert window.banner.text == ""
        window.session.seek(first)
    qtbot.waitUntil(lambda: f"tep{'s' if found == 'in passing' else ''} {first} " in window.banner.text)
    window.banner.dismiss()
    qtbot.wait(300)
    assert window.banner.text == ""  # told once
