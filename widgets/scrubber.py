"""The time axis of the transport bar: a track with a handle, and above it the run's marks, notes and loop.

All of the run, or a part of it, the same as in the charts: the wheel zooms to where the pointer is, a drag then moves
the part that is shown, and a double click shows everything again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
    QWheelEvent,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from engine.trace.metrics import MARK_KINDS, StepSeries
from widgets.mark_bins import MARK_HEIGHT, draw_marks
from widgets.painting import draw_focus_ring, format_int
from widgets.theme import px, theme, themes, with_alpha
from widgets.visible_steps import VisibleSteps

HANDLE = 7
REBIN_INTERVAL_S = 0.25
"""A live run moves every mark a little at every step; the picture follows this often."""

ZOOMED_INTERVAL_S = 1 / 30
"""A part of a run is binned in no time, and is moved about."""

ZOOM_PER_NOTCH = 1.35
PAN_AFTER = 4  # pixels: less is a click
NEAR = 2  # pixels to either side of the pointer in which marks and notes are told of

Loop = tuple[int | None, int | None]


class Scrubber(QWidget):
    """Shows steps ``first`` to ``last`` and where the viewing step stands; a click or a drag asks for another.

    ``seek`` is emitted at most once per turn of the event loop, with the latest step asked for. ``describe_notes``
    gives the text of the notes between two steps, for the tooltip. :attr:`steps` is the part of the run in sight, which
    :meth:`share` makes one with that of the charts.
    """

    seek = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._first, self._last, self._step = 0, -1, -1
        self._series: StepSeries | None = None
        self._notes: Sequence[int] = ()
        self._loop: Loop = (None, None)
        self._following = False
        self.steps = VisibleSteps(self)
        self.steps.changed.connect(self.update)
        self._dragging = False
        self._pan_from: tuple[float, tuple[float, float]] | None = None
        self._panning = False
        self._hover_x = -1.0
        self._asked = -1
        self.describe_notes: Callable[[int, int], list[str]] = lambda first, last: []
        self._picture: QImage | None = None
        self._picture_range = (0.0, 0.0)
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
        self._ring = False
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        themes.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return QSize(360, px(36))

    def minimumSizeHint(self) -> QSize:
        return QSize(px(96), px(36))

    def share(self, steps: VisibleSteps) -> None:
        """Show the part of the run that the charts show."""
        self.steps.changed.disconnect(self.update)
        self.steps = steps
        steps.changed.connect(self.update)

    # ---- what is shown --------------------------------------------------------------------------------------------

    def set_run(self, first: int, last: int, step: int, series: StepSeries | None, *, notes: Sequence[int] = (),
                loop: Loop = (None, None), playing: bool = False, following: bool = False) -> None:
        """The run's steps (``last`` below ``first``: none yet), the viewing step, and where marks and times are.

        ``notes`` are the steps with notes, ascending; ``loop`` the ends of the range that is repeated; ``following``
        says that the viewing step goes with a live run.
        """
        shown = (self._first, self._last, self._step, self._series, self._notes, self._loop, self._following)
        if self._dragging or self._seek_soon.isActive():
            step = self._step  # the handle stays under the pointer
        if shown != (first, last, step, series, notes, loop, following):
            before = self._step
            if series is not self._series:
                self.steps.release()
            self._first, self._last, self._step, self._series = first, last, step, series
            self._notes, self._loop, self._following = notes, loop, following
            self.steps.keep_in_sight(before, step, first, last, playing=playing, following=following)
            self.update()

    @property
    def step(self) -> int:
        return self._step

    @property
    def visible(self) -> tuple[float, float]:
        """The first and the last step in sight."""
        seen = self.steps.range_at(self._step, self._first)
        if seen is None or self._last <= self._first:
            return float(self._first), float(self._last)
        return max(seen[0], float(self._first)), min(seen[1], float(self._last))

    @property
    def zoomed(self) -> bool:
        return self.visible != (self._first, self._last)

    def zoom(self, factor: float, x: float) -> None:
        """Show ``factor`` times fewer steps; the one at the horizontal position ``x`` stays where it is."""
        low, high = self.visible
        if high <= low:
            return
        if (high - low) / factor >= self._last - self._first:
            self.show_everything()
            return
        self.steps.zoom((low, high), factor, low + self._share(x) * (high - low), following=self._following,
                        first=self._first, last=self._last)

    def show_everything(self) -> None:
        self.steps.release()

    def _share(self, x: float) -> float:
        return min(1.0, max(0.0, (x - px(HANDLE)) / max(1, self.width() - 2 * px(HANDLE))))

    def step_at(self, x: float) -> int:
        """The step at a horizontal position, or -1 when there is no step."""
        if self._last < self._first:
            return -1
        low, high = self.visible
        return min(max(round(low + self._share(x) * (high - low)), self._first), self._last)

    def x_of(self, step: float) -> float:
        """Where a step stands. The only step of a run of one stands at the right: that is where more will come."""
        low, high = self.visible
        share = 1.0 if high <= low else (step - low) / (high - low)
        return px(HANDLE) + min(1.0, max(0.0, share)) * (self.width() - 2 * px(HANDLE))

    # ---- the user -------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if self._last < self._first:
            return
        x = event.position().x()
        left = event.button() == Qt.MouseButton.LeftButton
        low, high = self.visible
        on_handle = low <= self._step <= high and abs(x - self.x_of(self._step)) <= px(HANDLE) + 2
        if self.zoomed and (event.button() == Qt.MouseButton.MiddleButton or (left and not on_handle)):
            self._pan_from = (x, self.visible)
            self._panning = False
        elif left:
            self._dragging = True
            self._ask(x)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._hover_x = event.position().x()
        if self._dragging:
            self._ask(self._hover_x)
        elif self._pan_from is not None:
            self._pan(self._hover_x)
            return
        self._tell(event)
        self.update()

    def _pan(self, x: float) -> None:
        assert self._pan_from is not None
        start, (low, high) = self._pan_from
        if not self._panning and abs(x - start) >= PAN_AFTER:
            self._panning = True
            self.setCursor(Qt.CursorShape.ClosedHandCursor)
            QToolTip.hideText()
        if self._panning:
            move = (start - x) * (high - low) / max(1, self.width() - 2 * px(HANDLE))
            self.steps.pan((low, high), move, self._first, self._last)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._pan_from is not None:
            if not self._panning and event.button() == Qt.MouseButton.LeftButton:
                self._ask(event.position().x())
            self._pan_from, self._panning = None, False
            self.unsetCursor()
        if event.button() == Qt.MouseButton.LeftButton:
            self._dragging = False

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self.zoomed:
            self.show_everything()
        else:
            self.mousePressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta()
        low, high = self.visible
        if abs(delta.x()) > abs(delta.y()) and self.zoomed:
            self.steps.pan((low, high), -delta.x() / 120 * 0.1 * (high - low), self._first, self._last)
        elif delta.y():
            self.zoom(ZOOM_PER_NOTCH ** (delta.y() / 120), event.position().x())
        event.accept()

    def leaveEvent(self, event: QEvent) -> None:
        self._hover_x = -1.0
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Page Up and Page Down go by a tenth of what is in sight; the window has the other keys."""
        if event.key() in (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown) and self._last >= self._first:
            low, high = self.visible
            way = 1 if event.key() == Qt.Key.Key_PageDown else -1
            self.seek.emit(min(max(self._step + way * max(1, round((high - low) / 10)), self._first), self._last))
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._ring = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        super().focusInEvent(event)
        self.setAccessibleName(self.tr("Steps"))
        self.setAccessibleDescription(self.describe(self._step) if self._step >= 0 else "")
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
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

    def describe_near(self, x: float) -> list[str]:
        """What is marked and noted at a horizontal position."""
        first, last = self.step_at(x - NEAR), self.step_at(x + NEAR)
        lines: list[str] = []
        if self._series is not None:
            start, end = np.searchsorted(self._series.marks.steps, (first, last + 1))
            counts = np.bincount(self._series.marks.kinds[start:end], minlength=len(MARK_KINDS))
            for kind, text in (("knob", self.tr("knob changes")), ("preemption", self.tr("preemptions")),
                               ("eviction", self.tr("steps with evictions")), ("hit", self.tr("prefix hits")),
                               ("finish", self.tr("finished requests"))):
                count = int(counts[MARK_KINDS.index(kind)])
                if count:
                    lines.append(f"{text}: {format_int(count)}")
        return lines + self.describe_notes(first, last)

    def _tell(self, event: QMouseEvent) -> None:
        x = event.position().x()
        step = self.step_at(x)
        if step >= 0:
            lines = [self.describe(step)] if self._dragging else [self.describe(step), *self.describe_near(x)]
            QToolTip.showText(event.globalPosition().toPoint(), "\n".join(lines), self)

    # ---- painting -------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme()
        marks, half = px(MARK_HEIGHT), px(2)
        track_y = (self.height() + marks) / 2
        top = track_y - marks - 4
        if self._last > self._first and self._series is not None and len(self._series.marks):
            self._refresh_picture()
            self._paint_marks(painter, top)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(t.line))
        painter.drawRoundedRect(QRectF(0, track_y - half, self.width(), 2 * half), half, half)
        if self._last < self._first:
            return
        x = self.x_of(self._step)
        low, high = self.visible
        painter.setBrush(QColor(t.accent))
        if self._step >= low:
            played = QRectF(0, track_y - half, x if self._step <= high else self.width(), 2 * half)
            painter.drawRoundedRect(played, half, half)
        self._paint_loop(painter, track_y, top)
        self._paint_notes(painter, top)
        if self.zoomed:
            self._paint_whole(painter)
        if self._hover_x >= 0 and not self._dragging and not self._panning:
            painter.setPen(QPen(QColor(t.secondary), 1))
            painter.drawLine(QPointF(self._hover_x, track_y - 5), QPointF(self._hover_x, track_y + 5))
        if low <= self._step <= high:
            painter.setPen(QPen(QColor(t.panel), 2))
            painter.setBrush(t.handle)
            painter.drawEllipse(QPointF(x, track_y), px(HANDLE), px(HANDLE))
        else:  # it is out of sight: where it would be found
            way = 1 if self._step > high else -1
            tip = self.width() - 1 if way > 0 else 1
            painter.setPen(QPen(QColor(t.panel), 1))
            painter.setBrush(t.handle)
            painter.drawPolygon(QPolygonF([QPointF(tip - way * 8, track_y - 6), QPointF(tip, track_y),
                                           QPointF(tip - way * 8, track_y + 6)]))
        if self._ring and self.hasFocus():
            draw_focus_ring(painter, QRectF(self.rect()), 4)

    def _paint_marks(self, painter: QPainter, top: float) -> None:
        """The picture of the marks where it belongs now: it may have been made for another part of the run."""
        if self._picture is None:
            return
        low, high = self.visible
        width = self.width() - 2 * px(HANDLE)
        scale = width / max(1e-9, high - low)
        start, end = self._picture_range
        painter.save()
        painter.setClipRect(QRectF(px(HANDLE) - 1, 0, width + 2, self.height()))
        place = QRectF(px(HANDLE) + (start - low) * scale, top, max(1.0, (end - start) * scale), px(MARK_HEIGHT))
        painter.drawImage(place, self._picture)
        painter.restore()

    def _paint_loop(self, painter: QPainter, track_y: float, top: float) -> None:
        """The range that is repeated, with a bracket at each of its ends that is set."""
        start, end = self._loop
        t = theme()
        low, high = self.visible
        if start is not None and end is not None and end >= low and start <= high:
            left, right = self.x_of(max(low, start)), self.x_of(min(high, end))
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(with_alpha(t.accent, 0.2))
            painter.drawRect(QRectF(left, top - 1, right - left, track_y + 7 - top))
        painter.setPen(QPen(QColor(t.accent), 2))
        for step, way in ((start, 1), (end, -1)):
            if step is not None and low <= step <= high:
                x, bottom = self.x_of(step), track_y + 6
                painter.drawPolyline(QPolygonF([QPointF(x + 4 * way, top - 1), QPointF(x, top - 1), QPointF(x, bottom),
                                                QPointF(x + 4 * way, bottom)]))

    def _paint_notes(self, painter: QPainter, top: float) -> None:
        """A flag for each note; where several share a few pixels, a filled one."""
        if not len(self._notes):
            return
        low, high = self.visible
        steps = np.asarray(self._notes, np.float64)
        steps = steps[(steps >= low) & (steps <= high)]
        share = (steps - low) / max(1e-9, high - low)
        at, counts = np.unique((share * (self.width() - 2 * px(HANDLE)) / 3).astype(np.int64) * 3, return_counts=True)
        t = theme()
        for x, count in zip((at + px(HANDLE) + 1.5).tolist(), counts.tolist(), strict=True):
            painter.setPen(QPen(QColor(t.panel), 3))  # so that it stands off from the marks
            painter.drawLine(QPointF(x, top - 3), QPointF(x, top + px(MARK_HEIGHT)))
            painter.setPen(QPen(QColor(t.text), 1.2))
            painter.drawLine(QPointF(x, top - 3), QPointF(x, top + px(MARK_HEIGHT)))
            painter.setBrush(QColor(t.text) if count > 1 else QColor(t.panel))
            painter.drawPolygon(QPolygonF([QPointF(x, top - 3), QPointF(x + 7, top), QPointF(x, top + 3)]))

    def _paint_whole(self, painter: QPainter) -> None:
        """Below the track: which part of the run is in sight."""
        t = theme()
        low, high = self.visible
        span, width = max(1, self._last - self._first), self.width()
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(t.line))
        painter.drawRect(QRectF(0, self.height() - 2, width, 2))
        painter.setBrush(QColor(t.secondary))
        left = (low - self._first) / span * width
        painter.drawRect(QRectF(left, self.height() - 2, max(4.0, (high - low) / span * width), 2))

    def _refresh_picture(self) -> None:
        assert self._series is not None
        ratio = self.devicePixelRatioF()
        width = max(1, round((self.width() - 2 * px(HANDLE)) * ratio))
        low, high = self.visible
        look = (id(self._series), width, ratio, theme().name)
        marks = (low, high, len(self._series.marks))
        if self._picture is not None and self._picture_of == (*look, *marks):
            return
        interval = ZOOMED_INTERVAL_S if self.zoomed else REBIN_INTERVAL_S
        wait = self._picture_at + max(interval, 30 * self._picture_cost) - time.perf_counter()
        if wait > 0 and self._picture is not None and self._picture_of[:4] == look:
            if not self._rebin_soon.isActive():
                self._rebin_soon.start(int(wait * 1000) + 1)
            return
        began = time.perf_counter()
        self._picture = draw_marks(self._series, low, high, width, ratio)
        self._picture_range = (low, high)
        self._picture_of = (*look, *marks)
        self._picture_at = time.perf_counter()
        self._picture_cost = self._picture_at - began
        self.rebins += 1
