"""Findings hold what the events say, their links lead to the steps that prove them, and they come once a second."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from engine.trace.history import LiveHistory
from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.findings import Finding, find, ranges
from widgets.insights import InsightsPanel, finding_text, steps_text
from widgets.theme import themes
from widgets.view import Selection


def at(run: LiveHistory, step: int) -> dict[str, Finding]:
    return {f.code: f for f in find(run.series, run.timeline, run.state_at(step), at_most=20)}


def test_ranges() -> None:
    assert ranges(np.array([], int)) == ()
    assert ranges(np.array([5])) == ((5, 5),)
    assert ranges(np.array([1, 2, 3, 20, 21, 40, 44])) == ((20, 21), (40, 44))


def test_preemptions_are_counted_and_proved() -> None:
    run = busy_run()
    found = at(run, 399)["preemptions"]
    preempted = [s for s in range(300, 400) if run.events(s).preempted]
    assert found.level == "bad"
    assert found.numbers["count"] == sum(len(run.events(s).preempted) for s in preempted)
    assert found.numbers["lost_tokens"] == run.state_at(399).counters.lost_tokens
    for first, last in found.steps:
        assert first in preempted
        assert last in preempted
    assert "preemptions" not in at(make_run(120), 119)


def test_preemptions_by_a_knob_are_no_shortage() -> None:
    run = make_run(60, knob_at={50: ("block_size", 32)})
    assert run.events(50).preempted
    found = at(run, 59)
    assert "preemptions" not in found
    assert found["pool_rebuilt"].steps == ((50, 50),)
    assert found["pool_rebuilt"].numbers["count"] == len(run.events(50).preempted)


def test_a_long_prompt_among_decodes_raises_itl() -> None:
    run = make_run(330, rate=0.02, long_every=0, max_requests=12)
    quiet = at(run, 300)
    assert "itl_prefill" not in quiet
    # The same traffic, and from the middle on every other prompt is long.
    run = make_run(420, rate=0.12, long_every=12)
    codes = {step: at(run, step) for step in range(140, 420, 4)}
    rises = {step: f["itl_prefill"] for step, f in codes.items() if "itl_prefill" in f}
    assert rises
    for step, found in rises.items():
        assert found.numbers["now_ms"] == pytest.approx(float(run.series.itl_p99_ms[step]))
        assert found.numbers["before_ms"] == pytest.approx(float(run.series.itl_p99_ms[step - 128]))
        for first, last in found.steps:
            for end in (first, last):
                scheduled = run.events(end).scheduled
                assert any(s.num_tokens > 1 for s in scheduled)
                assert any(s.num_tokens == 1 for s in scheduled)
        assert found.names
        for name in found.names:
            assert any(s.request_id == name for first, last in found.steps for t in range(first, last + 1)
                       for s in run.events(t).scheduled) or len(found.steps) == 2


def test_chunks_beside_decodes() -> None:
    run = make_run(60, rate=0.3, long_every=4, max_num_batched_tokens=256)
    found = at(run, 59)["chunked_prompts"]
    chunks = [(s, x.request_id) for s in range(60) for x in run.events(s).scheduled if not x.samples]
    beside = {s for s, _ in chunks if run.series.decode_tokens[s] > 0}
    assert found.numbers["steps"] == len(beside)
    assert set(found.names) <= {name for _, name in chunks}
    assert {found.steps[-1][0], found.steps[-1][1]} <= {s for s, _ in chunks}
    assert "chunked_prompts" not in at(make_run(60, long_every=0), 59)


def test_waiting_for_blocks_and_for_seqs() -> None:
    run = busy_run()
    found = at(run, 399)["waiting_for_blocks"]
    state = run.state_at(399)
    assert found.numbers["waiting"] == len(state.waiting)
    (first, last), = found.steps
    assert last == 399
    assert (run.series.waiting[first:400] > 0).all()
    run = make_run(100, rate=1.0, max_num_seqs=4)
    assert run.state_at(99).stopped_by == "max_num_seqs"
    found = at(run, 99)["waiting_for_seqs"]
    assert found.numbers["running"] == 4
    assert found.numbers["free"] > 0.5


def test_head_of_line() -> None:
    run = make_run(300, enable_chunked_prefill=False, max_num_batched_tokens=1600, rate=0.6, long_every=3)
    step = next(s for s in range(300) if run.events(s).stopped_by == "chunked_prefill_off")
    assert at(run, step)["head_of_line"].names == (run.events(step).stopped_at,)


def test_a_full_budget() -> None:
    run = make_run(120, rate=0.8, max_num_batched_tokens=64)
    found = at(run, 119)["budget_full"]
    full = [s for s in range(56, 120) if sum(x.num_tokens for x in run.events(s).scheduled) == 64]
    assert found.numbers["count"] == len(full)
    assert "budget_full" not in at(make_run(120, rate=0.05, long_every=0), 119)


def test_the_cache() -> None:
    run = busy_run()
    found = at(run, 399)["cache_serves"]
    counters = run.state_at(399).counters
    assert found.numbers["share"] == counters.hit_tokens / counters.queried_tokens
    assert found.level == "good"
    (first, _), = found.steps
    assert any(s.hit_tokens for s in run.events(first).scheduled)
    off = at(make_run(100, enable_prefix_caching=False), 99)
    assert not {"cache_serves", "cache_idle"} & set(off)


def test_the_effect_of_a_knob() -> None:
    run = busy_run()  # max_num_batched_tokens 512 to 256 at step 200
    assert "knob_effect" not in at(run, 220)  # too early to say
    found = at(run, 300)["knob_effect"]
    assert found.names == ("max_num_batched_tokens 512 → 256",)
    assert found.steps == ((200, 200),)
    assert found.numbers["itl_before"] == float(run.series.itl_p99_ms[199])


def test_the_same_step_always_says_the_same() -> None:
    run = make_run(200, num_blocks=260)
    early = at(run, 150)
    longer = make_run(260, num_blocks=260)
    assert at(longer, 150) == early


def test_every_finding_has_words_without_gaps() -> None:
    texts = {}
    for run, last in ((busy_run(), 399), (make_run(120, rate=0.8, max_num_batched_tokens=64), 119),
                      (make_run(100, rate=1.0, max_num_seqs=4), 99),
                      (make_run(60, knob_at={50: ("block_size", 32)}), 59),
                      (make_run(420, rate=0.12, long_every=12), 419)):
        for step in range(20, last + 1, 13):
            for code, finding in at(run, step).items():
                texts[code] = finding_text(finding)
    assert len(texts) >= 7
    for title, detail in texts.values():
        for text in (title, detail):
            assert text
            assert "{" not in text
            assert "nan" not in text.lower()


@pytest.fixture
def selection() -> Selection:
    return Selection()


@pytest.fixture
def panel(qtbot: QtBot, selection: Selection) -> InsightsPanel:
    result = InsightsPanel(selection)
    qtbot.addWidget(result)
    result.resize(320, 400)
    result.show()
    return result


def test_a_link_asks_for_its_step(panel: InsightsPanel, selection: Selection, qtbot: QtBot) -> None:
    panel.show_view(view_at(busy_run()))
    panel.repaint()
    assert panel._links
    for place, step in panel._links:
        with qtbot.waitSignal(selection.step_requested) as signal:
            qtbot.mouseClick(panel, Qt.MouseButton.LeftButton, pos=place.center().toPoint())
        assert signal.args == [step]
    assert steps_text(3, 3) == "step 3"
    assert steps_text(1000, 1004) == "steps 1,000–1,004"


def test_once_a_second_and_not_when_hidden(panel: InsightsPanel, qtbot: QtBot) -> None:
    run = busy_run()
    for step in range(200, 260):
        panel.show_view(view_at(run, step))
    assert panel.computations == 1
    qtbot.waitUntil(lambda: panel.computations == 2, timeout=3000)
    assert panel._found_for[1] == 259
    panel.hide()
    panel.show_view(view_at(run, 300))
    qtbot.wait(50)
    assert panel.computations == 2
    panel.show()
    assert panel.computations == 3


def test_the_worst_stands_first_and_four_at_most(panel: InsightsPanel) -> None:
    panel.show_view(view_at(busy_run()))
    levels = [f.level for f in panel.findings]
    assert 2 <= len(levels) <= 4
    assert levels == sorted(levels, key=("bad", "warning", "info", "good").index)


@pytest.mark.parametrize("size", [(320, 400), (240, 120), (200, 96)])
def test_it_paints_at_any_size_and_says_what_is_hidden(panel: InsightsPanel, size: tuple[int, int]) -> None:
    before = themes.current.name
    try:
        for name in ("dark", "light"):
            themes.set(name)
            panel.resize(*size)
            panel.show_view(view_at(busy_run()))
            panel.grab()
            assert ("more" in panel.note) == (size[1] < 400)
    finally:
        themes.set(before)


def test_an_empty_run(panel: InsightsPanel) -> None:
    panel.show_view(view_at(make_run(0)))
    panel.grab()
    assert panel.findings == []
