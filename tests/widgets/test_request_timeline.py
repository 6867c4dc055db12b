"""The Gantt chart: who is in sight, what stands where, and what a click means."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from pytestqt.qtbot import QtBot

from engine.trace.timeline import Timeline
from tests.widgets.pointer import hover
from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.request_timeline import LifeIndex, RequestTimeline
from widgets.theme import themes
from widgets.view import Selection


@pytest.fixture
def selection() -> Selection:
    return Selection()


@pytest.fixture
def panel(qtbot: QtBot, selection: Selection) -> RequestTimeline:
    result = RequestTimeline(selection)
    qtbot.addWidget(result)
    result.resize(640, 300)
    result.show()
    return result


def wheel(panel: RequestTimeline, place: QPointF, delta: int,
          modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    panel.wheelEvent(QWheelEvent(place, panel.mapToGlobal(place), QPoint(), QPoint(0, delta), Qt.MouseButton.NoButton,
                                 modifiers, Qt.ScrollPhase.NoScrollPhase, False))


def test_lives_are_found_as_a_walk_over_all_rows_finds_them() -> None:
    run = make_run(150, num_blocks=260)
    index = LifeIndex()
    partial = Timeline()
    state = run.state_at(-1)
    for step in range(150):
        events = run.events(step)
        state.apply(events)
        partial.append(events, state)
        if step % 10 == 0:
            index.update(partial)  # grows with the run
    index.update(partial)
    rows = partial.rows
    for low, high in ((0, 10**9), (10**9, 2 * 10**9), (2 * 10**9, 10**10)):
        expected = [i for i, r in enumerate(rows)
                    if r.arrival_ns <= high and (r.finished_ns < 0 or r.finished_ns >= low)]
        assert index.between(low, high).tolist() == expected
    other = make_run(20)
    index.update(other.timeline)  # another run: nothing of the old one is left
    assert len(index.between(0, 10**12)) == len(other.timeline.rows)


def test_x_and_time_are_inverse_and_steps_are_found(panel: RequestTimeline) -> None:
    run = busy_run()
    panel.show_view(view_at(run, 300))
    for time_ns in np.linspace(panel._start, panel._end, 9):
        assert panel.time_at(panel.x_of(time_ns)) == pytest.approx(time_ns, abs=2)
    for step in (250, 299, 300):
        middle = (run.series.start_ns[step] + run.series.end_ns[step]) / 2
        assert panel.step_at(panel.x_of(middle)) == step


def test_following_shows_everyone_alive_from_the_beginning(panel: RequestTimeline) -> None:
    view = view_at(busy_run())
    panel.show_view(view)
    oldest = min(r.arrival_ns for r in view.state.active())
    assert panel._start <= oldest
    assert panel._end >= view.state.time_ns
    assert {r.request_id for r in view.state.active()} <= {r.request_id for r in panel._rows}
    top = panel._rows[panel.visible_rows()[0]]
    assert top.request_id == min(view.state.active(), key=lambda r: r.order).request_id


def test_detached_the_picture_stands_still_while_the_cursor_moves_in_it(panel: RequestTimeline) -> None:
    panel.show_view(view_at(busy_run(), 250))
    held = (panel._start, panel._end)
    panel.show_view(view_at(busy_run(), 255))
    assert (panel._start, panel._end) == held


def test_a_click_on_a_row_selects_and_on_the_axis_asks_for_the_step(panel: RequestTimeline, selection: Selection,
                                                                    qtbot: QtBot) -> None:
    run = busy_run()
    panel.show_view(view_at(run, 300))
    panel.repaint()
    row = panel.visible_rows()[2]
    qtbot.mouseClick(panel, Qt.MouseButton.LeftButton, pos=panel.row_rect(row).center().toPoint())
    assert selection.request_id == panel._rows[row].request_id
    x = round(panel.x_of(float(run.series.end_ns[280])) - 1)
    with qtbot.waitSignal(selection.step_requested) as signal:
        qtbot.mouseClick(panel, Qt.MouseButton.LeftButton, pos=QPoint(x, panel.height() - 18))
    assert abs(signal.args[0] - 280) <= 1


def test_hovering_tells_what_a_span_is(panel: RequestTimeline, selection: Selection, qtbot: QtBot) -> None:
    view = view_at(busy_run(), 300)
    panel.show_view(view)
    panel.repaint()
    for row in panel.visible_rows():
        if panel.row_rect(row).center().y() >= panel.rows_rect().bottom():
            continue  # cut off at the bottom
        for span in panel._rows[row].spans:
            middle = (span.start_ns + span.end_ns) / 2
            if panel._start < middle < panel._end and panel.x_of(span.end_ns) - panel.x_of(span.start_ns) > 8:
                found = panel.span_at(QPointF(panel.x_of(middle), panel.row_rect(row).center().y()))
                assert found is not None
                assert found[1] is span
                assert panel.describe(*found).startswith(panel._rows[row].request_id)
    hover(panel, panel.row_rect(panel.visible_rows()[1]).center().toPoint())
    assert selection.hovered_request == panel._rows[panel.visible_rows()[1]].request_id


def test_the_wheel_zooms_around_the_pointer_and_scrolls_over_the_names(panel: RequestTimeline) -> None:
    panel.show_view(view_at(busy_run(), 300))
    panel.repaint()
    place = QPointF(400, 100)
    fixed, span = panel.time_at(400), panel._end - panel._start
    wheel(panel, place, 120)
    assert panel._end - panel._start == pytest.approx(0.85 * span)
    assert panel.time_at(400) == pytest.approx(fixed)
    for _ in range(200):
        wheel(panel, place, 120)
    panel.repaint()  # no further than a step or two
    assert panel._end - panel._start >= 20_000_000
    panel.mouseDoubleClickEvent(None)  # type: ignore[arg-type]
    panel.scroll_to(0)
    before = panel.offset
    wheel(panel, QPointF(20, 100), -120)
    assert panel.offset > before


def test_a_drag_pans_and_holds(panel: RequestTimeline, selection: Selection, qtbot: QtBot) -> None:
    run = busy_run()
    panel.show_view(view_at(run))
    panel.repaint()
    start = panel._start
    qtbot.mousePress(panel, Qt.MouseButton.LeftButton, pos=QPoint(300, 100))
    hover(panel, QPoint(400, 100))
    qtbot.mouseRelease(panel, Qt.MouseButton.LeftButton, pos=QPoint(400, 100))
    assert panel._start < start
    assert selection.request_id is None  # a drag is no click
    held = panel._start
    panel.show_view(view_at(run, 390))
    assert panel._start == held


def test_an_unchanged_view_paints_nothing(panel: RequestTimeline, qtbot: QtBot,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_at(busy_run(), 300)
    panel.show_view(view)
    panel.repaint()
    qtbot.wait(20)
    painted: list[int] = []
    monkeypatch.setattr(panel, "paint_content", lambda *a: painted.append(1))
    panel.show_view(view)
    qtbot.wait(20)
    assert painted == []


@pytest.mark.parametrize("name", ["dark", "light"])
def test_it_paints_an_empty_run_and_a_full_one(panel: RequestTimeline, name: str) -> None:
    before = themes.current.name
    try:
        themes.set(name)
        panel.show_view(view_at(make_run(0)))
        empty = panel.grab().toImage()
        panel.show_view(view_at(busy_run(), 240))
        full = panel.grab().toImage()
        assert empty != full
        row = panel.current_row() if panel.current_row() >= 0 else panel.visible_rows()[0]
        prefill = next(s for s in panel._rows[row].spans if s.kind == "prefill")
        x, y = panel.x_of((prefill.start_ns + prefill.end_ns) / 2), panel.row_rect(row).center().y()
        shown = full.pixelColor(int(x * full.devicePixelRatio()), int(y * full.devicePixelRatio()))
        assert shown.name() == themes.current.request(panel._rows[row].colour).name()
    finally:
        themes.set(before)
