"""The transport bar: where the run comes from, which step is looked at, and everything that moves it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF, QResizeEvent
from PySide6.QtWidgets import QApplication, QHBoxLayout, QLayout, QSizePolicy, QWidget

from engine.trace.metrics import StepSeries
from widgets.buttons import ElidedLabel, IconButton, MenuButton, TextButton
from widgets.conditions import GaugeEditor, condition_text
from widgets.painting import draw_text, format_bytes, format_int, text_width
from widgets.scrubber import Loop, Scrubber
from widgets.theme import RADIUS, font, px, theme, themes, with_alpha

Source = Literal["live", "paused", "replay", "loading", "finished", "failed", "none"]

SPEEDS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
STEP_RATES = (1.0, 2.0, 5.0, 10.0, 30.0)
CONDITIONS = ("", "preemption", "hit", "chunk", "eviction", "finish", "knob")
SHORT_SCRUBBER, LONG_SCRUBBER = 140, 200
"""Pixels that the scrubber has at least, and before the title takes more than a few letters."""

EDIT_GAUGE = "gauge…"
"""The choice of the menu that opens the editor for a condition on a gauge."""


@dataclass(frozen=True, slots=True)
class TransportStatus:
    """Everything that the bar shows.

    ``step`` is the viewing step, ``first_step``/``last_step`` the steps that there are (``last_step`` -1: none);
    ``series`` brings marks and times. ``playing`` is the view's; ``following`` means attached to the live edge.
    ``speed`` is a factor with ``pacing`` "clock" and steps a second with "steps". ``until`` is a condition's name or
    "". ``loop`` holds the ends of the range that is repeated, ``notes`` the steps with notes. ``stage`` and
    ``fraction`` (0 to 1, None if unknown) tell of loading; ``message`` says why a source failed. ``recording`` is
    "off", "on", "ending" (the rest of it is being written), "failed" or "unavailable" (a replay). ``about`` tells of
    the run as a whole, in lines.
    """

    source: Source = "none"
    model: str = ""
    scenario: str = ""
    playing: bool = False
    following: bool = False
    step: int = -1
    first_step: int = 0
    last_step: int = -1
    series: StepSeries | None = None
    speed: float = 1.0
    pacing: Literal["clock", "steps"] = "clock"
    until: str = ""
    loop: Loop = (None, None)
    notes: tuple[int, ...] = ()
    stage: str = ""
    fraction: float | None = None
    message: str = ""
    recording: Literal["off", "on", "ending", "failed", "unavailable"] = "off"
    record_seconds: float = 0.0
    record_bytes: int = 0
    record_dropped: int = 0
    record_path: str = ""
    record_error: str = ""
    about: str = ""

    @property
    def behind(self) -> int:
        return max(0, self.last_step - self.step)


class SourceChip(QWidget):
    """A pill that says where the picture comes from. The mark in it differs by shape as well as by colour."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._source: Source = "none"
        self._fraction: float | None = None
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        themes.changed.connect(self.update)

    def show_source(self, source: Source, fraction: float | None) -> None:
        if (source, fraction) != (self._source, self._fraction):
            resized = source != self._source
            self._source, self._fraction = source, fraction
            self.setAccessibleName(self.text())
            if resized:
                self.updateGeometry()
            self.update()

    def text(self) -> str:
        return {"live": self.tr("LIVE"), "paused": self.tr("PAUSED"), "replay": self.tr("REPLAY"),
                "loading": self.tr("LOADING"), "finished": self.tr("FINISHED"), "failed": self.tr("FAILED"),
                "none": self.tr("NO RUN")}[self._source]

    def sizeHint(self) -> QSize:
        return QSize(round(text_width(self.text(), font(11, bold=True))) + px(36), px(22))

    def paintEvent(self, event: QPaintEvent) -> None:
        t = theme()
        colour = QColor({"live": t.good, "paused": t.warning, "replay": t.accent, "loading": t.accent,
                         "finished": t.secondary, "failed": t.bad, "none": t.secondary}[self._source])
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(with_alpha(colour, 0.18))
        painter.drawRoundedRect(area, area.height() / 2, area.height() / 2)
        painter.save()
        painter.translate(px(15), area.center().y())
        painter.scale(themes.scale, themes.scale)
        self._paint_mark(painter, colour)
        painter.restore()
        draw_text(painter, area.adjusted(px(25), 0, -6, 0), self.text(), colour=colour, text_font=font(11, bold=True))

    def _paint_mark(self, painter: QPainter, colour: QColor) -> None:
        x = y = 0.0
        if self._source == "loading":
            ring = QRectF(x - 5, y - 5, 10, 10)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(with_alpha(colour, 0.35), 2))
            painter.drawEllipse(ring)
            painter.setPen(QPen(colour, 2))
            share = 0.25 if self._fraction is None else min(1.0, max(0.0, self._fraction))
            painter.drawArc(ring, 90 * 16, -round(360 * 16 * share))
        else:
            painter.setBrush(colour)
            if self._source == "paused":
                painter.drawRect(QRectF(x - 4, y - 4, 3, 8))
                painter.drawRect(QRectF(x + 1, y - 4, 3, 8))
            elif self._source == "replay":
                painter.drawPolygon(QPolygonF([QPointF(x - 3, y - 5), QPointF(x + 5, y), QPointF(x - 3, y + 5)]))
            elif self._source == "live":
                painter.drawEllipse(QPointF(x, y), 4.5, 4.5)
            elif self._source == "failed":
                painter.setPen(QPen(colour, 2))
                painter.drawLine(QPointF(x - 4, y - 4), QPointF(x + 4, y + 4))
                painter.drawLine(QPointF(x - 4, y + 4), QPointF(x + 4, y - 4))
            else:
                painter.drawRect(QRectF(x - 4, y - 4, 8, 8))


