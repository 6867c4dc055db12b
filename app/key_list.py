"""Every key of the window, and the card that lists them (F1, or ?)."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

KeyGroup = tuple[str, list[tuple[str, str]]]
"""A heading, and (keys, what they do)."""

COLUMNS = ((0, 1), (2, 3, 4))
"""The groups that stand in each column of the card."""


def key_groups() -> list[KeyGroup]:
    """All of them, in the language of the program."""
    return [
        (QCoreApplication.translate("Keys", "The run"), [
            (QCoreApplication.translate("Keys", "Space"),
             QCoreApplication.translate("Keys", "pause, and go on from the same step")),
            ("← →", QCoreApplication.translate("Keys", "one step back or on; with Shift ten")),
            ("Home", QCoreApplication.translate("Keys", "to the first step")),
            ("End", QCoreApplication.translate("Keys", "to the newest step, and follow the engine")),
            ("N  P", QCoreApplication.translate("Keys", "to the next or the previous event or note")),
            ("[  ]", QCoreApplication.translate("Keys", "repeat from here, and to here; again to clear")),
            ("M", QCoreApplication.translate("Keys", "write a note about this step, or what is selected")),
            ("Shift+M", QCoreApplication.translate("Keys", "all notes")),
            ("R", QCoreApplication.translate("Keys", "start or stop recording")),
        ]),
        (QCoreApplication.translate("Keys", "Charts"), [
            ("+  −", QCoreApplication.translate("Keys", "fewer or more steps in all charts (also the wheel)")),
            ("Ctrl+←  Ctrl+→", QCoreApplication.translate("Keys", "move the charts (also a drag)")),
            ("0", QCoreApplication.translate("Keys", "let the charts go with the run again (also a double click)")),
        ]),
        (QCoreApplication.translate("Keys", "Looking closer"), [
            ("Tab", QCoreApplication.translate("Keys", "to the next control or panel")),
            ("↑ ↓ ← →", QCoreApplication.translate("Keys", "in a panel: the next request, block or link")),
            ("Enter", QCoreApplication.translate("Keys", "in the insights: go to the step of the link")),
            ("Esc", QCoreApplication.translate("Keys", "select nothing; leave the full screen")),
        ]),
        (QCoreApplication.translate("Keys", "The window"), [
            ("Ctrl+1  Ctrl+2  Ctrl+3", QCoreApplication.translate("Keys", "layouts Stage, Tune and Teach")),
            ("Ctrl++  Ctrl+−  Ctrl+0", QCoreApplication.translate("Keys", "larger, smaller, usual text")),
            ("F11", QCoreApplication.translate("Keys", "full screen")),
            ("Ctrl+,", QCoreApplication.translate("Keys", "settings")),
            ("F1  ?", QCoreApplication.translate("Keys", "this list")),
        ]),
        (QCoreApplication.translate("Keys", "Files"), [
            ("O  Ctrl+O", QCoreApplication.translate("Keys", "open a recording or a sweep")),
            ("Ctrl+Shift+R", QCoreApplication.translate("Keys", "record to a file of your choice")),
            ("Ctrl+E", QCoreApplication.translate("Keys", "export the run: Perfetto, CSV, JSON lines, film")),
            ("Ctrl+Shift+S", QCoreApplication.translate("Keys", "save a picture of the window")),
            ("Ctrl+Q", QCoreApplication.translate("Keys", "quit")),
        ]),
    ]


class KeysDialog(QDialog):
    """The card. F1, ?, Escape or a click beside it takes it away."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Dialog)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(28, 24, 28, 24)
        self._row.setSpacing(48)
        self._columns: list[QWidget] = []
        self.retranslate()

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Keys"))
        for column in self._columns:
            self._row.removeWidget(column)
            column.hide()
            column.deleteLater()
        groups = key_groups()
        self._columns = [_column([groups[index] for index in indices]) for indices in COLUMNS]
        for column in self._columns:
            self._row.addWidget(column, 0, Qt.AlignmentFlag.AlignTop)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_F1 or event.text() == "?":
            self.close()
        else:
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()


def _column(groups: list[KeyGroup]) -> QWidget:
    result = QWidget()
    column = QVBoxLayout(result)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(24)
    for title, keys in groups:
        grid = QGridLayout()
        grid.setHorizontalSpacing(24)
        grid.setVerticalSpacing(7)
        heading = QLabel(title)
        heading.setProperty("role", "title")
        grid.addWidget(heading, 0, 0, 1, 2)
        for row, (key, what) in enumerate(keys, 1):
            label = QLabel(key)
            label.setProperty("role", "value")
            grid.addWidget(label, row, 0)
            grid.addWidget(QLabel(what), row, 1)
        grid.setColumnStretch(1, 1)
        column.addLayout(grid)
    return result
