"""A recorded workload run again: the same decisions with the same knobs, the same texts with others."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from engine.decisions import first_divergence
from engine.recorded_workload import RerunCancelled, RerunError, WorkloadReader, read_workload
from engine.redecide import decide_again
from engine.rerun import RerunProgress, rerun
from engine.trace.history import LiveHistory
from engine.trace.knobs import KnobError
from engine.trace.reader import open_recording
from engine.trace.recording import Recorder
from engine.trace.source import RunSource
from tests.engine.recorded_runs import SMALL, engine_run, make_model, save
from tests.engine.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def steps_of(source: RunSource):
    return (source.events(s) for s in range(source.first_step, source.last_step + 1))


def texts_of(source: RunSource) -> dict[str, tuple[str, tuple[int, ...]]]:
    texts: dict[str, str] = {}
    tokens: dict[str, tuple[int, ...]] = {}
    for events in steps_of(source):
        for s in events.sampled:
            texts[s.request_id] = texts.get(s.request_id, "") + s.text
            tokens[s.request_id] = (*tokens.get(s.request_id, ()), s.token_id)
        for f in (*events.finished, *events.aborted):
            texts[f.request_id] = texts.get(f.request_id, "") + f.text
    return {request_id: (texts[request_id], ids) for request_id, ids in tokens.items()}


@pytest.mark.parametrize("seed", range(8))
def test_unchanged_knobs_reproduce_every_decision(tokenizer, seed: int, tmp_path: Path) -> None:
    """Knobs turned, pools rebuilt, requests aborted and refused, several samples, pauses: all of it again."""
    history = engine_run(tokenizer, seed, turns=0.05, aborts=0.02, samples=True)
    workload = read_workload(history)
    assert workload.num_requests > 20
    result = rerun(workload, {}, tmp_path / "again.mcap", make_model(tokenizer))
    assert result.admission == "step"
    assert not result.notes
    again = open_recording(result.path)
    assert first_divergence(history, steps_of(again)) is None
    assert texts_of(again) == texts_of(history)
    assert again.complete
    assert result.steps == history.last_step + 1
    assert all(again.events(s).end_ns >= again.events(s).start_ns for s in range(result.steps))
    again.close()


@pytest.mark.parametrize("seed", range(8))
def test_the_scheduler_decides_the_same_again_without_a_model(tokenizer, seed: int) -> None:
    knobs = {**SMALL, "overlap": seed % 2 == 1}  # which puts events off, and decides nothing
    history = engine_run(tokenizer, 100 + seed, turns=0.05, aborts=0.02, samples=True, knobs=knobs)
    again = list(decide_again(history))
    assert first_divergence(history, again) is None
    assert [s.text for e in again for s in e.sampled] == [s.text for e in steps_of(history) for s in e.sampled]
    # and what was not the recording's is found
    again[len(again) // 2].stopped_at = "r0"
    divergence = first_divergence(history, again)
    assert divergence is not None
    assert (divergence.step, divergence.field) == (len(again) // 2, "stopped_at")
    assert "stopped_at" in str(divergence)
    shorter = first_divergence(history, list(steps_of(history))[:-1])
    assert shorter is not None
    assert shorter.field == "steps"


def test_a_recording_that_ends_midway_is_repeated_as_far_as_it_goes(tokenizer, tmp_path: Path) -> None:
    history = engine_run(tokenizer, 3)
    cut = open_recording(save(history, tmp_path / "cut.mcap", steps=60))
    workload = read_workload(cut)
    result = rerun(workload, {}, tmp_path / "again.mcap", make_model(tokenizer))
    assert result.steps == 60
    assert first_divergence(cut, steps_of(open_recording(result.path))) is None


@pytest.mark.parametrize("seed", range(4))
def test_other_knobs_change_the_schedule_and_not_the_text(tokenizer, seed: int, tmp_path: Path) -> None:
    history = engine_run(tokenizer, 10 + seed)
    path = save(history, tmp_path / "a.mcap")
    before = path.read_bytes()
    source = open_recording(path)
    changes = {"max_num_batched_tokens": 24, "enable_prefix_caching": False, "num_blocks": 100}
    result = rerun(read_workload(source), changes, tmp_path / "b.mcap", make_model(tokenizer))
    other = open_recording(result.path)
    assert result.admission == "time"
    assert {n: other.info.knobs[n] for n in changes} == changes
    assert other.info.knobs["max_num_seqs"] == source.info.knobs["max_num_seqs"]
    served = texts_of(source)
    assert {i: t for i, t in texts_of(other).items() if i in served} == served
    assert first_divergence(source, steps_of(other)) is not None
    arrivals = {a.request_id: a.arrival_ns for e in steps_of(source) for a in e.arrived}
    assert {a.request_id: a.arrival_ns for e in steps_of(other) for a in e.arrived} == arrivals
    for events in steps_of(other):
        assert all(a.arrival_ns <= events.start_ns for a in events.arrived)
        assert sum(s.num_tokens for s in events.scheduled) <= 24
    if sum(len(e.refused) for e in steps_of(source)):
        assert any("refused" in note.lower() for note in result.notes)
    source.close()
    assert path.read_bytes() == before


def test_a_knob_that_is_set_is_not_turned_again(tokenizer, tmp_path: Path) -> None:
    history = engine_run(tokenizer, 5, turns=0.2)
    assert {"num_blocks", "max_num_batched_tokens"} <= read_workload(history).turned()
    result = rerun(read_workload(history), {"max_num_batched_tokens": 64}, tmp_path / "b.mcap", make_model(tokenizer))
    assert result.admission == "time"  # 64 is what it began with, but not what it stayed
    turned = {c.name for e in steps_of(open_recording(result.path)) for c in e.knobs}
    assert "max_num_batched_tokens" not in turned
    assert "num_blocks" in turned


def test_cancelling_leaves_nothing_and_the_runner_can_go_on(tokenizer, tmp_path: Path) -> None:
    workload = read_workload(engine_run(tokenizer, 1, requests=60))
    model, cancel = make_model(tokenizer), threading.Event()
    told: list[RerunProgress] = []

    def progress(report: RerunProgress) -> None:
        told.append(report)
        cancel.set()

    with pytest.raises(RerunCancelled):
        rerun(workload, {"max_num_batched_tokens": 16}, tmp_path / "c.mcap", model, progress=progress, cancel=cancel)
    assert told
    assert 0 <= told[0].fraction <= 1
    assert told[0].all_requests == workload.num_requests
    assert not list(tmp_path.iterdir())
    assert rerun(workload, {}, tmp_path / "d.mcap", model).steps == workload.num_steps
    assert [p.name for p in tmp_path.iterdir()] == ["d.mcap"]


def test_a_workload_is_read_bit_by_bit(tokenizer) -> None:
    history = engine_run(tokenizer, 1)
    reader = WorkloadReader(history)
    assert not reader.update(0.0)
    assert 0 < reader.share < 1
    while not reader.update(0.0):
        pass
    assert reader.share == 1.0
    assert reader.workload() == read_workload(history)


def test_a_recording_from_the_middle_is_run_by_time(tokenizer, tmp_path: Path) -> None:
    whole = engine_run(tokenizer, 4)
    middle = 40
    recorder = Recorder(tmp_path / "m.mcap", whole.info, whole.state_at(middle - 1))
    for step in range(middle, whole.last_step + 1):
        recorder.put(whole.events(step))
    assert recorder.close()
    source = open_recording(tmp_path / "m.mcap")
    workload = read_workload(source)
    assert not workload.whole
    result = rerun(workload, {}, tmp_path / "again.mcap", make_model(tokenizer))
    assert result.admission == "time"
    assert any("middle" in note for note in result.notes)
    assert set(texts_of(source)) <= set(texts_of(open_recording(result.path)))
    with pytest.raises(RerunError, match="middle"):
        list(decide_again(source))


def test_what_cannot_be_run_again_is_refused_with_a_reason(tokenizer, tmp_path: Path) -> None:
    history = engine_run(tokenizer, 2, requests=3)
    workload = read_workload(history)
    with pytest.raises(KnobError):
        rerun(workload, {"max_num_seqs": 0}, tmp_path / "a.mcap", make_model(tokenizer))
    with pytest.raises(RerunError, match="There is no folder"):
        rerun(workload, {}, tmp_path / "no" / "a.mcap", make_model(tokenizer))
    assert not list(tmp_path.iterdir())
    with pytest.raises(RerunError, match="no request"):
        read_workload(LiveHistory(history.info))
    with pytest.raises(KnobError, match="workload"):
        rerun(workload, {"arrival_rate": 3.0}, tmp_path / "a.mcap", make_model(tokenizer))
    history.info.prompt_text = False
    with pytest.raises(RerunError, match="no prompts"):
        read_workload(history)
    history.info.prompt_text = True
    history.info.model.vocab_size = 5
    with pytest.raises(RerunError, match="does not know"):
        read_workload(history)


@pytest.mark.skipif(sys.platform == "win32", reason="locks that let readers in are POSIX")
def test_two_runs_into_one_file_do_not_spoil_each_other(tokenizer, tmp_path: Path) -> None:
    workload = read_workload(engine_run(tokenizer, 1))
    tried: list[str] = []

    def progress(report: RerunProgress) -> None:
        with pytest.raises(RerunError) as refused:
            rerun(workload, {}, tmp_path / "a.mcap", make_model(tokenizer))
        tried.append(str(refused.value))

    result = rerun(workload, {}, tmp_path / "a.mcap", make_model(tokenizer), progress=progress)
    assert "Another run is recorded to" in tried[0]
    recording = open_recording(result.path)
    assert recording.complete
    assert recording.last_step == result.steps - 1
    recording.close()


@pytest.mark.parametrize(("number", "says"), [
    (errno.ENOSPC, "Free some room"), (errno.EACCES, "choose another folder"), (errno.EIO, "Choose another place")])
def test_what_the_disk_refuses_is_said_of_this_run(tokenizer, tmp_path: Path, number: int, says: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """A live run goes on without its recording; this one is nothing without it."""
    workload = read_workload(engine_run(tokenizer, 5, requests=20))

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("engine.trace.growing_file.GrowingFile.write", refuse)
    with pytest.raises(RerunError, match=says) as refused:
        rerun(workload, {}, tmp_path / "b.mcap", make_model(tokenizer))
    assert "b.mcap" in str(refused.value)
    assert "goes on" not in str(refused.value)
    assert ".part" not in str(refused.value)
    assert not list(tmp_path.iterdir())
