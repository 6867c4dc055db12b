"""Scales, sliders, switches, choices: what the user does is told once, what the program sets is not."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QKeyEvent, QWheelEvent
from PySide6.QtWidgets import QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from engine.trace.knobs import KNOBS, KnobError
from widgets.controls import Choice, Throttle, ToggleSwitch
from widgets.scale import Scale
from widgets.sliders import HANDLE, KnobSlider, RangePair
from widgets.theme import themes

NUMBERS = [k for k in KNOBS.values() if k.kind in ("int", "float")]


@pytest.mark.parametrize("knob", NUMBERS, ids=lambda k: k.name)
def test_every_position_gives_a_value_that_the_knob_takes(knob: object) -> None:
    scale = Scale(knob)  # type: ignore[arg-type]
    values = [scale.value(i / 200) for i in range(201)]
    assert [scale.knob.check(v) for v in values] == values
    assert values == sorted(values, key=float)
    assert (values[0], values[-1]) == (scale.knob.minimum, scale.knob.maximum)


@pytest.mark.parametrize("knob", NUMBERS, ids=lambda k: k.name)
def test_arrow_keys_reach_every_end_and_never_leave_the_range(knob: object) -> None:
    scale = Scale(knob)  # type: ignore[arg-type]
    up = scale.stepped(float(scale.knob.default), 1)
    assert float(up) > float(scale.knob.default)
    assert scale.stepped(float(scale.knob.minimum), -3) == scale.knob.minimum
    assert scale.stepped(float(scale.knob.maximum), 3) == scale.knob.maximum


@pytest.mark.parametrize("knob", NUMBERS, ids=lambda k: k.name)
def test_what_is_shown_can_be_typed(knob: object) -> None:
    scale = Scale(knob)  # type: ignore[arg-type]
    for value in (scale.knob.default, scale.value(0.0), scale.value(0.37), scale.value(1.0)):
        assert float(scale.parse(scale.format(value))) == pytest.approx(float(value), rel=1e-3)


def test_doublings_are_equally_far_apart_and_powers_of_two_are_hit() -> None:
    scale = Scale(KNOBS["max_num_batched_tokens"])
    gaps = [scale.position(v * 2) - scale.position(v) for v in (16, 256, 2048)]
    assert gaps == pytest.approx([gaps[0]] * 3)
    assert scale.value(scale.position(512)) == 512
    assert scale.stepped(512, 1) == 576
    assert scale.stepped(512, -1) == 480
    assert Scale(KNOBS["block_size"]).stepped(16, 1) == 32


def test_formats_and_typing() -> None:
    assert Scale(KNOBS["common_prefix"]).format(0.7) == "70%"
    assert Scale(KNOBS["common_prefix"]).parse("70") == 0.7
    assert Scale(KNOBS["common_prefix"]).parse("0.7") == 0.7
    assert Scale(KNOBS["arrival_rate"]).format(3.0) == "3.0 /s"
    assert Scale(KNOBS["num_blocks"]).format(1024) == "1,024"
    assert Scale(KNOBS["num_blocks"]).parse(" 1,024 blocks") == 1024
    assert Scale(KNOBS["long_prefill_token_threshold"]).format(0) == "off"
    assert Scale(KNOBS["long_prefill_token_threshold"]).parse("off") == 0
    for text in ("", "many", "5", "99999"):
        with pytest.raises(KnobError, match="max_num_batched_tokens"):
            Scale(KNOBS["max_num_batched_tokens"]).parse(text)


@pytest.fixture
def slider(qtbot: QtBot) -> KnobSlider:
    result = KnobSlider(KNOBS["max_num_batched_tokens"], "tokens")
    qtbot.addWidget(result)
    result.resize(220, result.sizeHint().height())
    result.show()
    qtbot.waitExposed(result)
    return result


def track(slider: KnobSlider, value: float) -> QPoint:
    x = HANDLE + slider.scale.position(value) * (slider.width() - 2 * HANDLE)
    return QPoint(round(x), slider.height() - 8)


def test_setting_does_not_emit(qtbot: QtBot, slider: KnobSlider) -> None:
    with qtbot.assertNotEmitted(slider.value_changed):
        slider.set_value(1024)
    assert slider.value == 1024


def test_a_click_on_the_track_goes_there_and_a_drag_follows(qtbot: QtBot, slider: KnobSlider) -> None:
    seen: list[object] = []
    slider.value_changed.connect(seen.append)
    with qtbot.waitSignal(slider.released):
        qtbot.mousePress(slider, Qt.MouseButton.LeftButton, pos=track(slider, 64))
        assert slider.dragging
        qtbot.mouseMove(slider, track(slider, 4096))
        qtbot.mouseRelease(slider, Qt.MouseButton.LeftButton, pos=track(slider, 4096))
    assert seen[0] == pytest.approx(64, rel=0.1)
    assert slider.value == pytest.approx(4096, rel=0.1)


def test_gripping_the_handle_off_centre_does_not_move_it(qtbot: QtBot, slider: KnobSlider) -> None:
    with qtbot.assertNotEmitted(slider.value_changed):
        qtbot.mouseClick(slider, Qt.MouseButton.LeftButton, pos=track(slider, 512) + QPoint(4, 0))


def test_double_click_brings_the_default_back(qtbot: QtBot, slider: KnobSlider) -> None:
    slider.set_value(64)
    with qtbot.waitSignal(slider.value_changed) as signal:
        qtbot.mouseDClick(slider, Qt.MouseButton.LeftButton, pos=track(slider, 64))
    assert signal.args == [512]


def wheel(slider: KnobSlider, delta: int) -> QWheelEvent:
    return QWheelEvent(QPointF(10, 10), slider.mapToGlobal(QPointF(10, 10)), QPoint(), QPoint(0, delta),
                       Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False)


def test_the_wheel_turns_only_with_the_focus(qtbot: QtBot, slider: KnobSlider) -> None:
    slider.clearFocus()
    event = wheel(slider, 120)
    slider.wheelEvent(event)
    assert slider.value == 512
    assert not event.isAccepted()
    slider.setFocus()
    qtbot.waitUntil(slider.hasFocus)
    slider.wheelEvent(wheel(slider, 120))
    assert slider.value == 576


def test_keys(qtbot: QtBot, slider: KnobSlider) -> None:
    slider.clearFocus()
    slider.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(slider.hasFocus)
    for key, value in ((Qt.Key.Key_Right, 576), (Qt.Key.Key_Left, 512), (Qt.Key.Key_End, 8192), (Qt.Key.Key_Home, 16),
                       (Qt.Key.Key_Delete, 512)):
        qtbot.keyClick(slider, key)
        assert slider.value == value


def test_after_a_click_the_keys_that_move_the_run_go_on_to_the_window(qtbot: QtBot) -> None:
    class Window(QWidget):
        def keyPressEvent(self, event: QKeyEvent) -> None:
            heard.append(event.key())

    heard: list[int] = []
    window = Window()
    qtbot.addWidget(window)
    slider = KnobSlider(KNOBS["max_num_batched_tokens"], "tokens", window)
    switch = ToggleSwitch("chunked prefill", True, window)
    slider.setGeometry(0, 0, 220, 40)
    switch.setGeometry(0, 50, 220, 24)
    window.show()
    qtbot.mouseClick(slider, Qt.MouseButton.LeftButton, pos=track(slider, 512))
    for key in (Qt.Key.Key_Space, Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Home, Qt.Key.Key_End):
        qtbot.keyClick(slider, key)
        qtbot.keyClick(switch, key)
    assert len(heard) == 10
    assert (slider.value, switch.value) == (512, True)
    qtbot.keyClick(slider, Qt.Key.Key_Up)  # means nothing to the window
    assert slider.value == 576


def test_a_number_can_be_typed_and_a_bad_one_is_not_taken(qtbot: QtBot, slider: KnobSlider) -> None:
    slider.repaint()
    qtbot.mouseClick(slider, Qt.MouseButton.LeftButton, pos=QPoint(slider.width() - 8, 8))
    editor = slider.findChild(QLineEdit)
    assert editor is not None
    editor.setText("1,000")
    with qtbot.waitSignal(slider.value_changed) as signal:
        qtbot.keyClick(editor, Qt.Key.Key_Return)
    assert signal.args == [1000]
    slider.edit()
    editor = slider.findChildren(QLineEdit)[-1]
    editor.setText("7")
    with qtbot.assertNotEmitted(slider.value_changed):
        qtbot.keyClick(editor, Qt.Key.Key_Return)
        assert editor.isVisible()  # to be mended
        qtbot.keyClick(editor, Qt.Key.Key_Escape)
    assert slider.value == 1000
    assert not editor.isVisible()


@pytest.fixture
def pair(qtbot: QtBot) -> RangePair:
    result = RangePair(KNOBS["prompt_tokens_min"], KNOBS["prompt_tokens_max"], "prompt tokens")
    qtbot.addWidget(result)
    result.resize(220, result.sizeHint().height())
    result.show()
    return result


def test_a_range_moves_the_nearer_handle_and_never_crosses(qtbot: QtBot, pair: RangePair) -> None:
    seen: list[object] = []
    pair.value_changed.connect(seen.append)
    left = QPoint(HANDLE + 10, pair.height() - 8)
    right = QPoint(pair.width() - HANDLE, pair.height() - 8)
    qtbot.mousePress(pair, Qt.MouseButton.LeftButton, pos=left)
    qtbot.mouseMove(pair, right)
    qtbot.mouseRelease(pair, Qt.MouseButton.LeftButton, pos=right)
    assert {name for name, _ in seen} == {"prompt_tokens_min"}  # type: ignore[misc]
    assert pair.value == (200, 200)
    qtbot.mouseClick(pair, Qt.MouseButton.LeftButton, pos=right)  # where both stand, the upper one can go up
    assert pair.value == (200, 4096)


def test_a_range_can_be_typed(qtbot: QtBot, pair: RangePair) -> None:
    assert pair.text() == "20–200"
    for text, value in (("300-500", (300, 500)), ("10 – 40", (10, 40)), ("64", (64, 64)), ("90-30", (30, 90))):
        pair._accept_text(text)
        assert pair.value == value
    with pytest.raises(KnobError):
        pair._accept_text("1-2-3")
    pair.reset()
    assert pair.value == (20, 200)


def test_switch_and_choice(qtbot: QtBot) -> None:
    switch = ToggleSwitch("chunked prefill", True)
    qtbot.addWidget(switch)
    switch.resize(200, 24)
    switch.set_value(False)
    with qtbot.waitSignal(switch.value_changed) as signal:
        qtbot.mouseClick(switch, Qt.MouseButton.LeftButton)
    assert signal.args == [True]
    qtbot.keyClick(switch, Qt.Key.Key_Return)
    assert switch.value is False
    choice = Choice("policy", [("fcfs", "fcfs"), ("priority", "priority")], "fcfs", "fcfs")
    qtbot.addWidget(choice)
    menu = choice.build_menu()
    assert [a.isChecked() for a in menu.actions()] == [True, False]
    with qtbot.waitSignal(choice.value_changed) as signal:
        menu.actions()[1].trigger()
    assert signal.args == ["priority"]
    qtbot.keyClick(choice, Qt.Key.Key_Up)
    assert choice.value == "fcfs"


def test_throttle_passes_the_first_at_once_and_always_the_last(qtbot: QtBot) -> None:
    throttle = Throttle(80)
    seen: list[object] = []
    throttle.passed.connect(seen.append)
    for value in range(20):
        throttle.push(value)
    assert seen == [0]
    qtbot.waitUntil(lambda: seen == [0, 19], timeout=2000)
    qtbot.wait(200)
    assert seen == [0, 19]


@pytest.mark.parametrize("name", ["dark", "light"])
def test_controls_paint_in_both_themes_enabled_and_not(qtbot: QtBot, name: str, slider: KnobSlider) -> None:
    before = themes.current.name
    try:
        themes.set(name)
        enabled = slider.grab().toImage()
        slider.setEnabled(False)
        assert slider.grab().toImage() != enabled
    finally:
        themes.set(before)
