"""What the panels draw with: the panel frame, text, numbers, hatching, swatches, and motion.

Everything here paints directly with QPainter and takes its colours from the theme in force. Rectangles are in
logical pixels; whatever is kept as a picture is made for the device's pixel ratio.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from PySide6.QtCore import QCoreApplication, QEvent, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFocusEvent,
    QFont,
    QFontMetricsF,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QPixmap,
    QPolygonF,
    QStaticText,
    QTextLayout,
    QTransform,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.theme import RADIUS, font, ink_on, mix, theme, themes, with_alpha
from widgets.view import Selection, View

MARGIN = 12
"""From a panel's edge to what it shows."""

HEADER = 36
"""Height of the line with title, value and note, from the panel's top edge."""

Swatch = Literal["fill", "faint", "ring", "hatch", "outline", "line", "dash"]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def format_int(value: float) -> str:
    """A whole number with a comma every three digits, in every language."""
    return f"{round(value):,}"


def format_number(value: float, digits: int = 1) -> str:
    """A number with at most ``digits`` decimals (none from 100 on); a dash for what was not measured (NaN)."""
    if math.isnan(value):
        return "–"
    if abs(value) >= 100 or value == int(value):
        return format_int(value)
    return f"{value:,.{digits}f}"


def format_percent(share: float, digits: int = 1) -> str:
    """A share of 1 as a percentage: 0.598 is 59.8%."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f}%"


def format_ms(milliseconds: float) -> str:
    """A duration in the unit that reads best: µs, ms or s."""
    if math.isnan(milliseconds):
        return "–"
    if milliseconds < 1:
        return f"{milliseconds * 1000:.0f} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    return f"{milliseconds / 1000:.2f} s" if milliseconds < 60_000 else f"{milliseconds / 60_000:.1f} min"


def format_bytes(count: float) -> str:
    """A size in decimal units: 3,100,000 is 3.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def nice_ticks(maximum: float, at_most: int = 4) -> list[float]:
    """Round values from 0 up to ``maximum``, at most ``at_most`` steps apart by 1, 2, 2.5 or 5 times a power of 10."""
    if maximum <= 0 or at_most < 1:
        return [0.0]
    raw = maximum / at_most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.9999)
    return [i * step for i in range(int(maximum / step + 1e-9) + 1)]


# ---- text ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def title_font(size: int = 11) -> QFont:
    """Panel titles and group headings: small, spaced capitals (Chinese stays as it is)."""
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


# ---- hatching, swatches, marks ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _hatch(rgba: int, spacing: int, ratio: float) -> QBrush:
    side = round(spacing * ratio)
    tile = QPixmap(side, side)
    tile.fill(Qt.GlobalColor.transparent)
    painter = QPainter(tile)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(QColor.fromRgba(rgba), max(1.0, ratio)))
    for shift in (-side, 0, side):  # three strokes, so that the tile's corners join without gaps
        painter.drawLine(QPointF(shift - 1, side + 1), QPointF(shift + side + 1, -1))
    painter.end()
    tile.setDevicePixelRatio(ratio)
    return QBrush(tile)


def hatch_brush(colour: QColor | str, spacing: int = 4, ratio: float = 1.0) -> QBrush:
    """Diagonal hatching, lines ``spacing`` logical pixels apart, on nothing. ``ratio`` is the device pixel ratio."""
    return _hatch(QColor(colour).rgba(), spacing, ratio)


def fill_hatched(painter: QPainter, rect: QRectF, colour: QColor | str, spacing: int = 4) -> None:
    """Fill ``rect`` with hatching."""
    painter.fillRect(rect, hatch_brush(colour, spacing, painter.device().devicePixelRatioF()))


def draw_swatch(painter: QPainter, rect: QRectF, kind: Swatch, colour: QColor | str) -> None:
    """A legend's sample or a list's mark: the same look as the thing that it stands for."""
    colour = QColor(colour)
    box = rect.adjusted(0.5, 0.5, -0.5, -0.5)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    if kind in ("line", "dash"):
        pen = QPen(colour, 2, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap)
        if kind == "dash":
            pen.setDashPattern([1.5, 1.0])
        painter.setPen(pen)
        painter.drawLine(QPointF(rect.left(), rect.center().y()), QPointF(rect.right(), rect.center().y()))
    else:
        if kind == "hatch":
            painter.setBrush(hatch_brush(colour, 4, painter.device().devicePixelRatioF()))
            painter.setPen(QPen(with_alpha(colour, 0.5), 1))
        elif kind == "outline":
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(colour, 1))
        elif kind == "faint":
            painter.setBrush(with_alpha(colour, 0.3))
            painter.setPen(QPen(colour, 1))
        else:
            painter.setBrush(colour)
            painter.setPen(QPen(mix(colour, theme().text, 0.0 if theme().is_dark else 0.28), 1))
        painter.drawRoundedRect(box, 2, 2)
        if kind == "ring":
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(QColor(theme().text), 1.6))
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), 2, 2)
    painter.restore()


