"""A replay that comes to a place which cannot be read stays where it is, and goes on elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.session import ReplaySession
from engine.trace.reader import open_recording
from engine.trace.recording import Recorder
from tests.engine.trace_runs import RandomRun

STEPS = 2300


def test_a_replay_stops_before_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.trace.opening_index.CHECK_BYTES", 0)  # as if the file were too large to check
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

    recording = open_recording(recorder.path)
    assert recording.warnings == []
    session = ReplaySession(recording, recorder.path)
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
    session.seek(STEPS - 1)
    session.advance(now)
    assert session.view.state.step == STEPS - 1
    session.close()
