"""The token budget: what each step spent it on, decode below and prefill chunks above, in the requests' colours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QImage, QKeyEvent, QMouseEvent, QPainter, QPen, QPolygonF, QWheelEvent
from PySide6.QtWidgets import QWidget

from engine.trace.metrics import MARK_KINDS, StepSeries
from widgets.chart_keys import chart_key
from widgets.follow_chip import FollowChip
from widgets.painting import (
    LegendItem,
    Panel,
    draw_text,
    format_int,
    format_ms,
    metrics,
    nice_ticks,
    stop_reason_text,
    text_width,
)
from widgets.stacked_bars import highest, spread, stack_columns
from widgets.theme import font, mix, px, theme, themes, with_alpha
from widgets.view import Selection, View
from widgets.visible_steps import Range

_AXIS = 18
"""Height of the line of step numbers, and of the line of knob labels."""

_BAR = 5
"""Width of a step unless the user zooms."""

_ZOOM_PER_NOTCH = 1.25
_DRAG_AFTER = 4  # pixels: less is a click
_MOST_KNOBS = 400
_KNOB = MARK_KINDS.index("knob")
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_CENTRE = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter


class TokenBudget(Panel):
    """Bars for the last steps up to the viewing step, or for those that all charts are held at; steps beyond the
    viewing step are dim. Where there are more steps than pixels, a pixel shows the fullest of its steps.

    A click asks for the step under the pointer, a drag pans, the wheel or + and - zoom, a double click lets go.
    """

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._view: View | None = None
        self._seen: tuple[object, ...] = ()
        self._pointer: QPointF | None = None
        self._dragged_from: tuple[float, Range] | None = None
        self._dragging = False
        self._plot = QRectF()
        self._first = 0  # row of the series at the left edge; negative while the run is shorter than the plot
        self._end = 0
        self._current = -1
        self._placed: tuple[StepSeries, int, int, int] | None = None  # and its columns, first row, viewing row
        self._bar = 1.0  # width of a step in logical pixels
        self._edges = np.zeros(1, np.int64)  # where the bars begin and end, in device pixels from the plot's left
        self._rows = np.zeros(0, np.int64)  # the row that each bar shows; several rows may share one
        self._picture: tuple[tuple[object, ...], np.ndarray] | None = None
        self.setMouseTracking(True)
        self.setMinimumSize(260, 120)
        self.chip = FollowChip(self)
        selection.visible.changed.connect(self.update)
        themes.changed.connect(self.retranslate)
        self.retranslate()

    def sizeHint(self) -> QSize:
        return QSize(860, 172)

    def retranslate(self) -> None:
        self.set_title(self.tr("Token budget"))
        self.setWhatsThis(self.tr("How each step spent its token budget: decode below, prefill chunks above."))
        self._set_legend()
        self._update_header()

    def _set_legend(self) -> None:
        items = [LegendItem(self.tr("budget"), "line", theme().warning)]
        if self._shares_pixels:  # then no colour is a request's
            items += [LegendItem(self.tr("decode"), "fill", _crowd_colours()[0].name()),
                      LegendItem(self.tr("prefill"), "fill", _crowd_colours()[1].name())]
        self.set_legend(items)

    @property
    def _shares_pixels(self) -> bool:
        return len(self._rows) < self._end - self._first

    # ---- what is shown -------------------------------------------------------------------------------------------

    def show_view(self, view: View) -> None:
        seen = (view.state.info, view.state.step, view.series.n, view.following)
        changed = self._view is None or seen != self._seen or view.series is not self._view.series
        self._view, self._seen = view, seen
        if changed:
            self._update_header()
            self.update()

    def _update_header(self) -> None:
        if self._view is None:
            return
        state, series = self._view.state, self._view.series
        row = series.index_of(state.step)
        if row < 0:
            self.set_value("")
            self.set_note("")
            return
        used = int(series.decode_tokens[row]) + int(series.prefill_tokens[row])
        self.set_value(self.tr("{used} / {budget} tokens").format(
            used=format_int(used), budget=format_int(int(series.budget[row]))))
        reason = stop_reason_text(state.stopped_by)
        step = format_int(state.step)
        if reason:
            self.set_note(self.tr("step {step} stopped: {reason}").format(step=step, reason=reason))
        else:
            self.set_note(self.tr("step {step}: nothing was left to schedule").format(step=step))

    # ---- layout --------------------------------------------------------------------------------------------------

    def steps_in_sight(self) -> Range | None:
        """The first and the last step that are shown; None while there is none."""
        if self._view is None or not self._view.series.n or self._end <= self._first:
            return None
        steps = self._view.series.step
        shared = self.selection.visible.range_at(self._view.state.step, int(steps[0]))
        if shared is not None:
            return shared
        last = len(steps) - 1  # the run may be another one, and shorter, than the one that was laid out
        return float(steps[min(max(0, self._first), last)]), float(steps[min(self._end - 1, last)])

    def _lay_out(self, rect: QRectF) -> None:
        assert self._view is not None
        series, step = self._view.series, self._view.state.step
        ratio, axis = self.devicePixelRatioF(), px(_AXIS)
        left = rect.left() + px(38)
        room = max(1, int((rect.right() - left) * ratio))  # device pixels
        self._current = series.index_of(step)
        seen = self.selection.visible.range_at(step, int(series.step[0]))
        if seen is None:
            pixels = max(1, round(px(_BAR) * ratio))
            columns = max(1, room // pixels)
            self._first = self._first_row(series, columns)
            self._end = self._current + 1 if self._view.following else min(series.n, self._first + columns)
            self._placed = series, columns, self._first, self._current
            room = columns * pixels
        else:
            self._first = max(0, series.index_of(round(seen[0])))
            self._end = max(self._first, series.index_of(round(seen[1]))) + 1
            columns = self._end - self._first
        self._bar = room / columns / ratio
        bars = min(self._end - self._first, room)
        if bars < self._end - self._first:
            rows = slice(self._first, self._end)
            self._rows = self._first + highest(series.decode_tokens[rows] + series.prefill_tokens[rows], bars)
        else:
            self._rows = np.arange(self._first, self._end)
        self._edges = np.arange(bars + 1) * room // (bars if bars < self._end - self._first else columns)
        self._plot = QRectF(round(left * ratio) / ratio, round((rect.top() + axis) * ratio) / ratio,
                            room / ratio, max(1.0, rect.height() - 2 * axis))
        self._set_legend()

    def _first_row(self, series: StepSeries, columns: int) -> int:
        """The row at the left edge while the panel chooses. At the live edge the newest step is at the right. Otherwise
        the bars stand still as long as the viewing step walks among them, and new steps never move them."""
        current, ahead = self._current, columns // 4
        if self._view is None or self._view.following:
            return max(0, current + 1 - columns)
        fresh = max(0, current + 1 + min(series.n - 1 - current, ahead) - columns)
        if self._placed is None or self._placed[:2] != (series, columns):
            return fresh
        first, moved = self._placed[2], current - self._placed[3]
        if moved > 0 and current >= first + columns - ahead:
            return min(fresh, first + 2 * moved)  # back to where a quarter of the room lies ahead, bit by bit
        if moved < 0 and current < first + columns // 10:
            return fresh if -moved > ahead else max(0, current - columns // 10)
        return first

    def _top(self, series: StepSeries) -> tuple[float, float]:
        """What the plot's top edge stands for, and the largest budget in it.

        That is the budget, unless the steps use so little of it that the bars could not be read.
        """
        rows = slice(self._first, self._end)
        budget = float(series.budget[rows].max())
        used = float((series.decode_tokens[rows] + series.prefill_tokens[rows]).max())
        if 6 * used < budget:
            step = nice_ticks(max(16.0, 1.5 * used), 2)
            return step[-1] + step[1] if len(step) > 1 else max(16.0, 1.5 * used), budget
        return max(budget, used), budget

    def _x(self, row: float) -> float:
        """Where a row's bar begins; the rows beyond the last bar too."""
        at = row - self._first
        if not self._shares_pixels and at == int(at) and 0 <= at < len(self._edges):
            return self._plot.left() + float(self._edges[int(at)]) / self.devicePixelRatioF()
        return self._plot.left() + at * self._bar

    def row_at(self, position: QPointF) -> int:
        """The row of the series whose bar is under a point, -1 for none."""
        if not self._plot.adjusted(0, -px(_AXIS), 0, px(_AXIS)).contains(position) or not len(self._rows):
            return -1
        pixel = int((position.x() - self._plot.left()) * self.devicePixelRatioF())
        bar = int(np.searchsorted(self._edges, pixel, "right")) - 1
        return int(self._rows[bar]) if 0 <= bar < len(self._rows) else -1

    # ---- painting ------------------------------------------------------------------------------------------------

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        if self._view is None or self._view.series.n == 0 or self._view.series.index_of(self._view.state.step) < 0:
            draw_text(painter, rect, self.tr("No step yet"), colour=t.secondary, align=_CENTRE)
            return
        if rect.height() < 2 * px(_AXIS) + 12:
            return
        series = self._view.series
        self._lay_out(rect)
        top, budget = self._top(series)
        self._paint_scale(painter, top)
        hovered = self.row_at(self._pointer) if self._pointer is not None and not self._dragging else -1
        if hovered >= 0:
            painter.fillRect(QRectF(self._x(hovered), self._plot.top(), max(2.0, self._bar), self._plot.height()),
                             mix(t.panel, t.text, 0.14))
        painter.drawImage(self._plot.topLeft(), self._bars(series, top))
        self._paint_budget(painter, series, top, budget)
        self._paint_preemptions(painter, series)
        held = self.selection.visible.held
        if self._first <= self._current < self._end - (not held):
            self._paint_cursor(painter)
        self._paint_knobs(painter, series)
        self._paint_steps(painter, series)
        if hovered >= 0:
            self._paint_readout(painter, series, hovered, rect)

    def _bars(self, series: StepSeries, top: float) -> QImage:
        """The picture of all bars; composed anew only when something in it changed."""
        t = theme()
        ratio = self.devicePixelRatioF()
        room, height = int(self._edges[-1]), max(1, round(self._plot.height() * ratio))
        newest = int(series.step[self._end - 1])
        key = (id(series), self._first, self._end, newest, self._current, room, len(self._rows), height, top, t.name)
        if self._picture is None or self._picture[0] != key:
            offsets, paint, tokens, prefill = self._shares(series)
            columns = stack_columns(offsets, tokens, prefill, paint, height / top, height)
            self._picture = key, spread(columns, self._edges, 1 if room >= 3 * len(self._rows) else 0)
        picture = self._picture[1]
        image = QImage(picture.data, picture.shape[1], picture.shape[0], 4 * picture.shape[1],
                       QImage.Format.Format_ARGB32_Premultiplied)
        image.setDevicePixelRatio(ratio)
        return image

    def _shares(self, series: StepSeries) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The bars' shares as :func:`stack_columns` takes them: offsets, paint, tokens, and whether it is prefill."""
        name = theme().name
        if self._shares_pixels:
            tokens = np.column_stack((series.decode_tokens[self._rows], series.prefill_tokens[self._rows])).ravel()
            prefill = np.tile((False, True), len(self._rows))
            dim = np.repeat(self._rows > self._current, 2)
            paint = _crowd_paints(name)[dim.astype(np.intp), prefill.astype(np.intp)]
            return np.arange(len(self._rows) + 1) * 2, paint, tokens, prefill
        offsets, colours, tokens, prefill = series.segments_between(self._first, self._end)
        dim = np.zeros(len(colours), np.intp)
        dim[offsets[min(max(self._current + 1 - self._first, 0), len(offsets) - 1)]:] = 1
        return offsets, _paints(name)[dim, prefill.astype(np.intp), colours], tokens, prefill

    def _y(self, tokens: float, top: float) -> float:
        return self._plot.bottom() - tokens / top * self._plot.height()

    def _paint_scale(self, painter: QPainter, top: float) -> None:
        t, small = theme(), font(11)
        height = self._plot.height()
        ticks = [tick for tick in nice_ticks(top, 2 if height < px(90) else 4)
                 if (top - tick) / top * height >= px(16)]
        ticks.append(top)
        last = ticks[-1]
        for tick in ticks:
            y = round(self._y(tick, top))
            painter.fillRect(QRectF(self._plot.left(), y, self._plot.width(), 1), QColor(t.line))
            # The uppermost says what is counted.
            draw_text(painter, QRectF(0, y - px(8), self._plot.left() - 8, 2 * px(8)), format_int(tick),
                      colour=t.secondary, text_font=small, align=_RIGHT)
            if tick == last:
                draw_text(painter, QRectF(self._plot.left() - px(38), y - px(22), px(60), px(14)), self.tr("tokens"),
                          colour=t.secondary, text_font=small)

    def _paint_budget(self, painter: QPainter, series: StepSeries, top: float, largest: float) -> None:
        """A step line; where the budget lies above the plot, a dashed line at the edge says how much it is."""
        t = theme()
        budget = series.budget[self._first:self._end]
        edges = [0, *(np.flatnonzero(np.diff(budget)) + 1).tolist(), len(budget)]
        points: list[QPointF] = []
        for start, end in pairwise(edges):
            y = round(self._y(min(float(budget[start]), top), top)) + 0.5
            points += [QPointF(self._x(self._first + start), y), QPointF(self._x(self._first + end), y)]
        style = Qt.PenStyle.SolidLine if largest <= top else Qt.PenStyle.DashLine
        painter.setPen(QPen(QColor(t.warning), 1.5, style))
        painter.drawPolyline(QPolygonF(points))
        if largest > top:
            draw_text(painter, QRectF(self._plot.left(), self._plot.top() + 3, self._plot.width() - 4, px(14)),
                      self.tr("budget {n} lies above ↑").format(n=format_int(float(budget[-1]))),
                      colour=t.warning, text_font=font(11), align=_RIGHT)

    def _paint_preemptions(self, painter: QPainter, series: StepSeries) -> None:
        """A small triangle under every step that preempted."""
        rows = np.flatnonzero(series.preemptions[self._first:self._end])
        if not len(rows):
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme().bad))
        y, half, tall = self._plot.bottom() + 1, px(2.5), px(4)
        places = self._plot.left() + (rows + 0.5) * self._bar
        for x in np.unique(np.round(places) if self._bar < 1 else places).tolist():
            painter.drawPolygon(QPolygonF([QPointF(x, y), QPointF(x - half, y + tall), QPointF(x + half, y + tall)]))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def _paint_cursor(self, painter: QPainter) -> None:
        """A frame around the viewing step, where there are steps beyond it."""
        x, width = round(self._x(self._current)) - 1, max(3, round(self._bar) + 1)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(QColor(theme().text), 1))
        painter.drawRect(QRectF(x + 0.5, round(self._plot.top()) - 2.5, width - 1, round(self._plot.height()) + 4))

    def _paint_knobs(self, painter: QPainter, series: StepSeries) -> None:
        """A line where a knob was turned, with what was turned where there is room for it, the newest first."""
        steps = series.step
        low, high = np.searchsorted(series.marks.steps, (steps[self._first], steps[self._end - 1] + 1)).tolist()
        found = (np.flatnonzero(series.marks.kinds[low:high] == _KNOB) + low)[-_MOST_KNOBS:].tolist()
        t, small = theme(), font(11)
        free = self._plot.right() + 4
        labels: dict[int, list[str]] = {}
        for at in found:
            mark = series.marks[at]
            labels.setdefault(series.index_of(mark.step), []).append(mark.label)
        for row in sorted(labels, reverse=True):
            x = round(self._x(row))
            painter.fillRect(QRectF(x, self._plot.top() - 6, 1, self._plot.height() + 6), QColor(t.accent))
            text = labels[row][0] + (f" +{len(labels[row]) - 1}" if len(labels[row]) > 1 else "")
            width = text_width(text, small)
            if x + 5 + width <= free:
                left = x + 5.0
            elif x - 5 - width >= self._plot.left() and x - 5 <= free:
                left = x - 5.0 - width
            else:
                continue
            draw_text(painter, QRectF(left, self._plot.top() - px(_AXIS), width + 1, px(_AXIS) - 2), text,
                      colour=t.accent, text_font=small)
            free = min(left, x) - 8

    def _paint_steps(self, painter: QPainter, series: StepSeries) -> None:
        """Numbers under the bars, round ones, and what they count at the first."""
        t, small = theme(), font(11)
        steps = series.step
        first, last = int(steps[self._first]), int(steps[self._end - 1])
        line = QRectF(self._plot.left(), self._plot.bottom() + 4, self._plot.width(), px(_AXIS) - 4)
        interval = 1
        while interval * self._bar < text_width(format_int(last), small) + 40:
            interval = interval * 10 // 4 if str(interval)[0] == "2" else interval * 2
        free, said = line.left() - 8, False
        for step in range(-(-first // interval) * interval, last + 1, interval):
            x = self._x(series.index_of(step)) + self._bar / 2
            text = self.tr("step {n}").format(n=format_int(step))
            if said or (x - text_width(text, small) / 2 < line.left() and step + interval <= last and step > first):
                text = format_int(step)
            else:
                said = True
            width = text_width(text, small)
            left = min(max(x - width / 2, line.left()), line.right() - width)
            if left >= free + 8:
                painter.fillRect(QRectF(round(x), self._plot.bottom(), 1, 3), QColor(t.secondary))
                free = left + draw_text(painter, QRectF(left, line.top(), width + 1, line.height()), text,
                                        colour=t.secondary, text_font=small)

    def _paint_readout(self, painter: QPainter, series: StepSeries, row: int, rect: QRectF) -> None:
        """The step under the pointer, in numbers."""
        t, plain, strong = theme(), font(11), font(11, bold=True)
        head, lines = self.readout(series, row)
        height = metrics(plain).height()
        width = max(text_width(head, strong), *(text_width(line, plain) for line in lines)) + 16
        box = QRectF(self._x(row) + self._bar + 8, self._plot.top() + 2, width, height * (len(lines) + 1) + 10)
        if box.right() > rect.right():
            box.moveRight(self._x(row) - 8)
        box.moveLeft(max(rect.left(), box.left()))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(t.outline, 1))
        painter.setBrush(with_alpha(t.panel, 0.94))
        painter.drawRoundedRect(box.toRect().toRectF().adjusted(0.5, 0.5, 0.5, 0.5), 4, 4)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        line = QRectF(box.left() + 8, box.top() + 5, width - 16, height)
        draw_text(painter, line, head, text_font=strong)
        for text in lines:
            line.translate(0, height)
            draw_text(painter, line, text, colour=t.secondary, text_font=plain)

    def readout(self, series: StepSeries, row: int) -> tuple[str, list[str]]:
        """Heading and lines about a row of the series."""
        decode, prefill = int(series.decode_tokens[row]), int(series.prefill_tokens[row])
        step = int(series.step[row])
        duration = (int(series.end_ns[row]) - int(series.start_ns[row])) / 1e6
        head = self.tr("step {step} · {used} / {budget} tokens").format(
            step=format_int(step), used=format_int(decode + prefill),
            budget=format_int(int(series.budget[row])))
        lines = [
            self.tr("{decode} decode, {prefill} prefill, {time}").format(
                decode=format_int(decode), prefill=format_int(prefill), time=format_ms(duration)),
            self.tr("{running} running, {waiting} waiting").format(
                running=int(series.running[row]), waiting=int(series.waiting[row])),
        ]
        lines += [mark.label for mark in series.marks.between(step, step) if mark.kind == "knob"]
        hits, preempted = int(series.hit_tokens[row]), int(series.preemptions[row])
        if hits:
            lines.append(self.tr("{n} tokens from the prefix cache").format(n=format_int(hits)))
        if preempted:
            lines.append(self.tr("{n} preempted").format(n=preempted))
        return head, lines

    # ---- pointing ------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self._view is not None:
            seen = self.steps_in_sight()
            self._dragged_from = (event.position().x(), seen) if seen is not None else None
            self._dragging = False
        else:
            super().mousePressEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        before = self.row_at(self._pointer) if self._pointer is not None else -1
        self._pointer = event.position()
        if self._dragged_from is not None:
            start, seen = self._dragged_from
            moved = event.position().x() - start
            if abs(moved) >= _DRAG_AFTER and not self._dragging:
                self._dragging = True
                self.setCursor(Qt.CursorShape.ClosedHandCursor)
            if self._dragging and self._view is not None and self._view.series.n:
                self.selection.visible.pan(seen, -round(moved / self._bar), *self._bounds())
        elif self.row_at(self._pointer) != before:
            self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self._dragged_from is not None:
            if not self._dragging:
                row = self.row_at(event.position())
                if self._view is not None and 0 <= row < self._view.series.n:
                    self.selection.step_requested.emit(int(self._view.series.step[row]))
            self._dragged_from, self._dragging = None, False
            self.unsetCursor()
            self.update()
        else:
            super().mouseReleaseEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        if self._pointer is not None:
            self._pointer = None
            self.update()
        super().leaveEvent(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.selection.visible.release()

    def wheelEvent(self, event: QWheelEvent) -> None:
        turned, sideways = event.angleDelta().y(), event.angleDelta().x()
        seen = self.steps_in_sight()
        if seen is not None and abs(sideways) > abs(turned):
            self.selection.visible.pan(seen, -sideways / 120 * 0.1 * (seen[1] - seen[0]), *self._bounds())
        elif turned:
            self.zoom_by(turned / 120, self.row_at(event.position()))
        event.accept()

    def zoom_by(self, notches: float, row: int = -1) -> None:
        """Wider bars and fewer steps (positive), or the other way round; ``row`` stays where it is."""
        view, seen = self._view, self.steps_in_sight()
        if view is None or seen is None:
            return
        if row < 0:
            row = self._current if self._first <= self._current < self._end else (self._first + self._end) // 2
        first, last = self._bounds()
        row = min(row, view.series.n - 1)
        self.selection.visible.zoom(seen, _ZOOM_PER_NOTCH ** notches, float(view.series.step[row]),
                                    following=view.following, first=first, last=last)

    def pan_by(self, share: float) -> None:
        """Move by a share of what is in sight, towards the end of the run if positive."""
        seen = self.steps_in_sight()
        if seen is not None:
            steps = max(1, round(abs(share) * (seen[1] - seen[0])))
            self.selection.visible.pan(seen, steps if share > 0 else -steps, *self._bounds())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not chart_key(self, event):
            super().keyPressEvent(event)

    def _bounds(self) -> tuple[int, int]:
        assert self._view is not None
        steps = self._view.series.step
        return int(steps[0]), int(steps[-1])


_PAINTS: dict[str, np.ndarray] = {}
_CROWD_PAINTS: dict[str, np.ndarray] = {}


def _crowd_colours() -> tuple[QColor, QColor]:
    """Decode and prefill where a pixel stands for many steps."""
    t = theme()
    return mix(t.secondary, t.panel, 0.35), QColor(t.accent)


def _crowd_paints(theme_name: str) -> np.ndarray:
    """The same as uint32[dim, prefill]."""
    if theme_name not in _CROWD_PAINTS:
        _CROWD_PAINTS[theme_name] = np.array(
            [[mix(colour, theme().panel, fade).rgba() for colour in _crowd_colours()] for fade in (0.0, 0.68)],
            np.uint32)
    return _CROWD_PAINTS[theme_name]


def _paints(theme_name: str) -> np.ndarray:
    """Colours of shares, uint32[dim, prefill, colour]: prefill a little paler than decode, what is to come dim."""
    if theme_name not in _PAINTS:
        t = theme()
        table = np.zeros((2, 2, 128), np.uint32)
        for colour in range(128):
            full = t.request(colour)
            for prefill in (0, 1):
                bar = mix(full, t.panel, 0.16 if prefill else 0.0)
                table[0, prefill, colour] = bar.rgba()
                table[1, prefill, colour] = mix(bar, t.panel, 0.68).rgba()
        _PAINTS[theme_name] = table
    return _PAINTS[theme_name]
