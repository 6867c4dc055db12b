"""The index of recordings, long live runs on the disk, recordings in several files and without prompts; verify."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.redecide import Redecider, eos_of, why_not
from engine.trace import mcap_file, spill
from engine.trace.events import StepEvents
from engine.trace.history import LiveHistory
from engine.trace.index import INDEX_NAME, INDEX_STEPS
from engine.trace.metrics import StepSeries
from engine.trace.reader import Recording, RecordingError, open_recording
from engine.trace.recording import Recorder
from engine.trace.source import RunSource
from engine.trace.state import EngineState, Snapshot
from engine.trace.summary import summarise
from engine.trace.timeline import Timeline
from engine.trace.verify import Verified, verify
from tests.engine.trace_runs import RandomRun
from tests.robustness.damaged import damage, try_file
from tests.robustness.killed import kill_one

STEPS = 2 * INDEX_STEPS + 700


class Lived:
    """A run as somebody saw it who was there, and its recording."""

    def __init__(self, path: Path) -> None:
        run = RandomRun(31, knob_rate=0.01)
        self.info = run.info
        self.series, self.timeline = StepSeries(), Timeline()
        self.states: dict[int, Snapshot] = {}
        state = EngineState(run.info)
        recorder = Recorder(path, run.info)

        def each(events: StepEvents) -> None:
            recorder.put(events)
            state.apply(events)
            self.series.append(events, state)
            self.timeline.append(events, state)
            if events.step % 97 == 0 or events.step == STEPS - 1:
                self.states[events.step] = state.snapshot()

        self.steps = run.steps(STEPS, each)
        assert recorder.close()
        self.path = path
        self.data = path.read_bytes()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return Lived(tmp_path_factory.mktemp("index") / "long.mcap")


def check_like(source: RunSource, lived: Lived) -> None:
    """The source shows what was seen, as far as it goes."""
    count = source.last_step + 1
    for name in StepSeries.column_types():
        mine, theirs = getattr(source.series, name), getattr(lived.series, name)[:count]
        assert np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f"), name
    for first in range(0, count, 611):
        mine, theirs = source.series.segments_between(first, first + 200), lived.series.segments_between(
            first, min(count, first + 200))
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
    until = len(source.series.itl_ns)
    assert np.array_equal(source.series.itl_ns, lived.series.itl_ns[:until])
    assert np.array_equal(source.series.itl_step, lived.series.itl_step[:until])
    assert np.array_equal(source.series.ttft_ns, lived.series.ttft_ns[:len(source.series.ttft_ns)])
    assert list(source.series.marks) == list(lived.series.marks)[:len(source.series.marks)]
    assert source.series.marks[-1] == list(source.series.marks)[-1]
    rng = random.Random(3)
    for step in rng.sample(sorted(lived.states), 12):
        if step < count:
            assert source.state_at(step).snapshot() == lived.states[step]
            assert source.events(step) == lived.steps[step]
            assert source.series.latency(step, 300) == pytest.approx(lived.series.latency(step, 300), nan_ok=True)


def check_rows(source: RunSource, lived: Lived) -> None:
    """The timeline tells around any step what it told when the step was new."""
    assert source.last_step == STEPS - 1
    seen = set()
    for step in (STEPS - 1, 50, INDEX_STEPS, STEPS // 2, STEPS - 1):
        source.events(step)
        shown = {row.request_id: row for row in source.timeline.rows}
        seen |= {source.timeline.forgotten}
        for row in lived.timeline.rows:
            if row.spans[0].first_step <= step <= row.spans[-1].last_step:
                assert shown[row.request_id] == row
        arrivals = [row.arrival_ns for row in source.timeline.rows]
        assert len(arrivals) == len(shown)
    assert source.timeline.end_ns == lived.timeline.end_ns


def test_opening_reads_the_index(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = []
    original = mcap_file.read_chunk

    def read_chunk(file: object, record: mcap_file.Record) -> bytes:
        unpacked.append(record.offset)
        return original(file, record)  # type: ignore[arg-type]

    for module in ("recorded", "opening", "opening_index"):
        monkeypatch.setattr(f"engine.trace.{module}.read_chunk", read_chunk)
    monkeypatch.setattr("engine.trace.opening_index.CHECK_BYTES", 0)
    recording = open_recording(lived.path)
    assert len(unpacked) <= 3  # the channels, and the state at the end
    assert recording.complete
    assert recording.warnings == []
    assert (recording.first_step, recording.last_step) == (0, STEPS - 1)
    check_like(recording, lived)
    check_rows(recording, lived)
    assert summarise(recording)["steps"] == STEPS
    recording.close()


@pytest.mark.parametrize("share", [0.3, 0.8, 0.99])
def test_a_file_that_is_cut_or_still_written(lived: Lived, tmp_path: Path, share: float) -> None:
    """The steps after the last block are read one by one, and everything goes on as if nothing had happened."""
    path = tmp_path / "a.mcap"
    path.write_bytes(lived.data[:int(len(lived.data) * share)])
    recording = open_recording(path)
    assert not recording.complete
    assert recording.warnings
    assert recording.last_step > STEPS * share * 0.8
    check_like(recording, lived)
    recording.close()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_block_is_made_anew(lived: Lived, tmp_path: Path, number: int) -> None:
    blocks = blocks_of(lived)
    assert len(blocks) == 3
    for part in (10, blocks[number].length - 20)[number % 2:]:
        data = bytearray(lived.data)
        data[blocks[number].offset + part] ^= 0x40
        path = tmp_path / "a.mcap"
        path.write_bytes(data)
        recording = open_recording(path)
        assert recording.last_step == STEPS - 1
        assert any("index is damaged" in warning for warning in recording.warnings)
        check_like(recording, lived)
        recording.close()


def blocks_of(lived: Lived) -> list[mcap_file.Attachment]:
    with open(lived.path, "rb") as file:
        found = [mcap_file.parse_attachment(file, r) for r in mcap_file.scan(file, len(lived.data))
                 if r.kind == mcap_file.ATTACHMENT]
    return [a for a in found if a.name == INDEX_NAME]


def test_without_any_index(lived: Lived, tmp_path: Path) -> None:
    """As recordings were before there was one: attachments of another name are no index."""
    path = tmp_path / "a.mcap"
    path.write_bytes(lived.data.replace(INDEX_NAME.encode(), b"cutaway.other"))
    recording = open_recording(path)
    assert recording.last_step == STEPS - 1
    check_like(recording, lived)
    recording.close()


def test_damage_that_is_found_when_one_looks_there(lived: Lived, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.trace.opening_index.CHECK_BYTES", 0)
    recording = open_recording(lived.path)
    page = recording._page_of(1500)
    middle = (recording._chunk_offsets[page] + recording._chunk_offsets[page + 1]) // 2
    recording.close()
    data = bytearray(lived.data)
    data[middle - 300:middle] = bytes(300)
    path = tmp_path / "a.mcap"
    path.write_bytes(data)
    recording = open_recording(path)
    with pytest.raises(RecordingError, match="cannot be read"):
        recording.events(recording._chunk_firsts[page])
    assert not recording.complete
    assert recording.warnings
    assert recording.state_at(STEPS - 1).step == STEPS - 1
    recording.close()


def test_damaged_files(lived: Lived, tmp_path: Path) -> None:
    """A few of those of tests/robustness/damaged.py, which makes a thousand."""
    outcomes = set()
    for number in range(8):
        rng = random.Random(number)
        broken = damage(lived.data, rng)[1]
        assert broken != lived.data
        outcomes.add(try_file(tmp_path / "a.mcap", broken, lived.steps, rng, large=number % 2 == 0))
    assert "in part" in outcomes
    assert "NOT TOLD" not in outcomes


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_killed_programs(tmp_path: Path) -> None:
    """Two of those of tests/robustness/killed.py, which kills a hundred."""
    for number, seconds in enumerate((0.6, 1.3)):
        last, lost = kill_one(tmp_path / f"{number}.mcap", seconds, 0.001)
        assert last > 0
        assert lost < 0.5 + 0.5  # the machine may be busy


# ---- several files, and no prompts -----------------------------------------------------------------------------------


def test_a_large_recording_goes_on_in_a_new_file(lived: Lived, tmp_path: Path) -> None:
    (tmp_path / "a.2.mcap").write_bytes(b"somebody else's")
    recorder = Recorder(tmp_path / "a.mcap", lived.info, max_file_bytes=1000)
    for events in lived.steps:
        recorder.wait_for_room()
        recorder.put(events)
    assert recorder.close()
    assert [path.name for path in recorder.paths] == ["a.mcap", "a.3.mcap", "a.4.mcap"]
    assert (tmp_path / "a.2.mcap").read_bytes() == b"somebody else's"
    assert recorder.bytes_written == sum(path.stat().st_size for path in recorder.paths)
    following = 0
    for number, path in enumerate(recorder.paths):
        recording = open_recording(path)
        assert recording.first_step == following
        following = recording.last_step + 1
        assert recording.complete
        goes_on = [*recorder.paths, None][number + 1]
        assert recording.goes_on == goes_on
        assert bool(recording.warnings) == (goes_on is not None)
        for step in set(lived.states) & set(range(recording.first_step, following, 5)):
            assert recording.state_at(step).snapshot() == lived.states[step]
        recording.close()
    assert following == STEPS


def test_prompts_are_left_out(tmp_path: Path) -> None:
    run = RandomRun(31)
    state = EngineState(run.info)
    for events in run.steps(40):
        state.apply(events)
    recorder = Recorder(tmp_path / "a.mcap", run.info, state, prompt_text=False)
    steps = run.steps(300, recorder.put)
    assert recorder.close()
    recording = open_recording(recorder.path)
    assert not recording.info.prompt_text
    arrived = 0
    for events in steps:
        read = recording.events(events.step)
        for mine, original in zip(read.arrived, events.arrived, strict=True):
            assert mine.prompt_text == ""
            assert mine.prompt_token_ids == [0] * len(original.prompt_token_ids)
            arrived += 1
        assert read.scheduled == events.scheduled
    assert arrived > 10
    for step in (39, 200, 339):
        requests = recording.state_at(step).requests.values()
        assert all(not r.prompt_text and not any(r.prompt_token_ids) for r in requests)
    whole_file = b"".join(
        mcap_file.read_chunk(recording._file, r) for r in mcap_file.scan(recording._file, recording._size)
        if r.kind == mcap_file.CHUNK)
    assert "说 r".encode() not in whole_file
    recording.close()


# ---- the live run ----------------------------------------------------------------------------------------------------


def test_a_live_run_on_the_disk(lived: Lived, tmp_path: Path) -> None:
    file = spill.SpillFile(tmp_path)
    history = LiveHistory(lived.info, max_steps=1000, spill_file=file)
    for events in lived.steps:
        history.append(events)
    assert not list(tmp_path.iterdir()) or sys.platform == "win32"  # it has no name
    assert file.size > 100_000
    assert (history.first_step, history.last_step) == (0, STEPS - 1)
    assert history.complete
    assert len(history.series._itl.hot) < len(history.series.itl_ns) / 2
    assert sum(isinstance(p, bytes) for p in history._packed) == 0
    check_like(history, lived)
    check_rows(history, lived)
    history.close()
    for cache in (history._details, history._pages, history._waypoints):
        cache.clear()
    colours, tokens, _prefill = history.series.segments(10)  # somebody paints once more
    assert len(colours) == len(lived.steps[10].scheduled)
    assert not tokens.any()
    with pytest.raises(OSError, match="closed"):
        history.state_at(10)


def test_a_live_run_when_the_disk_fills_up(lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded as it is without a disk, and what is said to be there is there."""
    file = spill.SpillFile(tmp_path)
    history = LiveHistory(lived.info, max_steps=600, spill_file=file)
    for events in lived.steps:
        if events.step == 3000:
            monkeypatch.setattr(spill.shutil, "disk_usage", lambda _path: (1, 1, 1))
            monkeypatch.setattr(file, "_look_at", 0)
            monkeypatch.setattr(spill.SpillFile, "write", lambda self, data: setattr(self, "failed", True))
        history.append(events)
    assert history.first_step > STEPS - 600 - 300
    assert not history.complete
    assert str(history.first_step) in history.warnings[0]
    for step in sorted(lived.states):
        if step >= history.first_step:
            assert history.state_at(step).snapshot() == lived.states[step]
            assert history.series.step[history.series.index_of(step)] == step
    history.close()


