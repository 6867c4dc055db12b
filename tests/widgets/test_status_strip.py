"""The status strip: nothing repainted without need, nothing shaking, the right side first when room is short."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QCoreApplication, QPoint
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QToolTip
from pytestqt.qtbot import QtBot

from widgets.status_strip import StatusItem, StatusStrip

LEFT = [StatusItem("engine", "31.4 steps/s", tooltip="Steps a second"), StatusItem("KV", "59.8%"),
        StatusItem("preemptions", "4", level="warning")]
RIGHT = [StatusItem("recording to", "run-0412.mcap", "· 3.1 MB · 0 dropped")]


@pytest.fixture
def strip(qtbot: QtBot) -> StatusStrip:
    result = StatusStrip()
    qtbot.addWidget(result)
    result.resize(900, 28)
    result.show()
    return result


def test_all_are_shown_where_there_is_room(strip: StatusStrip) -> None:
    strip.set_items(LEFT, RIGHT)
    strip.repaint()
    assert set(strip.shown_items()) == {*LEFT, *RIGHT}
    assert "31.4 steps/s" in strip.accessibleName()


def test_the_right_side_goes_first(strip: StatusStrip) -> None:
    strip.set_items(LEFT, RIGHT)
    strip.resize(420, 28)
    strip.repaint()
    shown = strip.shown_items()
    assert RIGHT[0] in shown
    assert LEFT[2] not in shown
    strip.resize(10, 28)
    strip.repaint()


def test_places_do_not_shake_when_a_digit_comes_or_goes(strip: StatusStrip) -> None:
    def places(value: str) -> list[float]:
        strip.set_items([StatusItem("engine", value), StatusItem("KV", "59.8%")])
        strip.repaint()
        return [place.left() for place, _ in strip._places]

    first = places("100.4 steps/s")
    assert places("99.4 steps/s") == first
    assert places("100.0 steps/s") == first


def test_the_same_items_are_not_painted_again(strip: StatusStrip, qtbot: QtBot,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    strip.set_items(LEFT, RIGHT)
    strip.repaint()
    qtbot.wait(10)
    painted: list[int] = []
    monkeypatch.setattr(strip, "_paint_item", lambda *a: painted.append(1))
    strip.set_items(list(LEFT), list(RIGHT))
    qtbot.wait(10)
    assert painted == []


def test_tooltips_belong_to_their_items(strip: StatusStrip) -> None:
    strip.set_items(LEFT)
    strip.repaint()
    place = strip._places[0][0].center().toPoint()
    QCoreApplication.sendEvent(strip, QHelpEvent(QHelpEvent.Type.ToolTip, place, strip.mapToGlobal(place)))
    assert QToolTip.text() == "Steps a second"
    place = QPoint(890, 5)
    QCoreApplication.sendEvent(strip, QHelpEvent(QHelpEvent.Type.ToolTip, place, strip.mapToGlobal(place)))
    assert QToolTip.text() in ("", "Steps a second")  # hiding takes a moment
