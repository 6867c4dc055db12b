"""One line of text, measured, shortened and drawn. What was laid out is kept: panels repaint at every frame."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QStaticText, QTextLayout, QTransform

from widgets.theme import font, theme, themes


def title_font(size: int = 11) -> QFont:
    """Panel titles and group headings: small, spaced capitals (Chinese stays as it is)."""
    return _title_font(size, themes.scale)


@lru_cache(maxsize=32)
def _title_font(size: int, _scale: float) -> QFont:
    result = QFont(font(size, bold=True))
    result.setCapitalization(QFont.Capitalization.AllUppercase)
    result.setLetterSpacing(QFont.SpacingType.AbsoluteSpacing, 0.7)
    return result


_fonts: dict[int, tuple[QFont, QFontMetricsF]] = {}


def metrics(text_font: QFont) -> QFontMetricsF:
    """Metrics of a font, kept: making them anew costs more than measuring with them.

    Fonts are told apart by identity (comparing them is slow), so take them from :func:`widgets.theme.font`, which
    gives the same object for the same request, or keep your own.
    """
    cached = _fonts.get(id(text_font))
    if cached is None:
        if len(_fonts) >= 256:
            _fonts.clear()
            _width.cache_clear()
            _line.cache_clear()
        cached = _fonts[id(text_font)] = text_font, QFontMetricsF(text_font)
    return cached[1]


@lru_cache(maxsize=8192)
def _width(text: str, font_id: int) -> float:
    return _fonts[font_id][1].horizontalAdvance(text)


def text_width(text: str, text_font: QFont) -> float:
    """Advance of ``text`` in pixels."""
    metrics(text_font)
    return _width(text, id(text_font))


_ELIDE_RIGHT = Qt.TextElideMode.ElideRight


class _Line(NamedTuple):
    """A line of text, shortened and laid out. ``top`` is from the middle of its capitals up to its layout's top."""

    shown: str
    width: float
    layout: QStaticText | None
    top: float


@lru_cache(maxsize=4096)
def _line(text: str, font_id: int, room: int, mode: Qt.TextElideMode) -> _Line:
    text_font, m = _fonts[font_id]
    if m.horizontalAdvance(text) > room:
        text = m.elidedText(text, mode, room) if room >= m.horizontalAdvance("…") else ""
    if not text:
        return _Line("", 0.0, None, 0.0)
    layout = QStaticText(text)
    layout.setTextFormat(Qt.TextFormat.PlainText)
    layout.prepare(QTransform(), text_font)
    return _Line(text, m.horizontalAdvance(text), layout, _ascent(text, text_font) - m.capHeight() / 2)


def _ascent(text: str, text_font: QFont) -> float:
    """From the top of a laid out line to its baseline; glyphs of a fallback font (Chinese) may make it higher."""
    if text.isascii():
        return metrics(text_font).ascent()
    layout = QTextLayout(text, text_font)
    layout.beginLayout()
    line = layout.createLine()
    layout.endLayout()
    return line.ascent()


def elide(text: str, text_font: QFont, width: float, mode: Qt.TextElideMode = _ELIDE_RIGHT) -> str:
    """``text``, shortened with an ellipsis to at most ``width`` pixels; "" if not even the ellipsis fits."""
    metrics(text_font)
    return _line(text, id(text_font), math.ceil(width), mode).shown


_LEFT_MIDDLE = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


@lru_cache(maxsize=64)
def _placement(align: Qt.AlignmentFlag) -> tuple[float, float]:
    """Where the text goes: 0 is left or top, 0.5 the middle, 1 right or bottom."""
    across = 1.0 if align & Qt.AlignmentFlag.AlignRight else 0.5 if align & Qt.AlignmentFlag.AlignHCenter else 0.0
    down = 0.0 if align & Qt.AlignmentFlag.AlignTop else 1.0 if align & Qt.AlignmentFlag.AlignBottom else 0.5
    return across, down


def draw_text(painter: QPainter, rect: QRectF, text: str, *, colour: QColor | str | None = None,
              text_font: QFont | None = None, align: Qt.AlignmentFlag = _LEFT_MIDDLE,
              mode: Qt.TextElideMode = _ELIDE_RIGHT) -> float:
    """Draw one line of text inside ``rect``, elided to fit. Returns the width that it took, in pixels.

    Without ``colour`` it has the theme's text colour. In the middle means that its capitals are.
    """
    text_font = text_font or font()
    m = metrics(text_font)
    line = _line(text, id(text_font), math.ceil(rect.width() + 0.5), mode)
    if line.layout is None:
        return 0.0
    across, down = _placement(align)
    x = rect.x() + (rect.width() - line.width) * across
    if down == 0.5:
        y = rect.y() + rect.height() / 2 - line.top
    else:
        y = rect.y() + (rect.height() - m.height()) * down + m.ascent() - m.capHeight() / 2 - line.top
    painter.setFont(text_font)
    painter.setPen(QColor(theme().text if colour is None else colour))
    painter.drawStaticText(QPointF(round(x), round(y)), line.layout)
    return line.width
