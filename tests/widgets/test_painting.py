"""Numbers, text, motion and the panel's frame."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QRectF, Qt
from PySide6.QtGui import QColor, QImage, QPainter

from widgets.painting import (
    MARGIN,
    STOP_REASONS,
    LegendItem,
    Motion,
    Panel,
    draw_status,
    draw_swatch,
    draw_text,
    elide,
    fill_hatched,
    format_bytes,
    format_int,
    format_ms,
    format_number,
    format_percent,
    header,
    nice_ticks,
    stop_reason_text,
    text_width,
)
from widgets.theme import LIGHT, font, theme, themes
from widgets.view import Selection


def canvas(width: int = 120, height: int = 24, fill: str = "#000000") -> QImage:
    image = QImage(width, height, QImage.Format.Format_RGB32)
    image.fill(QColor(fill))
    return image


def painted(image: QImage) -> set[tuple[int, int]]:
    ground = image.pixel(0, 0)
    return {(x, y) for x in range(image.width()) for y in range(image.height()) if image.pixel(x, y) != ground}


@pytest.mark.parametrize(("shown", "wanted"), [
    (format_int(1234567.4), "1,234,567"),
    (format_number(12.345), "12.3"), (format_number(1234.5), "1,234"), (format_number(3.0), "3"),
    (format_number(float("nan")), "–"),
    (format_percent(0.598), "59.8%"), (format_percent(float("nan")), "–"),
    (format_ms(0.25), "250 µs"), (format_ms(4.26), "4.3 ms"), (format_ms(61.2), "61 ms"), (format_ms(1500), "1.50 s"),
    (format_ms(90_000), "1.5 min"), (format_ms(float("nan")), "–"),
    (format_bytes(512), "512 B"), (format_bytes(3_100_000), "3.1 MB"), (format_bytes(5e12), "5000.0 GB"),
])
def test_numbers(shown: str, wanted: str) -> None:
    assert shown == wanted


def test_ticks_are_round_and_within() -> None:
    assert nice_ticks(512, 4) == [0, 200, 400]
    assert nice_ticks(0.9, 3) == pytest.approx([0, 0.5])
    assert nice_ticks(0) == [0.0]
    for maximum in (1, 7, 33, 512, 8192, 0.03):
        ticks = nice_ticks(maximum, 4)
        assert len(ticks) <= 5
        assert ticks[-1] <= maximum * 1.0001


def test_elided_text_fits(qapp) -> None:
    text = "Summarise the incident report below"
    assert elide(text, font(), 1000) == text
    short = elide(text, font(), 80)
    assert short.endswith("…")
    assert text_width(short, font()) <= 80
    assert elide(text, font(), 3) == ""


@pytest.mark.parametrize(("align", "low", "high"), [
    (Qt.AlignmentFlag.AlignLeft, 0, 30), (Qt.AlignmentFlag.AlignRight, 90, 120),
    (Qt.AlignmentFlag.AlignHCenter, 45, 75),
])
def test_text_goes_where_it_is_told(qapp, align, low: int, high: int) -> None:
    image = canvas()
    painter = QPainter(image)
    width = draw_text(painter, QRectF(0, 0, 120, 24), "KV", colour="#ffffff",
                      align=align | Qt.AlignmentFlag.AlignVCenter)
    painter.end()
    marks = painted(image)
    assert marks
    assert low <= min(x for x, _ in marks)
    assert max(x for x, _ in marks) < high
    assert width == text_width("KV", font())
    rows = [y for _, y in marks]
    assert abs((min(rows) + max(rows)) / 2 - 11.5) <= 1  # capitals stand in the middle


def test_hatching_is_neither_empty_nor_full(qapp) -> None:
    image = canvas(64, 64)
    painter = QPainter(image)
    fill_hatched(painter, QRectF(0, 0, 64, 64), "#ffffff")
    painter.end()
    bright = sum(QColor(image.pixel(x, y)).red() > 60 for x in range(64) for y in range(64))
    assert 0.1 < bright / 64**2 < 0.6


def test_looks_differ_without_colour(qapp) -> None:
    """In one colour, and in grey, every swatch and every status has a picture of its own."""
    def picture(draw) -> bytes:
        image = canvas(16, 16).convertToFormat(QImage.Format.Format_RGB32)
        painter = QPainter(image)
        draw(painter, QRectF(0, 0, 16, 16))
        painter.end()
        return bytes(image.convertToFormat(QImage.Format.Format_Mono).constBits())

    swatches = {picture(lambda p, r, k=kind: draw_swatch(p, r, k, "#56b4e9"))
                for kind in ("fill", "hatch", "outline", "line")}
    assert len(swatches) == 4
    assert len({picture(lambda p, r, s=status: draw_status(p, r, s))
                for status in ("good", "warning", "bad", "info")}) == 4


def test_motion_is_a_function_of_time_and_ends() -> None:
    assert Motion.progress(10.0, 10.0) == 0.0
    assert Motion.progress(10.0, 10.125) == pytest.approx(0.5)
    assert Motion.progress(10.0, 99.0) == 1.0
    assert Motion.progress(10.0, 9.0) == 0.0
    assert (Motion.appear(0.0), Motion.appear(1.0)) == (0.0, 1.0)
    assert (Motion.fade(0.0), Motion.fade(1.0)) == (1.0, 0.0)
    assert Motion.glow(1.0) == Motion.flash(1.0) == Motion.glow(0.0) == 0.0
    assert Motion.flash(0.0) == 1.0
    for shape in (Motion.appear, Motion.fade, Motion.glow, Motion.flash):
        assert all(0.0 <= shape(i / 50) <= 1.0 for i in range(51))
    assert Motion.DURATION <= 0.25


def test_motion_can_be_turned_off(monkeypatch) -> None:
    monkeypatch.setattr(Motion, "enabled", False)
    assert Motion.progress(10.0, 10.0) == 1.0


class Counting(Panel):
    def __init__(self) -> None:
        super().__init__(Selection())
        self.painted: list[QRectF] = []
        self.texts = 0

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        self.painted.append(rect)

    def retranslate(self) -> None:
        self.texts += 1


@pytest.fixture
def panel(qtbot):
    widget = Counting()
    qtbot.addWidget(widget)
    widget.resize(400, 120)
    widget.show()
    yield widget
    themes.set("dark")


def test_panel_paints_frame_and_content(panel) -> None:
    image = panel.grab().toImage()
    t = theme()
    assert image.pixelColor(0, 0) == QColor(t.background)
    assert image.pixelColor(200, 0) == QColor(t.line)
    assert image.pixelColor(200, 60) == QColor(t.panel)
    assert panel.painted[-1] == QRectF(MARGIN, header(), 400 - 2 * MARGIN, 120 - header() - MARGIN)


def test_panel_follows_the_theme(panel) -> None:
    themes.set("light")
    image = panel.grab().toImage()
    assert image.pixelColor(200, 60) == QColor(LIGHT.panel)
    assert image.pixelColor(0, 0) == QColor(LIGHT.background)


def test_panel_tells_its_name_and_retranslates(panel) -> None:
    panel.set_title("Block table")
    panel.set_value("612 / 1,023 blocks")
    assert panel.accessibleName() == "Block table"
    assert panel.accessibleDescription() == "612 / 1,023 blocks"
    before = panel.texts
    panel.changeEvent(QEvent(QEvent.Type.LanguageChange))
    assert panel.texts == before + 1


def test_legend_gives_way(panel) -> None:
    panel.set_title("Block table")
    panel.set_legend([LegendItem(f"meaning number {i}", "fill", "#ffffff") for i in range(6)])
    panel.grab()
    some = len(panel.hidden_legend())
    assert 0 < some < 6
    panel.whole_legend = True
    panel.grab()
    assert len(panel.hidden_legend()) == 6


def test_keyboard_focus_shows_and_a_click_does_not(panel, qtbot) -> None:
    panel.activateWindow()
    qtbot.waitUntil(panel.isActiveWindow)
    panel.clearFocus()  # a window's only widget has it from the start
    panel.setFocus(Qt.FocusReason.TabFocusReason)
    assert panel.hasFocus()
    assert panel.grab().toImage().pixelColor(200, 1) == QColor(theme().accent)
    panel.clearFocus()
    assert panel.grab().toImage().pixelColor(200, 1) == QColor(theme().panel)
    panel.setFocus(Qt.FocusReason.MouseFocusReason)
    assert panel.grab().toImage().pixelColor(200, 1) == QColor(theme().panel)


def test_a_note_says_it_in_fewer_words_where_there_is_little_room(panel) -> None:
    def note_at(width: int) -> set[tuple[int, int, int]]:
        panel.resize(width, 120)
        image = panel.grab().toImage()
        return {(x - width, y, image.pixel(x, y)) for x in range(width // 2, width) for y in range(4, header())}

    panel.set_title("Requests")
    panel.set_note("3 running, 2 waiting, 12 done", "3 running")
    wide, narrow = note_at(400), note_at(200)
    panel.set_note("3 running")
    assert panel.note == "3 running"
    assert note_at(200) == narrow
    assert note_at(400) != wide


@pytest.mark.parametrize("where", ["paint", "header"])
def test_a_panel_that_fails_says_so_and_never_raises(panel, qtbot, monkeypatch, where: str) -> None:
    good = panel.grab().toImage()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("half a pixel")

    with monkeypatch.context() as patch:
        patch.setattr(Counting, "paint_content" if where == "paint" else "_paint_header", broken)
        panel.grab()
        assert panel.failure == "ZeroDivisionError: half a pixel"
    panel._moving = True
    assert not panel.is_animating()
    before = len(panel.painted)
    failed = panel.grab().toImage()
    assert len(panel.painted) == before  # what failed is not tried again
    red = QColor(theme().bad).rgb()
    assert any(failed.pixel(x, y) == red for x in range(failed.width()) for y in range(header(), failed.height()))
    panel.recover()
    panel._moving = False
    assert panel.grab().toImage() == good


def test_no_widget_overrides_event() -> None:
    """Below a Python override of QWidget.event an exception in any other handler can end the program."""
    root = Path(__file__).resolve().parents[2]
    files = [p for folder in ("app", "widgets") for p in (root / folder).glob("*.py")]
    assert len(files) > 30
    assert [p.name for p in files if "def event(self" in p.read_text(encoding="utf-8")] == []


def test_every_reason_to_stop_has_words() -> None:
    words = [stop_reason_text(code) for code in STOP_REASONS]
    assert words[0] == ""
    assert all(words[1:])
    assert len(set(words)) == len(words)
    assert stop_reason_text("something_new") == "something_new"
