"""What charts are made of: thinning of long curves, axes in our font, and labels that stand beside the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from widgets.painting import draw_text, format_number, nice_ticks, text_width
from widgets.theme import font, px, theme


def downsample(x: np.ndarray, y: np.ndarray, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``2 * buckets`` points that keep every bucket's smallest and largest value, so that no spike is lost.

    NaN in ``y`` is passed over where its bucket holds a number, and kept as a gap where it holds none.
    """
    count = len(x)
    if buckets < 1 or count <= 2 * buckets:
        return x, y
    starts = np.arange(buckets) * count // buckets
    low, high = np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)
    ends = np.append(starts[1:], count) - 1
    # Within a bucket the order of the two does not matter: both fall into the same pixel.
    return np.column_stack((x[starts], x[ends])).ravel(), np.column_stack((low, high)).ravel()


LEAST_GAP = 16.0
"""Pixels from one label of a logarithmic axis to the next, at least."""

NO_TICKS = float("-inf")
"""The ``limit`` of an axis along which nothing has been measured."""


class Axis(pg.AxisItem):
    """Round ticks, also on a logarithmic axis of milliseconds, and none above ``limit``: that room is for labels."""

    log = False
    limit = float("inf")

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float, list[float]]]:
        if self.limit == NO_TICKS:
            return []
        if not self.log:
            if self.orientation == "bottom":
                return super().tickValues(low, high, size)[:1]
            ticks = nice_ticks(min(high, self.limit), max(2, int(size // px(36))))
            return [(ticks[1] if len(ticks) > 1 else 1.0, ticks)]
        decades = range(int(np.floor(low)), int(np.ceil(high)) + 1)
        for steps in ((1, 2, 3, 5), (1, 3), (1,)):
            values = (e + float(np.log10(m)) for e in decades for m in steps)
            ticks = [v for v in values if low <= v <= min(high, self.limit)]
            gaps = np.diff(ticks) * size / max(1e-9, high - low)
            if not len(gaps) or gaps.min() >= px(LEAST_GAP):
                return [(1.0, ticks)]
        return [(1.0, ticks[::-1][::max(1, math.ceil(px(LEAST_GAP) / gaps.min()))][::-1])]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        if self.log:  # of milliseconds; every label has its unit
            shown = [round(10.0 ** v, 3) for v in values]
            return [f"{v:g} ms" if v < 1000 else f"{v / 1000:g} s" for v in shown]
        return [format_number(v, 0 if spacing >= 1 else 2) for v in values]


LABEL, LABEL_AT_LEAST, LABEL_SHORT = 27.0, 23.0, 14.0
"""Height of a name with its value below it: roomy, as close as is readable, and of a value that stands alone."""


class EndLabels(QWidget):
    """Names and values of the curves, in their colours, to the right of the plot: level with their ends, never on
    a line and never on one another. Where there is no room for both, the values stand alone, in the curves' colours.
    At the bottom the unit of the x axis."""

    def __init__(self) -> None:
        super().__init__()
        self._labels: list[tuple[float, str, str, QColor]] = []
        self._height = LABEL
        self.x_unit = ""
        self.x_unit_y = 0.0

    @property
    def placed(self) -> list[tuple[float, float, str, str]]:
        """``(top, bottom, name, value)`` of every label; the name is "" where there was no room for it."""
        half = self._height / 2
        return [(y - half, y + half, name, value) for y, name, value, _ in self._labels]

    def set_labels(self, labels: list[tuple[float, str, str, QColor]], top: float, bottom: float) -> bool:
        """``(y, name, value, colour)`` each; they keep clear of one another and stay between ``top`` and ``bottom``.

        True when they needed another width, so that the plot has to be laid out again.
        """
        room = (bottom - top) / max(1, len(labels))
        roomy, short = px(LABEL), px(LABEL_SHORT)
        height = roomy if room >= roomy else room if room >= px(LABEL_AT_LEAST) else short
        if height == short:
            labels = [(y, "", value, colour) for y, _, value, colour in labels][:max(1, int((bottom - top) // height))]
        placed: list[tuple[float, str, str, QColor]] = []
        y_free = top + height / 2
        for y, name, value, colour in sorted(labels, key=lambda item: item[0]):
            y = max(y, y_free)
            placed.append((y, name, value, colour))
            y_free = y + height
        for index in range(len(placed) - 1, -1, -1):
            limit = bottom - height / 2 if index == len(placed) - 1 else placed[index + 1][0] - height
            y, name, value, colour = placed[index]
            placed[index] = (min(y, limit), name, value, colour)
        if (placed, height) != (self._labels, self._height):
            self._labels, self._height = placed, height
            self.update()
        width = max([40.0] + [max(text_width(n, font(11)), text_width(v, font(11, bold=True)))
                              for _, n, v, _ in placed])
        wanted = int(-(-width // 12) * 12) + 8  # in steps, so that a digit more does not shift the plot
        if wanted != self.width() and (wanted > self.width() or self.width() - wanted > 24):
            self.setFixedWidth(wanted)
            return True
        return False

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme()
        painter.fillRect(self.rect(), QColor(t.panel))
        line, half = min(float(px(13)), self._height / 2), px(7)
        for y, name, value, colour in self._labels:
            if name:
                draw_text(painter, QRectF(6, y - line, self.width() - 6, line), name, colour=colour, text_font=font(11))
                draw_text(painter, QRectF(6, y, self.width() - 6, line), value, colour=t.text,
                          text_font=font(11, bold=True))
            else:
                draw_text(painter, QRectF(6, y - half, self.width() - 6, 2 * half), value, colour=colour,
                          text_font=font(11, bold=True))
        draw_text(painter, QRectF(6, self.x_unit_y - px(8), self.width() - 6, 2 * px(8)), self.x_unit,
                  colour=t.secondary, text_font=font(11))
