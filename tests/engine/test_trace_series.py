"""Figures and spans against a slow reference that looks at the whole run at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from engine.trace.events import Evicted, StepEvents
from engine.trace.metrics import ITL_WINDOW, MARK_KINDS, TTFT_WINDOW, MarkList, StepSeries, nearest_rank
from engine.trace.state import EngineState
from engine.trace.timeline import Timeline
from tests.engine.trace_runs import RandomRun

STEPS = 600


class Reference:
    """Everything recomputed from the list of all steps, as plainly as possible."""

    def __init__(self, steps: Sequence[StepEvents]) -> None:
        self.steps = steps
        self.prompt = {a.request_id: len(a.prompt_token_ids) for s in steps for a in s.arrived}
        arrival = {a.request_id: a.arrival_ns for s in steps for a in s.arrived}
        times: dict[str, list[tuple[int, int]]] = {}
        for s in steps:
            for sampled in s.sampled:
                times.setdefault(sampled.request_id, []).append((s.step, s.end_ns))
        self.ttft = sorted((t[0][0], t[0][1] - arrival[r]) for r, t in times.items())
        self.itl = sorted((b[0], b[1] - a[1]) for t in times.values() for a, b in pairwise(t))

    def shares(self, s: StepEvents) -> list[tuple[int, bool]]:
        return [(e.num_tokens, e.num_tokens > 1 or bool(e.admission) or not e.samples
                 or e.num_computed_tokens < self.prompt[e.request_id]) for e in s.scheduled]

    @staticmethod
    def percentile(values: list[int], p: int) -> float:
        """Nearest rank, in milliseconds."""
        return sorted(values)[max(0, math.ceil(len(values) * p / 100) - 1)] / 1e6 if values else math.nan


@pytest.fixture(scope="module")
def fed() -> tuple[StepSeries, Timeline, Reference, list[EngineState]]:
    run = RandomRun(29, knob_rate=0.01)
    state, series, timeline = EngineState(run.info), StepSeries(), Timeline()
    states = []

    def each(events: StepEvents) -> None:
        state.apply(events)
        series.append(events, state)
        timeline.append(events, state)
        states.append(state.copy())

    return series, timeline, Reference(run.steps(STEPS, each)), states


def test_columns(fed) -> None:
    series, _, reference, states = fed
    steps = reference.steps
    assert series.n == len(series) == STEPS
    expected = {
        "step": [s.step for s in steps], "start_ns": [s.start_ns for s in steps], "end_ns": [s.end_ns for s in steps],
        "prefill_tokens": [sum(n for n, p in reference.shares(s) if p) for s in steps],
        "decode_tokens": [sum(n for n, p in reference.shares(s) if not p) for s in steps],
        "budget": [state.knobs["max_num_batched_tokens"] for state in states],
        "running": [len(state.running) for state in states], "waiting": [len(state.waiting) for state in states],
        "used_blocks": [state.num_used_blocks for state in states],
        "usable_blocks": [state.num_blocks - 1 for state in states],
        "hit_tokens": [sum(e.hit_tokens for e in s.scheduled) for s in steps],
        "preemptions": [len(s.preempted) for s in steps],
        "evictions": [sum(len(e.blocks) for e in s.pool if isinstance(e, Evicted)) for s in steps],
        "finished": [len(s.finished) for s in steps], "output_tokens": [len(s.sampled) for s in steps],
    }
    for name, values in expected.items():
        assert getattr(series, name).tolist() == values, name
        assert sum(values) > 0, f"{name} was not exercised"


def test_segments(fed) -> None:
    series, _, reference, states = fed
    several = series.segments_between(0, STEPS)
    for index, (s, state) in enumerate(zip(reference.steps, states, strict=True)):
        colours, tokens, prefill = series.segments(index)
        assert colours.dtype == np.uint8
        assert tokens.dtype == np.int32
        assert list(zip(tokens.tolist(), prefill.tolist(), strict=True)) == reference.shares(s)
        assert colours.tolist() == [state.requests[e.request_id].colour for e in s.scheduled]
        here = slice(several[0][index], several[0][index + 1])
        assert several[1][here].tolist() == colours.tolist()
        assert several[2][here].tolist() == tokens.tolist()
        assert several[3][here].tolist() == prefill.tolist()
    part = series.segments_between(100, 110)
    assert len(part[0]) == 11
    assert part[2].tolist() == several[2][several[0][100]:several[0][110]].tolist()
    assert series.segments_between(5, 5)[0].tolist() == [0]
    with pytest.raises(IndexError):
        series.segments(STEPS)


def test_latencies(fed) -> None:
    series, _, reference, _ = fed
    assert series.ttft_step.tolist() == [s for s, _ in reference.ttft]
    assert series.itl_step.tolist() == [s for s, _ in reference.itl]
    for steps, values, expected in ((series.ttft_step, series.ttft_ns, reference.ttft),
                                    (series.itl_step, series.itl_ns, reference.itl)):
        got = sorted(zip(steps.tolist(), values.tolist(), strict=True))
        assert [v for _, v in got] == pytest.approx([v for _, v in expected], rel=1e-6)


def test_latency_of_a_window(fed) -> None:
    series, _, reference, _ = fed
    for until, window in ((STEPS - 1, 64), (300, 10), (40, 1000), (0, 1), (STEPS + 50, 20)):
        end = min(until, STEPS - 1)
        first = max(0, end - window + 1)
        ttft = [ns for step, ns in reference.ttft if first <= step <= end]
        itl = [ns for step, ns in reference.itl if first <= step <= end]
        steps = reference.steps
        seconds = (steps[end].end_ns - (steps[first - 1].end_ns if first else steps[0].start_ns)) / 1e9
        expected = (*(reference.percentile(ttft, p) for p in (50, 99)), *(reference.percentile(itl, p)
                    for p in (50, 99)), sum(len(s.sampled) for s in steps[first:end + 1]) / seconds,
                    (end + 1 - first) / seconds)
        assert tuple(series.latency(until, window)) == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert all(math.isnan(v) for v in series.latency(-1, 10))
    assert all(math.isnan(v) for v in StepSeries().latency(5, 10))


def check_curves(series: StepSeries, reference: Reference, first_known: int) -> None:
    curves = series.latency_curves()
    steps = reference.steps
    for row, at in enumerate(curves.step.tolist()):
        if at - max(ITL_WINDOW, TTFT_WINDOW) < first_known and first_known:
            continue
        itl = [ns for step, ns in reference.itl if at - ITL_WINDOW < step <= at]
        ttft = [ns for step, ns in reference.ttft if at - TTFT_WINDOW < step <= at]
        first = max(0, at - ITL_WINDOW + 1)
        began = steps[first - 1].end_ns if first else steps[0].start_ns
        rate = sum(len(s.sampled) for s in steps[first:at + 1]) / (steps[at].end_ns - began) * 1e9
        got = (curves.ttft_p50_ms[row], curves.itl_p50_ms[row], curves.itl_p99_ms[row], curves.tokens_per_s[row])
        expected = (reference.percentile(ttft, 50), reference.percentile(itl, 50), reference.percentile(itl, 99), rate)
        assert tuple(map(float, got)) == pytest.approx(expected, rel=1e-5, nan_ok=True), at


def test_rolling_curves(fed) -> None:
    series, _, reference, _ = fed
    check_curves(series, reference, 0)
    assert len(series.latency_curves(99).step) == 100
    assert len(series.latency_curves(-1).step) == 0


def test_marks(fed) -> None:
    series, _, reference, _ = fed
    expected = []
    for s in reference.steps:
        evicted = sum(len(e.blocks) for e in s.pool if isinstance(e, Evicted))
        here = [(s.step, "knob", c.name) for c in s.knobs]
        here += [(s.step, "refused", r.request_id) for r in s.refused]
        here += [(s.step, "preemption", p.request_id) for p in s.preempted]
        here += [(s.step, "hit", e.request_id) for e in s.scheduled if e.hit_tokens]
        here += [(s.step, "chunk", e.request_id) for e in s.scheduled if not e.samples]
        here += [(s.step, "eviction", str(evicted))] if evicted else []
        here += [(s.step, "finish", f.request_id) for f in (*s.aborted, *s.finished)]
        expected += here
    marks = [(m.step, m.kind, m.label.split()[0]) for m in series.marks]
    assert sorted(marks) == sorted(expected)
    assert {m.kind for m in series.marks} == set(MARK_KINDS)
    assert [m.step for m in series.marks] == sorted(m.step for m in series.marks)
    knob = next(m for m in series.marks if m.kind == "knob")
    change = reference.steps[knob.step].knobs[0]
    assert knob.label.startswith(f"{change.name} ")
    assert " → " in knob.label

    preempted = [m.step for m in series.marks if m.kind == "preemption"]
    found, at = [], -1
    while (mark := series.marks.next_after(at, "preemption")) is not None:
        found.append(at := mark.step)
    assert found == sorted(set(preempted))
    last = series.marks.previous_before(STEPS, "preemption")
    assert last is not None
    assert last.step == preempted[-1]
    assert series.marks.next_after(STEPS) is None
    assert series.marks.previous_before(0) is None
    assert series.marks.between(10, 20) == [m for m in series.marks if 10 <= m.step <= 20]
    assert series.marks[-1] == series.marks[len(series.marks) - 1]
    assert series.marks[2:5] == list(series.marks)[2:5]


def test_index_of(fed) -> None:
    series = fed[0]
    assert [series.index_of(s) for s in (-1, 0, 1, 599, 600, 10**9)] == [-1, 0, 1, 599, 599, 599]
    assert StepSeries().index_of(0) == -1


@pytest.mark.parametrize("percentages", [(50,), (50, 99), (1, 100)])
def test_nearest_rank(percentages: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 99, 100, 101, 1000):
        values = rng.random(count)
        expected = np.percentile(values, percentages, method="inverted_cdf")
        assert nearest_rank(values, *percentages) == pytest.approx(expected.tolist())
    assert math.isnan(nearest_rank(np.empty(0), 50)[0])


def test_old_steps_can_be_forgotten_without_changing_later_ones() -> None:
    run = RandomRun(29, knob_rate=0.01)
    state, whole, bounded = EngineState(run.info), StepSeries(), StepSeries()

    def each(events: StepEvents) -> None:
        state.apply(events)
        whole.append(events, state)
        bounded.append(events, state)
        if events.step % 50 == 49:
            bounded.forget_before(events.step - 99)

    run.steps(STEPS, each)
    assert bounded.step.tolist() == list(range(500, 600))
    for name in ("end_ns", "decode_tokens", "output_tokens", "tokens_per_s", "itl_p50_ms", "itl_p99_ms"):
        assert getattr(bounded, name).tolist() == getattr(whole, name)[500:].tolist(), name
    for index in range(100):
        for ours, theirs in zip(bounded.segments(index), whole.segments(500 + index), strict=True):
            assert ours.tolist() == theirs.tolist()
    assert bounded.itl_step.tolist() == [s for s in whole.itl_step.tolist() if s >= 500]
    assert bounded.itl_ns.tolist() == whole.itl_ns[len(whole.itl_ns) - len(bounded.itl_ns):].tolist()
    assert list(bounded.marks) == [m for m in whole.marks if m.step >= 500]
    assert bounded.latency(599, 50) == whole.latency(599, 50)
    assert bounded.index_of(550) == 50
    assert bounded.index_of(499) == -1
    assert sum(a.nbytes for a in bounded._steps.columns.values()) < 100_000


def test_a_series_may_begin_in_the_middle() -> None:
    run = RandomRun(5)
    state = EngineState(run.info)
    for events in run.steps(200):
        state.apply(events)
    series, timeline = StepSeries(), Timeline()
    series.prime(state)
    timeline.prime(state)
    assert len(timeline.rows) == len(state.active()) > 0

    def each(events: StepEvents) -> None:
        state.apply(events)
        series.append(events, state)
        timeline.append(events, state)

    run.steps(100, each)
    assert series.step.tolist() == list(range(200, 300))
    assert len(series.itl_ns) > 0
    assert float(series.itl_ns.min()) > 0


def test_few_bytes_a_step() -> None:
    """A million steps of 16 requests have to fit in 300 MB, with the arrays' room to grow."""
    run = RandomRun(1, {"num_blocks": 512}, keep_running=16, arrival_rate=0, output_tokens=(40, 80))
    state, series = EngineState(run.info), StepSeries()

    def each(events: StepEvents) -> None:
        state.apply(events)
        series.append(events, state)

    run.steps(1000, each)
    assert series.segments_between(0, 1000)[1].size > 12_000
    tables = (series._steps, series._segments.hot, series._itl.hot, series._ttft, series.marks._table)
    used = sum(len(t) * sum(c.itemsize for c in t.columns.values()) for t in tables)
    assert used < 270 * 1000


