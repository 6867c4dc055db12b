"""The token budget: stacked columns by numpy, and the panel on a run of the real scheduler."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtTest import QTest

import widgets.token_budget as module
from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.painting import stop_reason_text
from widgets.stacked_bars import highest, spread, stack_columns
from widgets.theme import mix, theme, themes
from widgets.token_budget import TokenBudget
from widgets.view import Selection, View

RED, BLUE, GREEN = 0xFFFF0000, 0xFF0000FF, 0xFF00FF00


def bars(columns: list[list[tuple[int, bool, int]]], scale: float, height: int) -> np.ndarray:
    """``columns`` of (tokens, on top, paint)."""
    flat = [share for column in columns for share in column]
    offsets = np.cumsum([0, *(len(column) for column in columns)])
    return stack_columns(offsets, np.array([s[0] for s in flat], np.int32), np.array([s[1] for s in flat], bool),
                         np.array([s[2] for s in flat], np.uint32), scale, height)


def test_shares_stack_from_the_bottom() -> None:
    picture = bars([[(2, False, RED), (3, False, BLUE)], [], [(8, False, GREEN)]], 1.0, 8)
    assert picture.shape == (8, 3)
    assert picture[:, 0].tolist() == [0, 0, 0, BLUE, BLUE, BLUE, RED, RED]
    assert not picture[:, 1].any()
    assert (picture[:, 2] == GREEN).all()


def test_prefill_stands_on_decode_whatever_the_order() -> None:
    picture = bars([[(4, True, GREEN), (2, False, RED), (1, False, BLUE)]], 1.0, 8)
    assert picture[:, 0].tolist() == [0, GREEN, GREEN, GREEN, 0, BLUE, RED, RED]


def test_something_is_never_nothing_and_never_too_high() -> None:
    picture = bars([[(1, False, RED)], [(5000, False, BLUE)]], 0.001, 10)
    assert picture[:, 0].tolist() == [0] * 9 + [RED]
    assert (picture[:, 1] == BLUE).sum() == 5
    assert (bars([[(99, False, RED)]], 1.0, 10) == RED).all()


def test_columns_are_as_high_as_their_sum() -> None:
    rng = np.random.default_rng(3)
    columns = [[(int(rng.integers(1, 60)), bool(rng.integers(2)), RED) for _ in range(rng.integers(0, 12))]
               for _ in range(60)]
    picture = bars(columns, 0.37, 300)
    for i, column in enumerate(columns):
        highest = 300 - int(np.flatnonzero(picture[:, i])[0]) if column else 0
        assert highest == int(np.ceil(sum(share[0] for share in column) * 0.37 - 1e-6))


def test_nothing_at_all() -> None:
    assert bars([[], []], 1.0, 4).tolist() == [[0, 0]] * 4
    assert bars([], 1.0, 4).shape == (4, 0)


def test_bars_are_spread_with_a_gap() -> None:
    wide = spread(np.array([[RED, BLUE]], np.uint32), np.array([0, 3, 7]), 1)
    assert wide.tolist() == [[RED, RED, 0, BLUE, BLUE, BLUE, 0]]


def test_the_highest_of_each_run_is_found() -> None:
    totals = np.random.default_rng(5).integers(0, 9, 1000).astype(np.int32)
    for buckets in (1, 3, 7, 999, 1000):
        found = highest(totals, buckets)
        edges = np.arange(buckets + 1) * 1000 // buckets
        assert all(low <= at < high and totals[at] == totals[low:high].max()
                   for at, low, high in zip(found, edges, edges[1:], strict=False))


class Watched(TokenBudget):
    paints = 0

    def paint_content(self, painter: QPainter, rect) -> None:
        self.paints += 1
        super().paint_content(painter, rect)


@pytest.fixture
def panel(qtbot):
    widget = Watched(Selection())
    qtbot.addWidget(widget)
    widget.resize(852, 172)
    widget.show()
    yield widget
    themes.set("dark")


@pytest.fixture
def asked(panel) -> list[int]:
    steps: list[int] = []
    panel.selection.step_requested.connect(steps.append)
    return steps


def shown(panel: TokenBudget, step: int | None = None, run=None) -> View:
    view = view_at(run or busy_run(), step)
    panel.show_view(view)
    panel.grab()
    return view


def bar_centre(panel: TokenBudget, row: int, y: float) -> QPointF:
    return QPointF(panel._x(row) + panel._bar / 2 - 0.5, y)


def test_bars_have_the_requests_colours_and_heights(panel) -> None:
    view = shown(panel, 150)
    series, plot = view.series, panel._plot
    image = panel.grab().toImage()
    checked = 0
    for row in range(panel._first, panel._current + 1):
        colours, tokens, prefill = series.segments(row)
        if prefill.sum() == 1 and tokens[prefill][0] > 200:
            colour = mix(theme().request(int(colours[prefill][0])), theme().panel, 0.16)
            total = int(tokens.sum())
            middle = int(tokens[~prefill].sum()) + 100
            inside = bar_centre(panel, row, plot.bottom() - middle / 512 * plot.height()).toPoint()
            assert image.pixelColor(inside) == colour
            above = bar_centre(panel, row, plot.bottom() - total / 512 * plot.height() - 4).toPoint()
            if total < 400:
                assert image.pixelColor(above) != colour
            checked += 1
    assert checked


def test_header_says_what_the_step_spent_and_why_it_stopped(panel) -> None:
    run = busy_run()
    step = next(s for s in range(50, 300) if run.events(s).stopped_by == "budget")
    view = shown(panel, step)
    total = sum(s.num_tokens for s in run.events(step).scheduled)
    assert panel.value == f"{total} / {view.state.knobs['max_num_batched_tokens']} tokens"
    assert stop_reason_text("budget") in panel.note
    step = next(s for s in range(0, 300) if run.events(s).stopped_by == "")
    shown(panel, step)
    assert f"step {step}" in panel.note


def test_the_budget_line_steps_with_the_knob(panel) -> None:
    view = shown(panel, 240)
    top, budget = panel._top(view.series)
    assert (top, budget) == (512, 512)
    image = panel.grab().toImage()
    warning = QColor(theme().warning)

    def has_line(row: int, tokens: int) -> bool:
        y = round(panel._y(tokens, top))
        x = round(panel._x(row) + 1)
        return any(image.pixelColor(x, y + d) == warning for d in (-1, 0, 1))

    before, after = view.series.index_of(190), view.series.index_of(230)
    assert has_line(before, 512)
    assert not has_line(before, 256)
    assert has_line(after, 256)
    assert not has_line(after, 512)


def test_a_knob_change_is_marked(panel) -> None:
    view = shown(panel, 240)
    image = panel.grab().toImage()
    x = round(panel._x(view.series.index_of(200)))
    assert image.pixelColor(x, round(panel._plot.top()) - 4) == QColor(theme().accent)
    _, lines = panel.readout(view.series, view.series.index_of(200))
    assert "max_num_batched_tokens 512 → 256" in lines


def test_knob_labels_do_not_overlap(panel, monkeypatch) -> None:
    run = make_run(60, num_blocks=300)
    for step in (30, 31, 33, 50, 52):
        run.series.marks.add(step, "knob", f"max_num_batched_tokens {step} → {step + 1}")
    drawn: list[tuple[float, float]] = []
    draw = module.draw_text

    def spy(painter, rect, text, **how):
        width = draw(painter, rect, text, **how)
        if "→" in text:
            drawn.append((rect.left(), rect.left() + width))
        return width

    monkeypatch.setattr(module, "draw_text", spy)
    shown(panel, 59, run)
    assert len(drawn) >= 2
    drawn.sort()
    assert all(a[1] < b[0] for a, b in pairwise(drawn))
    assert drawn[-1][1] <= panel.width()


def test_steps_beyond_the_viewing_step_are_dim(panel) -> None:
    view = shown(panel, 250)
    assert panel._end > panel._current + 1
    row = next(r for r in range(panel._current + 1, panel._end)
               if view.series.segments(r)[2].any() and view.series.prefill_tokens[r] > 150)
    colours, tokens, prefill = view.series.segments(row)
    image = panel.grab().toImage()
    full = mix(theme().request(int(colours[prefill][0])), theme().panel, 0.16)
    top, _ = panel._top(view.series)
    y = panel._plot.bottom() - (int(tokens[~prefill].sum()) + 20) / top * panel._plot.height()
    found = image.pixelColor(bar_centre(panel, row, y).toPoint())
    assert found == mix(full, theme().panel, 0.68)


def test_following_shows_nothing_beyond(panel) -> None:
    shown(panel)
    assert panel._end == panel._current + 1 == busy_run().series.n


def test_a_click_asks_for_the_step(panel, asked) -> None:
    view = shown(panel, 300)
    row = panel._first + 20
    QTest.mouseClick(panel, Qt.MouseButton.LeftButton, pos=bar_centre(panel, row, 100).toPoint())
    assert asked == [int(view.series.step[row])]
    QTest.mouseClick(panel, Qt.MouseButton.LeftButton, pos=QPoint(4, 4))
    assert len(asked) == 1


def test_dragging_pans_all_charts_and_the_chip_lets_go(panel, asked) -> None:
    shown(panel, 300)
    first, end = panel._first, panel._end
    start = bar_centre(panel, first + 60, 100).toPoint()
    assert panel.chip.isHidden()
    QTest.mousePress(panel, Qt.MouseButton.LeftButton, pos=start)
    for steps in (2, 5, 10):
        QTest.mouseMove(panel, start + QPoint(round(steps * panel._bar), 0))
    QTest.mouseRelease(panel, Qt.MouseButton.LeftButton, pos=start + QPoint(round(10 * panel._bar), 0))
    panel.grab()
    assert asked == []  # the viewing step stays
    assert (panel._first, panel._end) == (first - 10, end - 10)
    assert panel.selection.visible.range_at(300, 0) == (first - 10, end - 11)
    assert panel.chip.isVisible()
    shown(panel, 320)
    assert (panel._first, panel._end) == (first - 10, end - 10)
    let_go: list[bool] = []
    panel.selection.visible.follow_asked.connect(lambda: let_go.append(True))
    panel.chip.click()
    assert let_go == [True]
    QTest.mouseDClick(panel, Qt.MouseButton.LeftButton, pos=start)
    panel.grab()
    assert panel.chip.isHidden()
    assert panel._first < panel._current < panel._end


def test_the_wheel_and_keys_zoom(panel) -> None:
    shown(panel, 399)
    before = panel._current + 1 - panel._first
    QTest.keyClick(panel, Qt.Key.Key_Plus)
    panel.grab()
    assert panel._current + 1 - panel._first < before
    assert panel._end == panel._current + 1  # it goes on with the run
    for _ in range(20):
        panel.zoom_by(-1)
    panel.grab()
    assert panel._first == 0
    shown(panel, 250)
    panel.selection.visible.hold(200, 250, 0, 399)
    QTest.keyClick(panel, Qt.Key.Key_Left, Qt.KeyboardModifier.ControlModifier)
    panel.grab()
    assert panel._first == 195
    QTest.keyClick(panel, Qt.Key.Key_0)
    assert not panel.selection.visible.held


def test_more_steps_than_pixels_show_the_fullest_of_each(panel) -> None:
    run = make_run(1200, num_blocks=260)
    panel.selection.visible.hold(0, 1199, 0, 1199)
    panel.resize(352, 172)
    view = shown(panel, 1100, run)
    series = view.series
    assert (panel._first, panel._end) == (0, 1200)
    assert len(panel._rows) == panel._plot.width() < 400
    totals = series.decode_tokens + series.prefill_tokens
    for bar, row in enumerate(panel._rows.tolist()):
        start, end = bar * 1200 // len(panel._rows), (bar + 1) * 1200 // len(panel._rows)
        assert start <= row < end
        assert totals[row] == totals[start:end].max()
    image = panel.grab().toImage()
    top, _ = panel._top(series)
    fullest = int(np.argmax(totals[:1000]))
    bar = int(np.searchsorted(panel._rows, fullest))
    assert totals[panel._rows[bar]] == totals[fullest]
    x = round(panel._plot.left()) + bar
    y = panel._plot.bottom() - 0.9 * totals[fullest] / top * panel._plot.height()
    assert image.pixelColor(x, int(y)) == QColor(theme().accent)  # prefill of that step, whoever's it is
    assert [item.label for item in panel._legend] == ["budget", "decode", "prefill"]
    panel.selection.visible.release()
    panel.grab()
    assert [item.label for item in panel._legend] == ["budget"]


def test_hover_tells_the_steps_numbers(panel) -> None:
    view = shown(panel, 300)
    row = panel._first + 30
    step = int(view.series.step[row])
    head, lines = panel.readout(view.series, row)
    events = busy_run().events(step)
    assert head.startswith(f"step {step} · {sum(s.num_tokens for s in events.scheduled)} / ")
    assert f"{view.series.running[row]} running" in lines[1]
    before = panel.grab().toImage()
    QTest.mouseMove(panel, bar_centre(panel, row, 100).toPoint())
    assert panel.grab().toImage() != before
    assert panel.row_at(bar_centre(panel, row, 100)) == row


def test_a_budget_out_of_reach_does_not_flatten_the_bars(panel) -> None:
    run = make_run(30, max_num_batched_tokens=8192, long_every=0, rate=0.1)
    view = shown(panel, 29, run)
    top, budget = panel._top(view.series)
    used = int((view.series.decode_tokens + view.series.prefill_tokens).max())
    assert budget == 8192
    assert used <= top < 8192 / 2


def test_nothing_changed_nothing_painted(panel, qtbot) -> None:
    qtbot.waitExposed(panel)
    view = view_at(busy_run(), 300)
    panel.show_view(view)
    qtbot.waitUntil(lambda: panel.paints > 0)
    qtbot.wait(20)
    before = panel.paints
    for _ in range(5):
        panel.show_view(view)
    qtbot.wait(50)
    assert panel.paints == before
    assert not panel.is_animating()


@pytest.mark.parametrize(("width", "height"), [(852, 172), (360, 140), (260, 120), (1600, 500)])
def test_all_sizes_and_runs(panel, width: int, height: int) -> None:
    panel.resize(width, height)
    for theme_name in ("dark", "light"):
        themes.set(theme_name)
        for step in (0, 1, 250, 399):
            shown(panel, step)
            assert panel._plot.right() <= width - 12
            assert panel._first <= panel._current < panel._end
    empty = make_run(0)
    panel.show_view(View(empty.state_at(-1), None, empty.series, empty.timeline, True, 0.0))
    panel.grab()


def test_a_frame_is_cheap(panel) -> None:
    run = busy_run()
    target = QImage(panel.size(), QImage.Format.Format_RGB32)
    panel.zoom_by(-9)
    times = []
    for step in range(300, 340):
        view = view_at(run, step)
        start = time.thread_time()
        panel.show_view(view)
        panel.render(target, QPoint())
        times.append(time.thread_time() - start)
    assert sorted(times)[20] < 0.015  # some milliseconds, with room for a busy machine
