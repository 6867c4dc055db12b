"""The charts of two runs, and of a sweep: what they say, what can be clicked, and that nothing makes them fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt

from widgets.compare_charts import Curves, CurvesChart, DeltaChart, DistributionChart, RequestChange
from widgets.compare_table import ChangeRow, ChangeTable
from widgets.sweep_chart import SettingPoint, SweepChart
from widgets.theme import theme, themes
from widgets.view import Selection

NAN = float("nan")


@pytest.fixture(autouse=True)
def dark() -> None:
    themes.set("dark")


def colours(widget: Any, top: int = 40) -> set[int]:
    image = widget.grab().toImage()
    return {image.pixel(x, y) & 0xFFFFFF for x in range(image.width()) for y in range(top, image.height())}


def rgb(name: str) -> int:
    return int(name[1:], 16)


def put(qtbot: Any, widget: Any, width: int = 360, height: int = 220) -> Any:
    qtbot.addWidget(widget)
    widget.resize(width, height)
    widget.show()
    return widget


@pytest.mark.parametrize("values", [
    ([], []), ([5.0], []), ([5.0], [5.0]), ([0.0, 0.0], [1e-9]), ([1.0, 2.0, 3e6], [0.5] * 1000)])
def test_a_distribution_of_anything(qtbot: Any, values: tuple[list[float], list[float]]) -> None:
    chart = put(qtbot, DistributionChart(Selection()))
    pair = np.array(values[0], np.float32), np.array(values[1], np.float32)
    chart.set_values(pair, pair)
    chart.grab()
    chart.tabs.choose("ttft")
    seen = colours(chart, 60)  # below the legend
    assert not chart.failure
    assert (rgb(theme().warning) in seen) == bool(values[1])  # it is drawn over the first


def test_the_two_runs_differ_in_more_than_colour(qtbot: Any) -> None:
    from widgets.compare_charts import run_pen
    assert run_pen(False).style() == Qt.PenStyle.SolidLine
    assert run_pen(True).style() == Qt.PenStyle.CustomDashLine


def test_a_click_on_the_curves_goes_there(qtbot: Any) -> None:
    chart = put(qtbot, CurvesChart(Selection()))
    chart.grab()
    assert not chart.failure
    first = np.linspace(0, 100, 500)
    chart.set_curves({"budget": Curves(first, np.where(np.arange(500) < 200, 50.0, NAN), True),
                      "kv": Curves(first, first, True), "waiting": Curves(np.zeros(500), np.zeros(500), False)})
    for value in ("budget", "kv", "waiting"):
        chart.tabs.choose(value)
        chart.grab()
    assert not chart.failure
    plot = chart.plot_rect(chart.content_rect())
    with qtbot.waitSignal(chart.position_requested) as asked:
        qtbot.mouseClick(chart, Qt.MouseButton.LeftButton, pos=plot.center().toPoint())
    assert abs(asked.args[0] - 250) <= 3
    chart.set_position(499)
    chart.grab()
    assert not chart.failure


def test_narrow_charts_leave_their_name_to_the_tabs(qtbot: Any) -> None:
    chart = put(qtbot, CurvesChart(Selection()), 210)
    assert chart.title == ""
    assert chart.accessibleName() == "Over the run"
    chart.resize(500, 220)
    assert chart.title == "Over the run"


def test_every_request_has_its_bar(qtbot: Any) -> None:
    chart = put(qtbot, DeltaChart(Selection()))
    chart.grab()
    chart.set_changes([RequestChange(f"r{i}", NAN if i == 3 else i - 4.0, NAN, 0.0) for i in range(10)])
    assert chart.describe(-1) == "3 quicker, 5 slower"
    assert {rgb(theme().bad), rgb(theme().good)} <= colours(chart)
    assert chart.describe(9) == "r9: +5.0 ms"
    assert chart.describe(3) == "r3: –"
    plot = chart.plot_rect(chart.content_rect())
    with qtbot.waitSignal(chart.request_chosen) as chosen:
        qtbot.mouseClick(chart, Qt.MouseButton.LeftButton, pos=QPoint(int(plot.left() + 0.75 * plot.width()), 120))
    assert chosen.args == ["r7"]
    for value in ("itl_ms", "e2e_ms"):
        chart.tabs.choose(value)
        chart.grab()
    assert not chart.failure


def test_the_table_colours_what_is_better_and_worse(qtbot: Any) -> None:
    table = put(qtbot, ChangeTable(Selection()), 420)
    table.set_rows([ChangeRow("ITL p99", "40 ms", "30 ms", "lower by 25%: better", "better", -1)])
    assert rgb(theme().good) in colours(table)
    assert rgb(theme().bad) not in colours(table)
    assert "better" in table.accessibleDescription()
    table.set_rows([ChangeRow("ITL p99", "40 ms", "50 ms", "higher by 25%: worse", "worse", 1)])
    assert rgb(theme().bad) in colours(table)
    table.resize(200, 96)
    table.grab()
    assert not table.failure


def test_points_of_a_sweep_are_where_they_are_clicked(qtbot: Any) -> None:
    chart = put(qtbot, SweepChart(Selection()), 500, 300)
    chart.grab()
    points = [SettingPoint("a", 10.0, 50.0, 900.0, True), SettingPoint("b", 20.0, 90.0, 500.0, True),
              SettingPoint("c", NAN, NAN, NAN, False), SettingPoint("d", 9.0, 95.0, 950.0, False)]
    chart.set_points(points)
    for tab in ("itl_p99_ms", "ttft_p99_ms"):
        chart.tabs.choose(tab)
        places = chart.places(chart.plot_rect(chart.content_rect()))
        assert places[2] is None
        for index in (0, 1, 3):
            place = places[index]
            assert place is not None
            with qtbot.waitSignal(chart.chosen) as chosen:
                qtbot.mouseClick(chart, Qt.MouseButton.LeftButton, pos=place.toPoint())
            assert chosen.args == [index]
        assert places[1].y() < places[0].y()  # more throughput is higher
    chart.set_chosen(1)
    chart.grab()
    chart.set_points(points[:1] * 3)
    chart.grab()
    chart.set_points([SettingPoint("zero", 0.0, 0.0, math.inf, True)])
    chart.tabs.choose("itl_p99_ms")
    chart.grab()
    assert not chart.failure
