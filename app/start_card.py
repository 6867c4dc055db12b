"""What the window shows while there is nothing else to show: how the model is coming, or how to get one."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QPushButton, QVBoxLayout, QWidget

from widgets.theme import RADIUS, px, theme, themes

WIDTH = 460


class StartCard(QWidget):
    """A card in the middle of its parent. Hidden until :meth:`show_progress` or :meth:`show_failure`."""

    cancelled = Signal()
    retry = Signal()
    open_recording = Signal(Path)
    open_any = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._title = QLabel()
        self._text = QLabel()
        self._text.setWordWrap(True)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._stage = QLabel()
        self._stage.setProperty("role", "secondary")
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self._bar.setFixedHeight(6)
        self._choices = QVBoxLayout()
        self._choices.setSpacing(8)
        self._cancel = QPushButton()
        self._cancel.clicked.connect(self.cancelled)
        self._retry = QPushButton()
        self._retry.clicked.connect(self.retry)
        self._open = QPushButton()
        self._open.clicked.connect(self.open_any)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(12)
        for widget in (self._title, self._text, self._bar, self._stage):
            column.addWidget(widget)
        column.addLayout(self._choices)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        for button in (self._open, self._retry, self._cancel):
            buttons.addWidget(button)
        column.addLayout(buttons)
        parent.installEventFilter(self)
        themes.changed.connect(self._rescale)
        self._rescale()
        self._recordings: list[tuple[Path, str]] = []
        self._failed = False
        self._first_time = False
        self.retranslate()
        self.hide()

    def retranslate(self) -> None:
        self._cancel.setText(self.tr("Cancel"))
        self._retry.setText(self.tr("Try again"))
        self._open.setText(self.tr("Open a recording…"))
        if self._failed:
            self._show_choices()
        else:
            self._title.setText(self.tr("Getting the model ready"))
            self._text.setText(self.tr(
                "The first start downloads and converts a small language model, once. Later starts take a moment.")
                if self._first_time else self.tr("A moment: the weights are read into memory."))

    def show_progress(self, stage: str, fraction: float | None, *, first_time: bool = False) -> None:
        """The model is on its way: ``stage`` in words, ``fraction`` 0 to 1 or None. ``first_time``: it is fetched."""
        if self._failed or self.isHidden():
            self._failed = False
            self._first_time = first_time
            self._clear_choices()
            self.retranslate()
            self._arrange(loading=True)
        self._stage.setText(stage)
        self._bar.setRange(0, 1000 if fraction is not None else 0)
        if fraction is not None:
            self._bar.setValue(round(1000 * fraction))

    def show_failure(self, message: str, recordings: list[tuple[Path, str]]) -> None:
        """There is no model: ``message`` says why and what to do; ``recordings`` (path, title) can be played."""
        self._failed = True
        self._recordings = recordings
        self._text.setText(message)
        self._show_choices()
        self._arrange(loading=False)

    def _arrange(self, *, loading: bool) -> None:
        for widget in (self._bar, self._stage, self._cancel):
            widget.setVisible(loading)
        for widget in (self._retry, self._open):
            widget.setVisible(not loading)
        self.show()
        self.raise_()
        self._centre()

    def _show_choices(self) -> None:
        self._title.setText(self.tr("No model to run"))
        self._clear_choices()
        if self._recordings:
            label = QLabel(self.tr("Recordings of real runs play without a model:"))
            label.setProperty("role", "secondary")
            self._choices.addWidget(label)
        for path, title in self._recordings:
            button = QPushButton("▶  " + title)
            button.clicked.connect(lambda _checked=False, path=path: self.open_recording.emit(path))
            self._choices.addWidget(button)

    def _clear_choices(self) -> None:
        while (item := self._choices.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()

    def _rescale(self) -> None:
        self._title.setStyleSheet(f"font-size: {px(16)}px; font-weight: 600;")
        self.setFixedWidth(px(WIDTH))
        if not self.isHidden():
            self._centre()

    def _centre(self) -> None:
        parent = self.parentWidget()
        layout = self.layout()
        if parent is not None and layout is not None:
            layout.activate()
            self.resize(self.width(), layout.totalHeightForWidth(self.width()))
            self.move((parent.width() - self.width()) // 2, (parent.height() - self.height()) // 2)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and watched is self.parentWidget() and not self.isHidden():
            self._centre()
        return False

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        t = theme()
        painter.setPen(QPen(t.outline, 1))
        painter.setBrush(QColor(t.panel))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS + 2, RADIUS + 2)
