"""The inspector: everything about the selected request or block, or else about the step that is looked at."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QResizeEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QTextEdit, QWidget

from engine.trace.events import StepEvents
from engine.trace.notes import Note
from engine.trace.state import EngineState, RequestView
from widgets.controls import WINDOW_KEYS
from widgets.inspector_facts import Facts, block_facts, phase_times, request_facts, step_facts
from widgets.painting import MARGIN, Panel, draw_swatch, draw_text, format_int, format_ms, header, metrics, text_width
from widgets.pinned_notes import PinnedNotes
from widgets.theme import font, mix, px, theme, themes
from widgets.view import Selection, View

LINE = 20
CHIP = 20
WRAP = int(Qt.TextFlag.TextWordWrap | Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)


class RequestText(QTextEdit):
    """Prompt, then output, read-only. Streaming appends to it, so that a selection and the scroll position stay."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setReadOnly(True)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse
                                     | Qt.TextInteractionFlag.TextSelectableByKeyboard)
        self._prompt = self._output = ""
        self._request_id = ""
        themes.changed.connect(self._rebuild)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Selecting, copying and scrolling; the keys that move the run go on to the window."""
        if event.key() in WINDOW_KEYS and not event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier:
            event.ignore()
        else:
            super().keyPressEvent(event)

    def show_request(self, request_id: str, prompt: str, output: str) -> None:
        if (request_id, prompt) != (self._request_id, self._prompt) or not output.startswith(self._output):
            self._request_id, self._prompt, self._output = request_id, prompt, output
            self._rebuild()
        elif output != self._output:
            bar = self.verticalScrollBar()
            at_end = bar.value() >= bar.maximum() - 4
            added, self._output = output[len(self._output):], output
            self._insert(added, theme().text)
            if at_end:
                bar.setValue(bar.maximum())

    def _rebuild(self) -> None:
        self.clear()
        self._insert(self._prompt, theme().secondary)
        if self._output:
            self._insert("\n\n" + self._output.lstrip(), theme().text)
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum() if self._output else 0)

    def _insert(self, text: str, colour: str) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if cursor.position() and self._output == text:  # the first output after the prompt
            text = "\n\n" + text.lstrip()
        form = QTextCharFormat()
        form.setForeground(QColor(colour))
        cursor.insertText(text, form)


class Inspector(Panel):
    """Shows the selected request, the selected block, or the step, and the notes that are pinned to it.

    ``find_notes(request_id, block, step)`` gives the notes about a request, or a block, or else those of a step.
    """

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._view: View | None = None
        self._facts: Facts = []
        self._events: StepEvents | None = None  # of the step that is shown, when one is
        self._chips: list[tuple[QRectF, str]] = []
        self._shown: tuple[object, ...] = ()
        self.text = RequestText(self)
        self.text.hide()
        self.find_notes: Callable[[str | None, int | None, int], list[Note]] = lambda request_id, block, step: []
        self.notes = PinnedNotes(self)
        self.setMouseTracking(True)
        selection.changed.connect(self._selection_changed)
        self.retranslate()

    def retranslate(self) -> None:
        self.set_title(self.tr("Inspector"))
        self._shown = ()
        self._refresh()

    # ---- what is shown --------------------------------------------------------------------------------------------

    def show_view(self, view: View) -> None:
        self._view = view
        if self.isVisible():
            self._refresh()

    def showEvent(self, event: object) -> None:
        self._refresh()

    def _selection_changed(self) -> None:
        if self.isVisible():
            self._refresh()

    @property
    def facts(self) -> Facts:
        return self._facts

    def _refresh(self) -> None:
        view = self._view
        if view is None:
            return
        self._show_pinned(view.state.step)
        what = (id(view.series), view.state.step, self.selection.request_id, self.selection.block)
        if what == self._shown:
            return
        self._shown = what
        request = view.state.requests.get(self.selection.request_id) if self.selection.request_id else None
        before = (self._facts, self._events)
        if request is not None:
            self._show_request(request, view.state)
        elif self.selection.request_id is not None:
            self._show_missing(self.selection.request_id)
        elif self.selection.block is not None:
            self._show_block(self.selection.block, view.state)
        else:
            self._show_step(view)
        self.text.setVisible(request is not None)
        self._place_text()
        if before != (self._facts, self._events):
            self.update()

    def notes_changed(self) -> None:
        """Somebody wrote, changed or deleted a note."""
        if self._view is not None:
            self._show_pinned(self._view.state.step)

    def _show_pinned(self, step: int) -> None:
        notes = self.find_notes(self.selection.request_id, self.selection.block, step)
        if self.notes.show_notes(notes, step):
            self._place_text()
            self.update()

    def _show_request(self, request: RequestView, state: EngineState) -> None:
        self._events = None
        self.set_value(request.request_id)
        self.set_note(self.tr("request"))
        self._facts = request_facts(request, state)
        self.text.show_request(request.request_id, request.prompt_text, request.text)

    def _show_missing(self, request_id: str) -> None:
        self._events = None
        self.set_value(request_id)
        self.set_note(self.tr("request"))
        self._facts = [(self.tr("state"), self.tr("not in the engine at this step"))]

    def _show_block(self, block: int, state: EngineState) -> None:
        self._events = None
        self.set_value(self.tr("block {number}").format(number=format_int(block)))
        self.set_note(self.tr("block"))
        self._facts = block_facts(block, state)

    def _show_step(self, view: View) -> None:
        self._events = view.events
        self.set_note(self.tr("step"))
        if view.events is None:
            self.set_value("")
            self._facts = []
            return
        self.set_value(self.tr("step {number}").format(number=format_int(view.events.step)))
        self._facts = step_facts(view.events, view.state)

    # ---- layout ---------------------------------------------------------------------------------------------------

    def _lay_out_facts(self, width: float) -> tuple[float, list[float]]:
        """The width of the names' column, and the height of every fact: long values wrap."""
        plain = font(12)
        names = max((text_width(name, plain) for name, _ in self._facts), default=0.0) + 16
        names = min(max(names, float(px(72))), width * 0.45)
        spacing, heights = metrics(plain).lineSpacing(), []
        for _, value in self._facts:
            height = float(px(LINE))
            if text_width(value, plain) > width - names:
                box = metrics(plain).boundingRect(QRectF(0, 0, width - names, 1000), WRAP, value)
                height += max(0.0, box.height() - spacing)  # Chinese lines are higher than the font says
            heights.append(height)
        return names, heights

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_text()

    def _place_text(self) -> None:
        """The text takes what the facts leave; in a low panel the facts give way, because the text can scroll."""
        width = self.width() - 2 * MARGIN
        inside = self.height() - header() - MARGIN
        notes = min(self.notes.needed_height(width), inside * 2 // 5)
        if notes:
            self.notes.setGeometry(MARGIN, self.height() - MARGIN - notes, width, notes)
        room = inside - (notes + 6 if notes else 0)
        needed = sum(self._lay_out_facts(self.width() - 2 * MARGIN)[1])
        top = round(header() + min(needed + 6, max(0, room - px(64))))
        self.text.setGeometry(MARGIN, top, width, max(0, header() + room - top))

    def rescale(self) -> None:
        self._place_text()

    # ---- painting -------------------------------------------------------------------------------------------------

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        if self.notes.cards:
            rect.setBottom(self.notes.geometry().top() - 6)
        if self._view is None or not self._facts:
            draw_text(painter, rect, self.tr("Nothing has happened yet"), colour=t.secondary,
                      align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)
            return
        plain = font(12)
        names, heights = self._lay_out_facts(rect.width())
        y = rect.top()
        limit = self.text.geometry().top() if self.text.isVisible() else rect.bottom() + 1
        for (name, value), height in zip(self._facts, heights, strict=True):
            if y + height > limit:
                break
            draw_text(painter, QRectF(rect.left(), y, names - 8, px(LINE)), name, colour=t.secondary, text_font=plain)
            place = QRectF(rect.left() + names, y, rect.width() - names, height)
            if height <= px(LINE):
                draw_text(painter, place, value, text_font=plain)
            else:
                painter.setFont(plain)
                painter.setPen(QColor(t.text))
                painter.drawText(place.adjusted(0, 2, 0, 0), WRAP, value)
            y += height
        self._chips = []
        if self._events is not None:
            y = self._paint_phases(painter, rect, y + 10)
            self._paint_scheduled(painter, rect, y + 8)

    def _phase_colours(self) -> list[QColor]:
        """The forward pass in the accent, what surrounds it in greys of different strength."""
        t = theme()
        return [mix(t.line, t.secondary, 0.9), mix(t.line, t.secondary, 0.3), QColor(t.accent),
                mix(t.line, t.secondary, 0.6), mix(t.line, t.secondary, 0.15)]

    def _paint_phases(self, painter: QPainter, rect: QRectF, y: float) -> float:
        assert self._events is not None
        t = theme()
        phases = phase_times(self._events)
        total = sum(ns for _, ns in phases)
        if not total or y + px(30) > rect.bottom():
            return y
        x = rect.left()
        painter.save()
        for (_, ns), colour in zip(phases, self._phase_colours(), strict=True):
            width = rect.width() * ns / total
            painter.fillRect(QRectF(x, y, max(0.0, width - 1), px(8)), colour)
            x += width
        painter.restore()
        y += px(8) + 4
        side, line = px(8), px(16)
        small, x = font(11), rect.left()
        for (name, ns), colour in zip(phases, self._phase_colours(), strict=True):
            text = f"{name} {format_ms(ns / 1e6)}"
            width = side + px(6) + text_width(text, small) + 12
            if x + width - 12 > rect.right() and x > rect.left():
                x, y = rect.left(), y + line
            if y + line > rect.bottom():
                break
            painter.fillRect(QRectF(x, y + (line - side) // 2, side, side), colour)
            draw_text(painter, QRectF(x + side + px(5), y, width, line), text, colour=t.secondary, text_font=small)
            x += width
        return y + line

    def _paint_scheduled(self, painter: QPainter, rect: QRectF, y: float) -> None:
        """One chip for each scheduled request: its colour, its name, its tokens. A click selects it."""
        assert self._events is not None
        assert self._view is not None
        t = theme()
        small, x = font(11), rect.left()
        scheduled, chip, side = self._events.scheduled, px(CHIP), px(10)
        for index, share in enumerate(scheduled):
            request = self._view.state.requests.get(share.request_id)
            text = f"{share.request_id} +{format_int(share.num_tokens)}"
            width = side + 4 + text_width(text, small) + 10
            if x + width - 10 > rect.right() and x > rect.left():
                x, y = rect.left(), y + chip
            if y + chip > rect.bottom() + 4:
                return
            last_line = y + 2 * chip > rect.bottom() + 4
            more = f"… {len(scheduled) - index}"
            if last_line and index < len(scheduled) - 1 and x + 2 * width > rect.right():
                draw_text(painter, QRectF(x, y, px(60), chip), more, colour=t.secondary, text_font=small)
                return
            place = QRectF(x, y, width - 4, chip)
            if share.request_id == self.selection.hovered_request:
                painter.fillRect(place, t.hover)
            colour = request.colour if request is not None else 0
            # A prefill chunk is filled, a decode is faint: as in the other panels.
            kind = "fill" if share.num_tokens > 1 or not share.samples else "faint"
            draw_swatch(painter, QRectF(x, y + (chip - side) // 2, side, side), kind, t.request(colour))  # type: ignore[arg-type]
            draw_text(painter, QRectF(x + side + 4, y, width, chip), text, text_font=small)
            self._chips.append((place, share.request_id))
            x += width

    # ---- the user -------------------------------------------------------------------------------------------------

    def _chip_at(self, position: QPointF) -> str | None:
        return next((request_id for place, request_id in self._chips if place.contains(position)), None)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._events is not None:
            request_id = self._chip_at(event.position())
            if request_id != self.selection.hovered_request:
                self.selection.hover(request_id=request_id)
                self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        request_id = self._chip_at(event.position()) if self._events is not None else None
        if request_id is not None:
            self.selection.select(request_id=request_id)
        elif event.position().y() < header():
            self.selection.select()  # back to the step