def test_mark_lists_are_sequences() -> None:
    marks = MarkList()
    assert not marks
    marks.add(3, "hit", "r1")
    assert marks[0] == (3, "hit", "r1")
    with pytest.raises(IndexError):
        marks[1]


# ---- timeline ----------------------------------------------------------------------------------------------------

def test_rows_tell_each_request(fed) -> None:
    _, timeline, reference, states = fed
    arrivals = [a for s in reference.steps for a in s.arrived]
    assert [r.request_id for r in timeline.rows] == [a.request_id for a in arrivals]
    assert [r.arrival_ns for r in timeline.rows] == [a.arrival_ns for a in arrivals]
    gone = {f.request_id: s.end_ns for s in reference.steps for f in (*s.finished, *s.aborted)}
    assert {r.request_id: r.finished_ns for r in timeline.rows if r.finished_ns >= 0} == gone
    last = states[-1]
    for row in timeline.rows:
        assert timeline.row(row.request_id) is row
        if row.request_id in last.requests:
            assert row.colour == last.requests[row.request_id].colour
    assert timeline.end_ns == reference.steps[-1].end_ns


def test_spans_tell_what_happened(fed) -> None:
    _, timeline, reference, _ = fed
    kinds = {span.kind for row in timeline.rows for span in row.spans}
    assert kinds == {"waiting", "prefill", "decode", "preempted"}
    for row in timeline.rows:
        previous_end = row.arrival_ns
        assert row.spans[0].kind == "waiting"
        for span in row.spans:
            assert previous_end <= span.start_ns <= span.end_ns
            assert span.first_step <= span.last_step
            previous_end = span.end_ns
        decoded = [s.step for s in reference.steps for e, (_, prefill) in zip(s.scheduled, reference.shares(s),
                   strict=True) if e.request_id == row.request_id and not prefill]
        prefilled = [s.step for s in reference.steps for e, (_, prefill) in zip(s.scheduled, reference.shares(s),
                     strict=True) if e.request_id == row.request_id and prefill]
        assert [s.first_step for s in row.spans if s.kind == "prefill"] == prefilled
        covered = [step for s in row.spans if s.kind == "decode" for step in range(s.first_step, s.last_step + 1)
                   if reference.steps[step].scheduled]
        assert covered == decoded
        assert sum(s.kind == "preempted" for s in row.spans) == sum(
            p.request_id == row.request_id for s in reference.steps for p in s.preempted)


def test_a_span_that_is_not_over_ends_now(fed) -> None:
    _, timeline, reference, states = fed
    waiting = states[-1].waiting
    assert waiting
    for request_id in waiting:
        row = timeline.row(request_id)
        assert row is not None
        assert row.spans[-1].kind in ("waiting", "preempted")
        assert row.spans[-1].end_ns == reference.steps[-1].end_ns


def test_old_rows_are_forgotten() -> None:
    run = RandomRun(2, {"num_blocks": 500}, arrival_rate=0.8, output_tokens=(1, 4), prompt_tokens=(1, 8))
    state, timeline = EngineState(run.info), Timeline(max_rows=80)

    def each(events: StepEvents) -> None:
        state.apply(events)
        timeline.append(events, state)
        assert len(timeline.rows) <= 91

    run.steps(400, each)
    assert timeline.forgotten > 100
    assert timeline.forgotten + len(timeline.rows) == state.counters.arrived
    assert len(timeline._by_id) == len(timeline.rows)
    assert all(timeline.row(r.request_id) is not None for r in state.active())
