"""What is going on, in a few sentences, and which steps prove it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication, QPointF, QRectF, Qt, QTimer
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QWheelEvent
from PySide6.QtWidgets import QWidget

from widgets.findings import Finding, find
from widgets.painting import (
    MARGIN,
    Panel,
    draw_status,
    draw_text,
    format_int,
    format_ms,
    format_percent,
    metrics,
    status_colour,
    text_width,
)
from widgets.theme import font, mix, px, theme
from widgets.view import Selection, View

INTERVAL_S = 1.0
WRAP = int(Qt.TextFlag.TextWordWrap | Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)


def finding_text(finding: Finding) -> tuple[str, str]:
    """Headline and explanation of a finding, in the user's language."""
    n = finding.numbers

    def count(name: str) -> str:
        return format_int(n[name])

    names = ", ".join(finding.names)
    if finding.code.startswith("itl_"):
        title = QCoreApplication.translate("Insights", "ITL p99 rose from {before} to {now}").format(
            before=format_ms(n["before_ms"]), now=format_ms(n["now_ms"]))
        if finding.code == "itl_prefill":
            return title, QCoreApplication.translate(
                "Insights", "Prefill of {names} shares {steps} steps with about {decodes} decodes, which wait for "
                            "it. A smaller token budget would shorten those steps.").format(
                    names=names or QCoreApplication.translate("Insights", "new requests"), steps=count("steps"),
                    decodes=count("decodes"))
        if finding.code == "itl_preemption":
            return title, QCoreApplication.translate(
                "Insights", "Preempted requests ({count} of late) give no tokens until they have been computed "
                            "again.").format(count=count("count"))
        return title, QCoreApplication.translate(
            "Insights", "No prefill and no preemption explains it: single steps took up to {slowest}.").format(
                slowest=format_ms(n["slowest_ms"]))
    if finding.code == "chunked_prompts":
        return (QCoreApplication.translate("Insights", "Long prompts are computed in chunks"),
                QCoreApplication.translate(
                    "Insights", "{names}: in {steps} steps a chunk went beside about {decodes} decodes, which so kept "
                                "getting tokens.").format(names=names, steps=count("steps"),
                                                          decodes=count("decodes")))
    if finding.code == "pool_rebuilt":
        return (QCoreApplication.translate("Insights", "The pool was made anew"),
                QCoreApplication.translate(
                    "Insights", "A knob preempted {count} running requests at once. They compute their tokens again "
                                "and go on; no text changes.").format(count=count("count")))
    if finding.code == "preemptions":
        title = (QCoreApplication.translate("Insights", "1 preemption in the last {window} steps")
                 if n["count"] == 1 else
                 QCoreApplication.translate("Insights", "{count} preemptions in the last {window} steps"))
        return title.format(count=count("count"), window=count("window")), QCoreApplication.translate(
            "Insights", "The pool is too small for the {running} requests that ran at once. So far {lost} tokens "
                        "had to be computed again.").format(running=count("running"), lost=count("lost_tokens"))
    if finding.code == "waiting_for_blocks":
        return (QCoreApplication.translate("Insights", "Admission waits for blocks"),
                (QCoreApplication.translate("Insights", "Waiting: {waiting}, while {running} hold {usage} of the "
                                                        "pool.")
                 if n["steps"] < 2 else QCoreApplication.translate(
                    "Insights", "Waiting: {waiting}, while {running} hold {usage} of the pool, for {steps} steps "
                                "now.")).format(waiting=count("waiting"), running=count("running"),
                                               usage=format_percent(n["usage"], 0), steps=count("steps")))
    if finding.code == "waiting_for_seqs":
        return (QCoreApplication.translate("Insights", "Admission waits for max_num_seqs"),
                QCoreApplication.translate(
                    "Insights", "Waiting: {waiting}, behind {running} running, and {free} of the pool is "
                                "free: a larger max_num_seqs would use it.").format(
                        waiting=count("waiting"), running=count("running"), free=format_percent(n["free"], 0)))
    if finding.code == "head_of_line":
        return (QCoreApplication.translate("Insights", "A long prompt blocks the queue"),
                QCoreApplication.translate(
                    "Insights", "Chunked prefill is off, and {names} does not fit in what the decodes leave of the "
                                "budget. Waiting: {waiting}.").format(names=names, waiting=count("waiting")))
    if finding.code == "budget_full":
        return (QCoreApplication.translate("Insights", "The token budget is full in {count} of {of} steps").format(
                    count=count("count"), of=count("of")),
                QCoreApplication.translate(
                    "Insights", "{share} of those tokens are prefill: prompts come faster than they can be "
                                "computed.").format(share=format_percent(n["prefill"], 0)))
    if finding.code == "knob_effect":
        return names, QCoreApplication.translate(
            "Insights", "Since then ITL p99 went from {itl_before} to {itl_now}, and output from {rate_before} to "
                        "{rate_now} tok/s.").format(
                itl_before=format_ms(n["itl_before"]), itl_now=format_ms(n["itl_now"]),
                rate_before=count("rate_before"), rate_now=count("rate_now"))
    share = format_percent(n["share"], 0)
    if finding.code == "cache_serves":
        title = QCoreApplication.translate("Insights", "The prefix cache serves {share} of prompt tokens").format(
            share=share)
        if n["shared_blocks"]:
            return title, QCoreApplication.translate(
                "Insights", "{tokens} tokens so far. Now {blocks} blocks are shared, some of them by {holders} "
                            "requests.").format(tokens=count("hit_tokens"), blocks=count("shared_blocks"),
                                                holders=count("holders"))
        return title, QCoreApplication.translate("Insights", "{tokens} tokens so far did not have to be computed."
                                                 ).format(tokens=count("hit_tokens"))
    return (QCoreApplication.translate("Insights", "The prefix cache serves only {share} of prompt tokens").format(
                share=share),
            QCoreApplication.translate("Insights", "These prompts hardly share a beginning, or it is evicted before "
                                                   "it comes again."))


