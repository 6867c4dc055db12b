"""The requests, one a row: running, waiting, finished; their text as it streams in, and how far each has come."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QContextMenuEvent, QGuiApplication, QPainter, QPaintEvent, QPen, QPolygonF, QRegion
from PySide6.QtWidgets import QMenu, QWidget

from engine.trace.state import EngineState, RequestView
from widgets.painting import MARGIN, draw_swatch, draw_text, format_int, stop_reason_text, text_width
from widgets.rows import RowsPanel
from widgets.theme import font, mix, px, theme
from widgets.view import Selection, View

TAIL = 200  # characters at a text's end that can matter for one line


def draw_request_mark(painter: QPainter, rect: QRectF, status: str, colour: int) -> None:
    """A request's mark: filled while it runs, hollow while it waits, barred when preempted, a tick when finished."""
    t = theme()
    if status == "running":
        draw_swatch(painter, rect, "fill", t.request(colour))
        return
    ink = t.request_text(colour)
    if status == "finished":
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(ink, 1.8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin))
        left, top, side = rect.left(), rect.top(), rect.width()
        painter.drawPolyline(QPolygonF([QPointF(left + 0.12 * side, top + 0.55 * side),
                                        QPointF(left + 0.4 * side, top + 0.82 * side),
                                        QPointF(left + 0.9 * side, top + 0.2 * side)]))
        painter.restore()
        return
    draw_swatch(painter, rect, "outline", ink)
    if status == "preempted":
        painter.fillRect(QRectF(rect.left() + 2, rect.center().y() - 1.5, rect.width() - 4, 3), QColor(t.bad))


