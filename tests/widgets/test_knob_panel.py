"""The knob panel: what it tells, what it never tells, and what it says of itself."""

from __future__ import annotations

import time

import pytest
from PySide6.QtCore import QMimeData, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QScrollArea
from pytestqt.qtbot import QtBot

from engine.trace.knobs import KNOBS
from widgets.knob_panel import KnobPanel
from widgets.knob_texts import knob_text
from widgets.sliders import KnobSlider, RangePair

Told = list[tuple[str, object]]


@pytest.fixture
def panel(qtbot: QtBot) -> KnobPanel:
    result = KnobPanel(KNOBS.values())
    qtbot.addWidget(result)
    result.resize(248, 700)
    result.show()
    return result


@pytest.fixture
def told(panel: KnobPanel) -> Told:
    result: Told = []
    panel.knob_changed.connect(lambda name, value: result.append((name, value)))
    return result


def test_every_knob_has_a_control_and_a_tooltip_that_says_it_all(panel: KnobPanel) -> None:
    for name, knob in KNOBS.items():
        text = knob_text(name)
        assert text.does
        assert text.up
        assert text.down
        tip = panel.control(name).toolTip()
        for part in (text.does, text.up, text.down, knob.vllm_flag):
            assert part in tip
        assert ("every running request is preempted" in tip) == (name in ("block_size", "num_blocks"))


def test_a_group_that_does_nothing_in_a_run_is_hidden_and_not_counted(panel: KnobPanel) -> None:
    panel.set_values({"overlap": True, "max_num_seqs": 4})
    assert not panel.control("overlap").isVisible()  # until somebody says that there is a GPU
    assert panel.note == "1 changed"
    panel.show_group("device", True)
    assert panel.control("enforce_eager").isVisible()
    assert panel.note == "2 changed"
    panel.show_group("device", False)
    assert not panel.control("overlap").isVisible()
    assert panel.control("max_num_seqs").isVisible()
    assert panel.values()["overlap"] is True


def test_set_values_shows_and_never_emits(panel: KnobPanel, told: Told, qtbot: QtBot) -> None:
    values = {"max_num_batched_tokens": 64, "policy": "priority", "enable_chunked_prefill": False, "watermark": 0.1,
              "prompt_tokens_min": 5, "prompt_tokens_max": 50, "unheard_of": 1}
    panel.set_values(values)
    qtbot.wait(200)
    assert told == []
    assert {n: panel.values()[n] for n in values if n in KNOBS} == {n: v for n, v in values.items() if n in KNOBS}
    pair = panel.control("prompt_tokens_max")
    assert isinstance(pair, RangePair)
    assert pair.value == (5, 50)


def test_a_drag_tells_seldom_and_always_the_last(panel: KnobPanel, told: Told, qtbot: QtBot) -> None:
    slider = panel.control("max_num_batched_tokens")
    assert isinstance(slider, KnobSlider)
    began = time.perf_counter()
    for value in range(100, 160):
        slider._turn(value)
    slider.released.emit()
    qtbot.waitUntil(lambda: bool(told) and told[-1] == ("max_num_batched_tokens", 159), timeout=2000)
    assert len(told) <= 2 + (time.perf_counter() - began) / 0.15


def test_knobs_that_rebuild_the_pool_act_when_let_go(panel: KnobPanel, told: Told, qtbot: QtBot) -> None:
    slider = panel.control("block_size")
    assert isinstance(slider, KnobSlider)
    for value in (32, 64, 128):
        slider._turn(value)
    qtbot.wait(200)
    assert told == []
    slider.released.emit()
    assert told == [("block_size", 128)]


def test_a_knob_is_not_pulled_back_before_the_engine_has_caught_up(panel: KnobPanel) -> None:
    slider = panel.control("max_num_seqs")
    assert isinstance(slider, KnobSlider)
    slider._turn(20)
    slider._turn(24)
    panel.set_values({"max_num_seqs": 16})  # the engine has not heard yet
    assert slider.value == 24
    panel.set_values({"max_num_seqs": 20})  # half-way
    assert slider.value == 24
    panel.set_values({"max_num_seqs": 24})
    panel.set_values({"max_num_seqs": 16})  # and now somebody else, or a step further back
    assert slider.value == 16