Status = Literal["good", "warning", "bad", "info"]


def status_colour(status: Status) -> QColor:
    t = theme()
    return QColor({"good": t.good, "warning": t.warning, "bad": t.bad, "info": t.accent}[status])


def draw_status(painter: QPainter, rect: QRectF, status: Status) -> None:
    """A status mark that needs no colour to be read: disc with a tick, triangle with "!", square with a cross, "i"."""
    side = min(rect.width(), rect.height())
    box = QRectF(rect.center().x() - side / 2, rect.center().y() - side / 2, side, side)
    fill = status_colour(status)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(fill)
    ink = QPen(ink_on(fill), max(1.2, side / 9), Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap)

    def at(x: float, y: float) -> QPointF:
        return QPointF(box.left() + x * side, box.top() + y * side)

    if status == "warning":
        painter.drawPolygon(QPolygonF([at(0.5, 0.02), at(1.0, 0.95), at(0.0, 0.95)]))
        painter.setPen(ink)
        painter.drawLine(at(0.5, 0.38), at(0.5, 0.62))
        painter.drawPoint(at(0.5, 0.8))
    elif status == "bad":
        painter.drawRoundedRect(box, side / 6, side / 6)
        painter.setPen(ink)
        painter.drawLine(at(0.3, 0.3), at(0.7, 0.7))
        painter.drawLine(at(0.3, 0.7), at(0.7, 0.3))
    else:
        painter.drawEllipse(box)
        painter.setPen(ink)
        if status == "good":
            painter.drawPolyline(QPolygonF([at(0.28, 0.52), at(0.44, 0.68), at(0.73, 0.35)]))
        else:
            painter.drawPoint(at(0.5, 0.28))
            painter.drawLine(at(0.5, 0.48), at(0.5, 0.75))
    painter.restore()


def draw_focus_ring(painter: QPainter, rect: QRectF, radius: float = RADIUS) -> None:
    """Two pixels of accent, just inside ``rect``: where the keyboard is."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(QColor(theme().accent), 2))
    painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), radius, radius)
    painter.restore()


def link_path(start: QPointF, end: QPointF) -> QPainterPath:
    """The curve that joins two places: it leaves and arrives level."""
    path = QPainterPath(start)
    bend = max(24.0, abs(end.x() - start.x()) * 0.5)
    path.cubicTo(QPointF(start.x() + bend, start.y()), QPointF(end.x() - bend, end.y()), end)
    return path


# ---- motion ----------------------------------------------------------------------------------------------------------


class Motion:
    """Pure functions of the time since a step came onto the screen, so that motion plays backwards as well.

    Each takes ``t``, 0 at the moment and 1 after :attr:`DURATION` seconds, and returns a strength from 0 to 1. With
    :attr:`enabled` off, ``t`` is 1 at once and nothing moves.
    """

    DURATION = 0.25
    enabled = True

    @staticmethod
    def now() -> float:
        """The clock of ``View.shown_at``, in seconds."""
        return time.perf_counter()

    @classmethod
    def progress(cls, shown_at: float, now: float | None = None) -> float:
        """``t`` for a step shown at ``shown_at``: 0 to 1."""
        if not cls.enabled:
            return 1.0
        elapsed = (cls.now() if now is None else now) - shown_at
        return min(1.0, max(0.0, elapsed / cls.DURATION))

    @staticmethod
    def appear(t: float) -> float:
        """How far something new has come: 0 to 1, fast first."""
        return 1.0 - (1.0 - t) ** 3

    @staticmethod
    def fade(t: float) -> float:
        """How much is left of something gone: 1 to 0."""
        return (1.0 - t) ** 2

    @staticmethod
    def glow(t: float) -> float:
        """A swell and its ebb, highest at a quarter of the time; 0 at the end."""
        return math.sin(math.pi * math.sqrt(t)) if t < 1.0 else 0.0

    @staticmethod
    def flash(t: float) -> float:
        """Bright at once, then two beats, 0 at the end."""
        return (1.0 - t) * (0.5 + 0.5 * math.cos(4.0 * math.pi * t))


# ---- the panel -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LegendItem:
    """One entry of a legend: a sample and what it means. ``colour`` is a colour's name or ``#rrggbb``."""

    label: str
    kind: Swatch
    colour: str


