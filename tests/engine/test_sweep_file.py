"""sweep.json: a sweep is there again as it was, wherever its folder has gone, and goes on where it ended."""

from __future__ import annotations

import json
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.recorded_workload import RerunCancelled, read_workload
from engine.scenario_run import ScenarioRun
from engine.sweep import run_sweep
from engine.sweep_file import RecordedRun, SavedSweep, SweepFileError, read_sweep, write_sweep
from engine.sweep_grid import SweepPoint, find_sweep, grid, parse_axis
from tests.engine.recorded_runs import engine_run, make_model, save
from tests.engine.tiny_tokenizer import make_tokenizer

AXES = [parse_axis("max_num_seqs=1,2,4"), parse_axis("policy=fcfs,priority")]


def saved(folder: Path, run: RecordedRun | ScenarioRun, points: int = 3) -> SavedSweep:
    """A sweep of six points in ``folder``, of which ``points`` were run; the last of these could not run."""
    folder.mkdir(parents=True, exist_ok=True)
    done = grid(AXES)[:points]
    for number, point in enumerate(done[:-1]):
        point.path = folder / f"{point.name}.mcap"
        point.path.write_bytes(b"")
        point.metrics = {"output_tokens_per_s": 10.0 + number, "itl_p99_ms": math.nan, "ttft_p99_ms": 5.0}
    if done:
        done[-1].error = "no room"
    sweep = SavedSweep(AXES, run, {"num_blocks": 64}, done)
    write_sweep(folder, sweep)
    return sweep


def alike(first: SweepPoint, second: SweepPoint) -> bool:
    numbers = [{n: None if math.isnan(v) else v for n, v in p.metrics.items()} for p in (first, second)]
    return numbers[0] == numbers[1] and (first.knobs, first.error) == (second.knobs, second.error)


def test_a_sweep_is_there_again_as_it_was(tmp_path: Path) -> None:
    run = ScenarioRun("burst", 3, 17, {"watermark": 0.1}, "some/model", "float32")
    sweep = saved(tmp_path / "录像", run)
    again = read_sweep(tmp_path / "录像" / "sweep.json")
    assert (again.axes, again.workload, again.fixed) == (AXES, run, {"num_blocks": 64})
    assert all(alike(a, b) and a.path == b.path for a, b in zip(sweep.points, again.points, strict=True))
    assert (again.rest, again.lost) == (3, 0)


def test_a_folder_may_be_moved_with_the_recording_beside_it(tmp_path: Path) -> None:
    recording = tmp_path / "a" / "run.mcap"
    saved(tmp_path / "a" / "sweep", RecordedRun(recording, "then"))
    recording.write_bytes(b"")
    shutil.move(tmp_path / "a", tmp_path / "b")
    again = read_sweep(tmp_path / "b" / "sweep" / "sweep.json")
    assert [p.path.parent if p.path else None for p in again.points] == [tmp_path / "b" / "sweep"] * 2 + [None]
    assert isinstance(again.workload, RecordedRun)
    assert again.workload.path is not None
    assert again.workload.path.samefile(tmp_path / "b" / "run.mcap")
    shutil.move(tmp_path / "b" / "sweep", tmp_path / "deep" / "er" / "sweep")
    (tmp_path / "deep" / "er" / "sweep" / f"{again.points[0].name}.mcap").unlink()
    again = read_sweep(tmp_path / "deep" / "er" / "sweep" / "sweep.json")
    assert again.lost == 1, "its figures stay"
    assert again.points[0].metrics["output_tokens_per_s"] == 10.0
    assert again.workload == RecordedRun(recording, "then"), "where it was when the sweep was run"


def test_what_means_a_sweep(tmp_path: Path) -> None:
    saved(tmp_path / "s", ScenarioRun("burst"))
    assert find_sweep(tmp_path / "s") == find_sweep(tmp_path / "s" / "sweep.json") == tmp_path / "s" / "sweep.json"
    assert find_sweep(tmp_path) is None
    assert find_sweep(tmp_path / "a.mcap") is None
    assert find_sweep(tmp_path / "not there.json") is not None, "so that its absence is told"


@pytest.mark.parametrize(("data", "reason"), [
    (b"", "as JSON"), (b"\xff\xfe\x00", "as JSON"), (b"[" * 10**5, "as JSON"), (b"[]", "no sweep"),
    (b'{"a": 1}', "no sweep"), (b'{"cutaway_sweep": "1"}', "no sweep"), (b"x" * (5 << 20), "no sweep"),
    (b'{"cutaway_sweep": 99, "version": "9.0"}', "needs Cutaway 9.0"), (b'{"cutaway_sweep": 1}', "'vary' is missing")])
def test_other_files_are_refused_with_a_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_bytes(data)
    with pytest.raises(SweepFileError, match=reason):
        read_sweep(path)
    for place in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(SweepFileError):
            read_sweep(place)


JSON = st.recursive(st.none() | st.booleans() | st.integers(-10**20, 10**20) | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
                    max_leaves=6)


@given(data=st.data())
def test_a_file_with_one_thing_put_wrong_is_read_or_refused(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    saved(folder, ScenarioRun("burst"))
    said = json.loads((folder / "sweep.json").read_text("utf-8"))
    place: Any = said
    while True:  # somewhere in it
        at = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[at], (dict, list)) or not place[at] or data.draw(st.booleans()):
            break
        place = place[at]
    place[at] = data.draw(JSON)
    (folder / "sweep.json").write_text(json.dumps(said), "utf-8")
    try:
        sweep = read_sweep(folder / "sweep.json")
    except SweepFileError:
        return
    assert all(p.path is None or p.path.parent == folder for p in sweep.points)
    assert sweep.rest >= 0
    write_sweep(folder, sweep)
    assert read_sweep(folder / "sweep.json").axes == sweep.axes


def test_a_sweep_that_was_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    recording = save(engine_run(tokenizer, 8, requests=8), tmp_path / "run.mcap")
    from engine.trace.reader import open_recording

    source = open_recording(recording)
    workload = read_workload(source)
    source.close()
    sweep = SavedSweep([parse_axis("max_num_batched_tokens=24,32,64")], RecordedRun(recording, source.info.created))
    cancel = threading.Event()
    with pytest.raises(RerunCancelled):
        run_sweep(sweep, workload, tmp_path / "out", make_model(tokenizer), on_point=lambda _: cancel.set(),
                  cancel=cancel)
    again = read_sweep(tmp_path / "out" / "sweep.json")
    assert (len(again.points), again.rest) == (1, 2)
    first = again.points[0].path
    assert first is not None
    written = first.stat().st_mtime_ns
    ran: list[SweepPoint] = []
    points = run_sweep(again, workload, tmp_path / "out", make_model(tokenizer), on_point=ran.append)
    assert [p.knobs["max_num_batched_tokens"] for p in ran] == [32, 64]
    assert [p.knobs["max_num_batched_tokens"] for p in points] == [24, 32, 64]
    assert first.stat().st_mtime_ns == written
    done = read_sweep(tmp_path / "out" / "sweep.json")
    assert done.rest == 0
    assert all(p.path is not None for p in done.points)
