"""Colours that can be read, fonts that are there, a style sheet that Qt understands."""

from __future__ import annotations

import re

import pytest
from PySide6.QtGui import QColor, QFontInfo
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from widgets.theme import (
    DARK,
    FONTS_FOLDER,
    ICONS_FOLDER,
    LIGHT,
    Theme,
    contrast,
    font,
    ink_on,
    load_fonts,
    mix,
    px,
    style_sheet,
    themes,
)

BOTH = pytest.mark.parametrize("of", [DARK, LIGHT], ids=lambda t: t.name)


@BOTH
@pytest.mark.parametrize("ground", ["background", "panel", "field"])
@pytest.mark.parametrize("ink", ["text", "secondary", "accent", "warning", "bad", "good"])
def test_text_can_be_read(of: Theme, ground: str, ink: str) -> None:
    assert contrast(getattr(of, ink), getattr(of, ground)) >= 4.5


@BOTH
def test_text_on_controls_can_be_read(of: Theme) -> None:
    assert contrast(of.on_accent, of.accent) >= 4.5
    for ground in (of.hover, of.pressed):
        assert contrast(of.text, ground) >= 4.5


@BOTH
def test_request_names_can_be_read_and_stay_distinct(of: Theme) -> None:
    names = [of.request_text(c) for c in range(len(of.request_colours))]
    assert all(contrast(name, of.panel) >= 4.5 for name in names)
    assert len({name.rgb() for name in names}) == len(names)


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_mix_and_ink() -> None:
    assert mix("#000000", "#ffffff", 0.5).name() == "#808080"
    assert mix("#102030", "#ffffff", -1).name() == "#102030"
    assert ink_on("#f0e442").name() == "#0e1116"
    assert ink_on("#0b6bd3").name() == "#ffffff"


def test_shipped_fonts_load_and_bring_their_licence(qapp) -> None:
    assert "Inter" in load_fonts()
    assert load_fonts() == load_fonts()
    assert QFontInfo(font(12)).family() == "Inter"
    assert "SIL OPEN FONT LICENSE" in (FONTS_FOLDER / "OFL.txt").read_text(encoding="utf-8")


def test_fonts_are_shared_and_have_their_size(qapp) -> None:
    assert font(11) is font(11)
    assert font(11).pixelSize() == 11
    assert font(12, bold=True).weight() > font(12).weight()


@BOTH
def test_style_sheet_names_only_what_exists(of: Theme) -> None:
    sheet = style_sheet(of)
    assert "$" not in sheet
    assert sheet.count("{") == sheet.count("}")
    icons = re.findall(r'url\("([^"]+)"\)', sheet)
    assert icons
    for icon in icons:
        assert icon.startswith(ICONS_FOLDER.as_posix())
        assert (ICONS_FOLDER / icon.rsplit("/", 1)[1]).exists()


@BOTH
def test_style_sheet_is_understood_by_qt(qtbot, of: Theme, capfd) -> None:
    button = QPushButton("Run")
    button.setProperty("primary", True)
    button.setStyleSheet(style_sheet(of))
    qtbot.addWidget(button)
    button.resize(90, 30)
    button.show()
    assert "parse" not in capfd.readouterr().err
    assert button.grab().toImage().pixelColor(10, 6) == QColor(of.accent)


def test_setting_the_theme_tells_once(qtbot) -> None:
    heard: list[str] = []
    listener = lambda: heard.append(themes.current.name)  # noqa: E731
    themes.changed.connect(listener)
    try:
        themes.set("light")
        themes.set("light")
        assert heard == ["light"]
    finally:
        themes.set("dark")
        themes.changed.disconnect(listener)


def test_type_and_what_goes_with_it_are_as_large_as_asked_for(qtbot: QtBot) -> None:
    changes: list[float] = []

    def note() -> None:
        changes.append(themes.scale)

    themes.changed.connect(note)
    plain = font(12)
    try:
        for scale, wanted in ((1.5, 1.5), (9.0, 3.0), (0.1, 0.8)):
            themes.set_scale(scale)
            assert themes.scale == wanted
            assert font(12).pixelSize() == px(12) == round(12 * wanted)
            assert f"font-size: {px(12)}px" in style_sheet(DARK)
        themes.set_scale(0.8)
        assert changes == [1.5, 3.0, 0.8]  # and once each
    finally:
        themes.changed.disconnect(note)
        themes.set_scale(1.0)
    assert font(12) is plain