@lru_cache(maxsize=8)
def _corners(theme_name: str, side: int, ratio: float) -> QPixmap:
    """The four corners of a panel side by side: painting a large rounded rectangle at every frame is slow."""
    t = theme()
    result = QPixmap(math.ceil(2 * side * ratio), math.ceil(2 * side * ratio))
    result.setDevicePixelRatio(ratio)
    result.fill(QColor(t.background))
    painter = QPainter(result)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(QColor(t.line), 1))
    painter.setBrush(QColor(t.panel))
    painter.drawRoundedRect(QRectF(0.5, 0.5, 2 * side - 1, 2 * side - 1), RADIUS, RADIUS)
    painter.end()
    return result


class Panel(QWidget):
    """A rounded panel with a title, a bold value beside it, and a note or a legend at the right.

    A subclass overrides :meth:`show_view` (work out what changed; call ``update()`` only then),
    :meth:`paint_content` and, for its texts, :meth:`retranslate`, which it calls once at the end of its constructor.
    A panel made of child widgets gives its layout the margins ``(MARGIN, HEADER, MARGIN, MARGIN)``.

    A panel that moves sets :attr:`_moving` in ``show_view`` and takes it back in ``paint_content`` once it has
    painted the last frame of the motion; whoever owns the frame clock calls ``update()`` while
    :meth:`is_animating` says so.
    """

    whole_legend = False
    """Show the legend in the header only if all of it fits; the panel finds a place for :meth:`hidden_legend`."""

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.selection = selection
        self._title = self._value = self._note = ""
        self._legend: tuple[LegendItem, ...] = ()
        self._legend_shown = 0
        self._moving = False
        self._ring = False
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(200, 96)
        themes.changed.connect(self.update)

    # -- what a subclass fills in --

    def show_view(self, view: View) -> None:
        """Show the run at the viewing step."""

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        """Draw inside ``rect``, below the header. The painter is not clipped."""

    def retranslate(self) -> None:
        """Set every text anew; called when the language changes."""

    def is_animating(self) -> bool:
        """True while the panel has motion left to show and can be seen."""
        return self._moving and self.isVisible()

    # -- the header --

    def set_title(self, title: str) -> None:
        """The panel's name, drawn in small capitals; it is the accessible name too."""
        if title != self._title:
            self._title = title
            self.setAccessibleName(title)
            self.update()

    def set_value(self, value: str) -> None:
        """The one figure that matters most, in bold beside the title."""
        if value != self._value:
            self._value = value
            self.setAccessibleDescription(value)
            self.update(self._header_rect())

    def set_note(self, note: str) -> None:
        """A remark at the right of the header. A legend, if there is one, stands left of it."""
        if note != self._note:
            self._note = note
            self.update(self._header_rect())

    def set_legend(self, items: Sequence[LegendItem]) -> None:
        """Samples at the right of the header; those that do not fit are left out, the last first."""
        if tuple(items) != self._legend:
            self._legend = tuple(items)
            self.update(self._header_rect())

    @property
    def title(self) -> str:
        return self._title

    @property
    def value(self) -> str:
        return self._value

    @property
    def note(self) -> str:
        return self._note

    def hidden_legend(self) -> tuple[LegendItem, ...]:
        """What of the legend the header had no room for when it was last painted."""
        return self._legend[self._legend_shown:]

    def content_rect(self) -> QRectF:
        """Where :meth:`paint_content` draws."""
        return QRectF(MARGIN, HEADER, max(0, self.width() - 2 * MARGIN), max(0, self.height() - HEADER - MARGIN))

    def sizeHint(self) -> QSize:
        return QSize(480, 240)

    # -- painting --

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self._paint_frame(painter)
        if event.rect().intersects(self._header_rect()):
            self._paint_header(painter)
        content = self.content_rect()
        if content.width() > 0 and content.height() > 0 and event.rect().bottom() >= HEADER:
            self.paint_content(painter, content)
        if self._ring and self.hasFocus():
            draw_focus_ring(painter, QRectF(self.rect()))
        painter.end()

    def _header_rect(self) -> QRect:
        return QRect(0, 0, self.width(), HEADER)

    def _paint_frame(self, painter: QPainter) -> None:
        t = theme()
        corner, width, height = RADIUS + 2, self.width(), self.height()
        painter.fillRect(self.rect(), QColor(t.panel))
        line = QColor(t.line)
        for edge in (QRect(0, 0, width, 1), QRect(0, height - 1, width, 1), QRect(0, 0, 1, height),
                     QRect(width - 1, 0, 1, height)):
            painter.fillRect(edge, line)
        ratio = self.devicePixelRatioF()
        corners = _corners(t.name, corner, ratio)
        for x, y in ((0, 0), (1, 0), (0, 1), (1, 1)):
            painter.drawPixmap(QRectF(x * (width - corner), y * (height - corner), corner, corner), corners,
                               QRectF(x * corner * ratio, y * corner * ratio, corner * ratio, corner * ratio))

    def _paint_header(self, painter: QPainter) -> None:
        t = theme()
        line = QRectF(MARGIN, 0, self.width() - 2 * MARGIN, HEADER)
        caps, strong, small = title_font(), font(12, bold=True), font(11)
        used = draw_text(painter, line, self._title, colour=t.secondary, text_font=caps)
        if self._value:
            line.setLeft(line.left() + used + MARGIN)
            used = draw_text(painter, line, self._value, text_font=strong)
        line.setLeft(line.left() + used + MARGIN)
        if self._note:
            taken = draw_text(painter, line, self._note, colour=t.secondary, text_font=small,
                              align=Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            line.setRight(line.right() - taken - MARGIN)
        self._legend_shown = self._paint_legend(painter, line, self._legend, whole=self.whole_legend)

    def _paint_legend(self, painter: QPainter, line: QRectF, items: Sequence[LegendItem], *,
                      whole: bool = False) -> int:
        """Draw as many items as fit, right-aligned in ``line``; returns how many. ``whole`` means all or none."""
        small = font(11)
        widths = [12 + 6 + text_width(item.label, small) for item in items]
        count = len(items)
        while count and sum(widths[:count]) + MARGIN * (count - 1) > line.width():
            count = 0 if whole else count - 1
        x = line.right() - sum(widths[:count]) - MARGIN * max(0, count - 1)
        for item, width in zip(items[:count], widths, strict=False):
            draw_swatch(painter, QRectF(round(x), round(line.center().y()) - 5, 10, 10), item.kind, item.colour)
            draw_text(painter, QRectF(x + 16, line.top(), width, line.height()), item.label,
                      colour=theme().secondary, text_font=small)
            x += width + MARGIN
        return count

    # -- focus and language --

    def focusInEvent(self, event: QFocusEvent) -> None:
        # Like :focus-visible on the web: a ring for those who came by keyboard, none for a click. When the window
        # comes back or a menu closes, it is as it was.
        if event.reason() not in (Qt.FocusReason.ActiveWindowFocusReason, Qt.FocusReason.PopupFocusReason):
            self._ring = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason,
                                            Qt.FocusReason.ShortcutFocusReason)
        self.update()
        super().focusInEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self.update()
        super().focusOutEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
            self.update()
        super().changeEvent(event)


STOP_REASONS = ("", "budget", "max_num_seqs", "no_free_blocks", "watermark", "chunked_prefill_off", "preemption")
"""The codes of ``StepEvents.stopped_by``."""


def stop_reason_text(stopped_by: str) -> str:
    """Why scheduling stopped, in words of the user's language; "" when nothing was left to schedule."""
    return {
        "": "",
        "budget": QCoreApplication.translate("StopReason", "token budget used up"),
        "max_num_seqs": QCoreApplication.translate("StopReason", "max_num_seqs reached"),
        "no_free_blocks": QCoreApplication.translate("StopReason", "no free blocks"),
        "watermark": QCoreApplication.translate("StopReason", "watermark: blocks kept back"),
        "chunked_prefill_off": QCoreApplication.translate(
            "StopReason", "next prompt exceeds what is left, chunked prefill is off"),
        "preemption": QCoreApplication.translate("StopReason", "a request was preempted, nobody is admitted"),
    }.get(stopped_by, stopped_by)
