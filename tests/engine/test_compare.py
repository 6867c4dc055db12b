"""What two runs differ in, and which steps belong together."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.align import Alignment, by_request, by_step, by_time, progress_of
from engine.compare import METRICS, Change, Comparison, run_metrics
from engine.recorded_workload import read_workload
from engine.rerun import rerun
from engine.trace.history import LiveHistory
from engine.trace.reader import open_recording
from engine.trace.source import RunSource
from engine.trace.summary import summarise
from tests.engine.recorded_runs import engine_run, make_model
from tests.engine.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[LiveHistory, RunSource]:
    """A run, and the same workload with a smaller budget and a larger pool."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = make_tokenizer(folder)
    first = engine_run(tokenizer, 4, requests=25)
    result = rerun(read_workload(first), {"max_num_batched_tokens": 24, "num_blocks": 120}, folder / "b.mcap",
                   make_model(tokenizer))
    return first, open_recording(result.path)


@pytest.fixture
def compared(runs: tuple[LiveHistory, RunSource]) -> Comparison:
    comparison = Comparison(*runs)
    assert comparison.update()
    return comparison


def test_the_figures_are_those_of_the_runs(runs: tuple[LiveHistory, RunSource], compared: Comparison) -> None:
    for index, run in enumerate(runs):
        summary, figures = summarise(run), run_metrics(run)
        assert figures["steps"] == summary["steps"]
        assert figures["preemptions"] == summary["preemptions"]
        assert figures["evictions"] == summary["evictions"]
        assert figures["hit_tokens"] == summary["prefix_hit_tokens"]
        requests = compared.figures[index].requests
        assert len(requests) == summary["requests"]
        assert sum(r.output_tokens for r in requests.values()) == summary["output_tokens"]
        ttft = sorted(r.ttft_ms for r in requests.values() if r.first_token_ns >= 0)
        assert figures["ttft_p99_ms"] == pytest.approx(ttft[-(len(ttft) // 100) - 1], rel=1e-5)
        assert 0 < figures["budget_use"] <= 100
        assert 0 < figures["kv_use"] <= figures["kv_use_max"] <= 100
    assert [c.metric for c in compared.changes()] == list(METRICS)
    assert {name: (a, b) for name, a, b in compared.knobs()} == {
        "max_num_batched_tokens": (64, 24), "num_blocks": (48, 120)}


def test_every_request_finds_itself_in_the_other_run(compared: Comparison) -> None:
    deltas = compared.deltas()
    assert len(deltas) == len(compared.figures[0].requests) > 20
    assert all(d.first.request_id == d.second.request_id for d in deltas)
    assert compared.alone() == (0, 0)
    one = next(d for d in deltas if not math.isnan(d.change("ttft_ms")))
    assert one.change("e2e_ms") == pytest.approx(one.second.e2e_ms - one.first.e2e_ms)
    text = json.dumps(compared.as_dict(), allow_nan=False)
    assert json.loads(text)["requests_in_both"] == len(deltas)


def test_requests_under_other_names_are_found_by_their_prompts(runs: tuple[LiveHistory, RunSource]) -> None:
    comparison = Comparison(*runs)
    comparison.update()
    other = comparison.figures[1].requests
    renamed = {f"x{i}": r for i, r in enumerate(other.values())}
    for name, request in renamed.items():
        request.request_id = name
    lost = renamed.pop("x0")
    comparison.figures[1].requests = renamed
    deltas = comparison.deltas()
    assert len(deltas) == len(other) - 1
    assert all(d.first.prompt_key == d.second.prompt_key for d in deltas)
    assert len({d.second.request_id for d in deltas}) == len(deltas)
    assert comparison.alone() == (1, 0)
    assert lost.request_id == "x0"


def test_a_growing_run_is_taken_in_bit_by_bit(runs: tuple[LiveHistory, RunSource], compared: Comparison) -> None:
    whole = runs[0]
    growing = LiveHistory(whole.info)
    comparison = Comparison(growing, runs[1])
    for step in range(whole.last_step + 1):
        growing.append(whole.events(step))
        if step % 7 == 0:
            comparison.update()
    assert not Comparison(whole, runs[1]).update(0.0)
    comparison.update()
    assert comparison.share == 1.0
    assert comparison.figures[0].requests == compared.figures[0].requests
    empty = Comparison(LiveHistory(whole.info), runs[1])
    assert empty.update()
    assert empty.deltas() == []
    assert empty.changes()[0].direction == "unknown"
    json.dumps(empty.as_dict(), allow_nan=False)


@pytest.mark.parametrize(("metric", "first", "second", "words"), [
    ("itl_p99_ms", 40.0, 30.0, "lower by 25%: better"),
    ("itl_p99_ms", 30.0, 31.0, "higher by 3.3%: worse"),
    ("ttft_p50_ms", 30.0, 30.1, "unchanged"),
    ("output_tokens_per_s", 100.0, 250.0, "higher by 150%: better"),
    ("preemptions", 0.0, 5.0, "higher by 5: worse"),
    ("preemptions", 9.0, 8.0, "lower by 1: better"),
    ("hit_tokens", 1000.0, 3000.0, "higher by 200%: better"),
    ("kv_use", 40.0, 55.5, "higher by 15.5 points"),
    ("seconds", 10.0, 9.0, "lower by 10%"),
    ("itl_p50_ms", float("nan"), 3.0, "not measured in both"),
])
def test_a_change_in_words(metric: str, first: float, second: float, words: str) -> None:
    assert Change(metric, METRICS[metric][0], first, second).words() == words


def check_alignment(alignment: Alignment, runs: tuple[RunSource, RunSource]) -> None:
    for steps, run in ((alignment.first, runs[0]), (alignment.second, runs[1])):
        assert (np.diff(steps) >= 0).all()
        assert steps.min() >= run.first_step
        assert steps.max() <= run.last_step
    assert len(alignment.first) == len(alignment.second)


def test_by_step_and_by_time_every_step_has_its_place(runs: tuple[LiveHistory, RunSource]) -> None:
    for alignment in (by_step(*runs), by_time(*runs)):
        check_alignment(alignment, runs)
        for steps, run in ((alignment.first, runs[0]), (alignment.second, runs[1])):
            assert set(steps.tolist()) == set(range(run.last_step + 1))
    at = by_step(*runs)
    assert at.steps(17) == (17, 17)
    assert at.steps(10**9) == (runs[0].last_step, runs[1].last_step)
    timed = by_time(*runs)
    times = np.union1d(runs[0].series.end_ns, runs[1].series.end_ns)
    for position in range(0, len(timed), 11):
        now = times[position]
        for run, step in zip(runs, timed.steps(position), strict=True):
            later = run.series.end_ns[step + 1] if step < run.last_step else now + 1
            assert step == 0 or run.series.end_ns[step] <= now < later
    assert timed.steps(timed.position_of(40))[0] == 40


def test_by_a_request_it_has_come_equally_far(runs: tuple[LiveHistory, RunSource], compared: Comparison) -> None:
    for delta in compared.deltas():
        alignment = by_request(*runs, delta.first, delta.second)
        check_alignment(alignment, runs)
        (steps_a, done_a), (steps_b, done_b) = progress_of(runs[0], delta.first), progress_of(runs[1], delta.second)
        assert (np.diff(done_a) > 0).all()
        assert done_a[-1] == done_b[-1]  # the same text, however it was computed
        assert alignment.steps(0) == (delta.first.arrival_step, delta.second.arrival_step)
        assert alignment.steps(len(alignment)) == (steps_a[-1], steps_b[-1])
        decodes = set(done_a.tolist()) & set(done_b.tolist())
        for value in list(decodes)[:10]:
            at = int(np.searchsorted(np.union1d(done_a, done_b), value))
            assert alignment.steps(at) == (steps_a[done_a.searchsorted(value)], steps_b[done_b.searchsorted(value)])


@settings(max_examples=50, deadline=None)
@given(st.integers(-5, 400))
def test_positions_are_never_outside(position: int) -> None:
    alignment = Alignment(np.arange(30), np.arange(30) // 2)
    first, second = alignment.steps(position)
    assert 0 <= second <= first < 30
    assert 0 <= alignment.position_of(position) < 30
    assert Alignment(np.empty(0), np.empty(0)).steps(position) == (-1, -1)


def test_a_run_with_itself_differs_in_nothing(runs: tuple[LiveHistory, RunSource], tmp_path: Path) -> None:
    comparison = Comparison(runs[0], runs[0])
    comparison.update()
    assert all(c.direction == "same" for c in comparison.changes())
    assert not comparison.knobs()
    assert comparison.divergence() is None
    assert Comparison(*runs).divergence() is not None
    assert all(d.change("e2e_ms") == 0 for d in comparison.deltas() if d.first.finished_ns >= 0)
