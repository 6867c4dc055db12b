"""Any step, in any order, from memory and from a file: always the state that the live run had there."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.trace.events import StepEvents
from engine.trace.history import LiveHistory
from engine.trace.reader import Recording, open_recording
from engine.trace.recording import Recorder
from engine.trace.source import PAGES_KEPT, SNAPSHOT_INTERVAL, WAYPOINTS_KEPT, RunSource
from engine.trace.state import EngineState, Snapshot
from engine.trace.summary import summarise
from tests.engine.trace_runs import RandomRun

STEPS = 700


class Lived:
    """A run as it was: the snapshot of every step, kept while it happened."""

    def __init__(self, folder: Path) -> None:
        run = RandomRun(29, knob_rate=0.02)
        state = EngineState(run.info)
        self.info = run.info
        self.history = LiveHistory(run.info)
        self.path = folder / "录像 run.mcap"
        recorder = Recorder(self.path, run.info)
        self.snapshots: dict[int, Snapshot] = {-1: state.snapshot()}

        def each(events: StepEvents) -> None:
            state.apply(events)
            self.snapshots[events.step] = state.snapshot()
            recorder.put(events)
            self.history.append(events)

        self.steps = run.steps(STEPS, each)
        assert recorder.close()
        assert recorder.error is None
        assert (recorder.steps_written, recorder.dropped) == (STEPS, 0)
        assert recorder.bytes_written == self.path.stat().st_size


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return Lived(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def recording(lived: Lived) -> Iterator[Recording]:
    recording = open_recording(lived.path)
    yield recording
    recording.close()


@pytest.fixture(params=["history", "file"])
def source(request: pytest.FixtureRequest, lived: Lived, recording: Recording) -> RunSource:
    return lived.history if request.param == "history" else recording


def test_what_a_source_is(source: RunSource, lived: Lived) -> None:
    assert isinstance(source, RunSource)
    assert (source.first_step, source.last_step) == (0, STEPS - 1)
    assert source.complete
    assert source.warnings == []
    assert source.info == lived.info
    assert source.series.n == STEPS
    assert source.series.marks[:] == lived.history.series.marks[:]
    assert [r.spans for r in source.timeline.rows] == [r.spans for r in lived.history.timeline.rows]


def test_every_step_forwards_and_backwards(source: RunSource, lived: Lived) -> None:
    for step in (*range(-1, STEPS), *range(STEPS - 1, -2, -1)):
        assert source.state_at(step).snapshot() == lived.snapshots[step], step
        if step >= 0:
            assert source.events(step) == lived.steps[step]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jumps=st.lists(st.tuples(st.integers(-1, STEPS - 1), st.integers(0, 40)), min_size=1, max_size=8))
def test_jumps_and_then_forwards(source: RunSource, lived: Lived, jumps: list[tuple[int, int]]) -> None:
    """Jump to a step, advance the state by hand, and jump again: no state that was handed out disturbs another."""
    for start, count in jumps:
        state = source.state_at(start)
        for step in range(start + 1, min(start + count, STEPS - 1) + 1):
            state.apply(source.events(step))
        assert state.snapshot() == lived.snapshots[state.step]
        assert source.state_at(start).snapshot() == lived.snapshots[start]


def test_steps_that_are_not_there(source: RunSource) -> None:
    for step in (-1, STEPS, -STEPS, 1 << 60):
        with pytest.raises(IndexError, match="there is no step"):
            source.events(step)
    for step in (-2, STEPS):
        with pytest.raises(IndexError, match="0 to 699"):
            source.state_at(step)


def test_caches_stay_small(source: RunSource) -> None:
    rng = random.Random(0)
    for _ in range(60):
        source.state_at(rng.randrange(STEPS))
    assert len(source._pages) <= PAGES_KEPT
    assert len(source._waypoints) <= WAYPOINTS_KEPT


def test_the_file_has_snapshots_of_its_own(lived: Lived, recording: Recording) -> None:
    from_file = [s for s, place in zip(recording._snapshot_steps, recording._snapshots, strict=True)
                 if not isinstance(place, bytes)]
    knobs = [s.step for s in lived.steps if s.knobs]
    assert len(knobs) > 5
    assert from_file == sorted({*range(SNAPSHOT_INTERVAL - 1, STEPS, SNAPSHOT_INTERVAL), *knobs, STEPS - 1})


def test_summary(source: RunSource, lived: Lived) -> None:
    steps = lived.steps
    summary = summarise(source)
    assert list(summary) == ["steps", "requests", "finished_requests", "output_tokens", "prefix_hit_tokens",
                             "preemptions", "chunked_prefills", "evictions", "knob_changes", "seconds", "model",
                             "schema", "complete", "device"]
    chunked = set()
    for s in steps:
        for victim in s.preempted:
            chunked = {(r, n) for r, n in chunked if r != victim.request_id or n != "open"} | {
                (r, s.step) for r, n in chunked if r == victim.request_id and n == "open"}
        chunked |= {(e.request_id, "open") for e in s.scheduled if not e.samples}
    assert summary == {
        "steps": STEPS, "requests": sum(len(s.arrived) for s in steps),
        "finished_requests": sum(len(s.finished) for s in steps), "output_tokens": sum(len(s.sampled) for s in steps),
        "prefix_hit_tokens": sum(e.hit_tokens for s in steps for e in s.scheduled),
        "preemptions": sum(len(s.preempted) for s in steps), "chunked_prefills": len(chunked),
        "evictions": int(source.series.evictions.sum()), "knob_changes": sum(len(s.knobs) for s in steps),
        "seconds": round(steps[-1].end_ns / 1e9, 3), "model": "tiny", "schema": 1, "complete": True,
        "device": "cpu"}


# ---- what is special to a live run -------------------------------------------------------------------------------

def test_a_history_before_its_first_step() -> None:
    run = RandomRun(0)
    history = LiveHistory(run.info)
    assert (history.first_step, history.last_step) == (-1, -1)
    assert history.state_at(-1) == EngineState(run.info)
    assert summarise(history)["steps"] == 0
    with pytest.raises(IndexError):
        history.events(0)
    with pytest.raises(IndexError):
        history.state_at(0)


def test_a_history_refuses_a_gap() -> None:
    run = RandomRun(0)
    history = LiveHistory(run.info)
    steps = run.steps(3)
    history.append(steps[0])
    with pytest.raises(ValueError, match="cannot follow"):
        history.append(steps[2])
    history.append(steps[1])


def test_the_live_edge_can_be_looked_at_without_copying() -> None:
    run = RandomRun(1)
    history = LiveHistory(run.info)
    for events in run.steps(50):
        history.append(events)
        assert history.state.step == events.step
    edge = history.state_at(49)
    assert edge == history.state
    assert edge is not history.state


def test_a_history_drops_its_oldest_steps_and_says_so() -> None:
    run = RandomRun(29)
    history = LiveHistory(run.info, max_steps=600, spill=False)
    state = EngineState(run.info)
    snapshots = {}

    def each(events: StepEvents) -> None:
        state.apply(events)
        if events.step % 7 == 4:
            snapshots[events.step] = state.snapshot()
        history.append(events)
        assert history.last_step - history.first_step < 600 + SNAPSHOT_INTERVAL

    steps = run.steps(1500, each)
    first = history.first_step
    assert first == 7 * SNAPSHOT_INTERVAL
    assert not history.complete
    assert str(first) in history.warnings[0]
    assert history.series.step[0] == first
    assert history.state_at(first - 1).step == first - 1 == 895
    for step in range(900, 1500, 7):
        assert history.state_at(step).snapshot() == snapshots[step]
        if step >= first:
            assert history.events(step) == steps[step]
    with pytest.raises(IndexError):
        history.state_at(first - 2)
    assert summarise(history)["steps"] == 1500 - first
    assert len(history._packed) <= 14
    assert len(history._snapshots) <= 5


def test_replay_is_light_to_import() -> None:
    """No torch, no Qt and none of the other slow ones: a replay must be on the screen in no time."""
    code = ("import sys, engine.trace.reader, engine.trace.recording, engine.trace.history, engine.trace.summary\n"
            "heavy = {'torch', 'PySide6', 'transformers', 'numba', 'tokenizers', 'pyqtgraph', 'engine.scheduler'}\n"
            "sys.exit(', '.join(heavy & set(sys.modules)) or 0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