class RequestList(RowsPanel):
    """Running requests first, then the waiting queue in its order, then the finished, newest first."""

    abort_requested = Signal(str)

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._state: EngineState | None = None
        self._shown: tuple[object, ...] = ()
        self._rows: list[RequestView] = []
        self._id_width = 36.0
        self._selected: str | None = None
        self._painted: list[tuple[object, ...]] = []
        self._dirty = QRegion()  # what the paint event under way asks for
        self._can_abort = False
        selection.changed.connect(self._selection_changed)
        self.retranslate()

    def retranslate(self) -> None:
        self.set_title(self.tr("Requests"))
        self._show_counts()

    def set_can_abort(self, can: bool) -> None:
        """Whether requests can be aborted: only of a live engine."""
        self._can_abort = can

    # ---- showing --------------------------------------------------------------------------------------------------

    def show_view(self, view: View) -> None:
        state = view.state
        shown = (id(view.series), state.step, len(state.finished))
        if shown == self._shown and state is self._state:
            return
        self._state, self._shown = state, shown
        self._rows = state.active() + [state.requests[r] for r in reversed(state.finished)]
        offset = self.offset
        self.set_row_count(len(self._rows))
        self._show_counts()
        if self.isVisible():
            self._update_changed(offset != self.offset)

    def _update_changed(self, everything: bool) -> None:
        """Repaint only the rows that look different: most of a long list stands still from step to step."""
        assert self._state is not None
        width = self._id_width
        self._id_width = max([36.0] + [text_width(self._rows[i].request_id, font(12, bold=True)) + 12
                                       for i in self.visible_rows()])
        before, self._painted = self._painted, [
            (r.request_id, r.status, r.num_computed_tokens, len(r.output_token_ids), len(r.text), r.num_preemptions,
             r.request_id == self._state.stopped_at and self._state.stopped_by)
            for r in (self._rows[i] for i in self.visible_rows())]
        if everything or width != self._id_width or len(before) != len(self._painted):
            self.update()
            return
        for row, old, new in zip(self.visible_rows(), before, self._painted, strict=True):
            if old != new:
                self.update(self.row_rect(row).adjusted(-MARGIN, 0, MARGIN, 0).toAlignedRect())

    def _show_counts(self) -> None:
        if self._state is not None:
            counters = self._state.counters
            numbers = {"running": len(self._state.running), "waiting": len(self._state.waiting),
                       "done": format_int(counters.finished + counters.aborted)}
            self.set_note(self.tr("{running} running, {waiting} waiting, {done} done").format(**numbers),
                          self.tr("{running} running, {waiting} waiting").format(**numbers),
                          self.tr("{running} + {waiting} waiting").format(**numbers))

    def request_at(self, position: QPointF) -> str | None:
        row = self.row_at(position)
        return self._rows[row].request_id if row >= 0 else None

    def state_text(self, request: RequestView) -> str:
        """The right column: how far the request has come."""
        if request.status == "finished":
            reason = {"stop": self.tr("done"), "length": self.tr("length"), "abort": self.tr("aborted")}.get(
                request.finish_reason, request.finish_reason)
            return self.tr("{count} tok · {reason}").format(
                count=format_int(len(request.output_token_ids)), reason=reason)
        if request.status != "running":
            return self.tr("{count} tok").format(count=format_int(request.num_tokens))
        if request.is_prefill or not request.output_token_ids:
            word = self.tr("recompute") if request.num_preemptions and request.output_token_ids else self.tr("prefill")
            return f"{word} {format_int(request.num_computed_tokens)}/{format_int(request.num_tokens)}"
        return self.tr("decode {count}").format(count=format_int(len(request.output_token_ids)))

    def _line_text(self, request: RequestView) -> tuple[str, bool]:
        """The middle column, and whether its end matters more than its beginning."""
        state = self._state
        assert state is not None
        if request.status in ("waiting", "preempted"):
            if request.request_id == state.stopped_at and state.stopped_by:
                why = stop_reason_text(state.stopped_by)
                return (self.tr("preempted: {why}") if request.status == "preempted"
                        else self.tr("waiting: {why}")).format(why=why), False
            return (self.tr("preempted") if request.status == "preempted"
                    else self.tr("waiting")), False
        if request.text:
            return " ".join(request.text[-TAIL:].split()), len(request.text) > 24
        return " ".join(request.prompt_text[:TAIL].split()), False

    # ---- painting -------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        self._dirty = event.region()
        super().paintEvent(event)

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        rows = self.visible_rows()
        if not self._rows:
            draw_text(painter, rect, self.tr("No requests yet"), colour=t.secondary,
                      align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)
            return
        plain, strong, small = font(12), font(12, bold=True), font(11)
        painter.setClipRect(self.rows_rect().adjusted(-MARGIN, 0, MARGIN, 0))
        side = px(10)
        visible = [self._rows[row] for row in rows]
        id_width = max([self._id_width] + [text_width(r.request_id, strong) + 12 for r in visible])
        for row, request in zip(rows, visible, strict=True):
            line = self.row_rect(row)
            if not self._dirty.intersects(line.toAlignedRect()):
                continue
            self._paint_ground(painter, line, request.request_id)
            active = request.status == "running"
            draw_request_mark(painter, QRectF(line.left(), round(line.center().y()) - side // 2, side, side),
                              request.status, request.colour)
            x = line.left() + side + px(8)
            draw_text(painter, QRectF(x, line.top(), id_width, line.height()), request.request_id,
                      colour=t.text if active else t.secondary, text_font=strong)
            x += id_width
            used = draw_text(painter, QRectF(x, line.top(), line.right() - x, line.height()),
                             self.state_text(request), colour=t.secondary, text_font=small,
                             align=Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            text, at_end = self._line_text(request)
            middle = QRectF(x, line.top(), line.right() - used - 10 - x, line.height())
            if middle.width() > 20:
                draw_text(painter, middle, text, text_font=plain,
                          colour=t.text if active and request.text else t.secondary,
                          mode=Qt.TextElideMode.ElideLeft if at_end else Qt.TextElideMode.ElideRight)
        painter.setClipping(False)
        self.paint_bar(painter)

    def _paint_ground(self, painter: QPainter, line: QRectF, request_id: str) -> None:
        t = theme()
        if request_id == self.selection.request_id:
            ground = mix(t.panel, t.accent, 0.24 if t.is_dark else 0.14)
        elif request_id == self.selection.hovered_request:
            ground = t.hover
        else:
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(ground)
        painter.drawRoundedRect(line.adjusted(-6, 1, 4, -1), 4, 4)

    # ---- selection ------------------------------------------------------------------------------------------------

    def _selection_changed(self) -> None:
        self.update()
        if self.selection.request_id != self._selected:
            self._selected = self.selection.request_id
            row = self.current_row()
            if row >= 0:
                self.reveal(row)

    def current_row(self) -> int:
        wanted = self.selection.request_id
        return next((i for i, r in enumerate(self._rows) if r.request_id == wanted), -1) if wanted else -1

    def go_to_row(self, row: int) -> None:
        self.selection.select(request_id=self._rows[row].request_id)

    def row_hovered(self, row: int) -> None:
        self.selection.hover(request_id=self._rows[row].request_id if 0 <= row < len(self._rows) else None)

    def row_clicked(self, row: int, position: QPointF) -> None:
        self.selection.select(request_id=self._rows[row].request_id if row >= 0 else None)

    # ---- the menu -------------------------------------------------------------------------------------------------

    def build_menu(self, request_id: str) -> QMenu:
        request = next(r for r in self._rows if r.request_id == request_id)
        menu = QMenu(self)
        copy_text = menu.addAction(self.tr("Copy output"))
        copy_text.setEnabled(bool(request.text))
        copy_text.triggered.connect(lambda: QGuiApplication.clipboard().setText(request.text))
        copy_prompt = menu.addAction(self.tr("Copy prompt"))
        copy_prompt.triggered.connect(lambda: QGuiApplication.clipboard().setText(request.prompt_text))
        menu.addSeparator()
        abort = menu.addAction(self.tr("Abort {request}").format(request=request_id))
        abort.setEnabled(self._can_abort and request.status != "finished")
        abort.triggered.connect(lambda: self.abort_requested.emit(request_id))
        return menu

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        request_id = self.request_at(QPointF(event.pos()))
        if request_id is None:
            return
        self.selection.select(request_id=request_id)
        menu = self.build_menu(request_id)
        menu.exec(event.globalPos())
        menu.deleteLater()
