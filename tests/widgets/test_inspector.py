"""The inspector: facts of a request, a block and a step, and a text that streams without losing its place."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QTextCursor
from pytestqt.qtbot import QtBot

from engine.trace.events import Evicted
from tests.widgets.scheduler_run import busy_run, make_run, view_at
from widgets.inspector import Inspector, RequestText
from widgets.inspector_facts import block_facts, phase_times, request_facts, step_facts
from widgets.painting import stop_reason_text
from widgets.theme import themes
from widgets.view import Selection


@pytest.fixture
def selection() -> Selection:
    return Selection()


@pytest.fixture
def panel(qtbot: QtBot, selection: Selection) -> Inspector:
    result = Inspector(selection)
    qtbot.addWidget(result)
    result.resize(300, 420)
    result.show()
    return result


def test_facts_of_a_request_agree_with_the_state_at_every_step() -> None:
    run = busy_run()
    words = set()
    for step in range(0, 400, 9):
        state = run.state_at(step)
        for request in state.requests.values():
            facts = dict(request_facts(request, state))
            words.add(facts["state"].split(",")[0].split(" at ")[0])
            assert facts["prompt"].startswith(f"{request.num_prompt_tokens:,} tokens")
            assert facts["output"].startswith(f"{len(request.output_token_ids)} of at most {request.max_tokens}")
            assert facts["blocks"].split()[0] == f"{len(request.blocks):,}"
            shared = sum(len(state.holders[b]) > 1 for b in request.blocks)
            assert (f"({shared} shared with" in facts["blocks"]) == (shared > 0)
            assert (facts["TTFT"] == "–") == (request.first_token_ns < 0)
            assert (facts["preempted"] == "never") == (request.num_preemptions == 0)
    assert {"decode", "prefill", "waiting", "finished"} <= words


def test_facts_of_every_block() -> None:
    state = busy_run().state_at(399)
    order = {block: place for place, block in enumerate(state.free_queue(), 1)}
    seen = set()
    for block in range(1, state.num_blocks):
        facts = dict(block_facts(block, state))
        seen.add(facts["state"].split(",")[0])
        assert facts["fill"] == f"{state.fill[block]} of {state.block_size} tokens"
        assert (facts["hash"] == "–") == (state.block_hash[block] == 0)
        if block in order:
            assert facts["free queue"] == f"number {order[block]:,} of {len(order):,} to be handed out"
        else:
            assert facts["held by"].split(",")[0] == state.holders[block][0]
    assert "in use" in seen
    assert "null block" in dict(block_facts(0, state))["state"]
    assert "no such block" in dict(block_facts(99_999, state))["state"]


def test_facts_of_a_step() -> None:
    run = busy_run()
    told: set[str] = set()
    for step in range(400):
        events, state = run.events(step), run.state_at(step) if step % 40 == 0 else run.state
        facts = dict(step_facts(events, state))
        told |= set(facts)
        tokens = sum(s.num_tokens for s in events.scheduled)
        assert facts["tokens"].startswith(f"{tokens} of")
        if events.stopped_by:
            assert facts["stopped by"].startswith(stop_reason_text(events.stopped_by))
        evicted = sum(len(e.blocks) for e in events.pool if isinstance(e, Evicted))
        assert facts.get("evicted", "0 blocks") == ("1 block" if evicted == 1 else f"{evicted} blocks")
    assert {"knobs", "arrived", "preempted", "prefix hits", "finished"} <= told
    assert sum(ns for _, ns in phase_times(run.events(5))) > 0


def test_nothing_selected_shows_the_step(panel: Inspector, qtbot: QtBot, selection: Selection) -> None:
    run = busy_run()
    panel.show_view(view_at(run, 120))
    assert panel.value == "step 120"
    assert panel.text.isHidden()
    panel.repaint()
    assert [name for _, name in panel._chips] == [s.request_id for s in run.events(120).scheduled]
    place = panel._chips[1][0].center().toPoint()
    qtbot.mouseClick(panel, Qt.MouseButton.LeftButton, pos=place)
    assert selection.request_id == run.events(120).scheduled[1].request_id
    assert panel.value == selection.request_id


def test_a_request_and_back(panel: Inspector, qtbot: QtBot, selection: Selection) -> None:
    view = view_at(busy_run(), 300)
    panel.show_view(view)
    request = view.state.requests[view.state.running[0]]
    selection.select(request_id=request.request_id)
    assert panel.value == request.request_id
    assert request.prompt_text in panel.text.toPlainText()
    assert panel.text.toPlainText().endswith(request.text.strip())
    qtbot.mouseClick(panel, Qt.MouseButton.LeftButton, pos=QPoint(20, 10))
    assert panel.value == "step 300"
    selection.select(request_id="r99999")
    assert panel.facts[0][1] == "not in the engine at this step"
    selection.select(block=7)
    assert panel.value == "block 7"


def test_streaming_keeps_the_selection_and_the_scroll_position(qtbot: QtBot) -> None:
    text = RequestText()
    qtbot.addWidget(text)
    text.resize(200, 100)
    text.show()
    output = " word" * 200
    text.show_request("r1", "A prompt.", output)
    assert text.toPlainText() == "A prompt.\n\n" + output.lstrip()
    cursor = text.textCursor()
    cursor.setPosition(2)
    cursor.setPosition(8, QTextCursor.MoveMode.KeepAnchor)
    text.setTextCursor(cursor)
    bar = text.verticalScrollBar()
    bar.setValue(3)
    text.show_request("r1", "A prompt.", output + " more")
    assert text.textCursor().selectedText() == "prompt"
    assert bar.value() == 3
    assert text.toPlainText().endswith("word more")
    bar.setValue(bar.maximum())
    text.show_request("r1", "A prompt.", output + " more" * 100)
    assert bar.value() == bar.maximum()
    text.show_request("r1", "A prompt.", " word")  # a step back
    assert text.toPlainText() == "A prompt.\n\nword"


def test_the_first_output_is_set_apart_from_the_prompt(qtbot: QtBot) -> None:
    text = RequestText()
    qtbot.addWidget(text)
    text.show_request("r1", "A prompt.", "")
    text.show_request("r1", "A prompt.", " First")
    text.show_request("r1", "A prompt.", " First words")
    assert text.toPlainText() == "A prompt.\n\nFirst words"


def test_low_it_keeps_the_text_in_sight(panel: Inspector, selection: Selection) -> None:
    view = view_at(busy_run(), 300)
    selection.select(request_id=view.state.running[0])
    panel.show_view(view)
    for height in (420, 200, 120):
        panel.resize(300, height)
        assert panel.text.geometry().bottom() <= height
        assert panel.text.height() >= 48
        panel.repaint()


def test_hidden_it_does_nothing(panel: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    panel.hide()
    shown: list[int] = []
    monkeypatch.setattr(panel, "_show_step", lambda view: shown.append(1))
    panel.show_view(view_at(busy_run(), 5))
    assert shown == []
    panel.show()
    assert shown == [1]


@pytest.mark.parametrize("name", ["dark", "light"])
def test_the_text_takes_the_colours_of_the_theme(panel: Inspector, selection: Selection, name: str) -> None:
    view = view_at(busy_run(), 300)
    selection.select(request_id=view.state.running[0])
    panel.show_view(view)
    before = themes.current.name
    try:
        themes.set("dark" if name == "light" else "light")
        themes.set(name)
        cursor = QTextCursor(panel.text.document())
        cursor.setPosition(1)
        assert cursor.charFormat().foreground().color().name() == themes.current.secondary
        cursor.movePosition(QTextCursor.MoveOperation.End)
        assert cursor.charFormat().foreground().color().name() == themes.current.text
    finally:
        themes.set(before)


def test_before_the_first_step(panel: Inspector) -> None:
    panel.show_view(view_at(make_run(0)))
    panel.repaint()
    assert panel.facts == []
