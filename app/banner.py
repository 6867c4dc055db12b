"""A line under the transport bar that says what went wrong and what to do about it. It never stops anybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QRectF, Qt, QTimer
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSizePolicy, QWidget

from widgets.painting import Status, draw_status, status_colour
from widgets.theme import RADIUS, theme, themes, with_alpha

INFO_SHOWN_MS = 8000
MIN_HEIGHT = 38

Action = tuple[str, Callable[[], object]]


class Banner(QWidget):
    """Shows one message at a time, the newest; hidden when there is none. ``info`` goes away by itself."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._status: Status = "info"
        self._label = QLabel()
        self._label.setWordWrap(True)
        self._label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self._actions = QHBoxLayout()
        self._actions.setSpacing(8)
        self._close = QPushButton("✕")
        self._close.setProperty("flat", True)
        self._close.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._close.clicked.connect(self.dismiss)
        row = QHBoxLayout(self)
        row.setContentsMargins(40, 4, 6, 4)
        row.setSpacing(8)
        row.addWidget(self._label, 1)
        row.addLayout(self._actions)
        row.addWidget(self._close)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.dismiss)
        themes.changed.connect(self.update)
        self.retranslate()
        self.hide()

    def retranslate(self) -> None:
        self._close.setToolTip(self.tr("Dismiss"))
        self._close.setAccessibleName(self.tr("Dismiss"))

    @property
    def text(self) -> str:
        """What is being said; "" when nothing is."""
        return self._label.text() if not self.isHidden() else ""

    def tell(self, text: str, status: Status = "info", actions: Sequence[Action] = (), *,
             passing: bool = False) -> None:
        """Show ``text``, with a button for each action; pressing one also takes the message away. A ``passing`` one
        goes by itself, actions or not."""
        self._status = status
        self._label.setText(text)
        self.setAccessibleName(text)
        while (item := self._actions.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.deleteLater()
        for label, act in actions:
            button = QPushButton(label)
            button.clicked.connect(self.dismiss)
            button.clicked.connect(lambda _checked=False, act=act: act())
            self._actions.addWidget(button)
            QWidget.setTabOrder(self._close, button)  # and not after everything else in the window
        self._timer.stop()
        if passing or (status in ("info", "good") and not actions):
            self._timer.start(INFO_SHOWN_MS)
        self.show()
        self._fit()
        self.update()

    def _fit(self) -> None:
        """As high as the text needs at this width; left to itself a wrapped label asks for more."""
        row = self.layout()
        if row is not None and self.width() > 0:
            row.activate()
            wanted = max(MIN_HEIGHT, row.totalHeightForWidth(self.width()))
            if wanted != self.height() or self.minimumHeight() != wanted:
                self.setFixedHeight(wanted)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def dismiss(self) -> None:
        self._timer.stop()
        self.hide()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colour = status_colour(self._status)
        painter.setPen(QPen(with_alpha(colour, 0.6), 1))
        painter.setBrush(QColor(theme().panel))
        area = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.drawRoundedRect(area, RADIUS, RADIUS)
        painter.setBrush(with_alpha(colour, 0.12))
        painter.drawRoundedRect(area, RADIUS, RADIUS)
        draw_status(painter, QRectF(14, self.height() / 2 - 8, 16, 16), self._status)
