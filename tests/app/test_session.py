"""Sessions: the view is the state at the viewing step, however it got there, and the engine hears what it should."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.session import LiveSession, ReplaySession, Session
from engine.trace import recording as recording_module
from engine.trace.history import LiveHistory
from engine.trace.notes_copy import copy_with_notes
from engine.trace.reader import open_recording
from engine.worker import RunSpec
from tests.app.conftest import STEPS
from tests.app.live import BUSY, TokenThread, wait_for


@pytest.fixture
def start_live(tmp_path: Path) -> Iterator[Callable[..., LiveSession]]:
    sessions: list[LiveSession] = []

    def start(record: Path | None = None, **options: Any) -> LiveSession:
        spec = RunSpec(scenario="shared-prefix", knobs=BUSY)
        session = LiveSession(spec, record=record, engine=TokenThread(spec, tmp_path / "tokens", **options))
        sessions.append(session)
        session.start()
        return session

    yield start
    for session in sessions:
        assert session.close(5)
    assert not [t for t in threading.enumerate() if t.name in ("engine", "recorder", "recorder-feed")]


def shown(session: Session, now: float) -> int:
    session.advance(now)
    assert session.view is not None
    return session.view.state.step


def advance_until(session: Session, condition: Callable[[], bool]) -> None:
    clock = [0.0]

    def look() -> bool:
        clock[0] += 0.01
        session.advance(clock[0])
        return condition()

    wait_for(look)


def stop_recording(session: LiveSession) -> None:
    """Stop, and see it through."""
    session.stop_recording()
    advance_until(session, lambda: session.take_recorded() is not None)


def test_the_run_has_something_of_everything(run: LiveHistory) -> None:
    kinds = {mark.kind for mark in run.series.marks}
    assert {"preemption", "hit", "chunk", "eviction", "finish"} <= kinds


@pytest.mark.parametrize("way", ["forwards", "backwards", "jumps"])
def test_a_replay_shows_the_state_of_every_step_however_it_is_reached(run: LiveHistory, way: str) -> None:
    steps = list(range(STEPS))
    if way == "backwards":
        steps.reverse()
    elif way == "jumps":
        random.Random(1).shuffle(steps)
    session = ReplaySession(run)
    for now, step in enumerate(steps):
        if way == "forwards" and step:
            session.step_forward()
        elif way == "backwards" and step != STEPS - 1:
            session.step_back()
        else:
            session.seek(step)
        session.advance(float(now))
        assert session.view is not None
        assert session.view.events is not None
        assert session.view.events.step == step
        assert session.view.state == run.state_at(step)


def test_playing_shows_the_same_states_as_jumping(run: LiveHistory) -> None:
    session = ReplaySession(run)
    session.set_speed(16)
    session.toggle_play()
    now = 0.0
    while session.time.playing:
        now += 0.1
        if session.advance(now):
            assert session.view is not None
            assert session.view.state == run.state_at(session.time.step)
    assert session.time.step == STEPS - 1


def test_a_view_that_did_not_move_is_no_new_view(run: LiveHistory) -> None:
    session = ReplaySession(run)
    assert session.advance(0.0)
    assert not session.advance(1.0)
    view = session.view
    session.seek(0)
    assert not session.advance(2.0)
    assert session.view is view


def test_a_live_view_follows_and_then_stays_where_it_was_put(start_live: Callable[..., LiveSession]) -> None:
    session = start_live()
    advance_until(session, lambda: session.time.step > 40)
    assert session.view is not None
    assert session.view.following
    session.seek(20)
    assert shown(session, 100.0) == 20
    state = session.view.state.snapshot()
    before = session.time.last_step
    advance_until(session, lambda: session.time.last_step > before + 30)
    assert not session.engine_paused
    assert shown(session, 101.0) == 20
    assert session.view.state.snapshot() == state
    session.follow()
    advance_until(session, lambda: session.time.step > before + 30)
    assert session.view.following


def test_pausing_a_live_view_pauses_the_engine_and_keeps_the_state(start_live: Callable[..., LiveSession]) -> None:
    session = start_live()
    advance_until(session, lambda: session.time.step > 10)
    session.toggle_play()
    at = session.time.step
    wait_for(lambda: session.engine.status == "paused")
    session.advance(50.0)
    session.advance(51.0)
    assert session.view is not None
    assert session.view.state.step == at
    assert session.view.state == session.source.state_at(at)  # type: ignore[union-attr]
    for count in (1, 3):
        edge = session.time.last_step
        owed = max(0, session.time.step + count - edge)
        session.step_forward(count)
        at += count
        advance_until(session, lambda at=at: session.time.step == at)  # type: ignore[misc]
        assert session.time.last_step == edge + owed
        assert session.view.state == session.source.state_at(at)  # type: ignore[union-attr]
    session.toggle_play()
    advance_until(session, lambda: session.time.step > at + 5)
    assert session.time.following


def test_a_live_view_runs_until_something_happens(start_live: Callable[..., LiveSession]) -> None:
    session = start_live()
    session.run_until("preemption")
    advance_until(session, lambda: session.time.stopped_by == "preemption")
    assert session.view is not None
    assert session.view.events is not None
    assert session.view.events.preempted
    wait_for(lambda: session.engine.status == "paused")
    assert session.view.state == session.source.state_at(session.time.step)  # type: ignore[union-attr]
    first = session.time.step
    session.toggle_play()
    advance_until(session, lambda: session.time.step > first and not session.time.playing)
    assert session.view.events.preempted


def test_slow_motion_slows_the_engine_itself(start_live: Callable[..., LiveSession]) -> None:
    session = start_live()
    advance_until(session, lambda: session.time.step > 20)
    session.set_speed(5.0, "steps")
    wait_for(lambda: not len(session._events) or session.advance(1.0))
    before = session.time.last_step
    import time
    time.sleep(0.7)
    session.advance(2.0)
    assert session.time.last_step - before <= 8
    session.set_speed(1.0)
    advance_until(session, lambda: session.time.last_step > before + 40)


def test_a_recording_holds_every_step_from_the_first(start_live: Callable[..., LiveSession], tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    session = start_live(record=path)
    wait_for(lambda: len(session._events) > 100)  # nobody looks: the recorder does not depend on the window
    session.close()
    recording = open_recording(path)
    assert recording.first_step == 0
    assert recording.complete
    assert recording.last_step >= 100
    advance_until(session, lambda: session.time.last_step >= 50)
    assert session.source is not None
    for step in (0, 17, 50):
        assert recording.state_at(step) == session.source.state_at(step)
    recording.close()


def test_a_recording_begun_midway_reaches_back(start_live: Callable[..., LiveSession], tmp_path: Path) -> None:
    session = start_live()
    advance_until(session, lambda: session.time.step > 60)
    session.start_recording(tmp_path / "late.mcap")
    advance_until(session, lambda: session.time.step > 120)
    stop_recording(session)
    recording = open_recording(tmp_path / "late.mcap")
    assert recording.first_step == 0
    assert recording.last_step >= 115
    assert recording.state_at(90) == session.source.state_at(90)  # type: ignore[union-attr]
    recording.close()


def test_stopping_a_recording_stops_nobody(start_live: Callable[..., LiveSession], tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of it is written while the run goes on, however slow the disk; what comes later is not in it."""
    writing = threading.Event()
    finish = recording_module.Recorder._finish_file

    def slowly(self: recording_module.Recorder, *arguments: Any) -> None:
        assert writing.wait(10)
        finish(self, *arguments)

    monkeypatch.setattr(recording_module.Recorder, "_finish_file", slowly)
    session = start_live()
    advance_until(session, lambda: session.time.step > 60)
    path = tmp_path / "late.mcap"
    session.start_recording(path)
    session.stop_recording()  # before the past was taken
    recorder = session.recorder
    assert recorder is not None
    assert recorder.ending
    assert not recorder.active
    session.stop_recording()
    session.start_recording(tmp_path / "other.mcap")  # not yet
    assert session.recorder is recorder
    edge = session.time.last_step
    advance_until(session, lambda: session.time.last_step > edge + 30)
    assert recorder.ending
    assert session.take_recorded() is None
    writing.set()
    advance_until(session, lambda: not recorder.ending)
    session.advance(1e6)
    assert session.take_recorded() == path
    assert session.take_recorded() is None
    recording = open_recording(path)
    assert recording.complete
    assert recording.first_step == 0
    assert edge - 5 <= recording.last_step <= edge + 5
    recording.close()


