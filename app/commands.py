"""What the user can ask of the window: menus, actions and keys, each in one table.

Plain keys (Space, arrows, letters) are handled when nobody else wanted them, so that typing a prompt or turning a knob
with the arrow keys never plays, steps or records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QMenu, QMenuBar

from app.layouts import LAYOUTS
from app.translation import LANGUAGES
from engine.trace.metrics import MARK_KINDS
from widgets.chart_keys import chart_key
from widgets.conditions import condition_text
from widgets.transport import SPEEDS

if TYPE_CHECKING:
    from app.main_window import MainWindow

BIG_STEP = 10


class Commands(QObject):
    """Builds the menus of ``window`` and answers its keys."""

    def __init__(self, window: MainWindow, bar: QMenuBar) -> None:
        super().__init__(window)
        self._window = window
        self._actions: dict[str, QAction] = {}
        self.file, self.view, self.playback, self.run, self.help = (QMenu(bar) for _ in range(5))
        for menu in (self.file, self.view, self.playback, self.run, self.help):
            bar.addMenu(menu)
        self.recent, self.scenarios = QMenu(self.file), QMenu(self.file)
        self.layouts, self.type_size = QMenu(self.view), QMenu(self.view)
        self.themes, self.languages = QMenu(self.view), QMenu(self.view)
        self.speeds, self.until = QMenu(self.playback), QMenu(self.playback)
        self.recent.aboutToShow.connect(self._fill_recent)
        self.scenarios.aboutToShow.connect(self._fill_scenarios)
        self._build()
        self.retranslate()

    # ---- building ------------------------------------------------------------------------------------------------

    def _add(self, menu: QMenu, name: str, slot: Callable[[], object], shortcut: str = "",
             checkable: bool = False) -> QAction:
        action = QAction(self._window)
        action.triggered.connect(lambda _checked=False: slot())
        if shortcut:
            action.setShortcut(QKeySequence(shortcut))
        action.setCheckable(checkable)
        menu.addAction(action)
        self._window.addAction(action)  # so that its shortcut works while the menu bar is hidden
        self._actions[name] = action
        return action

    def _build(self) -> None:
        w = self._window
        self._add(self.file, "open", w.asking.choose_recording, "Ctrl+O")
        self.file.addMenu(self.recent)
        self.file.addMenu(self.scenarios)
        self.file.addSeparator()
        self._add(self.file, "record", w.toggle_recording)
        self._add(self.file, "record_to", w.asking.choose_record_file, "Ctrl+Shift+R")
        self._add(self.file, "copy_notes", w.note_taking.choose_copy)
        self._add(self.file, "screenshot", w.asking.choose_screenshot, "Ctrl+Shift+S")
        self._add(self.file, "export", w.exporting.show_dialog, "Ctrl+E")
        self.file.addSeparator()
        self._add(self.file, "settings", w.asking.show_settings, "Ctrl+,").setMenuRole(QAction.MenuRole.PreferencesRole)
        self._add(self.file, "quit", w.close, "Ctrl+Q").setMenuRole(QAction.MenuRole.QuitRole)

        self._add_group(self.layouts, "layout", tuple(LAYOUTS), w.docks.choose)
        for number, name in enumerate(LAYOUTS, 1):
            self._actions[f"layout {name}"].setShortcut(QKeySequence(f"Ctrl+{number}"))
        self.layouts.addSeparator()
        self._add(self.layouts, "reset", w.docks.reset)
        self._add(self.layouts, "arrange", lambda: w.docks.set_arranging(self._actions["arrange"].isChecked()),
                  checkable=True)
        self._add(self.type_size, "larger", partial(w.docks.resize_type, 1)).setShortcuts(
            [QKeySequence("Ctrl++"), QKeySequence("Ctrl+=")])
        self._add(self.type_size, "smaller", partial(w.docks.resize_type, -1), "Ctrl+-")
        self._add(self.type_size, "normal", partial(w.docks.resize_type, 0), "Ctrl+0")
        self.view.addMenu(self.layouts)
        self.view.addMenu(self.type_size)
        self.view.addSeparator()
        for dock in w.docks.docks.values():
            self.view.addAction(dock.toggleViewAction())
        self.view.addSeparator()
        self.view.addMenu(self.themes)
        self.view.addMenu(self.languages)
        self._add_group(self.themes, "theme", ("dark", "light"), w.set_theme)
        self._add_group(self.languages, "language", tuple(LANGUAGES), w.set_language)
        self._add(self.view, "motion", lambda: w.set_motion(self._actions["motion"].isChecked()), checkable=True)
        self._add(self.view, "full_screen", w.toggle_full_screen, "F11", checkable=True)

        for name in ("play", "forward", "back", "first", "follow"):
            self._add(self.playback, name, getattr(self, f"_{name}"))
        self.playback.addSeparator()
        for name in ("next_event", "previous_event", "mark_loop_start", "mark_loop_end", "clear_loop"):
            self._add(self.playback, name, partial(w.with_session, name))
        self.playback.addSeparator()
        self._add(self.playback, "note", w.note_taking.write)
        self._add(self.playback, "notes", w.note_taking.show_list)
        self.playback.addSeparator()
        self.playback.addMenu(self.speeds)
        self.playback.addMenu(self.until)
        for speed in SPEEDS:
            text = f"{speed:g}×" if speed >= 1 else f"1/{round(1 / speed)}×"
            self.speeds.addAction(text).triggered.connect(lambda _c=False, s=speed: w.with_session("set_speed", s))
        for kind in ("", *(k for k in MARK_KINDS if k != "refused")):
            self._add(self.until, f"until {kind}", partial(w.with_session, "run_until", kind))
        self._add(self.until, "until gauge", w.transport.edit_gauge)

        self._add(self.run, "rerun", w.comparing.rerun)
        self._add(self.run, "compare", w.comparing.compare_with)
        self._add(self.run, "sweep", w.comparing.sweep)

        self._add(self.help, "keys", w.asking.show_keys, "F1")
        self._add(self.help, "about", w.asking.show_about).setMenuRole(QAction.MenuRole.AboutRole)

    def _add_group(self, menu: QMenu, prefix: str, names: tuple[str, ...], slot: Callable[[str], object]) -> None:
        group = QActionGroup(self)
        for name in names:
            group.addAction(self._add(menu, f"{prefix} {name}", partial(slot, name), checkable=True))

    def _fill_recent(self) -> None:
        self.recent.clear()
        window = self._window
        shipped = window.shipped_recordings()
        for path in window.settings.recent:
            if path not in (p for p, _ in shipped):
                name = path.name if path.suffix.lower() != ".json" else f"{path.parent.name}/{path.name}"
                self.recent.addAction(name).triggered.connect(lambda _c=False, p=path: window.open_path(p))
        if shipped and self.recent.actions():
            self.recent.addSeparator()
        for path, title in shipped:
            self.recent.addAction(title).triggered.connect(lambda _c=False, p=path: window.open_recording(p))

    def _fill_scenarios(self) -> None:
        self.scenarios.clear()
        for name, title in self._window.scenario_titles():
            self.scenarios.addAction(title).triggered.connect(
                lambda _c=False, n=name: self._window.start_scenario(n))

    # ---- texts ---------------------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        self.file.setTitle(self.tr("&File"))
        self.view.setTitle(self.tr("&View"))
        self.playback.setTitle(self.tr("&Playback"))
        self.run.setTitle(self.tr("&Run"))
        self.help.setTitle(self.tr("&Help"))
        self.recent.setTitle(self.tr("Recent recordings"))
        self.scenarios.setTitle(self.tr("Start scenario"))
        self.layouts.setTitle(self.tr("Layout"))
        self.type_size.setTitle(self.tr("Text size"))
        self.themes.setTitle(self.tr("Theme"))
        self.languages.setTitle(self.tr("Language"))
        self.speeds.setTitle(self.tr("Speed"))
        self.until.setTitle(self.tr("Run until"))
        # A tab keeps a plain key out of Qt's shortcuts, and yet shows it in the menu.
        texts = {
            "open": self.tr("Open recording…"),
            "record": self.tr("Record") + "\tR",
            "record_to": self.tr("Record to file…"),
            "copy_notes": self.tr("Save a copy with notes…"),
            "screenshot": self.tr("Save screenshot…"),
            "export": self.tr("Export…"),
            "settings": self.tr("Settings…"),
            "quit": self.tr("Quit"),
            "arrange": self.tr("Move panels by their title bars"),
            "reset": self.tr("Reset this layout"),
            **{f"layout {name}": text for name, text in self.layout_names()},
            "larger": self.tr("Larger"),
            "smaller": self.tr("Smaller"),
            "normal": self.tr("As designed"),
            "theme dark": self.tr("Dark"),
            "theme light": self.tr("Light"),
            "motion": self.tr("Motion"),
            "full_screen": self.tr("Full screen"),
            "play": self.tr("Play or pause") + "\t" + self.tr("Space"),
            "forward": self.tr("One step on") + "\t→",
            "back": self.tr("One step back") + "\t←",
            "first": self.tr("First step") + "\tHome",
            "follow": self.tr("Newest step, and follow") + "\tEnd",
            "next_event": self.tr("Next event") + "\tN",
            "previous_event": self.tr("Previous event") + "\tP",
            "mark_loop_start": self.tr("Loop from here") + "\t[",
            "mark_loop_end": self.tr("Loop to here") + "\t]",
            "clear_loop": self.tr("No loop"),
            "note": self.tr("Note…") + "\tM",
            "notes": self.tr("All notes…") + "\tShift+M",
            **{f"until {kind}": condition_text(kind) for kind in ("", *(k for k in MARK_KINDS if k != "refused"))},
            "until gauge": self.tr("a gauge…"),
            "rerun": self.tr("Run the same workload with other knobs…"),
            "compare": self.tr("Compare with…"),
            "sweep": self.tr("Sweep…"),
            "keys": self.tr("Keys"),
            "about": self.tr("About Cutaway"),
            **{f"language {code}": name for code, name in LANGUAGES.items()},
        }
        for name, text in texts.items():
            self._actions[name].setText(text)

    def layout_names(self) -> list[tuple[str, str]]:
        """(name, what the user calls it)."""
        texts = {"stage": self.tr("Stage"), "tune": self.tr("Tune"), "teach": self.tr("Teach")}
        return [(name, texts[name]) for name in LAYOUTS]

    def sync(self, *, theme: str, language: str, layout: str, motion: bool, full_screen: bool, recording: bool,
             live: bool, replay: bool) -> None:
        """Show the state of things in the menus."""
        for name, checked in ((f"theme {theme}", True), (f"language {language}", True), (f"layout {layout}", True),
                              ("motion", motion), ("full_screen", full_screen)):
            self._actions[name].setChecked(checked)
        self._actions["record"].setText((self.tr("Stop recording") if recording else self.tr("Record")) + "\tR")
        self._actions["record"].setEnabled(live)
        self._actions["record_to"].setEnabled(live and not recording)
        self._actions["copy_notes"].setEnabled(replay)

    def shortcuts(self) -> set[str]:
        """The keys that Qt knows of, for those who compare them with the list of keys."""
        return {key.toString() for action in self._actions.values() for key in action.shortcuts()}

    # ---- keys ----------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        self._window.with_session("toggle_play")

    def _forward(self, count: int = 1) -> None:
        self._window.with_session("step_forward", count)

    def _back(self, count: int = 1) -> None:
        self._window.with_session("step_back", count)

    def _first(self) -> None:
        self._window.with_session("first")

    def _follow(self) -> None:
        self._window.follow()

    def _escape(self) -> None:
        """Out of the full screen first; otherwise nothing is selected any more."""
        if self._window.isFullScreen():
            self._window.toggle_full_screen()
        else:
            self._window.selection.select()

    def key_pressed(self, event: QKeyEvent) -> bool:
        """Do what the key asks for; False if it asks for nothing."""
        shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        bracket = {"[": "mark_loop_start", "]": "mark_loop_end"}.get(event.text())
        if bracket is not None:  # whatever it takes to type one on this keyboard
            if not event.isAutoRepeat():
                self._window.with_session(bracket)
            return True
        chart = self._window.main_chart()
        if chart is not None and chart_key(chart, event):
            return True
        if event.modifiers() & ~(Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.KeypadModifier):
            return False
        if event.text() == "?":
            self._window.asking.show_keys()
            return True
        count = BIG_STEP if shift else 1
        keys: dict[int, Callable[[], object]] = {
            Qt.Key.Key_Right: lambda: self._forward(count),
            Qt.Key.Key_Left: lambda: self._back(count),
            Qt.Key.Key_N: lambda: self._window.with_session("next_event"),
            Qt.Key.Key_P: lambda: self._window.with_session("previous_event"),
        }
        once: dict[int, Callable[[], object]] = {
            Qt.Key.Key_Escape: self._escape,
            Qt.Key.Key_Space: self._play,
            Qt.Key.Key_Home: self._first,
            Qt.Key.Key_End: self._follow,
            Qt.Key.Key_M: self._window.note_taking.show_list if shift else self._window.note_taking.write,
            Qt.Key.Key_R: self._window.toggle_recording,
            Qt.Key.Key_O: self._window.asking.choose_recording,
        }
        act = keys.get(event.key()) or (once.get(event.key()) if not event.isAutoRepeat() else None)
        if act is None:
            return event.key() in once
        act()
        return True
