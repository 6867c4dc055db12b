"""Where the panels stand: three layouts for three purposes, each of which the user can change and get back.

*Tune* is the design's own, with every panel. *Stage* is for a projector: large type, few panels, no knobs. *Teach* is
for walking through a run step by step: what is looked at, what it is, and what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QMouseEvent
from PySide6.QtWidgets import QDockWidget, QMainWindow, QWidget

from app.settings import Settings
from widgets.painting import Panel
from widgets.theme import px, themes

_H, _V = Qt.Orientation.Horizontal, Qt.Orientation.Vertical

PANEL_NAMES = ("knobs", "block_table", "token_budget", "latency", "timeline", "requests", "inspector", "insights")


@dataclass(frozen=True)
class Layout:
    """Columns from the left, each of rows from the top, each of panels side by side; a row has a share of the height,
    a column one of the width. Panels that are ``closed`` have their place too, for when they are opened. ``scale`` is
    how large type is, ``widest`` how wide a panel gets on a large screen. With ``grows`` type is larger in a window of
    more than 1440 pixels: those who watch a projector sit no nearer for its having more of them."""

    columns: tuple[tuple[float, tuple[tuple[float, tuple[str, ...]], ...]], ...]
    closed: frozenset[str] = frozenset()
    scale: float = 1.0
    widest: Mapping[str, int] = field(default_factory=dict)
    grows: bool = False


LAYOUTS = {
    "stage": Layout(
        columns=((0.20, ((1.0, ("knobs",)),)),
                 (0.66, ((0.62, ("block_table",)), (0.38, ("token_budget",)), (0.3, ("latency", "timeline")))),
                 (0.34, ((0.55, ("requests",)), (0.4, ("inspector",)), (0.45, ("insights",))))),
        closed=frozenset(("knobs", "latency", "timeline", "inspector")),
        scale=1.5, widest={"knobs": 320}, grows=True),
    "tune": Layout(
        columns=((0.172, ((1.0, ("knobs",)),)),
                 (0.610, ((0.50, ("block_table",)), (0.22, ("token_budget",)), (0.28, ("latency", "timeline")))),
                 (0.218, ((0.365, ("requests",)), (0.385, ("inspector",)), (0.25, ("insights",))))),
        widest={"knobs": 320, "requests": 440, "inspector": 440, "insights": 440}),
    "teach": Layout(
        columns=((0.20, ((1.0, ("knobs",)),)),
                 (0.66, ((0.50, ("block_table",)), (0.21, ("token_budget",)), (0.29, ("timeline", "latency")))),
                 (0.34, ((0.47, ("inspector",)), (0.27, ("insights",)), (0.26, ("requests",))))),
        closed=frozenset(("knobs", "latency")),
        scale=1.1, widest={"knobs": 320, "requests": 640, "inspector": 640, "insights": 640}),
}
DEFAULT_LAYOUT = "tune"
NO_LIMIT = 16_777_215
KNOBS_WIDTH = 232
"""What the longest name of a knob takes, with a value beside it."""

GROW_AFTER_MS = 150

SCALES = (0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0)
"""The sizes of type that the user steps through."""


def size_on_screen(window: QWidget, width: int, height: int) -> QSize:
    """The size asked for, or as much of it as the screen has. Off the screen there is always room."""
    wanted = QSize(width, height)
    if QGuiApplication.platformName() == "offscreen":
        return wanted
    return wanted.boundedTo(window.screen().availableSize())


class Docks(QObject):
    """One dock for each panel, and the layout in force. Title bars are hidden, because panels have headers, until
    panels are to be moved.

    What the user changes in a layout is kept in ``settings`` when another is chosen and when the window closes.
    """

    chosen = Signal(str)  # another layout is in force

    def __init__(self, window: QMainWindow, panels: dict[str, Panel], settings: Settings) -> None:
        super().__init__(window)
        self._window = window
        self._settings = settings
        self._arranging = False
        self._panels = panels
        self._touched = False  # the user has changed the layout in force
        self._busy = False
        self.current = settings.layout_name if settings.layout_name in LAYOUTS else DEFAULT_LAYOUT
        self.docks: dict[str, QDockWidget] = {}
        window.setDockNestingEnabled(True)
        for name in PANEL_NAMES:
            dock = QDockWidget(window)
            dock.setObjectName(name)
            dock.setWidget(panels[name])
            dock.setTitleBarWidget(QWidget(dock))
            dock.topLevelChanged.connect(lambda _floating, dock=dock: self._dress(dock))
            dock.topLevelChanged.connect(self._touch)
            dock.dockLocationChanged.connect(self._touch)
            dock.toggleViewAction().triggered.connect(self._touch)
            self.docks[name] = dock
        window.installEventFilter(self)
        self._grow_soon = QTimer(self)
        self._grow_soon.setSingleShot(True)
        self._grow_soon.timeout.connect(self._grow)
        self.retranslate()
        self._limit()
        self._arrange()

    def retranslate(self) -> None:
        for name, dock in self.docks.items():
            dock.setWindowTitle(self._panels[name].title)
            dock.toggleViewAction().setText(self._panels[name].title)

    # ---- choosing ------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.current]

    def choose(self, name: str, *, remember: bool = True) -> None:
        """Put layout ``name`` in force, as the user left it. The panels are the same ones: they keep what they show.
        ``remember`` it for the next start."""
        if name not in LAYOUTS or name == self.current:
            return
        self.keep()
        self.current = name
        if remember:
            self._settings.layout_name = name
        self.bring_back()
        self.chosen.emit(name)

    def bring_back(self) -> None:
        """The layout in force as the user left it, or as designed."""
        self._window.setUpdatesEnabled(False)
        self._busy = True
        try:
            themes.set_scale(self._settings.layout_scale(self.current) or self.designed_scale)
            self._limit()
            state = self._settings.layout_state(self.current)
            self._touched = state is not None and self._window.restoreState(state)
            if self._touched:
                self._fit(self._settings.layout_sizes(self.current))
            else:
                self._arrange()
        finally:
            self._busy = False
            self._window.setUpdatesEnabled(True)

    def keep(self) -> None:
        """Remember what the user changed in the layout in force."""
        if self._touched:
            window = self._window
            sizes = {name: (dock.width() / window.width(), dock.height() / window.height())
                     for name, dock in self.docks.items() if dock.isVisible() and not dock.isFloating()}
            self._settings.save_layout_state(self.current, window.saveState(), sizes)

    def _fit(self, sizes: dict[str, tuple[float, float]]) -> None:
        """The window may have another size than when the layout was left: the panels' shares of it are the same."""
        docks = [(self.docks[name], size) for name, size in sizes.items() if name in self.docks]
        for index, length, orientation in ((0, self._window.width(), _H), (1, self._window.height(), _V)):
            self._window.resizeDocks([dock for dock, _ in docks], [round(size[index] * length) for _, size in docks],
                                     orientation)

    def reset(self) -> None:
        """The layout in force as designed: every panel in its place, type as large as it was."""
        self._settings.save_layout_state(self.current, None)
        self._settings.save_layout_scale(self.current, None)
        self.bring_back()

    def resize_type(self, steps: int) -> None:
        """Larger type (positive), smaller, or with 0 as designed; in this layout."""
        if steps:
            nearest = min(range(len(SCALES)), key=lambda i: abs(SCALES[i] - themes.scale))
            scale = SCALES[min(len(SCALES) - 1, max(0, nearest + steps))]
            self._settings.save_layout_scale(self.current, scale)
            self._set_scale(scale)
        else:
            self._settings.save_layout_scale(self.current, None)
            self._set_scale(self.designed_scale)

    @property
    def designed_scale(self) -> float:
        """How large type is in the layout in force unless the user says otherwise."""
        if not self.layout.grows:
            return self.layout.scale
        wanted = self.layout.scale * self._window.width() / 1440
        return min(2.5, max(1.2, round(wanted * 20) / 20))

    def _grow(self) -> None:
        if self._settings.layout_scale(self.current) is None:
            self._set_scale(self.designed_scale)

    def _set_scale(self, scale: float) -> None:
        if scale != themes.scale:
            themes.set_scale(scale)
            self._limit()
            self.proportion()

    # ---- arranging -----------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Every panel in its place."""
        d, window = self.docks, self._window
        for dock in d.values():
            dock.setFloating(False)
            window.removeDockWidget(dock)
        heads = [rows[0][1][0] for _, rows in self.layout.columns]
        window.addDockWidget(Qt.DockWidgetArea.LeftDockWidgetArea, d[heads[0]])
        for before, head in pairwise(heads):
            window.splitDockWidget(d[before], d[head], _H)
        for _, rows in self.layout.columns:
            firsts = [row[0] for _, row in rows]
            for before, first in pairwise(firsts):
                window.splitDockWidget(d[before], d[first], _V)
            for _, row in rows:
                for before, name in pairwise(row):
                    window.splitDockWidget(d[before], d[name], _H)
        for name, dock in d.items():
            dock.setVisible(name not in self.layout.closed)
        self.proportion()

    def proportion(self) -> None:
        """The layout's proportions for the window's present size, unless the user chose others."""
        if self._touched:
            return
        width, height, closed = self._window.width(), self._window.height(), self.layout.closed
        # Larger type than designed: the lists at the sides, which are read, get more of the width than the middle.
        wider = 1 + max(0.0, themes.scale / self.designed_scale - 1) / 2
        open_columns: list[tuple[float, str]] = []
        for share, rows in self.layout.columns:
            shown = [(h, [n for n in row if n not in closed]) for h, row in rows]
            shown = [(h, row) for h, row in shown if row]
            if not shown:
                continue
            open_columns.append((share if share > 0.5 else share * wider, shown[0][1][0]))
            self._share_out([(h, row[0]) for h, row in shown], height, _V)
        self._share_out(open_columns, width, _H)
        for share, rows in self.layout.columns:
            for _, row in rows:
                names = [n for n in row if n not in closed]
                if len(names) > 1:
                    self._share_out([(1.0, n) for n in names], round(share * width), _H)

    def _share_out(self, shares: list[tuple[float, str]], length: int, orientation: Qt.Orientation) -> None:
        total = sum(share for share, _ in shares)
        self._window.resizeDocks([self.docks[n] for _, n in shares], [round(s / total * length) for s, _ in shares],
                                 orientation)

    def _limit(self) -> None:
        """On a large screen the middle gets the room: lists that are too wide are hard to read."""
        for name, panel in self._panels.items():
            panel.setMaximumWidth(px(self.layout.widest[name]) if name in self.layout.widest else NO_LIMIT)
        self._panels["knobs"].setMinimumWidth(px(KNOBS_WIDTH))

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

    # ---- what the user changes -----------------------------------------------------------------------------------

    def _touch(self, *_: object) -> None:
        if not self._busy and self._window.isVisible():
            self._touched = True

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        # Between the panels there is nobody but the window itself: a press there moves a border.
        if (event.type() == QEvent.Type.MouseButtonPress and isinstance(event, QMouseEvent)
                and self._window.childAt(event.position().toPoint()) is None):
            self._touch()
        elif event.type() == QEvent.Type.Resize and self.layout.grows:
            self._grow_soon.start(GROW_AFTER_MS)
        return False