def steps_text(first: int, last: int) -> str:
    """The words of a link."""
    text = (QCoreApplication.translate("Insights", "step {first}") if first == last
            else QCoreApplication.translate("Insights", "steps {first}–{last}"))
    return text.format(first=format_int(first), last=format_int(last))


@dataclass(slots=True)
class _Card:
    """A finding laid out for a width: heights in pixels, from its own top."""

    finding: Finding
    title: str
    detail: str
    title_height: float
    detail_height: float
    height: float
    cut: bool = False  # there was no room for all of it


def _shortened(text: str, width: float, room: float) -> tuple[str, float]:
    """As much of ``text`` (12 pixels, wrapped at ``width``) as is no higher than ``room``, and how high that is."""
    m = metrics(font(12))
    fits, fails, height = 0, len(text), 0.0
    while fails - fits > 1:
        middle = (fits + fails) // 2
        tried = m.boundingRect(QRectF(0, 0, width, 1000), WRAP, text[:middle].rstrip() + " …").height()
        if tried <= room:
            fits, height = middle, tried
        else:
            fails = middle
    shown = text[:fits].rstrip()
    if text[fits:fits + 1].isalnum() and " " in shown[-16:]:  # not within a word
        shown = shown[:shown.rindex(" ")]
    return (shown + " …", height) if fits else ("", 0.0)


