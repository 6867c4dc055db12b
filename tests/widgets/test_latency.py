"""The latency chart: seldom, never hidden, no spike lost, no NaN drawn, labels apart, and its colours the theme's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.chart_parts import Axis, EndLabels, downsample
from widgets.latency import AXIS_WIDTH, LatencyPanel
from widgets.theme import themes
from widgets.view import Selection


@pytest.fixture
def panel(qtbot: QtBot) -> LatencyPanel:
    result = LatencyPanel(Selection())
    qtbot.addWidget(result)
    result.resize(520, 260)
    result.show()
    qtbot.waitExposed(result)
    return result


def test_downsampling_keeps_the_extremes_and_the_gaps() -> None:
    x = np.arange(100_000, dtype=float)
    y = np.sin(x / 5000)
    y[77_777], y[33_333] = 50.0, -50.0
    y[:5000] = np.nan
    xs, ys = downsample(x, y, 300)
    assert len(xs) == len(ys) == 600
    assert np.nanmax(ys) == 50.0
    assert np.nanmin(ys) == -50.0
    assert np.isfinite(xs).all()
    assert (np.diff(xs) >= 0).all()
    assert np.isnan(ys[:20]).all()
    assert abs(xs[int(np.nanargmax(ys))] - 77_777) < 500
    few = downsample(x[:100], y[:100], 300)
    assert len(few[0]) == 100


def test_at_most_five_redraws_a_second(panel: LatencyPanel, qtbot: QtBot) -> None:
    run = busy_run()
    panel.show_view(view_at(run, 200))
    qtbot.wait(50)
    before = panel.redraws
    for step in range(201, 261):
        panel.show_view(view_at(run, step))
        qtbot.wait(5)
    qtbot.wait(250)
    assert 1 <= panel.redraws - before <= 1 + (60 * 5 + 250) / 200 + 60 * 0.2
    assert panel._drawn[2] == 260  # and the last one was drawn


def test_nothing_new_is_not_drawn_again(panel: LatencyPanel, qtbot: QtBot) -> None:
    view = view_at(busy_run(), 300)
    panel.show_view(view)
    qtbot.wait(300)
    before = panel.redraws
    for _ in range(3):
        panel.show_view(view)
        qtbot.wait(220)
    assert panel.redraws == before


def test_hidden_it_does_nothing_and_shown_it_catches_up(panel: LatencyPanel, qtbot: QtBot) -> None:
    panel.show_view(view_at(busy_run(), 100))
    qtbot.wait(250)
    panel.hide()
    before = panel.redraws
    panel.show_view(view_at(busy_run(), 300))
    qtbot.wait(250)
    assert panel.redraws == before
    panel.show()
    assert panel._drawn[2] == 300


def test_nan_and_an_empty_run(panel: LatencyPanel, qtbot: QtBot) -> None:
    panel.show_view(view_at(make_run(0)))
    qtbot.wait(220)
    panel.show_view(view_at(make_run(3)))  # no ITL has been measured yet
    for tab in ("latency", "throughput", "kv", "queue"):
        panel.tabs.choose(tab)
        panel.plot.repaint()
    assert all(np.isfinite(panel._box.viewRange()).ravel())


@pytest.mark.parametrize("tab", ["latency", "throughput", "kv", "queue"])
def test_curves_are_the_series_up_to_the_last_step(panel: LatencyPanel, tab: str, qtbot: QtBot) -> None:
    run = busy_run()
    panel.tabs.choose(tab)
    panel._log = False
    panel.show_view(view_at(run, 250))
    qtbot.wait(220)
    s = run.series
    expected = {"latency": s.ttft_p50_ms, "throughput": s.tokens_per_s,
                "kv": 100 * s.used_blocks / s.usable_blocks, "queue": s.running}[tab].astype(float)
    past, future = panel._curves[0].getData(), panel._future[0].getData()
    assert past[0][-1] == future[0][0] == 250
    x, y = np.concatenate((past[0], future[0])), np.concatenate((past[1], future[1]))
    shown = 10 ** y if panel._log else y
    at = {int(v): float(w) for v, w in zip(x, shown, strict=True)}
    for step in (50, 200, 399):
        assert at[step] == pytest.approx(float(expected[step]), rel=1e-3)
    assert panel._cursor.isVisible()
    assert panel._cursor.value() == 250
    assert panel._future[0].isVisible()


def test_following_shows_no_cursor(panel: LatencyPanel, qtbot: QtBot) -> None:
    panel.show_view(view_at(busy_run()))
    qtbot.wait(220)
    assert not panel._cursor.isVisible()
    assert not panel._future[0].isVisible()


def test_knob_changes_are_marked_with_what_changed(panel: LatencyPanel, qtbot: QtBot) -> None:
    panel.resize(700, 260)
    panel.show_view(view_at(busy_run()))
    qtbot.wait(220)
    lines = [(line.value(), label.toPlainText()) for line, label
             in zip(panel._knob_lines, panel._knob_labels, strict=True) if line.isVisible()]
    assert lines == [(200, "max_num_batched_tokens 512 → 256")]
    panel.resize(440, 260)  # there the name is shortened, the values are not
    qtbot.wait(220)
    text = panel._knob_labels[0].toPlainText()
    assert text.startswith("max_num_")
    assert text.endswith("… 512 → 256")
    panel.x_tabs.choose("time")
    assert panel._knob_lines[0].value() == pytest.approx(busy_run().series.start_ns[200] / 1e9)


def test_labels_keep_apart_and_off_the_edges() -> None:
    labels = EndLabels()
    colour = themes.current.request(0)
    labels.set_labels([(100, "a", "1", colour), (101, "b", "2", colour), (99, "c", "3", colour)], 20, 110)
    places = sorted(y for y, *_ in labels._labels)
    assert np.diff(places).min() >= 27
    assert places[-1] <= 110 - 13


@pytest.mark.parametrize("height", [140, 82, 71, 60, 30, 10])
def test_labels_stay_inside_however_little_room_there_is(height: int, qtbot: QtBot) -> None:
    labels = EndLabels()
    qtbot.addWidget(labels)
    colour = themes.current.request(0)
    labels.set_labels([(height, "TTFT p50", "1", colour), (height, "ITL p99", "2", colour),
                       (0, "ITL p50", "3", colour)], 0, height)
    placed = labels.placed
    assert placed
    assert placed[0][0] >= -0.5 or height < 14
    assert placed[-1][1] <= height + 0.5
    assert all(a[1] <= b[0] + 0.01 for a, b in pairwise(placed))
    assert all(bool(name) == (height >= 70) for _, _, name, _ in placed)
    assert len(placed) == 3 or height < 42


def test_without_a_step_there_is_no_chart_and_without_a_measurement_no_scale(panel: LatencyPanel,
                                                                             qtbot: QtBot) -> None:
    assert not panel.plot.isVisible()  # and not the axes of a chart of nothing
    empty = make_run(0)
    panel.show_view(view_at(empty))
    assert not panel.plot.isVisible()
    waiting = make_run(1, max_num_batched_tokens=64)  # the first prompt is not through
    qtbot.wait(220)
    panel.show_view(view_at(waiting))
    qtbot.waitUntil(panel.plot.isVisible)
    assert np.isnan(waiting.series.ttft_p50_ms).all()
    low, high = panel._box.viewRange()[1]
    assert panel._axis.tickValues(low, high, 200) == []
    panel.show_view(view_at(busy_run()))
    qtbot.wait(220)
    low, high = panel._box.viewRange()[1]
    assert panel._axis.tickValues(low, high, 200) != []


def test_a_chart_that_fails_says_so_and_recovers(panel: LatencyPanel, qtbot: QtBot,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(panel, "_curves_of", lambda *_: 1 / 0)
        panel.show_view(view_at(busy_run()))
        qtbot.waitUntil(lambda: bool(panel.failure))
    assert not panel.plot.isVisible()
    panel.recover()
    panel.show_view(view_at(busy_run()))
    qtbot.waitUntil(panel.plot.isVisible)


def test_a_picture_of_the_window_shows_the_newest_step(panel: LatencyPanel) -> None:
    for step in (300, 301):
        panel.show_view(view_at(busy_run(), step))
    assert panel._drawn[2] == 300  # the second one came too soon
    panel.show_now()
    assert panel._drawn[2] == 301


@pytest.mark.parametrize(("tab", "unit"), [("throughput", "tok/s"), ("kv", "%"), ("queue", "requests"),
                                           ("latency", "log")])
def test_every_chart_names_its_unit(panel: LatencyPanel, tab: str, unit: str, qtbot: QtBot) -> None:
    panel.tabs.choose(tab)
    panel.show_view(view_at(busy_run()))
    qtbot.wait(220)
    assert panel._unit.text() == unit


def test_the_axis_has_one_width_and_round_ticks(panel: LatencyPanel, qtbot: QtBot) -> None:
    widths = set()
    for step in (5, 100, 399):
        panel.show_view(view_at(busy_run(), step))
        qtbot.wait(220)
        widths.add(panel._axis.width())
    assert widths == {AXIS_WIDTH}
    axis = Axis("left")
    assert axis.tickStrings([0, 25, 50], 1, 25) == ["0", "25", "50"]
    axis.limit = 60
    assert max(axis.tickValues(0, 73, 300)[0][1]) == 60
    axis.log = True
    assert axis.tickStrings([1, 2, 3], 1, 1) == ["10 ms", "100 ms", "1 s"]


def wheel(panel: LatencyPanel, x: float, notches: int) -> None:
    place = QPointF(x, 60)
    QApplication.sendEvent(panel.plot.viewport(), QWheelEvent(
        place, panel.plot.mapToGlobal(place), QPoint(), QPoint(0, 120 * notches), Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False))


@pytest.mark.parametrize("unit", ["step", "time"])
def test_zooming_and_dragging_hold_and_a_double_click_lets_go(panel: LatencyPanel, qtbot: QtBot, unit: str) -> None:
    panel.x_tabs.choose(unit)
    panel.show_view(view_at(busy_run(), 300))
    qtbot.wait(220)
    whole = panel._range
    fixed = panel._x_under(250)
    for _ in range(3):
        wheel(panel, 250, 1)
    qtbot.wait(20)
    assert panel.selection.visible.held
    held = panel._range
    assert held[1] - held[0] < 0.65 * (whole[1] - whole[0])
    assert panel._x_under(250) == pytest.approx(fixed, rel=0.02)
    panel.show_view(view_at(busy_run(), 320))
    qtbot.wait(250)
    assert panel._range == held
    viewport = panel.plot.viewport()
    qtbot.mousePress(viewport, Qt.MouseButton.LeftButton, pos=QPoint(200, 60))
    qtbot.mouseMove(viewport, QPoint(230, 60))
    qtbot.mouseRelease(viewport, Qt.MouseButton.LeftButton, pos=QPoint(230, 60))
    qtbot.wait(20)
    assert panel._range[0] < held[0]
    asked: list[int] = []
    panel.selection.step_requested.connect(asked.append)
    expected = round(panel._step_at(panel._x_under(240)))
    qtbot.mouseClick(viewport, Qt.MouseButton.LeftButton, pos=QPoint(240, 60))
    assert asked == [expected]
    qtbot.mouseDClick(viewport, Qt.MouseButton.LeftButton, pos=QPoint(240, 60))
    qtbot.wait(20)
    assert panel._range == whole


def test_it_takes_the_colours_of_the_theme(panel: LatencyPanel, qtbot: QtBot) -> None:
    panel.show_view(view_at(busy_run()))
    qtbot.wait(220)
    before = themes.current.name
    try:
        for name in ("light", "dark"):
            themes.set(name)
            image = panel.grab().toImage()
            assert image.pixelColor(AXIS_WIDTH + 40, 60).name() == themes.current.panel
            assert panel._curves[0].opts["pen"].color().name() == themes.current.good
            assert panel._curves[0].opts["pen"].width() == 1
    finally:
        themes.set(before)


@pytest.mark.parametrize("height", [300, 120, 60, 40, 25])
@pytest.mark.parametrize("span", [(0.0, 1.0), (-1.0, 4.0), (2.2, 2.6)])
def test_labels_of_a_logarithmic_axis_never_touch(height: int, span: tuple[float, float]) -> None:
    axis = Axis("left")
    axis.log = True
    low, high = span
    (_, ticks), = axis.tickValues(low, high, height)
    pixels = [(t - low) / (high - low) * height for t in ticks]
    assert all(b - a >= 14 for a, b in pairwise(pixels))
    assert all(low <= t <= high for t in ticks)
    assert ticks


def test_a_long_run_looked_at_from_its_first_step_shows_more_than_that(panel: LatencyPanel, qtbot: QtBot) -> None:
    run = make_run(700, long_every=0, rate=0.05)
    panel.show_view(view_at(run, 0))
    qtbot.wait(220)
    assert panel._range[1] - panel._range[0] > 500
    before = panel._range
    panel.show_view(view_at(run, 30))
    qtbot.wait(220)
    assert panel._range == before  # the cursor moves in it