class TransportBar(QWidget):
    """Emits what the user asks for and shows what :meth:`set_status` tells; it decides nothing itself.

    Keys are the application's business; the tooltips name them.
    """

    play_toggled = Signal()
    step_forward = Signal(int)
    step_back = Signal(int)
    go_first = Signal()
    follow = Signal()
    speed_changed = Signal(float)  # times as fast as it happened
    step_rate_changed = Signal(float)  # every step once, so many a second
    seek = Signal(int)
    record_toggled = Signal()
    run_until_changed = Signal(str)
    notes_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._status = TransportStatus()
        self.chip = SourceChip()
        self.title = ElidedLabel()
        self.first = IconButton("first")
        self.back = IconButton("back")
        self.play = IconButton("play", primary=True)
        self.forward = IconButton("forward")
        self.last = IconButton("last")
        self.speed = MenuButton()
        self.scrubber = Scrubber()
        self.position = ElidedLabel(align_right=True, gives_way=False)
        self.behind = TextButton()
        self.until = MenuButton()
        self.gauge_editor: GaugeEditor | None = None  # made when it is first needed
        self.notes = IconButton("note")
        self.record = IconButton("record")
        self.record_text = ElidedLabel(gives_way=False)
        self._tier = 0  # how much is left out for want of room

        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 12, 6)
        row.setSpacing(12)
        row.setSizeConstraint(QLayout.SizeConstraint.SetNoConstraint)  # what does not fit is left out, see _fit
        row.addWidget(self.chip)
        row.addWidget(self.title)
        buttons = QHBoxLayout()
        buttons.setSpacing(6)
        for button in (self.first, self.back, self.play, self.forward, self.last, self.speed):
            buttons.addWidget(button)
        row.addLayout(buttons)
        row.addWidget(self.scrubber, 1)
        row.addWidget(self.position)
        row.addWidget(self.behind)
        row.addWidget(self.until)
        row.addWidget(self.notes)
        row.addWidget(self.record)
        row.addWidget(self.record_text)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

        self.first.clicked.connect(self.go_first)
        self.back.clicked.connect(lambda: self.step_back.emit(self._stride()))
        self.play.clicked.connect(self.play_toggled)
        self.forward.clicked.connect(lambda: self.step_forward.emit(self._stride()))
        self.last.clicked.connect(self.follow)
        self.behind.clicked.connect(self.follow)
        self.speed.chosen.connect(self._choose_speed)
        self.until.chosen.connect(self._choose_condition)
        self.notes.clicked.connect(self.notes_requested)
        self.scrubber.seek.connect(self.seek)
        self.record.clicked.connect(self.record_toggled)
        themes.changed.connect(self.update)
        self.retranslate()
        self._show(self._status, everything=True)

    def sizeHint(self) -> QSize:
        return QSize(1200, px(36) + 12)

    def minimumSizeHint(self) -> QSize:
        return QSize(640, px(36) + 12)

    @staticmethod
    def _stride() -> int:
        """Ten steps with Shift held, as with the keys."""
        return 10 if QApplication.keyboardModifiers() & Qt.KeyboardModifier.ShiftModifier else 1

    def _choose_speed(self, value: object) -> None:
        assert isinstance(value, tuple)
        (self.step_rate_changed if value[0] == "steps" else self.speed_changed).emit(value[1])

    def _choose_condition(self, value: object) -> None:
        if value == EDIT_GAUGE:
            self.edit_gauge()
        else:
            self.run_until_changed.emit(value)

    def edit_gauge(self) -> None:
        """Open the editor for a condition on a gauge."""
        if self.gauge_editor is None:
            self.gauge_editor = GaugeEditor(self)
            self.gauge_editor.chosen.connect(self.run_until_changed)
        self.gauge_editor.show_condition(self._status.until)
        self.gauge_editor.pop_up(self.until if self.until.isVisible() else self.play)

    # ---- showing --------------------------------------------------------------------------------------------------

    @property
    def status(self) -> TransportStatus:
        return self._status

    def set_status(self, status: TransportStatus) -> None:
        """Show ``status``; cheap when little of it changed."""
        if status != self._status:
            before, self._status = self._status, status
            self._show(status, everything=before.source != status.source)
        elif status.series is not None:
            self._show_run(status)

    def _show_run(self, s: TransportStatus) -> None:
        self.scrubber.set_run(s.first_step, s.last_step, s.step, s.series, notes=s.notes, loop=s.loop,
                              playing=s.playing, following=s.following)

    def _show(self, s: TransportStatus, *, everything: bool = False) -> None:
        self.chip.show_source(s.source, s.fraction)
        self.chip.setToolTip(self._source_tip(s))
        self.title.set_pieces(self._title_pieces(s))
        self.title.setToolTip(f"{self.title.text}\n\n{s.about}" if s.about else self.title.text)
        self._show_run(s)
        has_steps = s.last_step >= s.first_step
        for button in (self.first, self.back, self.last, self.notes):
            button.setEnabled(has_steps)
        can_run = has_steps or s.source in ("live", "paused")
        for control in (self.play, self.forward, self.until, self.speed):
            control.setEnabled(can_run)
        self.play.set_icon("pause" if s.playing else "play")
        self.speed.current = (s.pacing, s.speed)
        self.speed.set_texts("", _speed_text(s.speed) if s.pacing == "clock"
                             else self.tr("{rate} steps/s").format(rate=f"{s.speed:g}"))
        self.position.set_pieces(
            [(self.tr("step"), False), (format_int(s.step), True), ("/ " + format_int(s.last_step), False)]
            if has_steps and s.step >= 0 else [(self.tr("no step yet"), False)] if s.source != "none" else [])
        if s.until != self.until.current:
            self.until.current = s.until
            self._set_conditions()
        self._show_notes(s)
        self._show_recording(s)
        self._fit()
        if everything:
            self._set_tips()

    @staticmethod
    def _detached(s: TransportStatus) -> bool:
        """In a replay one is "behind" all the time; it is news only in a live run."""
        return s.source in ("live", "paused") and not s.following and s.last_step >= s.first_step and s.behind > 0

    def _show_words(self, s: TransportStatus) -> None:
        if self._detached(s):
            self.behind.set_texts("", self._behind_text(s.behind), "warning")
        self.until.set_texts("" if self._tier else self.tr("until"), condition_text(s.until))

    def _title_pieces(self, s: TransportStatus) -> list[tuple[str, bool]]:
        if s.source == "loading":
            percent = f"{s.fraction * 100:.0f}%" if s.fraction is not None else ""
            return [(s.model, True), (s.stage or self.tr("loading the model"), False), (percent, True)]
        if s.source == "failed":
            return [(s.model, True), (s.message or self.tr("the engine stopped with an error"), False)]
        return [(s.model, True), (s.scenario, False)]

    def _show_notes(self, s: TransportStatus) -> None:
        """The flag is raised where there is a note, and its tooltip tells it."""
        here = bisect_left(s.notes, s.step) < bisect_right(s.notes, s.step)
        self.notes.set_primary(here)
        tip = self.tr("Notes about this run; M writes one about this step, or about what is selected.")
        self.notes.setToolTip("\n".join([*self.scrubber.describe_notes(s.step, s.step), tip]) if here else tip)

    def _show_recording(self, s: TransportStatus) -> None:
        self.record.setVisible(s.recording != "unavailable")
        self.record.setEnabled(s.source not in ("none", "failed") and s.recording != "ending")
        self.record.set_icon("stop" if s.recording == "on" else "record")
        if s.recording == "on":
            seconds = int(s.record_seconds)
            self.record_text.set_pieces([(f"{seconds // 60}:{seconds % 60:02d}", True),
                                         (format_bytes(s.record_bytes), False)])
            tip = self.tr("Recording to {path}. Click to stop.").format(path=s.record_path)
            if s.record_dropped:
                tip += "\n" + self.tr("Steps that could not be written in time: {count}").format(count=s.record_dropped)
        elif s.recording == "ending":
            self.record_text.set_pieces([(self.tr("writing"), True), (format_bytes(s.record_bytes), False)])
            tip = self.tr("The rest of the recording is written to {path}.").format(path=s.record_path)
        elif s.recording == "failed":
            self.record_text.set_pieces([(self.tr("not recording"), True)])
            tip = self.tr("The recording stopped: {why}. The run goes on. Click to try again.").format(
                why=s.record_error)
        else:
            tip = self.tr("Record this run to a file that can be replayed step by step (R).")
        self.record.setToolTip(tip)
        self.record_text.setToolTip(tip)

    def _behind_text(self, count: int) -> str:
        if self._tier:
            return self.tr("{count} behind").format(count=format_int(count))
        if count == 1:
            return self.tr("1 step behind")
        return self.tr("{count} steps behind").format(count=format_int(count))

    def _source_tip(self, s: TransportStatus) -> str:
        return {
            "live": self.tr("An engine runs in this program, and you see what it does."),
            "paused": self.tr("The view stands still. Space goes on from here; End returns to the live edge."),
            "replay": self.tr("A recording: nothing is computed."),
            "loading": self.tr("The engine is being made ready: {stage}").format(stage=s.stage or "…"),
            "finished": self.tr("The run is over. It can be played again step by step."),
            "failed": s.message or self.tr("The engine stopped with an error."),
            "none": self.tr("No run and no recording is open."),
        }[s.source]

    # ---- texts ----------------------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        self.speed.set_options([
            *((("clock", speed), self.tr("{factor} as it happened").format(factor=_speed_text(speed)))
              for speed in SPEEDS),
            None,
            *((("steps", rate), self.tr("every step, {rate} a second").format(rate=f"{rate:g}"))
              for rate in STEP_RATES)])
        self._set_conditions()
        self._set_tips()

    def _set_conditions(self) -> None:
        """What can be run until; a gauge that was chosen is among it."""
        current = str(self.until.current or "")
        chosen = [(current, condition_text(current))] if current not in CONDITIONS else []
        self.until.set_options([*((c, condition_text(c)) for c in CONDITIONS), None, *chosen,
                                (EDIT_GAUGE, self.tr("a gauge…"))])

    def _set_tips(self) -> None:
        replay = self._status.source in ("replay", "finished")
        self.first.setToolTip(self.tr("First step (Home)"))
        self.back.setToolTip(self.tr("One step back (Left; with Shift 10)"))
        self.play.setToolTip(self.tr("Play or pause the view (Space). Pausing stays at this step."))
        self.forward.setToolTip(self.tr("One step on (Right; with Shift 10)"))
        self.last.setToolTip(self.tr("Last step (End)") if replay
                             else self.tr("Follow: to the newest step, and stay there (End)"))
        self.behind.setToolTip(self.tr("The engine is further on than what you see. Click to follow it again (End)."))
        self.speed.setToolTip(self.tr(
            "How fast the view moves: slower to see single decisions, faster to find something in a long run."))
        self.until.setToolTip(self.tr(
            "Play, and stop at the next step in which this happens. \"The end\" plays on without stopping."))
        self._show_notes(self._status)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show(self._status)

    def _fit(self) -> None:
        """Leave out as much as the width demands, the least important first: words, the title, then controls whose
        work keys and menus can do as well."""
        s = self._status
        optional: list[QWidget] = [self.title, self.record_text, self.notes, self.until, self.speed, self.behind]
        if s.source in ("loading", "failed"):  # then the title tells how it goes
            optional.append(optional.pop(0))
        wanted = {self.title: True, self.record_text: s.recording in ("on", "ending", "failed"), self.notes: True,
                  self.until: True, self.speed: True, self.behind: self._detached(s)}
        for tier in range(len(optional) + 2):
            self._tier = min(tier, 1)
            self._show_words(s)
            dropped = optional[:max(0, tier - 1)]
            if self._needed([w for w in optional if wanted[w] and w not in dropped]) <= self.width():
                break
        shown = [w for w in optional if wanted[w] and w not in dropped]
        for widget in optional:
            widget.setVisible(widget in shown)
        others = self._needed([w for w in shown if w is not self.title])
        # The title has what is left when the scrubber is long enough to be of use.
        self.title.setMaximumWidth(max(px(80), self.width() - others - px(LONG_SCRUBBER - SHORT_SCRUBBER) - 12))

    def _needed(self, optional: list[QWidget]) -> int:
        """Pixels for everything that must be shown and for these, the title reduced to a few letters."""
        buttons = [self.first, self.back, self.play, self.forward, self.last]
        fixed = [self.chip, *buttons, self.position, *([self.record] if not self.record.isHidden() else [])]
        widths = [w.sizeHint().width() for w in fixed] + [
            min(px(80), w.sizeHint().width()) if w is self.title else w.sizeHint().width() for w in optional]
        return sum(widths) + px(SHORT_SCRUBBER) + 12 * (len(widths) + 2)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
            self._show(self._status, everything=True)
            self.chip.updateGeometry()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        t = theme()
        painter.fillRect(self.rect(), QColor(t.background))
        painter.setPen(QPen(QColor(t.line), 1))
        painter.setBrush(QColor(t.panel))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS)


def _speed_text(speed: float) -> str:
    """1/4× reads better than 0.25×."""
    return f"{speed:g}×" if speed >= 1 else f"1/{round(1 / speed)}×"
