"""The knobs: scenario on top, groups of controls in the middle, a box for one's own prompt at the bottom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from PySide6.QtCore import QMimeData, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QTextOption
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from engine.trace.knobs import Knob, KnobValue
from widgets.controls import WINDOW_KEYS, Choice, Control, Throttle, ToggleSwitch
from widgets.knob_texts import REBUILDS_POOL, group_title, knob_text, knob_tooltip, range_label
from widgets.painting import MARGIN, Panel, header, metrics
from widgets.sliders import KnobSlider, RangePair
from widgets.theme import font, px, theme, themes
from widgets.view import Selection

GROUPS = ("scheduler", "kv_cache", "device", "workload", "sampling")

BREAKS_ANYWHERE = 4000
"""From this many characters on a prompt's lines are broken anywhere in its box."""


class PromptBox(QPlainTextEdit):
    """Enter sends, Shift+Enter starts a new line; it grows with its text, up to six lines."""

    submitted = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTabChangesFocus(True)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.textChanged.connect(self._fit)
        themes.changed.connect(self._fit)  # type may be larger
        self._fit()

    def insertFromMimeData(self, source: QMimeData) -> None:
        self._choose_breaks(len(source.text()))
        super().insertFromMimeData(source)

    def _choose_breaks(self, more: int) -> None:
        """Qt takes seconds to break a long word; a text as long as this is not read here anyhow."""
        long = self.document().characterCount() + more > BREAKS_ANYWHERE
        mode = QTextOption.WrapMode.WrapAnywhere if long else QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere
        if mode != self.wordWrapMode():
            self.setWordWrapMode(mode)

    def _fit(self) -> None:
        self._choose_breaks(0)
        lines = min(6, max(1, int(self.document().size().height())))
        if not self.toPlainText():  # what stands there instead may need more than a line, too
            lines = max(lines, self._placeholder_lines())
        self.setFixedHeight(round(lines * metrics(font(12)).lineSpacing()) + 20)

    def _placeholder_lines(self) -> int:
        m = metrics(font(12))
        room = QRectF(0, 0, max(40.0, self.viewport().width() - 2 * self.document().documentMargin()), 1000)
        wrapped = m.boundingRect(room, int(Qt.TextFlag.TextWordWrap), self.placeholderText())
        return min(3, max(1, round(wrapped.height() / m.lineSpacing())))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def setPlaceholderText(self, text: str) -> None:
        super().setPlaceholderText(text)
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            text = self.toPlainText().strip()
            if text:
                self.clear()
                self.submitted.emit(text)
            return
        super().keyPressEvent(event)


class _Scroll(QScrollArea):
    """Leaves Left and Right, which move the run, to the window."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in WINDOW_KEYS:
            event.ignore()
        else:
            super().keyPressEvent(event)


class _Heading(QWidget):
    """A group's name, with a line above unless it is the first."""

    def __init__(self, group: str, ruled: bool) -> None:
        super().__init__()
        self._group, self._ruled = group, ruled
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        themes.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return QSize(100, px(40) if self._ruled else px(20))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme()
        if self._ruled:
            painter.setPen(QPen(t.line))
            painter.drawLine(0, px(12), self.width(), px(12))
        painter.setFont(font(12, bold=True))
        painter.setPen(t.secondary)
        painter.drawText(self.rect().adjusted(0, 0, 0, -3), Qt.AlignmentFlag.AlignBottom, group_title(self._group))


