"""The notes about what the inspector shows: where each is pinned, its text, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from engine.trace.notes import Note
from widgets.buttons import IconButton, TextButton
from widgets.controls import WINDOW_KEYS
from widgets.notes import about_text
from widgets.numbers import format_int
from widgets.theme import px, theme, themes, with_alpha

BAR = 3  # pixels of accent at a card's left


class NoteCard(QWidget):
    """One note. Its heading is a link to its step, unless that is the step in view."""

    chosen = Signal(object)
    edit_asked = Signal(object)
    delete_asked = Signal(object)

    def __init__(self, note: Note, parent: QWidget) -> None:
        super().__init__(parent)
        self.note = note
        self.go, self.edit, self.delete = TextButton(), IconButton("edit"), IconButton("delete")
        for button in (self.edit, self.delete):
            button.make_small()
        self.text = QLabel(note.text)
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setWordWrap(True)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.text.setSizePolicy(policy)
        top = QHBoxLayout()
        top.setSpacing(2)
        top.addWidget(self.go)
        top.addStretch(1)
        top.addWidget(self.edit)
        top.addWidget(self.delete)
        column = QVBoxLayout(self)
        column.setContentsMargins(BAR + 1, 0, 2, 6)
        column.setSpacing(0)
        column.addLayout(top)
        line = QHBoxLayout()
        line.setContentsMargins(7, 0, 4, 0)
        line.addWidget(self.text)
        column.addLayout(line)
        self.go.clicked.connect(lambda: self.chosen.emit(self.note))
        self.edit.clicked.connect(lambda: self.edit_asked.emit(self.note))
        self.delete.clicked.connect(lambda: self.delete_asked.emit(self.note))

    def show_for(self, step: int) -> None:
        """The texts, while ``step`` is in view."""
        about = about_text((self.note.request_id, self.note.block))
        place = QCoreApplication.translate("Notes", "step {step}").format(step=format_int(self.note.step))
        here = self.note.step == step
        self.go.set_texts("", f"{place} · {about}" if about else place, "text" if here else "accent")
        self.go.setEnabled(not here)
        self.go.setToolTip("" if here else self.tr("Go to the step of this note"))
        for button, name in ((self.edit, self.tr("Edit this note")), (self.delete, self.tr("Delete this note"))):
            button.setToolTip(name)
            button.setAccessibleName(name)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme()
        painter.fillRect(self.rect(), with_alpha(t.accent, 0.08))
        painter.fillRect(QRectF(0, 0, BAR, self.height()), QColor(t.accent))


class PinnedNotes(QScrollArea):
    """The cards, one below the other. Hidden while there is none."""

    chosen = Signal(object)  # a Note: go there
    edit_asked = Signal(object)
    delete_asked = Signal(object)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._inner = QWidget()
        self._column = QVBoxLayout(self._inner)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(6)
        self._column.addStretch(1)
        self.setWidget(self._inner)
        self._cards: list[NoteCard] = []
        self._step = -1
        themes.changed.connect(self._inner.update)
        self.hide()

    @property
    def cards(self) -> list[NoteCard]:
        return self._cards

    def show_notes(self, notes: Sequence[Note], step: int) -> bool:
        """Show these, while ``step`` is in view. True when there are others than before."""
        if [card.note for card in self._cards] == list(notes):
            if step != self._step:
                self._step = step
                for card in self._cards:
                    card.show_for(step)
            return False
        self._step = step
        for card in self._cards:
            self._column.removeWidget(card)
            card.hide()
            card.deleteLater()
        self._cards = []
        for index, note in enumerate(notes):
            card = NoteCard(note, self._inner)
            card.show_for(step)
            card.chosen.connect(self.chosen)
            card.edit_asked.connect(self.edit_asked)
            card.delete_asked.connect(self.delete_asked)
            self._column.insertWidget(index, card)
            card.show()  # the layout would only do so later
            self._cards.append(card)
        before: QWidget | None = self.parentWidget()  # Tab comes to the notes after what they are about
        for card in self._cards:
            for button in (card.go, card.edit, card.delete):
                if before is not None:
                    QWidget.setTabOrder(before, button)
                before = button
        self.setVisible(bool(notes))
        return True

    def needed_height(self, width: int) -> int:
        """Pixels that all cards take at this width."""
        if not self._cards:
            return 0
        inner = width - px(10)  # a scroll bar may be needed
        heights = [max(card.heightForWidth(inner), card.minimumSizeHint().height()) for card in self._cards]
        return sum(heights) + 6 * (len(heights) - 1)

    def sizeHint(self) -> QSize:
        return QSize(200, self.needed_height(200))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in WINDOW_KEYS:
            event.ignore()
        else:
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            for card in self._cards:
                card.show_for(self._step)
