"""What playing can run until, against a search step by step."""

from __future__ import annotations

import math

import pytest

from engine.trace.conditions import (
    CONDITIONS,
    EVENT_KINDS,
    GAUGES,
    Gauge,
    event_after,
    event_before,
    gauge_values,
    next_match,
    parse_gauge,
)
from engine.trace.history import LiveHistory
from tests.engine.trace_runs import RandomRun

STEPS = 500


@pytest.fixture(scope="module")
def run() -> LiveHistory:
    made = RandomRun(11, arrival_rate=0.2, knob_rate=0.01, abort_rate=0.0)
    history = LiveHistory(made.info)
    for events in made.steps(STEPS):
        history.append(events)
    return history


@pytest.mark.parametrize("name", list(GAUGES))
@pytest.mark.parametrize("above", [True, False])
def test_a_gauge_is_met_in_every_step_in_which_it_crosses_the_value(run: LiveHistory, name: str, above: bool) -> None:
    values = gauge_values(run.series, name, 0, STEPS)
    measured = sorted(v for v in values if not math.isnan(v))
    threshold = measured[len(measured) // 2]
    met = [v > threshold if above else v < threshold for v in values]
    expected = [s for s in range(STEPS) if met[s] and not (s and met[s - 1])]
    assert expected
    condition = Gauge(name, above, threshold)
    found, at = [], -1
    while (step := next_match(run.series, Gauge(*condition).text, at, STEPS - 1)) is not None:
        found.append(step)
        at = step
    rounded = parse_gauge(condition.text)
    assert rounded is not None
    if rounded.value == threshold:
        assert found == expected
    for after in range(0, STEPS, 7):  # wherever the search begins and ends
        for upto in (after, after + 1, after + 13):
            first = next((s for s in found if after < s <= upto), None)
            assert next_match(run.series, condition.text, after, upto) == first


def test_gauges_are_what_the_state_says(run: LiveHistory) -> None:
    for step in range(0, STEPS, 41):
        state = run.state_at(step)
        assert gauge_values(run.series, "waiting", step, step + 1) == len(state.waiting)
        assert gauge_values(run.series, "running", step, step + 1) == len(state.running)
        used = 100 * state.num_used_blocks / (state.num_blocks - 1)
        assert gauge_values(run.series, "kv_use", step, step + 1) == pytest.approx(used)
        events = run.events(step)
        share = 100 * sum(s.num_tokens for s in events.scheduled) / int(state.knobs["max_num_batched_tokens"])
        assert gauge_values(run.series, "budget_use", step, step + 1) == pytest.approx(share)
        assert gauge_values(run.series, "step", step, step + 1) == (events.end_ns - events.start_ns) / 1e6


@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_kind_of_mark_is_met_where_it_is_marked(run: LiveHistory, kind: str) -> None:
    marked = {m.step for m in run.series.marks if m.kind == kind}
    assert marked
    for after in range(-1, STEPS, 3):
        first = min((s for s in marked if after < s <= after + 20), default=None)
        assert next_match(run.series, kind, after, after + 20) == first


def test_events_before_and_after(run: LiveHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.trace.conditions.SEARCH_AT_ONCE", 7)
    marked = {m.step for m in run.series.marks if m.kind in EVENT_KINDS}
    for step in range(-1, STEPS + 1):
        assert event_after(run.series.marks, step) == min((s for s in marked if s > step), default=None)
        assert event_before(run.series.marks, step) == max((s for s in marked if s < step), default=None)


@pytest.mark.parametrize("condition", ["", "sunset", "kv_use", "kv_use>", "kv_use>x", "kv_use>101", "waiting>-1",
                                       "waiting>nan", "waiting>inf", ">5", "hit>3"])
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(ValueError, match="condition"):
        parse_gauge(condition)


def test_a_condition_reads_as_it_was_written() -> None:
    assert parse_gauge("hit") is None
    for gauge in (Gauge("kv_use", True, 90), Gauge("itl_p99", False, 12.5)):
        assert parse_gauge(gauge.text) == gauge
    assert parse_gauge("waiting > 8") == Gauge("waiting", True, 8)
