"""Colours, sizes and fonts: the one place that they come from.

A widget asks :func:`theme` when it paints and keeps nothing, so that a change of theme is a repaint.
Widgets that build a style sheet or restyle a plot connect to ``themes.changed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Template

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


SMALLEST_SCALE, LARGEST_SCALE = 0.8, 3.0


class Themes(QObject):
    """Holds the theme in force, and how large type is."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._current = DARK
        self.scale = 1.0

    def set(self, name: str) -> None:
        """Switch to "dark" or "light"; everybody who paints hears of it through ``changed``."""
        wanted = LIGHT if name == "light" else DARK
        if wanted is not self._current:
            self._current = wanted
            self.changed.emit()

    def set_scale(self, scale: float) -> None:
        """Make type, and what has to go with it, ``scale`` times as large as designed."""
        scale = min(LARGEST_SCALE, max(SMALLEST_SCALE, scale))
        if scale != self.scale:
            self.scale = scale
            self.changed.emit()

    @property
    def current(self) -> Theme:
        return self._current


themes = Themes()


def theme() -> Theme:
    return themes.current


def px(length: float) -> int:
    """A length that goes with the size of type, in whole pixels."""
    return round(length * themes.scale)


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
    """A font of ``size`` pixels (as designed: larger where type is) with tabular figures. Panels use two sizes: 12 for
    content, 11 for notes.

    The same request gives the same object, so that what was measured with it can be kept: copy before changing it.
    """
    return _font(px(size), bold, mono)


@lru_cache(maxsize=256)
def _font(size: int, bold: bool, mono: bool) -> QFont:
    result = QFont()
    result.setFamilies(MONO_FAMILIES if mono else TEXT_FAMILIES)
    result.setPixelSize(size)
    result.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    if hasattr(result, "setFeature"):
        result.setFeature(QFont.Tag("tnum"), 1)
    return result


# ---- the style sheet -------------------------------------------------------------------------------------------------

ICONS_FOLDER = FONTS_FOLDER.parent / "icons"


def style_sheet(of: Theme) -> str:
    """The style sheet of the whole application: every stock control at the look of the panels.

    Controls are told apart by dynamic properties where the class is not enough: a QPushButton with the property
    ``primary`` is filled with the accent, one with ``flat`` has no frame; a QLabel may have the property ``role``
    "title" (small spaced capitals), "secondary", "value" (bold), "warning", "bad" or "good". After setting a property
    on a widget that is shown, unpolish and polish it.
    """
    colours = {
        name: getattr(of, name) for name in ("background", "panel", "field", "line", "text", "secondary", "accent",
                                             "warning", "bad", "good", "on_accent")
    }
    colours |= {
        "hover": of.hover.name(), "pressed": of.pressed.name(), "handle": of.handle.name(),
        "outline": mix(of.line, of.text, 0.12).name(),
        "scroll": mix(of.panel, of.secondary, 0.35).name(), "scroll_hover": mix(of.panel, of.secondary, 0.6).name(),
        "accent_hover": mix(of.accent, of.text, 0.15).name(), "accent_pressed": mix(of.accent, of.text, 0.3).name(),
        "selected": mix(of.panel, of.accent, 0.24 if of.is_dark else 0.14).name(),
        "disabled": mix(of.panel, of.secondary, 0.6).name(),
        "family": ", ".join(f'"{family}"' for family in TEXT_FAMILIES),
        "icons": ICONS_FOLDER.as_posix(), "name": of.name,
        "text_px": f"{px(12)}px", "small_px": f"{px(11)}px", "control_px": f"{px(20)}px", "item_px": f"{px(24)}px",
    }
    return Template(_STYLE).substitute(colours)