def test_closing_waits_for_a_recording_that_was_stopped(start_live: Callable[..., LiveSession], tmp_path: Path) -> None:
    session = start_live()
    advance_until(session, lambda: session.time.step > 60)
    session.start_recording(tmp_path / "late.mcap")
    session.stop_recording()
    last = session.time.last_step
    assert session.close(5)
    recording = open_recording(tmp_path / "late.mcap")
    assert recording.complete
    assert recording.first_step == 0
    assert recording.last_step >= last
    recording.close()


def test_a_recording_that_cannot_be_written_leaves_the_run_alone(start_live: Callable[..., LiveSession],
                                                                  tmp_path: Path) -> None:
    session = start_live(record=tmp_path / "nowhere" / "run.mcap")
    advance_until(session, lambda: session.time.step > 30)
    assert session.recorder is not None
    wait_for(lambda: session.recorder.error is not None)  # type: ignore[union-attr]
    assert not session.recorder.active
    advance_until(session, lambda: session.time.step > 60)


def test_a_model_that_cannot_be_had_is_an_error_and_no_hang(start_live: Callable[..., LiveSession]) -> None:
    session = start_live(failure=RuntimeError("no network"))
    wait_for(lambda: session.engine.status == "failed")
    assert session.engine.error == "no network"
    assert not session.advance(1.0)
    assert session.view is None