class InsightsPanel(Panel):
    """Two to four findings. A click on "steps 314–318" asks for the first of them."""

    def __init__(self, selection: Selection, parent: QWidget | None = None) -> None:
        super().__init__(selection, parent)
        self._view: View | None = None
        self._findings: list[Finding] = []
        self._found_for: tuple[object, ...] = ()
        self._found_at = 0.0
        self._cards: list[_Card] = []
        self._cards_width = -1.0
        self._links: list[tuple[QRectF, int]] = []
        self._first = 0  # cards scrolled away at the top
        self._link = -1  # the link that Enter follows, -1: none
        self._fitting = 0
        self.computations = 0
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.timeout.connect(self._compute)
        self.setMouseTracking(True)
        self.retranslate()

    def retranslate(self) -> None:
        self.set_title(self.tr("Insights"))
        self._cards_width = -1.0

    def rescale(self) -> None:
        self._cards_width = -1.0

    @property
    def findings(self) -> list[Finding]:
        return self._findings

    # ---- when to compute ------------------------------------------------------------------------------------------

    def show_view(self, view: View) -> None:
        self._view = view
        if self.isVisible() and not self._soon.isActive():
            wait = self._found_at + INTERVAL_S - time.perf_counter()
            if wait <= 0 or not self._found_for or self._found_for[0] != id(view.series):
                self._compute()
            else:
                self._soon.start(int(wait * 1000) + 1)

    def show_now(self) -> None:
        if self._soon.isActive():
            self._soon.stop()
            self._compute()

    def showEvent(self, event: object) -> None:
        self._compute()

    def _compute(self) -> None:
        view = self._view
        if view is None or not self.isVisible():
            return
        found_for = (id(view.series), view.state.step)
        if found_for == self._found_for:
            return
        self._found_for, self._found_at = found_for, time.perf_counter()
        self.computations += 1
        try:
            findings = find(view.series, view.timeline, view.state)
        except Exception as failure:  # it may be a timer's call, which nobody would hear of
            self.fail(failure)
            return
        if findings != self._findings:
            self._findings = findings
            self._cards_width = -1.0
            self._first = min(self._first, max(0, len(findings) - 1))
            self.update()

    # ---- painting -------------------------------------------------------------------------------------------------

    def _lay_out(self, width: float) -> None:
        if width == self._cards_width:
            return
        self._cards_width = width
        strong, plain = font(12, bold=True), font(12)
        room = QRectF(0, 0, width - px(24), 1000)
        self._cards = []
        for finding in self._findings:
            title, detail = finding_text(finding)
            title_height = metrics(strong).boundingRect(room, WRAP, title).height()
            detail_height = metrics(plain).boundingRect(room, WRAP, detail).height()
            height = title_height + 2 + detail_height + (px(18) if finding.steps else 0) + 4
            self._cards.append(_Card(finding, title, detail, title_height, detail_height, height))

    def paint_content(self, painter: QPainter, rect: QRectF) -> None:
        t = theme()
        self._links = []
        if not self._findings:
            draw_text(painter, rect, self.tr("Nothing stands out yet"), colour=t.secondary,
                      align=Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignVCenter)
            self.set_note("")
            return
        self._lay_out(rect.width())
        painter.setClipRect(rect.adjusted(-MARGIN, 0, MARGIN, MARGIN - 4))
        y, self._fitting = rect.top(), 0
        for card in self._cards[self._first:]:
            if y >= rect.bottom() - 16:
                break
            self._paint_card(painter, card, QRectF(rect.left(), y, rect.width(), card.height), rect.bottom() + MARGIN)
            y += card.height + 8
            if y - 8 <= rect.bottom() + MARGIN:
                self._fitting += 1
        painter.setClipping(False)
        hidden = len(self._cards) - self._fitting
        self.set_note(self.tr("{count} more: scroll").format(count=hidden) if hidden > 0 else "")

    def _paint_card(self, painter: QPainter, card: _Card, place: QRectF, limit: float) -> None:
        """Draw a card at ``place``. One that would reach beyond ``limit`` says less, and keeps its links."""
        t = theme()
        whole = place.height()
        place.setHeight(min(whole, limit - 4 - place.top()))
        card.cut = place.height() < whole
        level = card.finding.level
        painter.fillRect(QRectF(place.left(), place.top(), 3, place.height() - 2), status_colour(level))
        draw_status(painter, QRectF(place.left() + 9, place.top() + 2, px(11), px(11)), level)
        left, width, y = place.left() + px(24), place.width() - px(24), place.top()
        painter.setFont(font(12, bold=True))
        painter.setPen(QColor(t.text))
        painter.drawText(QRectF(left, y, width, card.title_height), WRAP, card.title)
        y += card.title_height + 2
        painter.setFont(font(12))
        painter.setPen(QColor(t.secondary))
        room = place.bottom() - y - (px(18) if card.finding.steps else 0)
        detail, height = (_shortened(card.detail, width, room) if card.detail_height > room + 1
                          else (card.detail, card.detail_height))
        painter.drawText(QRectF(left, y, width, height), WRAP, detail)
        y += height
        if y + px(18) > place.bottom() + 1:
            return
        x = left
        for first, last in card.finding.steps:
            text = steps_text(first, last)
            link_width = text_width(text, font(12))
            if x > left and x + link_width > place.right():
                break
            if self._ring and self.hasFocus() and len(self._links) == self._link:
                painter.fillRect(QRectF(x - 4, y, link_width + 8, px(18)), mix(t.panel, t.accent, 0.25))
            draw_text(painter, QRectF(x, y, link_width + 2, px(18)), text, colour=t.accent)
            self._links.append((QRectF(x - 2, y, link_width + 4, px(18)), first))
            x += link_width + 16

    # ---- the user -------------------------------------------------------------------------------------------------

    def link_at(self, position: QPointF) -> int | None:
        """The step that a click at ``position`` would ask for."""
        return next((step for place, step in self._links if place.contains(position)), None)

    def _card_at(self, y: float) -> _Card | None:
        top = self.content_rect().top()
        for card in self._cards[self._first:]:
            if top <= y < top + card.height:
                return card
            top += card.height + 8
        return None

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        over = self.link_at(event.position()) is not None
        card = self._card_at(event.position().y())
        self.setToolTip(f"{card.title}\n{card.detail}" if card is not None and card.cut else "")
        self.setCursor(Qt.CursorShape.PointingHandCursor if over else Qt.CursorShape.ArrowCursor)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        step = self.link_at(event.position())
        if event.button() == Qt.MouseButton.LeftButton and step is not None:
            self.selection.step_requested.emit(step)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Up and Down go through the links, and scroll where there is no other; Enter follows one."""
        key = event.key()
        if key in (Qt.Key.Key_Up, Qt.Key.Key_Down) and not event.modifiers():
            self._ring = True
            link = self._link + (1 if key == Qt.Key.Key_Down else -1)
            if 0 <= link < len(self._links):
                self._link = link
                self.update()
            else:
                self._scroll(1 if key == Qt.Key.Key_Down else -1)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and 0 <= self._link < len(self._links):
            self.selection.step_requested.emit(self._links[self._link][1])
        else:
            super().keyPressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._scroll(-1 if event.angleDelta().y() > 0 else 1)
        event.accept()

    def _scroll(self, turn: int) -> None:
        hidden_below = self._first + self._fitting < len(self._cards)
        first = self._first + turn
        if (turn < 0 or hidden_below) and 0 <= first < len(self._cards):
            self._first, self._link = first, -1 if turn > 0 else self._link
            self.update()