_STYLE = """
* { font-family: $family; font-size: $text_px; }
QWidget { color: $text; }
QMainWindow, QDialog, QMessageBox, QWizard { background: $background; }
QLabel { background: transparent; }
QLabel[role="title"] { color: $secondary; font-size: $small_px; font-weight: 600; }
QLabel[role="secondary"] { color: $secondary; }
QLabel[role="value"] { font-weight: 600; }
QLabel[role="warning"] { color: $warning; }
QLabel[role="bad"] { color: $bad; }
QLabel[role="good"] { color: $good; }
QLabel:disabled { color: $disabled; }

QPushButton, QToolButton {
    background: $panel; border: 1px solid $outline; border-radius: 6px; padding: 4px 12px; min-height: $control_px;
}
QToolButton { padding: 4px 6px; }
QPushButton:hover, QToolButton:hover { background: $hover; }
QPushButton:pressed, QToolButton:pressed { background: $pressed; }
QPushButton:focus, QToolButton:focus { border: 2px solid $accent; padding: 3px 11px; }
QToolButton:focus { padding: 3px 5px; }
QPushButton:disabled, QToolButton:disabled { color: $disabled; border-color: $line; }
QPushButton:checked, QToolButton:checked, QPushButton[primary="true"], QToolButton[primary="true"],
QPushButton:default {
    background: $accent; border-color: $accent; color: $on_accent; font-weight: 600;
}
QPushButton:checked:hover, QToolButton:checked:hover, QPushButton[primary="true"]:hover,
QToolButton[primary="true"]:hover, QPushButton:default:hover { background: $accent_hover; }
QPushButton:checked:pressed, QToolButton:checked:pressed, QPushButton[primary="true"]:pressed,
QToolButton[primary="true"]:pressed, QPushButton:default:pressed { background: $accent_pressed; }
QPushButton:checked:focus, QToolButton:checked:focus, QPushButton[primary="true"]:focus,
QToolButton[primary="true"]:focus, QPushButton:default:focus { border-color: $text; }
QPushButton[primary="true"]:disabled, QPushButton:default:disabled {
    background: $hover; border-color: $line; color: $disabled;
}
QPushButton[flat="true"], QToolButton[flat="true"], QToolButton[autoRaise="true"] {
    background: transparent; border-color: transparent;
}
QPushButton[flat="true"]:hover, QToolButton[flat="true"]:hover, QToolButton[autoRaise="true"]:hover {
    background: $hover;
}
QPushButton[flat="true"]:focus, QToolButton[flat="true"]:focus, QToolButton[autoRaise="true"]:focus {
    border-color: $accent;
}
QToolButton::menu-indicator { image: none; width: 0; }

QAbstractScrollArea { background: transparent; border: none; }
QAbstractScrollArea::corner { background: transparent; }
QScrollArea > QWidget > QWidget { background: transparent; }

QLineEdit, QPlainTextEdit, QTextEdit, QTextBrowser, QSpinBox, QDoubleSpinBox, QAbstractSpinBox {
    background: $field; border: 1px solid $outline; border-radius: 4px; padding: 3px 8px;
    selection-background-color: $accent; selection-color: $on_accent; placeholder-text-color: $secondary;
}
QLineEdit, QAbstractSpinBox { min-height: $control_px; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QTextBrowser:focus, QAbstractSpinBox:focus {
    border: 2px solid $accent; padding: 2px 7px;
}
QLineEdit:disabled, QPlainTextEdit:disabled, QTextEdit:disabled, QAbstractSpinBox:disabled {
    color: $disabled; border-color: $line;
}
QLineEdit[invalid="true"], QAbstractSpinBox[invalid="true"] { border: 2px solid $bad; padding: 2px 7px; }
#qt_spinbox_lineedit { background: transparent; border: none; padding: 0 0 0 8px; min-height: 0; }
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button {
    subcontrol-origin: border; width: 16px; background: transparent; border: none;
}
QAbstractSpinBox::up-button { subcontrol-position: top right; }
QAbstractSpinBox::down-button { subcontrol-position: bottom right; }
QAbstractSpinBox::up-arrow { image: url("$icons/chevron-up-$name.svg"); width: 10px; height: 10px; }
QAbstractSpinBox::down-arrow { image: url("$icons/chevron-down-$name.svg"); width: 10px; height: 10px; }

QComboBox {
    background: $panel; border: 1px solid $outline; border-radius: 4px; padding: 3px 8px; min-height: $control_px;
}
QComboBox:hover { background: $hover; }
QComboBox:focus { border: 2px solid $accent; padding: 2px 7px; }
QComboBox:disabled { color: $disabled; border-color: $line; }
QComboBox::drop-down { border: none; width: 20px; }
QComboBox::down-arrow { image: url("$icons/chevron-down-$name.svg"); width: 12px; height: 12px; }
QComboBox QLineEdit { background: transparent; border: none; padding: 0; min-height: 0; }
QComboBox QAbstractItemView {
    background: $panel; border: 1px solid $outline; padding: 4px; outline: none;
    selection-background-color: $selected; selection-color: $text;
}
QComboBox QAbstractItemView::item { min-height: $item_px; padding: 0 8px; border-radius: 4px; }

QSlider:horizontal { min-height: 20px; }
QSlider:vertical { min-width: 20px; }
QSlider::groove:horizontal { height: 4px; border-radius: 2px; background: $line; }
QSlider::groove:vertical { width: 4px; border-radius: 2px; background: $line; }
QSlider::sub-page:horizontal, QSlider::add-page:vertical { border-radius: 2px; background: $accent; }
QSlider::sub-page:horizontal:disabled, QSlider::add-page:vertical:disabled { background: $disabled; }
QSlider::handle:horizontal { width: 14px; height: 14px; margin: -5px 0; border-radius: 7px; background: $handle; }
QSlider::handle:vertical { width: 14px; height: 14px; margin: 0 -5px; border-radius: 7px; background: $handle; }
QSlider::handle:focus { width: 10px; height: 10px; border: 2px solid $accent; }
QSlider::handle:disabled { background: $disabled; }

QCheckBox, QRadioButton { spacing: 8px; background: transparent; }
QCheckBox:disabled, QRadioButton:disabled { color: $disabled; }
QCheckBox::indicator, QRadioButton::indicator {
    width: 14px; height: 14px; border: 1px solid $secondary; background: $field;
}
QCheckBox::indicator { border-radius: 3px; }
QRadioButton::indicator { border-radius: 8px; }
QCheckBox::indicator:checked {
    background: $accent; border-color: $accent; image: url("$icons/check-$name.svg");
}
QRadioButton::indicator:checked { background: $on_accent; border: 5px solid $accent; width: 6px; height: 6px; }
QCheckBox:focus, QRadioButton:focus { color: $accent; }
QCheckBox::indicator:focus, QRadioButton::indicator:focus { border: 2px solid $accent; width: 12px; height: 12px; }

QScrollBar:vertical { background: transparent; width: 10px; margin: 0; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0; }
QScrollBar::handle { background: $scroll; border-radius: 3px; margin: 2px; }
QScrollBar::handle:vertical { min-height: 24px; }
QScrollBar::handle:horizontal { min-width: 24px; }
QScrollBar::handle:hover { background: $scroll_hover; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }

QAbstractItemView {
    background: $panel; alternate-background-color: $field; border: none; outline: none;
    selection-background-color: $selected; selection-color: $text;
}
QTableView::item { padding: 0 8px; }
QAbstractItemView::item:hover { background: $hover; }
QAbstractItemView::item:selected { background: $selected; color: $text; }
QHeaderView::section {
    background: $panel; color: $secondary; border: none; border-bottom: 1px solid $line; padding: 4px 8px;
}

QToolTip {
    background: $panel; color: $text; border: 1px solid $outline; padding: 6px 8px; font-size: $text_px;
}
QMenuBar { background: $background; padding: 2px 4px; }
QMenuBar::item { background: transparent; padding: 4px 8px; border-radius: 4px; }
QMenuBar::item:selected, QMenuBar::item:pressed { background: $hover; }
QMenu { background: $panel; border: 1px solid $outline; padding: 4px; }
QMenu::item { padding: 5px 24px 5px 12px; border-radius: 4px; }
QMenu::icon { padding-left: 8px; }
QMenu::item:selected { background: $selected; }
QMenu::item:disabled { color: $disabled; }
QMenu::separator { height: 1px; background: $line; margin: 4px 8px; }
QMenu::indicator { width: 12px; height: 12px; margin-left: 6px; }
QMenu::indicator:checked { background: $accent; border-radius: 2px; image: url("$icons/check-$name.svg"); }
QMenu::right-arrow { image: url("$icons/chevron-right-$name.svg"); width: 12px; height: 12px; margin-right: 6px; }

QDockWidget { color: $secondary; font-size: $small_px; font-weight: 600; }
QDockWidget::title { background: $background; padding: 4px 8px; text-align: left; }
QMainWindow::separator, QSplitter::handle { background: $background; }
QMainWindow::separator { width: 8px; height: 8px; }
QMainWindow::separator:hover, QSplitter::handle:hover { background: $outline; }
QSplitter::handle:horizontal { width: 8px; }
QSplitter::handle:vertical { height: 8px; }
QStatusBar { background: $background; color: $secondary; }
QStatusBar::item { border: none; }
QToolBar { background: $background; border: none; spacing: 4px; padding: 4px; }

QTabWidget::pane { border: 1px solid $line; border-radius: 6px; background: $panel; top: -1px; }
QTabBar::tab { background: transparent; color: $secondary; padding: 6px 12px; border-bottom: 2px solid transparent; }
QTabBar::tab:hover { color: $text; }
QTabBar::tab:selected { color: $text; border-bottom-color: $accent; font-weight: 600; }
QTabBar::tab:focus { border-bottom-color: $text; }

QProgressBar { background: $line; border: none; border-radius: 3px; height: 6px; text-align: center; color: $text; }
QProgressBar::chunk { background: $accent; border-radius: 3px; }
QGroupBox { border: 1px solid $line; border-radius: 6px; margin-top: 10px; padding-top: 8px; }
QGroupBox::title { subcontrol-origin: margin; left: 8px; padding: 0 4px; color: $secondary; }
"""
