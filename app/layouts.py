"""Where the panels stand: docks in the proportions of the design, which the user can hide, resize, drag and float."""

from __future__ import annotations

from PySide6.QtCore import QObject, QSize, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDockWidget, QMainWindow, QWidget

from widgets.painting import Panel

_H, _V = Qt.Orientation.Horizontal, Qt.Orientation.Vertical

PANEL_NAMES = ("knobs", "block_table", "token_budget", "latency", "timeline", "requests", "inspector", "insights")

_COLUMNS = {"knobs": 0.172, "block_table": 0.610, "requests": 0.218}
_MIDDLE = {"block_table": 0.50, "token_budget": 0.22, "latency": 0.28}
_RIGHT = {"requests": 0.365, "inspector": 0.385, "insights": 0.25}
_WIDEST = {"knobs": 320, "requests": 440, "inspector": 440, "insights": 440}


def size_on_screen(window: QWidget, width: int, height: int) -> QSize:
    """The size asked for, or as much of it as the screen has. Off the screen there is always room."""
    wanted = QSize(width, height)
    if QGuiApplication.platformName() == "offscreen":
        return wanted
    return wanted.boundedTo(window.screen().availableSize())


class Docks(QObject):
    """One dock for each panel. Title bars are hidden, because panels have headers, until panels are to be moved."""

    def __init__(self, window: QMainWindow, panels: dict[str, Panel]) -> None:
        super().__init__(window)
        self._window = window
        self._arranging = False
        self._panels = panels
        self.docks: dict[str, QDockWidget] = {}
        window.setDockNestingEnabled(True)
        for name in PANEL_NAMES:
            dock = QDockWidget(window)
            dock.setObjectName(name)
            dock.setWidget(panels[name])
            dock.setTitleBarWidget(QWidget(dock))
            dock.topLevelChanged.connect(lambda _floating, dock=dock: self._dress(dock))
            if name in _WIDEST:
                panels[name].setMaximumWidth(_WIDEST[name])
            self.docks[name] = dock
        self.retranslate()
        self.reset()

    def retranslate(self) -> None:
        for name, dock in self.docks.items():
            dock.setWindowTitle(self._panels[name].title)
            dock.toggleViewAction().setText(self._panels[name].title)

    def reset(self) -> None:
        """Every panel back in its place and shown."""
        d, window = self.docks, self._window
        for dock in d.values():
            window.removeDockWidget(dock)
            dock.setFloating(False)
        window.addDockWidget(Qt.DockWidgetArea.LeftDockWidgetArea, d["knobs"])
        window.splitDockWidget(d["knobs"], d["block_table"], _H)
        window.splitDockWidget(d["block_table"], d["requests"], _H)
        window.splitDockWidget(d["block_table"], d["token_budget"], _V)
        window.splitDockWidget(d["token_budget"], d["latency"], _V)
        window.splitDockWidget(d["latency"], d["timeline"], _H)
        window.splitDockWidget(d["requests"], d["inspector"], _V)
        window.splitDockWidget(d["inspector"], d["insights"], _V)
        for dock in d.values():
            dock.show()
        self.proportion()

    def proportion(self) -> None:
        """The design's proportions for the window's present size."""
        width, height = self._window.width(), self._window.height()
        for shares, length, orientation in ((_COLUMNS, width, _H), (_MIDDLE, height, _V), (_RIGHT, height, _V)):
            self._window.resizeDocks([self.docks[n] for n in shares], [round(s * length) for s in shares.values()],
                                     orientation)
        half = round(_COLUMNS["block_table"] * width / 2)
        self._window.resizeDocks([self.docks["latency"], self.docks["timeline"]], [half, half], _H)

    def set_arranging(self, on: bool) -> None:
        """Show title bars to drag panels by, or hide them."""
        self._arranging = on
        for dock in self.docks.values():
            self._dress(dock)

    def _dress(self, dock: QDockWidget) -> None:
        """Give the dock a title bar if it needs one: to be dragged by, or, floating, to be closed by."""
        bare = not (self._arranging or dock.isFloating())
        if bare == (dock.titleBarWidget() is None):
            dock.setTitleBarWidget(QWidget(dock) if bare else None)  # type: ignore[arg-type]