def test_a_run_that_has_ended_can_be_replayed(start_live: Callable[..., LiveSession]) -> None:
    session = start_live()
    advance_until(session, lambda: session.time.step > 30)
    session.engine.stop(5)
    advance_until(session, lambda: not session.time.live)
    assert not session.time.playing
    last = session.time.step
    assert last == session.time.last_step
    session.toggle_play()
    assert session.time.step == 0
    session.follow()
    assert shown(session, 200.0) == last


def test_closing_in_the_middle_of_loading_ends_the_thread(start_live: Callable[..., LiveSession]) -> None:
    session = start_live(hold_s=30.0)
    wait_for(session.engine.is_alive)
    assert session.close(2.5)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, STEPS - 1), count=st.integers(0, STEPS), singly=st.booleans(), back_first=st.booleans())
def test_forward_and_back_is_where_one_was(run: LiveHistory, start: int, count: int, singly: bool,
                                           back_first: bool) -> None:
    """Any number of steps on and back again, or back and on again, from any start: the identical picture."""
    count = min(count, start if back_first else STEPS - 1 - start)
    session = ReplaySession(run)
    session.seek(start)
    session.advance(0.0)
    assert session.view is not None
    before, events = session.view.state.snapshot(), session.view.events
    moves = [session.step_back, session.step_forward] if back_first else [session.step_forward, session.step_back]
    now = 0.0
    for move in moves:
        for _ in range(min(count, 40) if singly else 1):
            move(1 if singly else count)
            now += 1
            session.advance(now)
    assert session.time.step == start
    assert session.view.state.snapshot() == before
    assert session.view.state == run.state_at(start)
    assert session.view.events == events


def test_playing_every_step_shows_every_state_once(run: LiveHistory) -> None:
    session = ReplaySession(run)
    session.set_speed(1000, "steps")
    session.toggle_play()
    now, seen = 0.0, []
    while session.time.playing:
        now += 0.3
        if session.advance(now) and session.view is not None:
            seen.append(session.view.state.step)
    assert seen == list(range(STEPS))


def test_running_until_a_gauge_stops_where_it_rises(run: LiveHistory) -> None:
    session = ReplaySession(run)
    session.run_until("kv_use>60")
    now = 0.0
    while session.time.playing:
        now += 0.05
        session.advance(now)
    assert session.time.stopped_by == "kv_use>60"
    used, step = run.series.used_blocks / run.series.usable_blocks, session.time.step
    assert used[step] > 0.6 >= used[step - 1]
    assert not (used[:step] > 0.6).any()


def test_notes_stay_beside_the_recording(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(recording.read_bytes())
    session = ReplaySession(open_recording(path), path)
    session.notes.add("here", 12, request_id="r1")
    session.save_notes()
    assert session.close()
    again = ReplaySession(open_recording(path), path)
    assert [(n.step, n.text, n.request_id) for n in again.notes] == [(12, "here", "r1")]
    again.seek(11)
    again.next_event()
    assert again.time.step == 12
    assert path.read_bytes() == recording.read_bytes()
    copy_with_notes(path, tmp_path / "b.mcap", again.notes, again.source.info)  # type: ignore[union-attr]
    again.close()
    copy = ReplaySession(open_recording(tmp_path / "b.mcap"), tmp_path / "b.mcap")
    assert [n.text for n in copy.notes] == ["here"]
    assert not copy.notes.changed
    for note in list(copy.notes):
        copy.notes.remove(note.note_id)
    copy.close()
    assert len(ReplaySession(open_recording(tmp_path / "b.mcap"), tmp_path / "b.mcap").notes) == 0


def reached(session: Session, step: int) -> bool:
    return session.time.last_step > step


def test_notes_of_a_live_run_go_with_its_recordings(start_live: Callable[..., LiveSession], tmp_path: Path) -> None:
    session = start_live()
    advance_until(session, lambda: session.time.last_step > 20)
    session.notes.add("before it was recorded", 5)
    assert session.notes_files == []
    session.save_notes()
    assert session.notes.changed
    for name in ("a.mcap", "b.mcap"):
        session.start_recording(tmp_path / name)
        edge = session.time.last_step + 20
        advance_until(session, partial(reached, session, edge))
        stop_recording(session)
        replay = ReplaySession(open_recording(tmp_path / name), tmp_path / name)
        assert [n.text for n in replay.notes] == ["before it was recorded"]
        assert replay.note_warnings == []
        replay.close()
