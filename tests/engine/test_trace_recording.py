"""Writing recordings: cheap for the engine, and harmless whatever the disk does."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from mcap.reader import make_reader

import engine.trace.recording as recording_module
from engine.trace.events import StepEvents, decode_step
from engine.trace.reader import open_recording
from engine.trace.recording import Recorder
from engine.trace.state import EngineState
from tests.engine.trace_runs import RandomRun


def record(path: Path, steps: int, seed: int = 29) -> tuple[Recorder, list[StepEvents]]:
    run = RandomRun(seed)
    recorder = Recorder(path, run.info)
    events = run.steps(steps, recorder.put)
    assert recorder.close()
    return recorder, events


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    """The package's own reader, which needs the index and the footer, finds everything where MCAP has it."""
    recorder, steps = record(tmp_path / "a.mcap", 300)
    assert recorder.error is None
    with open(tmp_path / "a.mcap", "rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert {c.topic for c in summary.channels.values()} == {"step", "snapshot"}
        assert summary.statistics.message_count == 303  # with the snapshots after steps 127, 255 and 299
        assert len(summary.chunk_indexes) == summary.statistics.chunk_count
        messages = list(reader.iter_messages(topics=["step"]))
        assert [decode_step(m.data) for _, _, m in messages] == steps
        assert [m.sequence for _, _, m in messages] == list(range(300))
        assert [m.log_time for _, _, m in messages] == [s.end_ns for s in steps]
        metadata = {m.name: m.metadata for m in reader.iter_metadata()}
        assert json.loads(metadata["cutaway.run"]["info"])["scenario"] == "random"
        assert metadata["cutaway.end"] == {"steps": "300", "dropped": "0", "checksum": "crc32"}
        schema = next(s for s in summary.schemas.values() if s.name == "cutaway.StepEvents")
        assert schema.encoding == "jsonschema"
        assert "Scheduled" in json.loads(schema.data)["$defs"]


def test_chunks_have_a_middling_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "FLUSH_SECONDS", 60.0)  # on a busy machine it is time that closes a chunk
    record(tmp_path / "a.mcap", 1500)
    with open(tmp_path / "a.mcap", "rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    sizes = [index.uncompressed_size for index in summary.chunk_indexes]
    assert len(sizes) > 3
    assert all(64 * 1024 <= size <= 256 * 1024 for size in sizes[:-1]), sizes


def test_put_costs_the_engine_next_to_nothing(tmp_path: Path) -> None:
    run = RandomRun(29)
    steps = run.steps(400)
    recorder = Recorder(tmp_path / "a.mcap", run.info)
    costs = []
    for events in steps:
        start = time.perf_counter_ns()
        recorder.put(events)
        costs.append(time.perf_counter_ns() - start)
    recorder.close()
    assert sorted(costs)[200] < 5_000  # nanoseconds


def test_what_is_recorded_is_on_the_disk_within_half_a_second(tmp_path: Path) -> None:
    run = RandomRun(29)
    recorder = Recorder(tmp_path / "a.mcap", run.info)
    try:
        for count in (5, 12):
            for events in run.steps(count):
                recorder.put(events)
            deadline = time.monotonic() + 5.0  # generous, because the machine may be busy; see the constants below
            while recorder.steps_written < run.next_step and time.monotonic() < deadline:
                time.sleep(0.02)
            with_open_file = open_recording(recorder.path)
            assert with_open_file.last_step == run.next_step - 1
            assert not with_open_file.complete
            assert "not closed" in with_open_file.warnings[0]
            with_open_file.close()
        assert recording_module.FLUSH_SECONDS + recording_module.POLL_SECONDS < 0.5
    finally:
        recorder.close()


def test_a_recording_may_begin_in_the_middle_of_a_run(tmp_path: Path) -> None:
    run = RandomRun(29)
    state = EngineState(run.info)
    for events in run.steps(130):
        state.apply(events)
    recorder = Recorder(tmp_path / "a.mcap", run.info, state)
    states = {129: state.snapshot()}
    for events in run.steps(170):
        recorder.put(events)
        state.apply(events)
        states[events.step] = state.snapshot()
    assert recorder.close()
    recording = open_recording(recorder.path)
    assert (recording.first_step, recording.last_step) == (130, 299)
    assert recording.complete
    for step in (299, 129, 130, 200, 131, 255, 256):
        assert recording.state_at(step).snapshot() == states[step]
    with pytest.raises(IndexError):
        recording.state_at(128)
    assert recording.series.n == 170
    recording.close()


def test_a_recording_without_a_step(tmp_path: Path) -> None:
    run = RandomRun(0)
    recorder = Recorder(tmp_path / "a.mcap", run.info)
    assert recorder.close()
    recording = open_recording(tmp_path / "a.mcap")
    assert (recording.first_step, recording.last_step, recording.series.n) == (-1, -1, 0)
    assert recording.state_at(-1) == EngineState(run.info)
    assert recording.warnings == ["There is no step in the recording."]
    recording.close()


def test_a_full_queue_ends_the_recording_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs: nothing blocks, what came before the gap is kept, and the gap is told."""
    run = RandomRun(29)
    steps = run.steps(100)
    hang = 0.3

    class HangingFile(recording_module.GrowingFile):
        def write(self, data: bytes) -> int:
            time.sleep(hang)
            return super().write(data)

    monkeypatch.setattr(recording_module, "GrowingFile", HangingFile)
    recorder = Recorder(tmp_path / "a.mcap", run.info, max_queued_steps=40)
    start = time.monotonic()
    for events in steps:
        recorder.put(events)
    assert time.monotonic() - start < hang
    hang = 0.0
    assert recorder.close()
    assert recorder.error is not None
    assert "does not keep up" in recorder.error
    assert recorder.error.values["step"] == 39
    assert (recorder.steps_written, recorder.dropped) == (40, 60)
    recording = open_recording(recorder.path)
    assert recording.last_step == 39
    assert not recording.complete
    assert any("60 steps" in w for w in recording.warnings)
    recording.close()


def test_makers_faster_than_an_engine_can_wait(tmp_path: Path) -> None:
    run = RandomRun(29)
    recorder = Recorder(tmp_path / "a.mcap", run.info, max_queued_steps=50)
    for events in run.steps(400):
        recorder.wait_for_room()
        recorder.put(events)
    assert recorder.close()
    assert recorder.error is None
    assert recorder.steps_written == 400


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Half a write succeeds, the next one fails: the run goes on, and the file is whole up to the last chunk."""
    room = 150_000

    class SmallDisk(recording_module.GrowingFile):
        def write(self, data: bytes) -> int:
            left = room - self.size
            if len(data) <= left:
                return super().write(data)
            super().write(data[:left])
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(recording_module, "GrowingFile", SmallDisk)
    run = RandomRun(29)
    recorder = Recorder(tmp_path / "a.mcap", run.info)
    steps = run.steps(2000, recorder.put)
    assert recorder.close()
    assert recorder.error is not None
    assert ("disk is full" if number == errno.ENOSPC else os.strerror(errno.EIO)) in recorder.error
    assert "run goes on" in recorder.error
    assert 0 < recorder.steps_written < 2000
    assert recorder.dropped > 0
    assert recorder.bytes_written == recorder.path.stat().st_size <= room
    recording = open_recording(recorder.path)
    assert recording.last_step == recorder.steps_written - 1
    assert recording.events(recording.last_step) == steps[recording.last_step]
    assert not recording.complete
    recording.close()


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
def test_a_limit_of_the_operating_system(tmp_path: Path) -> None:
    """The same with a real refusal: the process may not write files larger than 120 kB."""
    code = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
        from tests.engine.trace_runs import RandomRun
        from engine.trace.recording import Recorder
        run = RandomRun(29)
        recorder = Recorder(sys.argv[1], run.info)
        run.steps(1500, recorder.put)
        assert recorder.close()
        print(recorder.steps_written, recorder.error)
    """
    done = run_python(code, str(tmp_path / "a.mcap"))
    stdout, stderr = done.communicate(timeout=60)
    assert done.returncode == 0, stderr
    count, message = stdout.split(maxsplit=1)
    assert "may not become larger" in message
    recording = open_recording(tmp_path / "a.mcap")
    assert recording.last_step == int(count) - 1 > 0
    recording.close()


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    run = RandomRun(0)
    (tmp_path / "file").write_bytes(b"")
    for path, message in ((tmp_path / "no" / "a.mcap", "does not exist"), (tmp_path, "is a folder"),
                          (tmp_path / "file" / "a.mcap", "does not exist")):
        recorder = Recorder(path, run.info)
        assert recorder.error is not None
        assert message in recorder.error
        assert str(path) in recorder.error
        for events in RandomRun(0).steps(3):
            recorder.put(events)
        assert recorder.close()
        assert (recorder.dropped, recorder.steps_written, recorder.bytes_written) == (3, 0, 0)


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="an ordinary POSIX user is needed")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        recorder = Recorder(tmp_path / "a.mcap", RandomRun(0).info)
        assert recorder.error is not None
        assert "may not be written" in recorder.error
        recorder.close()
    finally:
        tmp_path.chmod(0o700)


def test_a_failure_of_permission_is_explained() -> None:
    for number in (errno.EACCES, errno.EPERM, errno.EROFS):
        notice = recording_module._explain(OSError(number, os.strerror(number)), Path("a.mcap"))
        assert "may not be written: choose another folder" in notice
        assert notice == notice.template.format(**notice.values)


def test_steps_that_contradict_each_other_are_recorded_all_the_same(tmp_path: Path) -> None:
    """A bug of the engine is the last thing to lose: the steps are in the file; the reader says where they break."""
    run = RandomRun(29)
    steps = run.steps(60)
    steps[40].sampled[0].request_id = "nobody"
    recorder = Recorder(tmp_path / "a.mcap", run.info)
    for events in steps:
        recorder.put(events)
    assert recorder.close()
    assert recorder.error is None
    assert recorder.steps_written == 60
    recording = open_recording(recorder.path)
    assert recording.last_step == 39
    assert any("Step 40 contradicts" in w for w in recording.warnings)
    recording.close()


def test_puts_after_closing_are_counted_not_written(tmp_path: Path) -> None:
    recorder, _ = record(tmp_path / "a.mcap", 10)
    size = recorder.path.stat().st_size
    recorder.put(RandomRun(29).step())
    assert recorder.dropped == 1
    assert recorder.path.stat().st_size == size
    assert recorder.close()


WRITER = """
    import sys, time
    from tests.engine.trace_runs import RandomRun
    from engine.trace.recording import Recorder
    run = RandomRun(29)
    recorder = Recorder(sys.argv[1], run.info)
    while True:
        recorder.put(run.step())
        print(run.next_step - 1, time.time(), flush=True)
        time.sleep(0.002)
"""


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *arguments], cwd=root, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
@pytest.mark.parametrize("seconds", [0.35, 0.9, 1.37])
def test_a_killed_program_loses_half_a_second_at_most(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "a.mcap"
    process = run_python(WRITER, str(path))
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    killed_at = time.time()
    lines, _ = process.communicate(timeout=30)
    put_at = {int(step): float(at) for step, at in (line.split() for line in lines.splitlines() if line.count(" "))
              if at.count(".")}
    recording = open_recording(path)
    assert not recording.complete
    assert recording.warnings
    old = [step for step, at in put_at.items() if at < killed_at - 0.5 - 0.3]  # 0.3 s: the machine may be busy
    assert recording.last_step >= max(old, default=-1)
    expected = RandomRun(29)
    for step in range(recording.last_step + 1):
        assert recording.events(step) == expected.step()
    recording.close()


@pytest.mark.skipif(sys.platform == "win32", reason="locks that let readers in are POSIX")
def test_two_recorders_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(b"x" * 100_000)  # what was there before is gone
    run = RandomRun(29)
    first = Recorder(path, run.info)
    steps = run.steps(150, first.put)
    second = Recorder(path, run.info)
    other = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import sys
        from engine.trace.recording import Recorder
        from tests.engine.trace_runs import RandomRun
        recorder = Recorder(sys.argv[1], RandomRun(29).info)
        recorder.close()
        print(recorder.error)
    """), str(path)], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout
    for error in (second.error, other):
        assert error is not None
        assert "Another recording is written" in error
        assert str(path) in error
    assert second.close()
    steps += run.steps(50, first.put)
    assert first.close()
    recording = open_recording(path)
    assert recording.complete
    assert recording.last_step == 199
    assert [recording.events(step) for step in range(200)] == steps
    recording.close()
    third = Recorder(path, run.info)  # now that it is free
    assert third.close()
    assert third.error is None
