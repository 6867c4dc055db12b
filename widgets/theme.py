"""Colours, sizes and fonts: the one place that they come from.

A widget asks :func:`theme` when it paints and keeps nothing, so that a change of theme is a repaint.
Widgets that build a style sheet or restyle a plot connect to ``themes.changed``.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QColor, QFont

GRID = 8
"""Every distance is a multiple of this many pixels, or half of it."""

REQUEST_COLOURS = (
    "#56b4e9", "#e69f00", "#2fbf8f", "#f0e442", "#cc79a7", "#7b8cff",
    "#d55e00", "#4dd0e1", "#a3d65c", "#ff8fa3", "#b48ef0", "#c9a27c",
)


@dataclass(frozen=True)
class Theme:
    """A palette. Text on ``background`` and on ``panel`` has a contrast of at least 4.5:1."""

    name: str
    background: str
    panel: str
    field: str  # inputs and wells inside panels
    line: str
    text: str
    secondary: str
    accent: str
    warning: str
    bad: str
    good: str
    request_colours: tuple[str, ...] = REQUEST_COLOURS

    @property
    def is_dark(self) -> bool:
        return self.name == "dark"

    def request(self, colour: int) -> QColor:
        return QColor(self.request_colours[colour % len(self.request_colours)])


DARK = Theme("dark", "#0e1116", "#151a21", "#0e1116", "#262d37", "#e8edf3", "#93a0b0", "#5ab0ff", "#ffb454",
             "#ff6b6b", "#5bd69b")
LIGHT = Theme("light", "#f3f5f8", "#ffffff", "#f3f5f8", "#dde3ea", "#1a2129", "#5c6978", "#0b6bd3", "#a85b00",
              "#c62f2f", "#14804a")


class Themes(QObject):
    """Holds the theme in force."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._current = DARK

    def set(self, name: str) -> None:
        self._current = LIGHT if name == "light" else DARK
        self.changed.emit()

    @property
    def current(self) -> Theme:
        return self._current


themes = Themes()


def theme() -> Theme:
    return themes.current


def font(size: int = 12, *, bold: bool = False, mono: bool = False) -> QFont:
    """A font of ``size`` pixels with tabular figures. Panels use two sizes: 12 for content, 11 for notes."""
    result = QFont()
    result.setFamilies(["JetBrains Mono", "DejaVu Sans Mono"] if mono else ["Inter", "Noto Sans CJK SC", "sans-serif"])
    result.setPixelSize(size)
    result.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    if hasattr(result, "setFeature"):
        result.setFeature(QFont.Tag("tnum"), 1)
    return result
