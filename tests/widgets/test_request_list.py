"""The request list: order, words, selection, and that only what changed is painted."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication, QImage, QPainter, QWheelEvent
from pytestqt.qtbot import QtBot

from tests.widgets.pointer import hover
from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.request_list import RequestList, draw_request_mark
from widgets.theme import themes
from widgets.view import Selection


@pytest.fixture
def selection() -> Selection:
    return Selection()


@pytest.fixture
def panel(qtbot: QtBot, selection: Selection) -> RequestList:
    result = RequestList(selection)
    qtbot.addWidget(result)
    result.resize(320, 300)
    result.show()
    return result


def at_row(panel: RequestList, row: int) -> QPoint:
    return panel.row_rect(row).center().toPoint()


def test_running_waiting_finished_in_that_order(panel: RequestList) -> None:
    view = view_at(busy_run())
    panel.show_view(view)
    state = view.state
    assert [r.request_id for r in panel._rows] == state.running + state.waiting + state.finished[::-1]
    assert panel.note == f"{len(state.running)} running, {len(state.waiting)} waiting, {state.counters.finished} done"


def test_the_right_column_says_how_far(panel: RequestList) -> None:
    run = busy_run()
    seen = set()
    for step in range(0, 400, 3):
        view = view_at(run, step)
        for request in view.state.requests.values():
            text = panel.state_text(request)
            seen.add(text.split()[0])
            if text.startswith("decode"):
                assert int(text.split()[1]) == len(request.output_token_ids)
            if text.startswith("prefill"):
                assert text == f"prefill {request.num_computed_tokens:,}/{request.num_tokens:,}"
    assert {"decode", "prefill"} <= seen
    finished = view_at(run).state.finished[-1]
    request = view_at(run).state.requests[finished]
    assert panel.state_text(request) == f"{len(request.output_token_ids)} tok · length"


def test_the_head_of_the_queue_says_why_it_waits(panel: RequestList) -> None:
    view = view_at(busy_run())
    panel.show_view(view)
    assert view.state.stopped_by == "no_free_blocks"
    head = view.state.requests[view.state.stopped_at]
    assert panel._line_text(head) == ("waiting: no free blocks", False)


def test_a_click_selects_and_hovering_lights_up(panel: RequestList, selection: Selection, qtbot: QtBot) -> None:
    view = view_at(busy_run())
    panel.show_view(view)
    qtbot.mouseClick(panel, Qt.MouseButton.LeftButton, pos=at_row(panel, 2))
    assert selection.request_id == view.state.running[2]
    hover(panel, at_row(panel, 4))
    assert selection.hovered_request == view.state.running[4]
    panel.leaveEvent(None)
    assert selection.hovered_request is None
    assert panel.request_at(QPointF(50, 5)) is None  # the header


def test_keys_go_through_the_rows_and_keep_them_in_sight(panel: RequestList, selection: Selection,
                                                         qtbot: QtBot) -> None:
    panel.show_view(view_at(busy_run()))
    rows = [r.request_id for r in panel._rows]
    for _ in range(25):
        qtbot.keyClick(panel, Qt.Key.Key_Down)
    assert selection.request_id == rows[24]
    assert 24 in panel.visible_rows()
    qtbot.keyClick(panel, Qt.Key.Key_Up)
    assert selection.request_id == rows[23]


def test_a_selection_elsewhere_is_brought_into_sight(panel: RequestList, selection: Selection) -> None:
    view = view_at(busy_run())
    panel.show_view(view)
    selection.select(request_id=view.state.finished[0])
    assert len(panel._rows) - 1 in panel.visible_rows()


def test_the_wheel_scrolls_and_stops_at_both_ends(panel: RequestList) -> None:
    panel.show_view(view_at(busy_run()))

    def turn(delta: int) -> None:
        place = QPointF(100, 100)
        panel.wheelEvent(QWheelEvent(place, panel.mapToGlobal(place), QPoint(), QPoint(0, delta),
                                     Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
                                     Qt.ScrollPhase.NoScrollPhase, False))

    turn(-120)
    assert panel.offset == 3 * panel.row_height
    for _ in range(100):
        turn(-120)
    assert panel.offset == panel.max_offset
    assert panel.visible_rows()[-1] == panel.row_count - 1
    for _ in range(100):
        turn(120)
    assert panel.offset == 0


def test_it_stays_in_bounds_when_rows_go(panel: RequestList) -> None:
    panel.show_view(view_at(busy_run()))
    panel.scroll_to(panel.max_offset)
    panel.show_view(view_at(busy_run(), 3))
    panel.repaint()
    assert panel.offset == 0


def test_only_visible_rows_are_painted(panel: RequestList, monkeypatch: pytest.MonkeyPatch) -> None:
    panel.show_view(view_at(busy_run()))
    painted: list[str] = []
    monkeypatch.setattr(panel, "_paint_ground", lambda painter, line, request_id: painted.append(request_id))
    panel.repaint()
    assert 0 < len(painted) <= 300 / panel.row_height + 1
    assert len(painted) < panel.row_count


def test_rows_that_stand_still_are_not_painted_again(panel: RequestList, qtbot: QtBot,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    run = busy_run()
    panel.resize(320, 900)
    panel.show_view(view_at(run, 380))
    panel.repaint()
    qtbot.wait(20)
    painted: list[str] = []
    monkeypatch.setattr(panel, "_paint_ground", lambda painter, line, request_id: painted.append(request_id))
    panel.show_view(view_at(run, 380))
    qtbot.wait(20)
    assert painted == []
    before, after = view_at(run, 380), view_at(run, 381)
    panel.show_view(after)
    qtbot.wait(20)
    still = set(before.state.waiting) & set(after.state.waiting) - {before.state.stopped_at, after.state.stopped_at}
    if before.state.running == after.state.running and before.state.finished == after.state.finished:
        assert painted
        assert not still & set(painted)


def test_hidden_it_does_nothing(panel: RequestList, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot) -> None:
    panel.hide()
    painted: list[int] = []
    monkeypatch.setattr(panel, "paint_content", lambda *a: painted.append(1))
    for step in range(100, 110):
        panel.show_view(view_at(busy_run(), step))
    qtbot.wait(20)
    assert painted == []


def test_the_menu_aborts_only_what_lives_in_a_live_engine(panel: RequestList, qtbot: QtBot) -> None:
    view = view_at(busy_run())
    panel.show_view(view)
    running, finished = view.state.running[0], view.state.finished[-1]
    assert not panel.build_menu(running).actions()[-1].isEnabled()
    panel.set_can_abort(True)
    assert not panel.build_menu(finished).actions()[-1].isEnabled()
    with qtbot.waitSignal(panel.abort_requested) as signal:
        panel.build_menu(running).actions()[-1].trigger()
    assert signal.args == [running]
    panel.build_menu(running).actions()[0].trigger()
    assert QGuiApplication.clipboard().text() == view.state.requests[running].text


def test_before_the_first_step(panel: RequestList) -> None:
    empty = make_run(0)
    panel.show_view(view_at(empty))
    panel.repaint()
    assert panel.row_count == 0
    assert panel.current_row() == -1


@pytest.mark.parametrize("name", ["dark", "light"])
def test_marks_differ_without_colour(name: str, qtbot: QtBot) -> None:
    before = themes.current.name
    try:
        themes.set(name)
        shapes = set()
        for status in ("running", "waiting", "preempted", "finished"):
            image = QImage(12, 12, QImage.Format.Format_ARGB32_Premultiplied)
            image.fill(0)
            painter = QPainter(image)
            draw_request_mark(painter, image.rect().toRectF().adjusted(1, 1, -1, -1), status, 0)
            painter.end()
            shapes.add(tuple(image.pixelColor(x, y).alpha() > 100 for x in range(12) for y in range(12)))
        assert len(shapes) == 4
    finally:
        themes.set(before)
