"""The time axis of the transport bar: a track with a handle, and the run's marks above it by density.

Marks of one kind differ from those of another by height and shape as well as by colour, and a pixel that stands for
many of them is stronger than one that stands for few. They are binned to pixels with numpy and kept as a picture, so
that a run of a million steps costs no more to draw than one of a hundred.
"""

from __future__ import annotations

import time

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QImage, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from engine.trace.metrics import MARK_KINDS, StepSeries
from widgets.painting import format_int
from widgets.theme import theme, themes

MARK_HEIGHT = 12
HANDLE = 7
REBIN_INTERVAL_S = 0.25
"""A live run moves every mark a little at every step; the picture follows this often."""

# Rows (0 is the top) that a kind fills of MARK_HEIGHT, how many pixels wide, from the back to the front.
SHAPES: dict[str, tuple[tuple[tuple[int, int], ...], int]] = {
    "finish": (((10, 12),), 1),
    "hit": (((7, 12),), 1),
    "eviction": (((3, 5), (7, 9), (11, 12)), 1),
    "preemption": (((2, 12),), 2),
    "knob": (((0, 12),), 1),
}


def mark_colour(kind: str) -> QColor:
    """The colour of a kind of mark in the theme in force."""
    t = theme()
    return QColor({"finish": t.secondary, "hit": t.good, "eviction": t.warning, "preemption": t.bad,
                   "knob": t.accent}[kind])


