"""Sweeps: ranges of knobs, every point a run with its recording, and the points that nothing beats."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.recorded_workload import RerunCancelled, RerunError, read_workload
from engine.scenario_run import ScenarioRun
from engine.sweep import SweepProgress, run_sweep
from engine.sweep_file import RecordedRun, SavedSweep
from engine.sweep_grid import GOALS, SweepAxis, SweepPoint, as_rows, grid, pareto_front, parse_axis
from engine.trace.events import MachineInfo
from engine.trace.knobs import KnobError
from engine.trace.reader import open_recording
from tests.engine.prompt_tokenizer import trained_tokenizer
from tests.engine.recorded_runs import engine_run, make_model
from tests.engine.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def sweep_of(axes: list[SweepAxis]) -> SavedSweep:
    return SavedSweep(axes, RecordedRun(None, "today"))


@pytest.mark.parametrize(("text", "values"), [
    ("max_num_seqs=2,8,4,8", (2, 8, 4)),
    ("max_num_batched_tokens=64..1024", (64, 128, 256, 512, 1024)),
    ("num_blocks = 100 .. 400 : 3", (100, 200, 400)),
    ("max_num_seqs=3..1:9", (1, 2, 3)),
    ("block_size=8..64", (8, 16, 32, 64)),
    ("watermark=0..0.4:3", (0.0, 0.2, 0.4)),
    ("enable_prefix_caching=on,off", (True, False)),
    ("policy=fcfs,priority", ("fcfs", "priority")),
])
def test_ranges_of_knobs(text: str, values: tuple[object, ...]) -> None:
    assert parse_axis(text).values == values


@pytest.mark.parametrize("text", [
    "num_blocks", "num_blocks=", "nothing=1,2", "num_blocks=1..5", "num_blocks=64..128:1", "num_blocks=64..128:x",
    "policy=fcfs..priority", "enable_prefix_caching=on..off", "max_num_seqs=a", "max_num_seqs=1,,2"])
def test_a_range_that_is_none_is_refused_with_its_reason(text: str) -> None:
    with pytest.raises(KnobError, match=r"."):
        parse_axis(text)


def test_a_grid_has_one_axis_or_two() -> None:
    a, b = parse_axis("max_num_seqs=1,2,3"), parse_axis("policy=fcfs,priority")
    assert len(grid([a])) == 3
    assert [p.knobs for p in grid([b, a])][:2] == [{"policy": "fcfs", "max_num_seqs": 1},
                                                  {"policy": "fcfs", "max_num_seqs": 2}]
    many = parse_axis("num_blocks=100..2000:30")
    for axes in ([], [a, b, many], [a, a], [many, parse_axis("max_num_batched_tokens=16..4000:30")]):
        with pytest.raises(KnobError):
            grid(axes)


def point(*scores: float) -> SweepPoint:
    return SweepPoint({}, metrics={name: sign * score for (name, sign), score in zip(GOALS, scores, strict=True)})


def test_the_front_is_what_nothing_beats() -> None:
    points = [point(10, -5, -5), point(12, -6, -5), point(9, -5, -5), point(10, -5, -5), point(math.nan, -1, -1),
              SweepPoint({}, error="no room"), point(1, -1, -9)]
    assert pareto_front(points) == [True, True, False, True, False, False, True]


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=20))
def test_every_point_off_the_front_is_beaten_by_one_on_it(scores: list[tuple[int, int, int]]) -> None:
    front = pareto_front([point(*score) for score in scores])
    best = [s for s, on in zip(scores, front, strict=True) if on]
    assert best
    for score, on in zip(scores, front, strict=True):
        beaten = any(b != score and all(x >= y for x, y in zip(b, score, strict=True)) for b in best)
        assert beaten != on


def test_a_sweep_of_a_recorded_workload(tokenizer, tmp_path: Path) -> None:
    workload = read_workload(engine_run(tokenizer, 8, requests=12))
    done: list[SweepPoint] = []
    told: list[SweepProgress] = []
    axes = [parse_axis("max_num_batched_tokens=24,64"), parse_axis("num_blocks=40,65536,120")]
    model = make_model(tokenizer)
    model.runner.model_info.bytes_per_token = 2**20  # of which 65536 blocks do not fit anywhere
    points = run_sweep(sweep_of(axes), workload, tmp_path / "out", model, on_point=done.append, progress=told.append)
    assert done == points
    assert len(points) == 6
    for p in points:
        assert bool(p.error) == (p.knobs["num_blocks"] == 65536)
        if p.path is not None:
            recording = open_recording(p.path)
            assert {n: recording.info.knobs[n] for n in p.knobs} == p.knobs
            assert recording.series.output_tokens.sum() == sum(len(a.tokens) for a in workload.answers.values())
            assert p.metrics["output_tokens_per_s"] > 0
    fractions = [report.fraction for report in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    rows = json.loads((tmp_path / "out" / "sweep.json").read_text("utf-8"))["points"]
    assert rows == json.loads(json.dumps(as_rows(points)))
    assert any(row["pareto"] for row in rows)


def test_cancelling_keeps_what_is_done(tokenizer, tmp_path: Path) -> None:
    workload = read_workload(engine_run(tokenizer, 8, requests=12))
    cancel = threading.Event()
    done: list[SweepPoint] = []

    def on_point(p: SweepPoint) -> None:
        done.append(p)
        if len(done) == 2:
            cancel.set()

    with pytest.raises(RerunCancelled):
        run_sweep(sweep_of([parse_axis("max_num_batched_tokens=24,32,48,64")]), workload, tmp_path,
                  make_model(tokenizer), on_point=on_point, cancel=cancel)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "max_num_batched_tokens=24.mcap", "max_num_batched_tokens=32.mcap", "sweep.json"]
    assert len(json.loads((tmp_path / "sweep.json").read_text("utf-8"))["points"]) == 2
    for p in done:
        assert p.path is not None
        assert open_recording(p.path).complete


def test_a_folder_that_cannot_be_made_is_refused(tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RerunError, match="cannot be written"):
        run_sweep(sweep_of([parse_axis("max_num_seqs=1,2")]), read_workload(engine_run(tokenizer, 8, requests=3)),
                  tmp_path / "file" / "out", make_model(tokenizer))


def test_a_sweep_of_a_scenario_serves_the_same_requests_at_every_point(tmp_path: Path) -> None:
    model = make_model(trained_tokenizer())
    model.runner.model_info.vocab_size = 0
    model.machine = MachineInfo("cpu")
    run = ScenarioRun("shared-prefix", requests=6)
    points = run_sweep(SavedSweep([parse_axis("max_num_batched_tokens=64,256")], run), run, tmp_path, model)
    prompts = []
    for p in points:
        assert p.path is not None
        recording = open_recording(p.path)
        assert recording.info.scenario == "shared-prefix"
        prompts.append([(a.request_id, a.prompt_token_ids) for s in range(recording.last_step + 1)
                        for a in recording.events(s).arrived])
    assert len(prompts[0]) == 6
    assert prompts[0] == prompts[1]