class KnobPanel(Panel):
    """All knobs of a run.

    ``knob_changed(name, value)`` tells what the user turned: while dragging at most every 150 ms, and always the last
    value. Knobs that rebuild the pool act when let go. :meth:`set_values` never emits, and does not pull a knob back
    from under the user's hand: until the engine has caught up, a knob shows what the user chose.
    """

    knob_changed = Signal(str, object)
    prompt_submitted = Signal(str)
    scenario_chosen = Signal(str)

    def __init__(self, knobs: Iterable[Knob], parent: QWidget | None = None) -> None:
        super().__init__(Selection(), parent)
        self._knobs = {knob.name: knob for knob in knobs}
        self._controls: dict[str, Control] = {}
        self._throttles: dict[str, Throttle] = {}
        self._shown: dict[str, KnobValue] = {name: knob.default for name, knob in self._knobs.items()}
        self._chosen: dict[str, list[KnobValue]] = {}  # turned by the user, in turn, and not yet seen in the engine
        self._held: dict[str, KnobValue] = {}  # turned, waiting to be let go
        self._headings: list[_Heading] = []
        self._groups: dict[str, list[QWidget]] = {}  # a group's heading and its controls
        self._hidden: set[str] = set()
        self._live = True
        self._prompt_reason = ""
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumSize(200, 160)

        self.scenario = Choice("", [], "", boxed=True)
        self.scenario.value_changed.connect(self.scenario_chosen.emit)
        self.scenario.setVisible(False)
        self.prompt = PromptBox()
        self.prompt.submitted.connect(self.prompt_submitted)

        scrolled = QWidget()
        scrolled.setObjectName("scrolled")
        column = QVBoxLayout(scrolled)
        column.setContentsMargins(0, 0, MARGIN, 8)
        column.setSpacing(2)
        for group in GROUPS:
            self._add_group(group, column)
        column.addStretch(1)
        self._scroll = _Scroll()
        self._scroll.setWidget(scrolled)
        self._scroll.setWidgetResizable(True)
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)

        layout = QVBoxLayout(self)
        self._rows = layout
        layout.setSpacing(4)
        self.rescale()
        top, bottom = QVBoxLayout(), QVBoxLayout()
        top.setContentsMargins(0, 0, MARGIN, 4)
        top.addWidget(self.scenario)
        bottom.setContentsMargins(0, 4, MARGIN, 0)
        bottom.addWidget(self.prompt)
        layout.addLayout(top)
        layout.addWidget(self._scroll, 1)
        layout.addLayout(bottom)

        self.show_group("device", False)
        self.retranslate()

    def sizeHint(self) -> QSize:
        return QSize(248, 720)

    # ---- building -------------------------------------------------------------------------------------------------

    def _add_group(self, group: str, column: QVBoxLayout) -> None:
        members = [knob for knob in self._knobs.values() if knob.group == group]
        if not members:
            return
        heading = _Heading(group, ruled=bool(self._headings))
        self._headings.append(heading)
        self._groups[group] = [heading]
        for knob in members:
            if knob.name not in self._controls:
                self._groups[group].append(self._make_control(knob))
        for widget in self._groups[group]:
            column.addWidget(widget)

    def _make_control(self, knob: Knob) -> Control:
        control: Control
        partner = self._knobs.get(knob.name.removesuffix("_min") + "_max") if knob.name.endswith("_min") else None
        if partner is not None:
            control = RangePair(knob, partner, "")
            control.value_changed.connect(lambda pair: self._turned(*pair))
            self._controls[partner.name] = control
            self._add_throttle(partner.name)
        elif knob.kind == "bool":
            control = ToggleSwitch("", bool(knob.default))
        elif knob.kind == "choice":
            control = Choice("", [(c, c) for c in knob.choices], str(knob.default), str(knob.default))
        else:
            control = KnobSlider(knob, "")
        if partner is None:
            control.value_changed.connect(lambda value, name=knob.name: self._turned(name, value))
        control.released.connect(self._let_go)
        self._controls[knob.name] = control
        self._add_throttle(knob.name)
        return control

    def _add_throttle(self, name: str) -> None:
        throttle = Throttle(150, self)
        throttle.passed.connect(lambda value, name=name: self.knob_changed.emit(name, value))
        self._throttles[name] = throttle

    # ---- the user turns -------------------------------------------------------------------------------------------

    def _turned(self, name: str, value: KnobValue) -> None:
        self._chosen.setdefault(name, []).append(value)
        if name in REBUILDS_POOL:
            self._held[name] = value
        else:
            self._throttles[name].push(value)
        self._show_changed()

    def _let_go(self) -> None:
        held, self._held = self._held, {}
        for name, value in held.items():
            self._throttles[name].push(value)

    # ---- the program sets -----------------------------------------------------------------------------------------

    def set_values(self, values: Mapping[str, KnobValue]) -> None:
        """Show the knobs of a step. Never emits; names that are no knobs of this panel are passed over."""
        for name, value in values.items():
            if name not in self._controls:
                continue
            before, self._shown[name] = self._shown[name], value
            chosen = self._chosen.get(name)
            if chosen and value != chosen[-1] and (value == before or value in chosen):
                continue  # the engine is still on its way to what the user chose last
            self._chosen.pop(name, None)
            self._show_value(name, value)
        self._show_changed()

    def change_refused(self, name: str) -> None:
        """The engine did not take what the user chose: show again what it has."""
        if self._chosen.pop(name, None):
            self._show_value(name, self._shown[name])
            self._show_changed()

    def _show_value(self, name: str, value: KnobValue) -> None:
        control = self._controls[name]
        if isinstance(control, RangePair):
            control.set_value(name, value)
        elif isinstance(control, KnobSlider):
            control.set_value(value)
        elif isinstance(control, ToggleSwitch):
            control.set_value(bool(value))
        elif isinstance(control, Choice):
            control.set_value(str(value))

    def values(self) -> dict[str, KnobValue]:
        """What the panel shows."""
        return {**self._shown, **{name: chosen[-1] for name, chosen in self._chosen.items()}}

    def show_group(self, group: str, shown: bool) -> None:
        """Show a group of knobs, or hide one that does nothing in this run."""
        self._hidden = self._hidden - {group} if shown else self._hidden | {group}
        for widget in self._groups.get(group, ()):
            widget.setVisible(shown)
        self._show_changed()

    def set_scenarios(self, scenarios: Sequence[tuple[str, str]], current: str) -> None:
        """(name, title) pairs for the chooser, and the one that runs."""
        self.scenario.set_options(scenarios, current)
        self.scenario.setVisible(bool(scenarios))

    def set_enabled_live(self, live: bool) -> None:
        """Live, the knobs can be turned. In a replay they show what was, and say so."""
        self._live = live
        if not live:
            self._chosen.clear()
            self._held.clear()
            for name, value in self._shown.items():
                self._show_value(name, value)
        for control in self._controls.values():
            control.setEnabled(live)
        self._show_changed()
        self._show_prompt_state()

    def set_prompt_disabled(self, reason: str) -> None:
        """Why no prompt can be sent just now ("no model is loaded"), or "" if one can."""
        self._prompt_reason = reason
        self._show_prompt_state()

    def control(self, name: str) -> Control:
        """The control that shows a knob; a smallest-largest pair shares one."""
        return self._controls[name]

    # ---- texts and looks ------------------------------------------------------------------------------------------

    def rescale(self) -> None:
        self._rows.setContentsMargins(MARGIN, header(), 0, MARGIN)

    def retranslate(self) -> None:
        self.set_title(self.tr("Knobs"))
        self.scenario.set_label(self.tr("scenario"))
        self.scenario.setToolTip(self.tr(
            "The load: which prompts arrive, when, and with which knob settings it begins. Choosing one starts a new "
            "run."))
        for name, control in self._controls.items():
            if isinstance(control, RangePair):
                control.set_label(range_label(control.knobs[0].name))
                control.setToolTip(knob_tooltip(control.knobs[0]).replace(
                    f"<b>{control.knobs[0].name}</b>",
                    f"<b>{control.knobs[0].name}, {control.knobs[1].name}</b>"))
            else:
                control.set_label(knob_text(name).label)
                control.setToolTip(knob_tooltip(self._knobs[name]))
        for heading in self._headings:
            heading.update()
        self._show_changed()
        self._show_prompt_state()

    def _show_changed(self) -> None:
        if not self._live:
            self.set_note(self.tr("as recorded"))
            return
        values = self.values()
        count = sum(values[name] != knob.default for name, knob in self._knobs.items()
                    if knob.group not in self._hidden)
        self.set_note(self.tr("{count} changed").format(count=count) if count else "")

    def _show_prompt_state(self) -> None:
        reason = self._prompt_reason or ("" if self._live else self.tr("A recording takes no prompts."))
        self.prompt.setEnabled(not reason)
        self.prompt.setPlaceholderText(reason or self.tr("Send your own prompt…"))
        self.prompt.setToolTip(reason or self.tr(
            "Your prompt joins the queue as a request of its own. Enter sends it, Shift+Enter starts a new line."))