def test_a_refused_change_is_taken_back(panel: KnobPanel) -> None:
    slider = panel.control("num_blocks")
    assert isinstance(slider, KnobSlider)
    slider._turn(65536)
    panel.change_refused("num_blocks")
    assert slider.value == 1024
    assert panel.values()["num_blocks"] == 1024


def test_a_replay_shows_and_takes_nothing(panel: KnobPanel, told: Told, qtbot: QtBot) -> None:
    panel.set_enabled_live(False)
    panel.set_values({"policy": "priority"})
    assert not panel.control("policy").isEnabled()
    assert panel.note == "as recorded"
    assert not panel.prompt.isEnabled()
    assert "recording" in panel.prompt.placeholderText()
    qtbot.mouseClick(panel.control("enable_chunked_prefill"), Qt.MouseButton.LeftButton)
    assert told == []
    panel.set_enabled_live(True)
    panel.set_prompt_disabled("No model is loaded.")
    assert panel.prompt.toolTip() == "No model is loaded."
    panel.set_prompt_disabled("")
    assert panel.prompt.isEnabled()


def test_the_note_counts_what_is_not_default(panel: KnobPanel) -> None:
    assert panel.note == ""
    panel.set_values({"max_num_seqs": 4, "watermark": 0.1})
    assert panel.note == "2 changed"


def test_enter_sends_and_shift_enter_does_not(panel: KnobPanel, qtbot: QtBot) -> None:
    sent: list[str] = []
    panel.prompt_submitted.connect(sent.append)
    qtbot.keyClick(panel.prompt, Qt.Key.Key_Return)
    assert sent == []  # nothing to send
    qtbot.keyClicks(panel.prompt, "Hello")
    low = panel.prompt.height()
    qtbot.keyClick(panel.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(panel.prompt, "there")
    assert panel.prompt.height() > low
    qtbot.keyClick(panel.prompt, Qt.Key.Key_Return)
    assert sent == ["Hello\nthere"]
    assert panel.prompt.toPlainText() == ""


def test_scenarios(panel: KnobPanel, qtbot: QtBot) -> None:
    assert panel.scenario.isHidden()
    panel.set_scenarios([("burst", "A burst"), ("one-chat", "One chat")], "burst")
    assert panel.scenario.text() == "A burst"
    with qtbot.waitSignal(panel.scenario_chosen) as signal:
        panel.scenario.build_menu().actions()[1].trigger()
    assert signal.args == ["one-chat"]


def test_keys_that_move_the_run_pass_through_the_panel(panel: KnobPanel, qtbot: QtBot) -> None:
    panel.resize(248, 300)
    scroll = panel.findChild(QScrollArea)
    assert scroll is not None
    for key in (Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Space, Qt.Key.Key_Home):
        event = QKeyEvent(QKeyEvent.Type.KeyPress, key, Qt.KeyboardModifier.NoModifier)
        scroll.keyPressEvent(event)
        assert not event.isAccepted()


def test_it_scrolls_when_low(panel: KnobPanel, qtbot: QtBot) -> None:
    panel.resize(248, 300)
    scroll = panel.findChild(QScrollArea)
    assert scroll is not None
    qtbot.waitUntil(lambda: scroll.verticalScrollBar().maximum() > 0)
    assert panel.prompt.geometry().bottom() < panel.height()


@pytest.mark.parametrize("text", ["x" * 100_000, "你好" * 50_000, "word " * 20_000, "\n" * 100_000])
def test_a_huge_prompt_is_pasted_and_sent_whole_without_a_pause(qtbot, text: str) -> None:
    panel = KnobPanel(KNOBS.values())
    qtbot.addWidget(panel)
    panel.resize(248, 720)
    panel.show()
    pasted = QMimeData()
    pasted.setText("a" + text + "b")
    start = time.process_time()
    panel.prompt.insertFromMimeData(pasted)
    QApplication.processEvents()
    assert time.process_time() - start < 1.5  # Qt takes four seconds for a word of that length
    with qtbot.waitSignal(panel.prompt_submitted) as sent:
        QTest.keyClick(panel.prompt, Qt.Key.Key_Return)
    assert sent.args == ["a" + text + "b"]