def test_a_cache_folder_that_may_not_be_written(lived: Lived, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    history = LiveHistory(lived.info, max_steps=600, spill_file=spill.SpillFile(tmp_path / "file" / "folder"))
    for events in lived.steps[:2500]:
        history.append(events)
    assert history.last_step == 2499
    assert 1500 < history.first_step < 2000
    history.close()


# ---- verify ----------------------------------------------------------------------------------------------------------


def verify_whole(recording: Recording) -> Verified:
    not_checked = why_not(recording)
    decide = None if not_checked else Redecider(recording.info, eos_of(recording)).check
    return verify(recording, decide, not_checked)


def test_verify_finds_nothing_in_a_good_recording(lived: Lived) -> None:
    recording = open_recording(lived.path)
    recording._last = 1500  # that is enough, and three times as quick
    found = verify_whole(recording)
    assert found.problems == []
    assert (found.steps, found.whole, found.possible, found.repeated, found.decided) == (1501, True, True, True, 1501)
    recording.close()


@pytest.mark.parametrize("change", ["token", "decision", "free"])
def test_verify_finds_what_was_changed(tmp_path: Path, change: str) -> None:
    run = RandomRun(29)
    recorder = Recorder(tmp_path / "a.mcap", run.info)
    for events in run.steps(300):
        if events.step == 200:
            share = next(s for s in events.scheduled)
            if change == "decision":
                events.stopped_by, events.stopped_at = "watermark", share.request_id
            elif change == "free":
                events.free_blocks_after -= 1
        if change == "token" and events.step >= 150:
            for sampled in events.sampled:
                sampled.token_id = 7
        recorder.put(events)
    assert recorder.close()
    recording = open_recording(recorder.path)
    found = verify_whole(recording)
    assert not found.ok
    assert found.possible == (change != "free")
    assert found.repeated is False
    assert any("Step " in problem for problem in found.problems)
    recording.close()


def test_verify_says_what_it_cannot_check(tmp_path: Path) -> None:
    run = RandomRun(29)
    recorder = Recorder(tmp_path / "a.mcap", run.info, prompt_text=False)
    run.steps(100, recorder.put)
    assert recorder.close()
    recording = open_recording(recorder.path)
    found = verify_whole(recording)
    assert found.ok
    assert found.repeated is None
    assert "left out" in str(found.not_checked)
    recording.close()
