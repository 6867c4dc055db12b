"""What the soak does to a window, one thing at a time, chosen at random. Each action returns a word about itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QApplication, QFileDialog, QMessageBox, QWidget

from app.compare_window import CompareWindow
from app.layouts import LAYOUTS
from app.main_window import MainWindow
from app.rerun_dialog import RerunDialog
from app.session import LiveSession
from app.sweep_window import SweepWindow
from engine.scenario import list_scenarios
from engine.trace.knobs import KNOBS, Knob, KnobValue
from widgets.panel import Panel

WINDOWS = 6
"""With more of them open, one is closed first."""

POOLS = 8, 512
"""Blocks: a pool that holds everything is the dull case."""

K = Qt.Key
KEYS = (K.Key_Space, K.Key_Left, K.Key_Right, K.Key_Up, K.Key_Down, K.Key_Home, K.Key_End, K.Key_N, K.Key_P,
        K.Key_BracketLeft, K.Key_BracketRight, K.Key_0, K.Key_Plus, K.Key_Minus, K.Key_Tab, K.Key_Return, K.Key_Escape)
TYPED = {K.Key_Space: " ", K.Key_N: "n", K.Key_P: "p", K.Key_BracketLeft: "[", K.Key_BracketRight: "]", K.Key_0: "0",
         K.Key_Plus: "+", K.Key_Minus: "-"}
CONDITIONS = ("", "preemption", "hit", "chunk", "eviction", "finish", "knob", "kv_use>80", "waiting<3", "step>1000000")
TEXTS = ("", "a", "看这里", "Здесь кончается пул\nand so on", "🧱" * 50, "x" * 3000)


def value_for(knob: Knob, chance: random.Random) -> KnobValue:
    """Any value of a knob, most of them small."""
    if knob.kind == "bool":
        return chance.random() < 0.5
    if knob.kind == "choice":
        return chance.choice(knob.choices)
    low, high = POOLS if knob.name == "num_blocks" else (knob.minimum, knob.maximum)
    value = low + (high - low) * chance.random() ** 4
    if knob.power_of_two:
        return 1 << chance.randrange(3, 7)
    return round(value) if knob.kind == "int" else value


class Actions:
    """``folder`` is for what is written; file dialogs answer with names in it. ``shipped`` are recordings to begin
    with. ``put`` replaces an attribute of a class, as setattr does."""

    def __init__(self, window: MainWindow, folder: Path, shipped: list[Path], chance: random.Random,
                 put: Callable[[object, str, object], None] = setattr) -> None:
        self.window, self.folder, self.shipped, self.chance = window, folder, shipped, chance
        self._written = 0
        self.all: list[tuple[int, Callable[[], str]]] = [
            (12, self.turn_a_knob), (10, self.use_the_transport), (8, self.press_a_key), (12, self.use_the_pointer),
            (2, self.start_a_scenario), (3, self.open_a_recording), (3, self.record), (4, self.write_a_note),
            (3, self.change_looks), (3, self.resize), (3, self.show_a_dialog), (4, self.export),
            (4, self.save_a_picture), (3, self.compare), (3, self.rerun), (3, self.sweep), (8, self.use_a_window),
            (5, self.close_a_window), (2, self.submit_or_abort), (2, self.show_and_hide_panels)]
        self._answer_dialogs(put)

    def one(self) -> str:
        """Do something."""
        popup = QApplication.activePopupWidget()
        if popup is not None:
            popup.close()
        weights = [weight for weight, _ in self.all]
        action = self.chance.choices(self.all, weights)[0][1]
        return f"{action.__name__}: {action()}"

    def _answer_dialogs(self, put: Callable[[object, str, object], None]) -> None:
        """Nobody is there to answer what stops the program until it is answered."""
        def name(*_: Any) -> tuple[str, str]:
            return str(self.chance.choice([*self.recordings(), self.new_name(".mcap"), Path("/proc/no.mcap"), ""])), ""

        put(QFileDialog, "getOpenFileName", staticmethod(name))
        put(QFileDialog, "getSaveFileName", staticmethod(name))
        put(QFileDialog, "getExistingDirectory", staticmethod(lambda *_: str(self.folder)))
        put(QMessageBox, "question", staticmethod(lambda *_: QMessageBox.StandardButton.Ok))

    def recordings(self) -> list[Path]:
        return [*self.shipped, *sorted(self.folder.rglob("*.mcap"))]

    def new_name(self, suffix: str) -> Path:
        self._written += 1
        return self.folder / f"{self.chance.choice(('a', '录像', 'ä b'))}-{self._written}{suffix}"

    # ---- the main window -----------------------------------------------------------------------------------------

    def turn_a_knob(self) -> str:
        knob = self.chance.choice([k for k in KNOBS.values() if k.group != "device"])
        value = value_for(knob, self.chance)
        self.window.knobs.knob_changed.emit(knob.name, value)
        return f"{knob.name}={value}"

    def use_the_transport(self) -> str:
        t, chance, session = self.window.transport, self.chance, self.window.session
        last = session.time.last_step if session is not None else 0
        signal, *values = chance.choice((
            ("play_toggled",), ("step_forward", chance.choice((1, 10))), ("step_back", chance.choice((1, 10))),
            ("go_first",), ("follow",), ("speed_changed", chance.choice((1 / 16, 0.5, 1.0, 16.0))),
            ("step_rate_changed", chance.choice((2.0, 60.0))), ("seek", chance.randrange(-5, max(1, last) + 50)),
            ("run_until_changed", chance.choice(CONDITIONS))))
        getattr(t, str(signal)).emit(*values)
        command = chance.choice(("next_event", "previous_event", "mark_loop_start", "mark_loop_end", "clear_loop"))
        if chance.random() < 0.3:
            self.window.with_session(command)
        return f"{signal} {values}, {command}"

    def press_a_key(self) -> str:
        key = self.chance.choice(KEYS)
        shift = self.chance.choice((Qt.KeyboardModifier.NoModifier, Qt.KeyboardModifier.ShiftModifier))
        target = self._any_window()
        focused = QApplication.focusWidget() or target
        for kind in (QEvent.Type.KeyPress, QEvent.Type.KeyRelease):
            self._post(focused, QKeyEvent(kind, key.value, shift, TYPED.get(key, "")))
        return f"{key.name} in {type(target).__name__}"

    def use_the_pointer(self) -> str:
        """Move, press, drag, turn the wheel, or ask for the menu, over any panel that is seen."""
        target = self._any_window()
        panels = [p for p in target.findChildren(Panel) if p.isVisible() and p.width() > 1 and p.height() > 1]
        if not panels:
            return "no panel"
        panel = self.chance.choice(panels)
        inside = panel.childAt(self._point(panel))
        widget = inside if inside is not None and inside.width() > 1 and inside.height() > 1 else panel
        kind = self.chance.choice(("move", "click", "double", "drag", "wheel", "menu", "leave"))
        point = self._point(widget)
        none, left = Qt.MouseButton.NoButton, Qt.MouseButton.LeftButton
        if kind == "wheel":
            turn = QPoint(self.chance.choice((0, 0, 60)), self.chance.choice((-120, 120, 15)))
            control = self.chance.choice((Qt.KeyboardModifier.NoModifier, Qt.KeyboardModifier.ControlModifier))
            self._post(widget, QWheelEvent(QPointF(point), widget.mapToGlobal(QPointF(point)), QPoint(), turn, none,
                                           control, Qt.ScrollPhase.NoScrollPhase, False))
        elif kind == "menu":
            self._post(widget, QContextMenuEvent(QContextMenuEvent.Reason.Mouse, point, widget.mapToGlobal(point)))
        elif kind == "leave":
            self._post(widget, QEvent(QEvent.Type.Leave))
        else:
            self._mouse(widget, QEvent.Type.MouseMove, point, none)
            if kind != "move":
                self._mouse(widget, QEvent.Type.MouseButtonPress, point, left)
                if kind == "drag":
                    for _ in range(3):
                        point = self._point(widget)
                        self._mouse(widget, QEvent.Type.MouseMove, point, left)
                if kind == "double":
                    self._mouse(widget, QEvent.Type.MouseButtonRelease, point, none)
                    self._mouse(widget, QEvent.Type.MouseButtonDblClick, point, left)
                if kind != "drag" or self.chance.random() < 0.8:  # else something happens in the middle of it
                    self._mouse(widget, QEvent.Type.MouseButtonRelease, point, none)
        return f"{kind} at {point.x()}, {point.y()} of {type(widget).__name__} in {type(panel).__name__}"

    def _point(self, widget: QWidget) -> QPoint:
        return QPoint(self.chance.randrange(widget.width()), self.chance.randrange(widget.height()))

    def _mouse(self, widget: QWidget, kind: QEvent.Type, at: QPoint, buttons: Qt.MouseButton) -> None:
        button = Qt.MouseButton.NoButton if kind == QEvent.Type.MouseMove else Qt.MouseButton.LeftButton
        self._post(widget, QMouseEvent(kind, QPointF(at), widget.mapToGlobal(QPointF(at)), button, buttons,
                                       Qt.KeyboardModifier.NoModifier))

    @staticmethod
    def _post(widget: QWidget, event: QEvent) -> None:
        """Not sent: an exception in a handler below Python code ends PySide 6.11 with a segmentation fault."""
        QCoreApplication.postEvent(widget, event)

    def start_a_scenario(self) -> str:
        name = self.chance.choice([s.name for s in list_scenarios()])
        self.window.start_scenario(name)
        return name

    def open_a_recording(self) -> str:
        path = self.chance.choice([*self.recordings(), *self.folder.rglob("sweep.json"), self.folder])
        self.window.open_path(path)
        return path.name

    def record(self) -> str:
        self.window.toggle_recording()
        return ""

    def write_a_note(self) -> str:
        notes = self.window.note_taking
        if self.chance.random() < 0.3:
            notes.show_list()
            return "the list"
        notes.write()
        if notes.editor is None:
            return "nothing to write about"
        notes.editor.text.setPlainText(self.chance.choice(TEXTS))
        if self.chance.random() < 0.7:
            notes.editor.saved.emit(notes.editor.text.toPlainText() or "a", (None, None))
        notes.editor.close()
        return "written"

    def change_looks(self) -> str:
        w, chance = self.window, self.chance
        what: tuple[Callable[..., object], Any] = chance.choice((
            (w.set_theme, chance.choice(("dark", "light"))), (w.set_language, chance.choice(("en", "zh"))),
            (w.set_motion, chance.random() < 0.5), (w.docks.choose, chance.choice(tuple(LAYOUTS))),
            (w.docks.resize_type, chance.choice((-1, 0, 1)))))
        what[0](what[1])
        return f"{what[0].__name__} {what[1]}"

    def resize(self) -> str:
        window = self._any_window()
        size = self.chance.randrange(300, 2600), self.chance.randrange(200, 1500)
        window.resize(*size)
        return f"{type(window).__name__} {size}"

    def show_a_dialog(self) -> str:
        show = self.chance.choice((self.window.asking.show_settings, self.window.asking.show_keys,
                                   self.window.asking.show_about))
        show()
        for dialog in QApplication.topLevelWidgets():
            if dialog.isVisible() and self.chance.random() < 0.5 and type(dialog).__module__ == "app.dialogs":
                dialog.close()
        return show.__name__

    def show_and_hide_panels(self) -> str:
        name, dock = self.chance.choice(list(self.window.docks.docks.items()))
        dock.setVisible(not dock.isVisible())
        return name

    def submit_or_abort(self) -> str:
        session = self.window.session
        view = session.view if isinstance(session, LiveSession) else None
        if view is not None and view.state.running and self.chance.random() < 0.5:
            name = self.chance.choice(list(view.state.running))
            self.window.panels["requests"].abort_requested.emit(name)  # type: ignore[attr-defined]
            return f"abort {name}"
        self.window.knobs.prompt_submitted.emit(self.chance.choice(TEXTS))
        return "submit"

    def save_a_picture(self) -> str:
        panel = self.chance.choice(list(self.window.panels.values()))
        path = self.new_name(self.chance.choice((".png", ".svg", ".bmp")))
        self.window.exporting.save(panel, path, overwrite=False)
        return f"{type(panel).__name__} {path.name}"

    def export(self) -> str:
        """Begin one, or do something to the one that goes on."""
        self.window.exporting.show_dialog()
        dialog = self.window.exporting.dialog
        if dialog is None:
            return "nothing to export"
        if dialog.task.busy:
            self.chance.choice((dialog.cancel, dialog.close, dialog.adjustSize))()
            return "cancelled, closed, or left"
        dialog.what.setCurrentIndex(self.chance.randrange(dialog.what.count()))
        first = self.chance.randint(dialog.first.minimum(), dialog.first.maximum())
        dialog.first.setValue(first)
        dialog.last.setValue(first + self.chance.randrange(-2, 20))
        dialog.size_box.setEditText(self.chance.choice(("480x320", "641 x 480", "large")))
        kind = dialog.kind
        target = self.folder if kind == "csv" else self.new_name(f".{kind}")
        dialog.start(self.chance.choice((target, Path("/proc") / target.name, *self.recordings()[:1])),
                     overwrite=self.chance.random() < 0.5)
        return kind

    # ---- windows beside it ---------------------------------------------------------------------------------------

    def compare(self) -> str:
        path = self.chance.choice(self.recordings())
        self._make_room()
        self.window.comparing.compare(path)
        return path.name

    def rerun(self) -> str:
        self._make_room()
        dialog = self.window.comparing.rerun()
        if dialog is None:
            return "nothing to run"
        for name in self.chance.sample(sorted(dialog.controls), self.chance.randrange(3)):
            dialog.turn(name, value_for(KNOBS[name], self.chance))
        dialog.start()
        return str(dialog.changes)

    def sweep(self) -> str:
        self._make_room()
        window = self.window.comparing.sweep()
        window.ranges[0].setText(self.chance.choice(("16, 64", "64..256:3", "nothing", "256")))
        window.requests.setValue(self.chance.randrange(1, 6))
        window.toggle()
        return window.ranges[0].text()

    def use_a_window(self) -> str:
        windows = self.window.comparing.windows
        if not windows:
            return "there is none"
        window = self.chance.choice(windows)
        if isinstance(window, CompareWindow):
            what = self.chance.choice(("sync", "go", "play", "move", "choose"))
            if what == "sync":
                window.sync.choose(self.chance.choice(("step", "time", "request")))
            elif what == "go":
                window.slider.setValue(self.chance.randint(0, window.slider.maximum()))
            elif what == "play":
                window.toggle_play()
            elif what == "move":
                window.move_by(self.chance.choice((-10, -1, 1)))
            elif window._deltas:
                window.delta_chart.request_chosen.emit(self.chance.choice(window._deltas).first.request_id)
            return f"compare: {what}"
        if isinstance(window, SweepWindow):
            act = self.chance.choice((window.toggle, window.go_on, lambda: window.open_point(0)))
            act()
            return "sweep: start, cancel, go on or open"
        assert isinstance(window, RerunDialog)
        if window.busy:
            window.reject()
            return "rerun: cancel"
        window.start()
        return "rerun: start"

    def close_a_window(self) -> str:
        windows = self.window.comparing.windows
        if not windows:
            return "there is none"
        window = self.chance.choice(windows)
        window.close()
        return type(window).__name__

    def _make_room(self) -> None:
        while len(self.window.comparing.windows) >= WINDOWS:
            self.window.comparing.windows[0].close()

    def _any_window(self) -> QWidget:
        return self.chance.choice([self.window, self.window, *self.window.comparing.windows])
