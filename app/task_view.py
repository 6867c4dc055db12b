"""What a window shows of its task: a bar that fills, and a line that says how far it is or what came of it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QLabel, QProgressBar, QWidget

from app.tasks import Report, Task

BAR_HEIGHT = 6


class TaskView(QObject):
    """Follows ``task``. ``bar`` and ``line`` are for the window to place; the bar is only there while the task is.

    What :meth:`say` is given says the same again in another language; ``changed`` is called when either has come,
    gone or changed its height.
    """

    def __init__(self, task: Task, window: QWidget, changed: Callable[[], object] = lambda: None) -> None:
        super().__init__(window)
        self.bar, self.line = QProgressBar(), QLabel()
        self.bar.setTextVisible(False)
        self.bar.setFixedHeight(BAR_HEIGHT)
        self.bar.hide()
        self.line.setWordWrap(True)
        self.line.hide()
        self.line.installEventFilter(self)
        self._text: Callable[[], str] = str
        self._changed = changed
        task.told.connect(self._tell)
        task.ended.connect(self.end)

    def begin(self) -> None:
        """The task begins: an empty bar."""
        self.bar.setRange(0, 1000)
        self.bar.setValue(0)
        self.bar.show()
        self.say(str)

    def end(self) -> None:
        self.bar.hide()
        self._changed()

    def say(self, text: Callable[[], str], role: str = "secondary") -> None:
        """Show what ``text()`` is, as "secondary", "warning", "bad" or "good"."""
        self._text = text
        if self.line.property("role") != role:
            self.line.setProperty("role", role)
            self.line.style().unpolish(self.line)  # the style sheet looks at the role only then
            self.line.style().polish(self.line)
        self._show(text())

    def _tell(self, report: Report) -> None:
        self.bar.setRange(0, 0 if report.fraction is None else 1000)
        self.bar.setValue(int(1000 * (report.fraction or 0.0)))
        self._show(report.text)

    def _show(self, text: str) -> None:
        came = self.line.isHidden() == bool(text)
        self.line.setVisible(bool(text))
        if text != self.line.text():
            self.line.setText(text)
            came = True
        if came:
            self._changed()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LanguageChange and self.bar.isHidden():
            self._show(self._text())
        return False
