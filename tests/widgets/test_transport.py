"""The transport bar and its scrubber: what they ask for, what they show, and how little they do for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from engine.trace.metrics import StepSeries
from tests.widgets.scheduler_run import busy_run
from widgets.mark_bins import MARK_HEIGHT, SHAPES, draw_marks
from widgets.scrubber import HANDLE, Scrubber
from widgets.theme import themes
from widgets.transport import CONDITIONS, EDIT_GAUGE, SPEEDS, TransportBar, TransportStatus

LIVE = TransportStatus("live", "SmolLM2-135M-Instruct", "shared-prefix", playing=True, following=True, step=399,
                       first_step=0, last_step=399)


@pytest.fixture
def scrubber(qtbot: QtBot) -> Scrubber:
    result = Scrubber()
    qtbot.addWidget(result)
    result.resize(214, 36)
    result.show()
    return result


@pytest.fixture
def bar(qtbot: QtBot) -> TransportBar:
    result = TransportBar()
    qtbot.addWidget(result)
    result.resize(1424, 48)
    result.show()
    return result


def test_no_step_one_step_a_million_steps(scrubber: Scrubber, qtbot: QtBot) -> None:
    for first, last, left, right in ((0, -1, -1, -1), (0, 0, 0, 0), (0, 999_999, 0, 999_999), (500, 600, 500, 600)):
        scrubber.set_run(first, last, last, None)
        scrubber.repaint()
        assert scrubber.step_at(-50) == left
        assert scrubber.step_at(10_000) == right
    scrubber.set_run(0, -1, -1, None)
    with qtbot.assertNotEmitted(scrubber.seek, wait=20):
        qtbot.mouseClick(scrubber, Qt.MouseButton.LeftButton, pos=QPoint(50, 20))


def test_a_step_stands_where_a_click_finds_it(scrubber: Scrubber) -> None:
    scrubber.set_run(100, 300, 100, None)
    for step in range(100, 301, 7):
        assert scrubber.step_at(scrubber.x_of(step)) == step


def test_a_drag_seeks_once_per_turn_with_the_latest_step(scrubber: Scrubber, qtbot: QtBot) -> None:
    scrubber.set_run(0, 200, 200, None)
    asked: list[int] = []
    scrubber.seek.connect(asked.append)
    qtbot.mousePress(scrubber, Qt.MouseButton.LeftButton, pos=QPoint(HANDLE + 10, 20))
    for x in range(20, 100):
        qtbot.mouseMove(scrubber, QPoint(x, 20))
    at_most = len(asked)
    scrubber.set_run(0, 201, 201, None)  # the run goes on meanwhile: the handle stays under the pointer
    assert scrubber.step == scrubber.step_at(99)
    qtbot.mouseRelease(scrubber, Qt.MouseButton.LeftButton, pos=QPoint(99, 20))
    qtbot.waitUntil(lambda: bool(asked))
    qtbot.wait(20)
    assert len(asked) <= at_most + 1 or len(asked) < 80
    assert asked[-1] == scrubber.step_at(99)


def test_several_clicks_in_one_turn_are_one_seek(scrubber: Scrubber, qtbot: QtBot) -> None:
    scrubber.set_run(0, 200, 200, None)
    asked: list[int] = []
    scrubber.seek.connect(asked.append)
    for x in (30, 60, 90):
        scrubber._dragging = True
        scrubber._ask(x)
    scrubber._dragging = False
    assert asked == []
    qtbot.waitUntil(lambda: bool(asked))
    assert asked == [scrubber.step_at(90)]


def test_hovering_tells_step_and_time(scrubber: Scrubber) -> None:
    run = busy_run()
    scrubber.set_run(0, run.last_step, 0, run.series)
    assert scrubber.describe(0) == f"step 0 · {run.series.end_ns[0] / 1e9:.2f} s"
    scrubber.set_run(0, 5, 0, None)
    assert scrubber.describe(3) == "step 3"


def test_marks_are_binned_once_and_again_only_when_they_change(scrubber: Scrubber) -> None:
    run = busy_run()
    scrubber.set_run(0, run.last_step, 10, run.series)
    scrubber.repaint()
    for step in range(20, 60):
        scrubber.set_run(0, run.last_step, step, run.series)
        scrubber.repaint()
    assert scrubber.rebins == 1
    scrubber.resize(300, 36)
    scrubber.repaint()
    assert scrubber.rebins == 2


def test_kinds_differ_in_shape_too() -> None:
    def rows(kind: str) -> tuple[frozenset[int], int]:
        bands, width = SHAPES[kind]
        return frozenset(r for top, bottom in bands for r in range(top, bottom)), width

    assert len({rows(kind) for kind in SHAPES}) == len(SHAPES)


def test_a_mark_is_at_its_place_however_many_there_are() -> None:
    series = StepSeries()
    rng = np.random.default_rng(0)
    for step in np.sort(rng.integers(0, 500_000, 20_000)):
        series.marks.add(int(step), "hit", "r1")
    series.marks.add(999_999, "knob", "policy fcfs → priority")
    image = draw_marks(series, 0, 999_999, 200, 1.0)
    assert (image.width(), image.height()) == (200, MARK_HEIGHT)
    bottom = [image.pixelColor(x, MARK_HEIGHT - 1).alpha() > 0 for x in range(200)]
    assert all(bottom[:100])
    assert not any(bottom[100:199])
    assert bottom[199]


def test_buttons_emit(bar: TransportBar, qtbot: QtBot) -> None:
    bar.set_status(LIVE)
    for button, signal in ((bar.play, bar.play_toggled), (bar.first, bar.go_first), (bar.last, bar.follow),
                           (bar.record, bar.record_toggled)):
        with qtbot.waitSignal(signal):
            qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    for button, signal in ((bar.back, bar.step_back), (bar.forward, bar.step_forward)):
        with qtbot.waitSignal(signal) as blocker:
            qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
        assert blocker.args == [1]


def test_menus_emit(bar: TransportBar, qtbot: QtBot) -> None:
    bar.set_status(LIVE)
    assert [o[0] for o in bar.until.options if o] == [*CONDITIONS, EDIT_GAUGE]
    with qtbot.waitSignal(bar.run_until_changed) as blocker:
        bar.until.build_menu().actions()[CONDITIONS.index("eviction")].trigger()
    assert blocker.args == ["eviction"]
    with qtbot.waitSignal(bar.speed_changed) as blocker:
        bar.speed.build_menu().actions()[0].trigger()
    assert blocker.args == [SPEEDS[0]]
    with qtbot.waitSignal(bar.step_rate_changed) as blocker:
        bar.speed.build_menu().actions()[-1].trigger()
    assert blocker.args == [30.0]


def test_detached_says_how_far_behind_and_leads_back(bar: TransportBar, qtbot: QtBot) -> None:
    bar.set_status(LIVE)
    assert bar.behind.isHidden()
    bar.set_status(replace(LIVE, source="paused", playing=False, following=False, step=118))
    assert bar.behind.texts[1] == "281 steps behind"
    with qtbot.waitSignal(bar.follow):
        qtbot.mouseClick(bar.behind, Qt.MouseButton.LeftButton)
    bar.set_status(replace(LIVE, source="paused", playing=False, following=False, step=398))
    assert bar.behind.texts[1] == "1 step behind"
    bar.set_status(replace(LIVE, source="replay", following=False, step=118))
    assert bar.behind.isHidden()  # a replay is behind by nature


def test_it_names_the_keys(bar: TransportBar) -> None:
    for button, key in ((bar.first, "Home"), (bar.back, "Left"), (bar.play, "Space"), (bar.forward, "Right"),
                        (bar.last, "End")):
        assert key in button.toolTip()
    assert "Shift" in bar.back.toolTip()


def test_loading_failing_and_nothing(bar: TransportBar) -> None:
    bar.set_status(TransportStatus("loading", "SmolLM2", stage="converting weights", fraction=0.62))
    assert "converting weights" in bar.title.text
    assert "62%" in bar.title.text
    assert not bar.play.isEnabled()
    bar.set_status(TransportStatus("failed", "SmolLM2", message="out of memory"))
    assert "out of memory" in bar.title.text
    bar.set_status(TransportStatus())
    assert not bar.record.isEnabled()
    assert bar.chip.text() == "NO RUN"


def test_recording_state(bar: TransportBar) -> None:
    bar.set_status(replace(LIVE, recording="on", record_seconds=83, record_bytes=3_100_000, record_path="run.mcap",
                           record_dropped=3))
    assert bar.record_text.text == "1:23 3.1 MB"
    assert bar.record.icon_name == "stop"
    assert "run.mcap" in bar.record.toolTip()
    assert "3" in bar.record.toolTip()
    bar.set_status(replace(LIVE, recording="ending", record_bytes=3_100_000, record_path="run.mcap"))
    assert bar.record_text.text == "writing 3.1 MB"
    assert bar.record.icon_name == "record"
    assert not bar.record.isEnabled()
    assert "run.mcap" in bar.record.toolTip()
    bar.set_status(replace(LIVE, recording="failed", record_error="disk full"))
    assert bar.record.isEnabled()
    assert "disk full" in bar.record.toolTip()
    assert bar.record_text.text == "not recording"
    bar.set_status(replace(LIVE, recording="unavailable"))
    assert bar.record.isHidden()


@pytest.mark.parametrize("width", [1424, 1000, 840, 700, 640])
def test_nothing_overlaps_at_any_width(bar: TransportBar, width: int, qtbot: QtBot) -> None:
    bar.set_status(replace(LIVE, source="paused", playing=False, following=False, step=118, last_step=123_456,
                           recording="on", record_bytes=10**7))
    bar.resize(width, 48)
    qtbot.wait(10)
    children = sorted((w for w in bar.findChildren(QWidget) if w.isVisible() and w.width()), key=lambda w: w.x())
    for left, right in pairwise(children):
        assert left.geometry().right() < right.geometry().left() + 1, (width, left, right)
    assert children[-1].geometry().right() <= width
    assert bar.scrubber.width() >= 96


@pytest.mark.parametrize("name", ["dark", "light"])
def test_it_paints_in_both_themes(bar: TransportBar, name: str) -> None:
    run = busy_run()
    before = themes.current.name
    try:
        themes.set(name)
        bar.set_status(replace(LIVE, series=run.series))
        image = bar.grab().toImage()
        assert image.pixelColor(200, 4).name() == themes.current.panel
    finally:
        themes.set(before)
