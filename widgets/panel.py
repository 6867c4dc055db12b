"""The frame that every panel has: title, value, note, legend, keyboard focus, language and theme."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from PySide6.QtCore import QCoreApplication, QEvent, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFocusEvent, QPainter, QPaintEvent, QPen, QPixmap, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from widgets.swatches import Swatch, draw_focus_ring, draw_swatch
from widgets.text import draw_text, text_width, title_font
from widgets.theme import RADIUS, font, px, theme, themes
from widgets.view import Selection, View

log = logging.getLogger(__name__)

MARGIN = 12
"""From a panel's edge to what it shows."""

HEADER = 36


def header() -> int:
    """Height of the line with title, value and note, from the panel's top edge."""
    return px(HEADER)


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
    A panel made of child widgets gives its layout the margins ``(MARGIN, header(), MARGIN, MARGIN)`` and
    sets them anew in :meth:`rescale`.

    A panel that moves sets :attr:`_moving` in ``show_view`` and takes it back in ``paint_content`` once it has
    painted the last frame of the motion; whoever owns the frame clock calls ``update()`` while
    :meth:`is_animating` says so.
    """

    whole_legend = False
    """Show the legend in the header only if all of it fits; the panel finds a place for :meth:`hidden_legend`."""

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.selection = selection
        self._title = ""
        self._value_texts: tuple[str, ...] = ("",)
        self._notes: tuple[str, ...] = ("",)
        self._legend: tuple[LegendItem, ...] = ()
        self._legend_shown = 0
        self._moving = False
        self._ring = False
        self._corner: QWidget | None = None
        self.failure = ""
        """Why the panel cannot show this run, "" while it can. It says so itself, and draws nothing else."""
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(200, 96)
        self._scale = themes.scale
        themes.changed.connect(self._theme_changed)

    # -- what a subclass fills in --

    def show_view(self, view: View) -> None:
        """Show the run at the viewing step."""

    def show_now(self) -> None:
        """Draw at once what a panel of a slow pace has put off: a picture of the window is taken."""

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        """Draw inside ``rect``, below the header. The painter is not clipped."""

    def retranslate(self) -> None:
        """Set every text anew; called when the language changes."""

    def rescale(self) -> None:
        """Set anew what goes with the size of type and is not asked for at every painting: margins, fixed sizes."""

    def _theme_changed(self) -> None:
        if self._scale != themes.scale:
            self._scale = themes.scale
            self.rescale()
            self.place_corner()
        self.update()

    def is_animating(self) -> bool:
        """True while the panel has motion left to show and can be seen."""
        return self._moving and self.isVisible() and not self.failure

    def fail(self, failure: Exception) -> None:
        """Stand still from now on and say why. An exception that leaves a paint event can end the whole program."""
        log.error("the panel %s failed", self._title, exc_info=failure)
        self.failure = f"{type(failure).__name__}: {failure}"
        self.update()

    def recover(self) -> None:
        """Another run is to be shown: try again."""
        if self.failure:
            self.failure = ""
            self.update()

    # -- the header --

    def set_title(self, title: str) -> None:
        """The panel's name, drawn in small capitals; it is the accessible name too."""
        if title != self._title:
            self._title = title
            self.setAccessibleName(title)
            self.update()

    def set_value(self, value: str, *shorter: str) -> None:
        """The one figure that matters most, in bold beside the title; ``shorter`` as with :meth:`set_note`."""
        if (value, *shorter) != self._value_texts:
            self._value_texts = (value, *shorter)
            self.setAccessibleDescription(value)
            self.update(self._header_rect())

    def set_note(self, note: str, *shorter: str) -> None:
        """A remark at the right of the header. A legend, if there is one, stands left of it.

        ``shorter`` says the same in fewer words, for panels with no room for it; the last of them is cut if it must.
        """
        if (note, *shorter) != self._notes:
            self._notes = (note, *shorter)
            self.update(self._header_rect())

    def set_legend(self, items: Sequence[LegendItem]) -> None:
        """Samples at the right of the header; those that do not fit are left out, the last first."""
        if tuple(items) != self._legend:
            self._legend = tuple(items)
            self.update(self._header_rect())

    def set_corner(self, widget: QWidget) -> None:
        """A child that stands at the right end of the header; what is painted there gives way while it is shown."""
        self._corner = widget
        self.place_corner()

    def place_corner(self) -> None:
        """Put the corner's widget where it belongs: it was shown, hidden or has another size."""
        if self._corner is not None:
            right, size = self.width() - MARGIN, self._corner.sizeHint()
            self._corner.setGeometry(right - size.width(), (header() - size.height()) // 2, size.width(), size.height())
            self.update(self._header_rect())

    @property
    def corner_width(self) -> int:
        """What the corner's widget takes of the header, with the space beside it; 0 while it is hidden."""
        return 0 if self._corner is None or self._corner.isHidden() else self._corner.width() + MARGIN

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.place_corner()

    @property
    def title(self) -> str:
        return self._title

    @property
    def value(self) -> str:
        return self._value_texts[0]

    @property
    def note(self) -> str:
        return self._notes[0]

    def hidden_legend(self) -> tuple[LegendItem, ...]:
        """What of the legend the header had no room for when it was last painted."""
        return self._legend[self._legend_shown:]

    def content_rect(self) -> QRectF:
        """Where :meth:`paint_content` draws."""
        top = header()
        return QRectF(MARGIN, top, max(0, self.width() - 2 * MARGIN), max(0, self.height() - top - MARGIN))

    def sizeHint(self) -> QSize:
        return QSize(480, 240)

    # -- painting --

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        try:
            self._paint(painter, event.rect())
        except Exception as failure:
            self.fail(failure)  # the repaint that this asks for says so
        finally:
            painter.end()

    def _paint(self, painter: QPainter, dirty: QRect) -> None:
        self.paint_ground(painter, dirty)
        content = self.content_rect()
        if content.width() > 0 and content.height() > 0 and dirty.bottom() >= header():
            if self.failure:
                self._paint_failure(painter, content)
            else:
                self.paint_content(painter, content)
        if self._ring and self.hasFocus():
            draw_focus_ring(painter, QRectF(self.rect()))

    def _paint_failure(self, painter: QPainter, content: QRectF) -> None:
        text = QCoreApplication.translate("Panel", "This panel failed. The run goes on.")
        painter.setFont(font(12))
        painter.setPen(QColor(theme().bad))
        painter.drawText(content, Qt.TextFlag.TextWordWrap, f"{text}\n{self.failure}")

    def paint_ground(self, painter: QPainter, dirty: QRect) -> None:
        """Paint frame and header, as far as ``dirty`` needs them."""
        self._paint_frame(painter)
        if dirty.intersects(self._header_rect()):
            self._paint_header(painter)

    def _header_rect(self) -> QRect:
        return QRect(0, 0, self.width(), header())

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
        line = QRectF(MARGIN, 0, self.width() - 2 * MARGIN - self.corner_width, header())
        caps, strong, small = title_font(), font(12, bold=True), font(11)
        used = draw_text(painter, line, self._title, colour=t.secondary, text_font=caps)
        if self._value_texts[0]:
            line.setLeft(line.left() + used + MARGIN)
            value = next((v for v in self._value_texts if text_width(v, strong) <= line.width()), self._value_texts[-1])
            used = draw_text(painter, line, value, text_font=strong)
        line.setLeft(line.left() + used + MARGIN)
        if self._notes[0]:
            note = next((n for n in self._notes if text_width(n, small) <= line.width()), self._notes[-1])
            taken = draw_text(painter, line, note, colour=t.secondary, text_font=small,
                              align=Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            line.setRight(line.right() - taken - MARGIN)
        self._legend_shown = self._paint_legend(painter, line, self._legend, whole=self.whole_legend)

    def _paint_legend(self, painter: QPainter, line: QRectF, items: Sequence[LegendItem], *,
                      whole: bool = False) -> int:
        """Draw as many items as fit, right-aligned in ``line``; returns how many. ``whole`` means all or none."""
        small = font(11)
        side = px(10)
        widths = [side + px(8) + text_width(item.label, small) for item in items]
        count = len(items)
        while count and sum(widths[:count]) + MARGIN * (count - 1) > line.width():
            count = 0 if whole else count - 1
        x = line.right() - sum(widths[:count]) - MARGIN * max(0, count - 1)
        for item, width in zip(items[:count], widths, strict=False):
            draw_swatch(painter, QRectF(round(x), round(line.center().y()) - side // 2, side, side), item.kind,
                        item.colour)
            draw_text(painter, QRectF(x + side + px(6), line.top(), width, line.height()), item.label,
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
