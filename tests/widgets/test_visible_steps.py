"""The steps in sight: one stretch for all charts, never beyond the run, moved by the user and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from engine.trace.history import LiveHistory
from engine.trace.metrics import StepSeries
from tests.widgets.pointer import hover
from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.latency import LatencyPanel
from widgets.request_timeline import RequestTimeline
from widgets.scrubber import Scrubber
from widgets.token_budget import TokenBudget
from widgets.view import Selection
from widgets.visible_steps import FEWEST_STEPS, VisibleSteps, step_at_time, time_of

LAST = 500
moves = st.one_of(
    st.tuples(st.just("zoom"), st.floats(0.05, 20), st.floats(0, LAST)),
    st.tuples(st.just("pan"), st.floats(-700, 700), st.just(0.0)),
    st.tuples(st.just("step"), st.integers(0, LAST).map(float), st.just(0.0)),
    st.tuples(st.just("release"), st.just(0.0), st.just(0.0)))


@settings(max_examples=150, deadline=None)
@given(st.lists(moves, max_size=15), st.booleans())
def test_what_is_in_sight_is_a_part_of_the_run(done: list[tuple[str, float, float]], playing: bool) -> None:
    visible, step = VisibleSteps(), 250
    for kind, value, at in done:
        seen = visible.range_at(step, 0) or (100.0, 300.0)
        if kind == "zoom":
            visible.zoom(seen, value, min(max(at, seen[0]), seen[1]), following=False, first=0, last=LAST)
        elif kind == "pan":
            visible.pan(seen, value, 0, LAST)
        elif kind == "release":
            visible.release()
        else:
            visible.keep_in_sight(step, int(value), 0, LAST, playing=playing, following=False)
            takes_along = int(value) != step and (seen[0] <= step <= seen[1] or not playing)
            step = int(value)
            if visible.held and takes_along:
                low, high = visible.range_at(step, 0) or (0, 0)
                assert low - 1e-6 <= step <= high + 1e-6
        found = visible.range_at(step, 0)
        assert visible.held == (found is not None)
        if found is not None:
            assert -1e-6 <= found[0] < found[1] <= LAST + 1e-6
            assert found[1] - found[0] >= FEWEST_STEPS - 1e-6


@settings(max_examples=100, deadline=None)
@given(low=st.floats(0, 480), length=st.floats(FEWEST_STEPS, 400), share=st.floats(0, 1), factor=st.floats(0.5, 3))
def test_zooming_leaves_a_place_where_it_is(low: float, length: float, share: float, factor: float) -> None:
    visible = VisibleSteps()
    visible.hold(low, low + length, 0, 10_000)
    low, high = visible.range_at(0, 0) or (0, 0)
    at = low + share * (high - low)
    visible.zoom((low, high), factor, at, following=False, first=0, last=10_000)
    new_low, new_high = visible.range_at(0, 0) or (0, 0)
    if new_low > 0 and new_high < 10_000:
        assert (at - new_low) / (new_high - new_low) == pytest.approx(share, abs=1e-6)


def test_at_the_live_edge_zooming_goes_on_with_the_run_until_it_is_paused() -> None:
    visible = VisibleSteps()
    visible.zoom((0, 400), 4, 400, following=True, first=0, last=400)
    assert not visible.held
    assert visible.range_at(400, 0) == (300, 400)
    assert visible.range_at(420, 0) == (320, 420)
    visible.keep_in_sight(420, 420, 0, 450, playing=False, following=False)  # paused
    assert visible.range_at(420, 0) == (320, 420)
    assert not visible.held  # nobody moved it
    visible.keep_in_sight(420, 410, 0, 460, playing=False, following=False)
    assert visible.range_at(410, 0) == (320, 420)  # the cursor moves inside
    visible.keep_in_sight(410, 480, 0, 480, playing=True, following=True)
    assert visible.range_at(480, 0) == (380, 480)


def test_new_steps_never_move_what_the_user_holds() -> None:
    visible = VisibleSteps()
    visible.pan((100, 200), 50, 0, 400)
    for last in (401, 500, 5000):
        visible.keep_in_sight(300, 300, 0, last, playing=False, following=False)
        assert visible.range_at(300, 0) == (150, 250)
    visible.release()
    assert visible.range_at(300, 0) is None


def test_the_step_at_which_a_run_is_let_go_of_does_not_move_what_the_user_holds() -> None:
    visible = VisibleSteps()
    visible.keep_in_sight(92, 93, 0, 93, playing=True, following=True)
    visible.pan((59, 93), -4, 0, 93)  # the run is at step 105 by now, which no chart shows yet
    visible.keep_in_sight(93, 105, 0, 105, playing=False, following=False)
    assert visible.range_at(105, 0) == (55, 89)
    visible.keep_in_sight(105, 104, 0, 120, playing=False, following=False)  # whoever steps wants to see where
    low, high = visible.range_at(104, 0) or (0, 0)
    assert low <= 104 <= high


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 399))
def test_steps_and_times_are_inverse(step: float) -> None:
    series = busy_run().series
    assert step_at_time(series, time_of(series, step)) == pytest.approx(step, abs=1e-3)
    whole = int(step)
    assert time_of(series, whole) == series.end_ns[whole]


def test_times_outside_the_run_are_its_ends() -> None:
    series = busy_run().series
    assert time_of(series, -1) == series.start_ns[0]
    assert step_at_time(series, -5.0) == -1
    assert step_at_time(series, 1e30) == series.step[-1]


def test_all_charts_and_the_scrubber_show_the_same_steps(qtbot: QtBot) -> None:
    selection, view = Selection(), view_at(busy_run(), 200)
    budget, latency, timeline = TokenBudget(selection), LatencyPanel(selection), RequestTimeline(selection)
    scrubber = Scrubber()
    scrubber.share(selection.visible)
    scrubber.set_run(0, 399, 200, view.series)
    for widget in (budget, latency, timeline, scrubber):
        qtbot.addWidget(widget)
        widget.resize(600, 200)
        widget.show()
    for panel in (budget, latency, timeline):
        panel.show_view(view)
        panel.grab()
        assert panel.chip.isHidden()
    selection.visible.hold(120, 180, 0, 399)
    for panel in (budget, latency, timeline):
        panel.grab()
        assert panel.steps_in_sight() == pytest.approx((120, 180), abs=1e-3)
        assert panel.chip.isVisible()
    qtbot.waitUntil(lambda: latency._range == pytest.approx((120, 180)))
    assert scrubber.visible == (120, 180)
    assert (budget._first, budget._end) == (120, 181)
    series = view.series
    assert timeline._start == pytest.approx(float(series.end_ns[119]))
    assert timeline._end == pytest.approx(float(series.end_ns[180]))
    timeline.pan_by(0.5)
    budget.grab()
    assert budget._first > 120
    assert budget.steps_in_sight() == pytest.approx(scrubber.visible)
    scrubber.set_run(0, 399, 0, StepSeries())  # another run
    assert budget.chip.isHidden()
    assert not selection.visible.held


def test_of_a_run_that_is_all_in_sight_there_is_nothing_to_pan() -> None:
    visible = VisibleSteps()
    visible.pan((0, 40), 10, 0, 40)
    assert visible.range_at(40, 0) is None
    visible.pan((0, 39), 10, 0, 40)
    assert visible.held


def test_steps_that_were_given_up_are_not_in_sight() -> None:
    visible = VisibleSteps()
    visible.hold(10, 60, 0, 400)
    visible.keep_in_sight(300, 300, 40, 500, playing=False, following=False)
    assert visible.range_at(300, 40) == (40, 60)
    visible.keep_in_sight(300, 300, 200, 500, playing=False, following=False)
    low, high = visible.range_at(300, 200) or (0, 0)
    assert low == 200
    assert high - low >= FEWEST_STEPS


@pytest.mark.parametrize("steps", [30, 150, 380])
def test_new_steps_never_move_a_view_that_stands_still(qtbot: QtBot, steps: int) -> None:
    source = busy_run()
    run = LiveHistory(source.info)
    for step in range(steps):
        run.append(source.events(step))
    selection = Selection()
    budget, latency, timeline = TokenBudget(selection), LatencyPanel(selection), RequestTimeline(selection)
    for panel in (budget, latency, timeline):
        qtbot.addWidget(panel)
        panel.resize(600, 200)
        panel.show()

    def look(step: int, following: bool) -> tuple[object, ...]:
        view = replace(view_at(run, step), following=following)
        for panel in (budget, latency, timeline):
            panel.show_view(view)
            panel.show_now()
            panel.grab()
        return budget._first, budget._x(budget._first), latency._range, timeline._start, timeline._end

    moving = look(steps - 1, True)
    at_rest = look(steps - 1, False)
    assert at_rest == moving  # pausing never jumps
    for step in range(steps, len(source.series)):
        run.append(source.events(step))
        if step % 7 == 0:
            assert look(steps - 1, False) == at_rest
    first = budget._first
    for back in range(2, 12):  # the cursor walks, the bars do not
        look(steps - back, False)
        assert budget._first == first
        assert budget._first <= budget._current < budget._end
    look(390, False)
    assert budget._first <= budget._current < budget._end


@pytest.mark.parametrize("steps", [0, 3])
def test_a_drag_may_last_longer_than_the_run_that_it_began_in(qtbot: QtBot, steps: int) -> None:
    selection, view, other = Selection(), view_at(busy_run(), 300), view_at(make_run(steps))
    budget, latency, timeline = TokenBudget(selection), LatencyPanel(selection), RequestTimeline(selection)
    for panel in (budget, latency, timeline):
        qtbot.addWidget(panel)
        panel.resize(600, 200)
        panel.show()
        panel.show_view(view)
        panel.grab()
        target = panel.plot.viewport() if isinstance(panel, LatencyPanel) else panel
        for keep in (True, False):
            qtbot.mousePress(target, Qt.MouseButton.LeftButton, pos=QPoint(200, 90))
            if keep:
                hover(target, QPoint(240, 90))
            panel.show_view(other)  # pytest-qt fails the test if a handler raises
            hover(target, QPoint(300, 90))
            qtbot.mouseRelease(target, Qt.MouseButton.LeftButton, pos=QPoint(300 if keep else 200, 90))
            panel.zoom_by(1)
            panel.pan_by(0.1)
            panel.grab()
            selection.visible.release()
            panel.show_view(view)
            panel.grab()
