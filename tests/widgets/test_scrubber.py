"""The scrubber zoomed in: what is in sight, what moves it, and that loop and notes stand where they belong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QImage, QWheelEvent
from pytestqt.qtbot import QtBot

from engine.trace.metrics import StepSeries
from tests.widgets.scheduler_run import busy_run
from widgets.mark_bins import MARK_HEIGHT, draw_marks
from widgets.scrubber import HANDLE, Scrubber
from widgets.theme import theme
from widgets.visible_steps import FEWEST_STEPS

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def scrubber(qtbot: QtBot) -> Scrubber:
    result = Scrubber()
    qtbot.addWidget(result)
    result.resize(414, 36)
    result.set_run(0, 999, 500, None)
    result.show()
    return result


def turn(scrubber: Scrubber, notches: float, x: float, sideways: float = 0) -> None:
    at = QPointF(x, 20)
    scrubber.wheelEvent(QWheelEvent(at, scrubber.mapToGlobal(at), QPoint(), QPoint(round(sideways * 120),
                                                                                   round(notches * 120)),
                                    Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
                                    Qt.ScrollPhase.NoScrollPhase, False))


def test_the_wheel_zooms_to_the_pointer_and_back(scrubber: Scrubber) -> None:
    for x in (HANDLE, 100, 207, 400):
        scrubber.show_everything()
        before = scrubber.step_at(x)
        for _ in range(6):
            turn(scrubber, 1, x)
            assert abs(scrubber.step_at(x) - before) <= 1
        assert scrubber.zoomed
        low, high = scrubber.visible
        assert high - low < 250
        for _ in range(8):
            turn(scrubber, -1, x)
        assert not scrubber.zoomed
    for _ in range(60):
        turn(scrubber, 1, 200)
    low, high = scrubber.visible
    assert high - low == FEWEST_STEPS


@settings(max_examples=50, deadline=None)
@given(moves=st.lists(st.tuples(st.floats(-6, 6), st.floats(0, 414), st.floats(-5, 5)), max_size=12),
       grown=st.integers(0, 500))
def test_what_is_in_sight_is_always_a_part_of_the_run(moves: list[tuple[float, float, float]], grown: int) -> None:
    scrubber = SCRUBBER()
    for notches, x, sideways in moves:
        turn(scrubber, notches, x)
        turn(scrubber, 0, x, sideways)
        low, high = scrubber.visible
        assert 0 <= low < high <= scrubber._last
        steps = [scrubber.step_at(x) for x in range(0, 415, 9)]
        assert steps == sorted(steps)
        for step in steps:
            assert abs(scrubber.step_at(scrubber.x_of(step)) - step) <= 1
    before = scrubber.visible
    if scrubber.zoomed:
        scrubber.set_run(0, 999 + grown, 500, None)  # the run goes on; the view does not move
        assert scrubber.visible == pytest.approx(before)


def SCRUBBER() -> Scrubber:
    result = Scrubber()
    result.resize(414, 36)
    result.set_run(0, 999, 500, None)
    return result


def test_a_drag_pans_when_zoomed_and_a_click_still_seeks(scrubber: Scrubber, qtbot: QtBot) -> None:
    scrubber.zoom(10, scrubber.x_of(500))
    asked: list[int] = []
    pans: list[bool] = []
    scrubber.seek.connect(asked.append)
    scrubber.steps.panned.connect(lambda: pans.append(True))
    low, _ = scrubber.visible
    qtbot.mousePress(scrubber, LEFT, pos=QPoint(100, 20))
    for x in range(101, 160):
        qtbot.mouseMove(scrubber, QPoint(x, 20))
    qtbot.mouseRelease(scrubber, LEFT, pos=QPoint(159, 20))
    qtbot.wait(10)
    assert scrubber.visible[0] == pytest.approx(low - 59 * 99.9 / 400, abs=0.5)
    assert asked == []
    assert pans
    pans.clear()
    expected = scrubber.step_at(60)
    qtbot.mouseClick(scrubber, LEFT, pos=QPoint(60, 20))
    qtbot.waitUntil(lambda: asked == [expected])
    assert pans == []


def test_the_handle_is_dragged_when_zoomed_too(scrubber: Scrubber, qtbot: QtBot) -> None:
    scrubber.zoom(10, scrubber.x_of(500))
    before = scrubber.visible
    x = round(scrubber.x_of(500))
    qtbot.mousePress(scrubber, LEFT, pos=QPoint(x, 20))
    qtbot.mouseMove(scrubber, QPoint(x + 40, 20))
    qtbot.mouseRelease(scrubber, LEFT, pos=QPoint(x + 40, 20))
    assert scrubber.visible == before
    assert scrubber.step == scrubber.step_at(x + 40) == 510


def test_a_double_click_shows_everything(scrubber: Scrubber, qtbot: QtBot) -> None:
    scrubber.zoom(10, 200)
    qtbot.mouseDClick(scrubber, LEFT, pos=QPoint(50, 20))
    assert not scrubber.zoomed


def test_the_step_takes_the_sight_along_but_new_steps_do_not(scrubber: Scrubber) -> None:
    scrubber.zoom(10, scrubber.x_of(500))
    before = scrubber.visible
    scrubber.set_run(0, 1500, 500, None)
    assert scrubber.visible == before
    scrubber.set_run(0, 1500, 560, None, playing=True)  # it played out of sight
    assert scrubber.visible[0] < 560 <= scrubber.visible[1]
    scrubber.steps.hold(100, 200, 0, 1500)  # the user looks elsewhere while it plays on
    scrubber.set_run(0, 1500, 561, None, playing=True)
    assert scrubber.visible == (100, 200)
    scrubber.set_run(0, 1500, 900, None)  # a jump is followed
    assert scrubber.visible[0] < 900 < scrubber.visible[1]
    scrubber.set_run(0, 1500, 0, None)
    assert scrubber.visible[0] == 0


def test_another_run_is_shown_whole(scrubber: Scrubber) -> None:
    scrubber.zoom(10, 200)
    scrubber.set_run(0, 5000, 0, StepSeries())
    assert not scrubber.zoomed


def test_marks_stand_at_their_steps_at_any_zoom() -> None:
    series = StepSeries()
    steps = np.sort(np.random.default_rng(1).integers(0, 1_000_000, 3000))
    for step in steps:
        series.marks.add(int(step), "finish", "r1")
    for low, high in ((0, 999_999), (400_000, 420_000), (777_000.5, 777_400.25), (999_950, 999_999)):
        image = draw_marks(series, low, high, 400, 1.0)
        drawn = {x for x in range(400) if image.pixelColor(x, MARK_HEIGHT - 1).alpha() > 0}
        inside = steps[(steps >= low) & (steps <= high)]
        expected = set(((inside - low) * 399 / (high - low)).astype(int).tolist())
        assert len(drawn ^ expected) <= 2  # rounding at a pixel's edge
        assert bool(drawn) == bool(len(inside))


def picture(scrubber: Scrubber) -> QImage:
    return scrubber.grab().toImage()


def test_notes_and_the_loop_are_drawn_where_they_are(scrubber: Scrubber) -> None:
    scrubber.set_run(0, 999, 0, None)
    plain = picture(scrubber)
    scrubber.set_run(0, 999, 0, None, notes=(500,))
    noted = picture(scrubber)
    changed = {x for x in range(414) for y in range(36) if plain.pixel(x, y) != noted.pixel(x, y)}
    assert abs(min(changed) - scrubber.x_of(500)) <= 4
    assert max(changed) - scrubber.x_of(500) <= 10
    scrubber.set_run(0, 999, 0, None, loop=(200, 700))
    looped = picture(scrubber)
    changed = {x for x in range(414) for y in range(36) if plain.pixel(x, y) != looped.pixel(x, y)}
    assert min(changed) == pytest.approx(scrubber.x_of(200), abs=2)
    assert max(changed) == pytest.approx(scrubber.x_of(700), abs=2)
    scrubber.zoom(20, scrubber.x_of(900))  # out of sight: nothing of it
    without = picture(scrubber)
    scrubber.set_run(0, 999, 0, None)
    assert picture(scrubber) == without
    assert theme().accent  # it was drawn in a theme


def test_the_pointer_tells_marks_and_notes(scrubber: Scrubber) -> None:
    run = busy_run()
    scrubber.set_run(0, run.last_step, 0, run.series)
    scrubber.describe_notes = lambda first, last: [f"notes {first}-{last}"]
    x = 200
    first, last = scrubber.step_at(x - 2), scrubber.step_at(x + 2)
    hits = sum(1 for m in run.series.marks.between(first, last) if m.kind == "hit")
    lines = scrubber.describe_near(x)
    assert lines[-1] == f"notes {first}-{last}"
    assert (f"prefix hits: {hits}" in lines) == (hits > 0)


@pytest.mark.parametrize("width", [96, 300, 2200])
@pytest.mark.parametrize("zoom", [1, 5, 60])
def test_notes_have_flags_at_any_width_and_zoom(scrubber: Scrubber, width: int, zoom: float) -> None:
    scrubber.resize(width, 36)
    scrubber.set_run(0, 999, 500, None)
    if zoom > 1:
        scrubber.zoom(zoom, scrubber.x_of(518))
    low, high = scrubber.visible
    seen = [step for step in range(0, 1000, 37) if low <= step <= high]
    assert seen
    without = picture(scrubber)
    scrubber.set_run(0, 999, 500, None, notes=tuple(range(0, 1000, 37)))
    noted = picture(scrubber)
    changed = {x for x in range(width) for y in range(14) if without.pixel(x, y) != noted.pixel(x, y)}
    for step in seen:
        assert any(abs(x - scrubber.x_of(step)) <= 4 for x in changed), step
    assert all(any(-4 <= x - scrubber.x_of(step) <= 10 for step in seen) for x in changed)
