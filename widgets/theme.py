"""Colours, sizes and fonts: the one place that they come from.

A widget asks :func:`theme` when it paints and keeps nothing, so that a change of theme is a repaint.
Widgets that build a style sheet or restyle a plot connect to ``themes.changed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase

GRID = 8
"""Every distance is a multiple of this many pixels, or half of it."""

RADIUS = 6
"""Corner radius of panels; controls inside them have 4."""

REQUEST_COLOURS = (
    "#56b4e9", "#e69f00", "#2fbf8f", "#f0e442", "#cc79a7", "#7b8cff",
    "#d55e00", "#4dd0e1", "#a3d65c", "#ff8fa3", "#b48ef0", "#c9a27c",
)

FONTS_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "fonts"
TEXT_FAMILIES = ["Inter", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif"]
MONO_FAMILIES = ["JetBrains Mono", "DejaVu Sans Mono", "Menlo", "Consolas", "monospace"]


@dataclass(frozen=True)
class Theme:
    """A palette. Text on ``background``, ``panel`` and ``field`` has a contrast of at least 4.5:1.

    ``accent``, ``warning``, ``bad`` and ``good`` are text colours too, with the same contrast. ``on_accent`` is the
    text on a control filled with the accent.
    """

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
    on_accent: str = "#ffffff"
    request_colours: tuple[str, ...] = REQUEST_COLOURS

    @property
    def is_dark(self) -> bool:
        return self.name == "dark"

    def request(self, colour: int) -> QColor:
        """The colour of a request's blocks, bars and spans."""
        return QColor(self.request_colours[colour % len(self.request_colours)])

    def request_text(self, colour: int) -> QColor:
        """The request's colour, moved towards the text colour until it can be read on a panel (4.5:1)."""
        return _readable(self.request_colours[colour % len(self.request_colours)], self.panel, self.text)

    def request_edge(self, colour: int) -> QColor:
        """The outline of something filled with the request's colour.

        On the light theme the pale colours would melt into the panel without it.
        """
        fill = self.request_colours[colour % len(self.request_colours)]
        return mix(fill, self.text, 0.0 if self.is_dark else 0.28)

    @property
    def hover(self) -> QColor:
        """A control under the pointer."""
        return mix(self.panel, self.text, 0.08)

    @property
    def pressed(self) -> QColor:
        return mix(self.panel, self.text, 0.14)

    @property
    def handle(self) -> QColor:
        """Grips of sliders and switches."""
        return QColor(self.text)

    @property
    def outline(self) -> QColor:
        """Outlines of controls and of free blocks: a little stronger than ``line``."""
        return mix(self.line, self.text, 0.06 if self.is_dark else 0.05)


DARK = Theme("dark", "#0e1116", "#151a21", "#0e1116", "#262d37", "#e8edf3", "#93a0b0", "#5ab0ff", "#ffb454",
             "#ff6b6b", "#5bd69b", on_accent="#0e1116")
LIGHT = Theme("light", "#f3f5f8", "#ffffff", "#f3f5f8", "#dde3ea", "#1a2129", "#5c6978", "#0b6bd3", "#a85b00",
              "#c62f2f", "#14804a", on_accent="#ffffff")


class Themes(QObject):
    """Holds the theme in force."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._current = DARK

    def set(self, name: str) -> None:
        """Switch to "dark" or "light"; everybody who paints hears of it through ``changed``."""
        wanted = LIGHT if name == "light" else DARK
        if wanted is not self._current:
            self._current = wanted
            self.changed.emit()

    @property
    def current(self) -> Theme:
        return self._current


themes = Themes()


def theme() -> Theme:
    return themes.current


# ---- colour arithmetic -----------------------------------------------------------------------------------------------


def mix(a: QColor | str, b: QColor | str, share_of_b: float) -> QColor:
    """The colour ``share_of_b`` (0 to 1) of the way from ``a`` to ``b``, opacity included."""
    one, other = QColor(a), QColor(b)
    t = min(1.0, max(0.0, share_of_b))
    return QColor(round(one.red() + (other.red() - one.red()) * t),
                  round(one.green() + (other.green() - one.green()) * t),
                  round(one.blue() + (other.blue() - one.blue()) * t),
                  round(one.alpha() + (other.alpha() - one.alpha()) * t))


def with_alpha(colour: QColor | str, alpha: float) -> QColor:
    """The colour with an opacity of ``alpha``, 0 to 1."""
    result = QColor(colour)
    result.setAlphaF(alpha)
    return result


def luminance(colour: QColor | str) -> float:
    """Relative luminance as WCAG defines it, 0 (black) to 1 (white)."""
    c = QColor(colour)
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
                        for v in (c.redF(), c.greenF(), c.blueF()))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: QColor | str, b: QColor | str) -> float:
    """Contrast ratio as WCAG defines it, 1 to 21."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def ink_on(fill: QColor | str) -> QColor:
    """The text colour that can be read on ``fill``: near-black or white, whichever stands out more."""
    dark, light = QColor("#0e1116"), QColor("#ffffff")
    return dark if contrast(dark, fill) >= contrast(light, fill) else light


@lru_cache(maxsize=64)
def _readable(colour: str, ground: str, ink: str) -> QColor:
    for tenths in range(11):
        candidate = mix(colour, ink, tenths / 10)
        if contrast(candidate, ground) >= 4.5:
            return candidate
    return QColor(ink)


# ---- fonts -----------------------------------------------------------------------------------------------------------


def load_fonts() -> list[str]:
    """Register the fonts that ship with the program and return the families they brought.

    Needs a QGuiApplication. Safe to call again; a missing file is passed over, because the system's fonts stand in.
    """
    families: list[str] = []
    for path in sorted(FONTS_FOLDER.glob("*.otf")):
        if path not in _loaded:
            _loaded[path] = QFontDatabase.addApplicationFont(str(path))
        if _loaded[path] >= 0:
            families += [f for f in QFontDatabase.applicationFontFamilies(_loaded[path]) if f not in families]
    return families


_loaded: dict[Path, int] = {}


def font(size: int = 12, *, bold: bool = False, mono: bool = False) -> QFont:
    """A font of ``size`` pixels with tabular figures. Panels use two sizes: 12 for content, 11 for notes."""
    return QFont(_font(size, bold, mono))


@lru_cache(maxsize=64)
def _font(size: int, bold: bool, mono: bool) -> QFont:
    result = QFont()
    result.setFamilies(MONO_FAMILIES if mono else TEXT_FAMILIES)
    result.setPixelSize(size)
    result.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    if hasattr(result, "setFeature"):
        result.setFeature(QFont.Tag("tnum"), 1)
    return result