class Scrubber(QWidget):
    """Shows steps ``first`` to ``last`` and where the viewing step stands; a click or a drag asks for another.

    ``seek`` is emitted at most once per turn of the event loop, with the latest step asked for.
    """

    seek = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._first, self._last, self._step = 0, -1, -1
        self._series: StepSeries | None = None
        self._dragging = False
        self._hover_x = -1.0
        self._asked = -1
        self._picture: QImage | None = None
        self._picture_of: tuple[object, ...] = ()
        self._picture_at = 0.0
        self._picture_cost = 0.0  # seconds that the last binning took: a huge run is binned less often
        self.rebins = 0  # how often the marks were binned, for tests and profiling
        self._seek_soon = QTimer(self)
        self._seek_soon.setSingleShot(True)
        self._seek_soon.setInterval(0)
        self._seek_soon.timeout.connect(self._emit_seek)
        self._rebin_soon = QTimer(self)
        self._rebin_soon.setSingleShot(True)
        self._rebin_soon.timeout.connect(self.update)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        themes.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return QSize(360, 36)

    def minimumSizeHint(self) -> QSize:
        return QSize(96, 36)

    # ---- what is shown --------------------------------------------------------------------------------------------

    def set_run(self, first: int, last: int, step: int, series: StepSeries | None) -> None:
        """The run's steps (``last`` below ``first``: none yet), the viewing step, and where marks and times are."""
        shown = (self._first, self._last, self._step, self._series)
        if self._dragging or self._seek_soon.isActive():
            step = self._step  # the handle stays under the pointer
        if shown != (first, last, step, series):
            self._first, self._last, self._step, self._series = first, last, step, series
            self.update()

    @property
    def step(self) -> int:
        return self._step

    def step_at(self, x: float) -> int:
        """The step at a horizontal position, or -1 when there is no step."""
        if self._last < self._first:
            return -1
        share = (x - HANDLE) / max(1, self.width() - 2 * HANDLE)
        return self._first + round(min(1.0, max(0.0, share)) * (self._last - self._first))

    def x_of(self, step: int) -> float:
        """Where a step stands. The only step of a run of one stands at the right: that is where more will come."""
        span = self._last - self._first
        share = 1.0 if span <= 0 else (step - self._first) / span
        return HANDLE + min(1.0, max(0.0, share)) * (self.width() - 2 * HANDLE)

    # ---- the user -------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self._last >= self._first:
            self._dragging = True
            self._ask(event.position().x())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._hover_x = event.position().x()
        if self._dragging:
            self._ask(self._hover_x)
        self._tell(event)
        self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self._dragging = False

    def leaveEvent(self, event: QEvent) -> None:
        self._hover_x = -1.0
        self.update()

    def _ask(self, x: float) -> None:
        step = self.step_at(x)
        if step != self._step:
            self._step = step
            self.update()
        if step != self._asked or not self._dragging:
            self._asked = step
            self._seek_soon.start()

    def _emit_seek(self) -> None:
        if self._asked >= 0:
            step, self._asked = self._asked, -1
            self.seek.emit(step)

    def describe(self, step: int) -> str:
        """What the pointer tells of a step: its number and its time on the run's clock."""
        text = self.tr("step {step}").format(step=format_int(step))
        if self._series is not None:
            row = self._series.index_of(step)
            if row >= 0:
                text += f" · {self._series.end_ns[row] / 1e9:.2f} s"
        return text

    def _tell(self, event: QMouseEvent) -> None:
        step = self.step_at(event.position().x())
        if step >= 0:
            QToolTip.showText(event.globalPosition().toPoint(), self.describe(step), self)

    # ---- painting -------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme()
        track_y = (self.height() + MARK_HEIGHT) / 2
        if self._last > self._first and self._series is not None and len(self._series.marks):
            self._refresh_picture()
            if self._picture is not None:
                top = track_y - MARK_HEIGHT - 4
                painter.drawImage(QRectF(HANDLE, top, self.width() - 2 * HANDLE, MARK_HEIGHT), self._picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(t.line))
        painter.drawRoundedRect(QRectF(0, track_y - 2, self.width(), 4), 2, 2)
        if self._last < self._first:
            return
        x = self.x_of(self._step)
        painter.setBrush(QColor(t.accent))
        painter.drawRoundedRect(QRectF(0, track_y - 2, x, 4), 2, 2)
        if self._hover_x >= 0 and not self._dragging:
            painter.setPen(QPen(QColor(t.secondary), 1))
            painter.drawLine(QPointF(self._hover_x, track_y - 5), QPointF(self._hover_x, track_y + 5))
        painter.setPen(QPen(QColor(t.panel), 2))
        painter.setBrush(t.handle)
        painter.drawEllipse(QPointF(x, track_y), HANDLE, HANDLE)

    def _refresh_picture(self) -> None:
        assert self._series is not None
        ratio = self.devicePixelRatioF()
        width = max(1, round((self.width() - 2 * HANDLE) * ratio))
        run = (self._first, self._last, len(self._series.marks))
        look = (id(self._series), width, ratio, theme().name)
        if self._picture is not None and self._picture_of == (*look, *run):
            return
        wait = self._picture_at + max(REBIN_INTERVAL_S, 30 * self._picture_cost) - time.perf_counter()
        if wait > 0 and self._picture is not None and self._picture_of[:4] == look:
            if not self._rebin_soon.isActive():
                self._rebin_soon.start(int(wait * 1000) + 1)
            return
        began = time.perf_counter()
        self._picture = self._bin_marks(self._series, width, ratio)
        self._picture_of = (*look, *run)
        self._picture_at = time.perf_counter()
        self._picture_cost = self._picture_at - began
        self.rebins += 1

    def _bin_marks(self, series: StepSeries, width: int, ratio: float) -> QImage:
        """The marks as a picture ``width`` device pixels wide, transparent where there are none."""
        scale = max(1, round(ratio))
        pixels = np.zeros((MARK_HEIGHT * scale, width), np.uint32)
        start, end = np.searchsorted(series.marks.steps, (self._first, self._last + 1))
        steps, kinds = series.marks.steps[start:end], series.marks.kinds[start:end]
        per_step = np.float32((width - 1) / max(1, self._last - self._first))
        bins = ((steps - np.int32(self._first)) * per_step).astype(np.int32)
        bins += kinds * np.int32(width)  # one count for all kinds: each has a row of bins
        table = np.bincount(bins, minlength=len(MARK_KINDS) * width).reshape(len(MARK_KINDS), width)
        for kind, (bands, thickness) in SHAPES.items():
            counts = table[MARK_KINDS.index(kind)]
            hit = np.flatnonzero(counts)
            if not len(hit):
                continue
            # Few marks in a pixel: 60% strong; the fullest pixel of its kind: 100%.
            strength = 0.6 + 0.4 * np.log1p(counts[hit] - 1) / max(1e-9, np.log1p(counts.max() - 1))
            colour = mark_colour(kind)
            values = _premultiplied(colour, strength)
            for extra in range(thickness * scale):
                at = np.minimum(hit + extra, width - 1)
                for top, bottom in bands:
                    pixels[top * scale:bottom * scale, at] = values
            if kind == "knob":  # a cap, so that it reads as a T
                for extra in range(-2 * scale, 3 * scale):
                    at = np.clip(hit + extra, 0, width - 1)
                    pixels[:2 * scale, at] = values
        image = QImage(pixels.data, width, pixels.shape[0], 4 * width, QImage.Format.Format_ARGB32_Premultiplied)
        return image.copy()  # the copy owns its pixels


def _premultiplied(colour: QColor, alpha: np.ndarray) -> np.ndarray:
    def channel(value: int) -> np.ndarray:
        return np.round(value * alpha).astype(np.uint32)

    return (channel(255) << np.uint32(24) | channel(colour.red()) << np.uint32(16)
            | channel(colour.green()) << np.uint32(8) | channel(colour.blue()))
