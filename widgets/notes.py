"""Writing a note, and the list of all notes. Both stand beside the window and never stop anybody."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import (
    QCoreApplication,
    QEvent,
    QModelIndex,
    QPersistentModelIndex,
    QPoint,
    QRect,
    QSize,
    Qt,
    Signal,
    SignalInstance,
)
from PySide6.QtGui import QColor, QFontMetrics, QKeyEvent, QPainter
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QHBoxLayout,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QPushButton,
    QStackedWidget,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from engine.trace.notes import MAX_TEXT, Note
from widgets.numbers import format_int
from widgets.theme import font, theme, with_alpha

About = tuple[str | None, int | None]
"""What a note is about: a request, a block, or (None, None) the step itself."""

_WRAPPED = int(Qt.TextFlag.TextWordWrap) | int(Qt.AlignmentFlag.AlignLeft.value)
_Index = QModelIndex | QPersistentModelIndex


def about_text(about: About) -> str:
    """Such as "request r12"; "" for the step itself."""
    request_id, block = about
    if request_id is not None:
        return QCoreApplication.translate("Notes", "request {name}").format(name=request_id)
    if block is not None:
        return QCoreApplication.translate("Notes", "block {number}").format(number=format_int(block))
    return ""


def note_heading(note: Note) -> str:
    """Where a note is pinned: its step, and what it is about."""
    step = QCoreApplication.translate("Notes", "step {step}").format(step=format_int(note.step))
    about = about_text((note.request_id, note.block))
    return f"{step} · {about}" if about else step


class _Text(QPlainTextEdit):
    """Ctrl+Return submits what was written; Return alone is a new line."""

    submitted = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if (event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
                and event.modifiers() & Qt.KeyboardModifier.ControlModifier):
            self.submitted.emit()
        else:
            super().keyPressEvent(event)


class NoteEditor(QDialog):
    """Asks for the text of one note and what it is about. ``saved`` brings the text and that; ``deleted`` that the
    note is to go. Ctrl+Return saves, Escape closes."""

    saved = Signal(str, object)
    deleted = Signal()

    def __init__(self, parent: QWidget, step: int, choices: Sequence[About], note: Note | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.step, self.note = step, note
        self._choices = list(choices)
        self._heading, self._pinned = QLabel(), QLabel()
        self._heading.setProperty("role", "value")
        self._pinned.setProperty("role", "secondary")
        self.about = QComboBox()
        self.text = _Text()
        self.text.setTabChangesFocus(True)
        self.text.setMinimumHeight(96)
        self.text.textChanged.connect(self._check)
        self.save, self.cancel, self.delete = QPushButton(), QPushButton(), QPushButton()
        self.delete.setVisible(note is not None)
        for button in (self.cancel, self.delete):
            button.setAutoDefault(False)
        self.save.setDefault(True)
        top = QHBoxLayout()
        top.setSpacing(8)
        top.addWidget(self._heading)
        top.addStretch(1)
        top.addWidget(self._pinned)
        top.addWidget(self.about)
        bottom = QHBoxLayout()
        bottom.setSpacing(8)
        bottom.addWidget(self.delete)
        bottom.addStretch(1)
        bottom.addWidget(self.cancel)
        bottom.addWidget(self.save)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(12)
        column.addLayout(top)
        column.addWidget(self.text, 1)
        column.addLayout(bottom)
        self.text.submitted.connect(self._save)
        self.save.clicked.connect(self._save)
        self.cancel.clicked.connect(self.close)
        self.delete.clicked.connect(self._delete)
        self.retranslate()
        if note is not None:
            self.text.setPlainText(note.text)
            about = (note.request_id, note.block)
            self.about.setCurrentIndex(self._choices.index(about) if about in self._choices else 0)
        self._check()
        self.resize(460, 240)
        self.text.setFocus()

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Note"))
        self._heading.setText(self.tr("Step {step}").format(step=format_int(self.step)))
        self._pinned.setText(self.tr("about"))
        chosen = max(0, self.about.currentIndex())
        self.about.clear()
        for about in self._choices:
            self.about.addItem(about_text(about) or self.tr("the step"), about)
        self.about.setCurrentIndex(chosen)
        self.text.setPlaceholderText(self.tr("What is to be seen here?"))
        self.save.setText(self.tr("Save"))
        self.save.setToolTip(self.tr("Save the note (Ctrl+Return)"))
        self.cancel.setText(self.tr("Cancel"))
        self.delete.setText(self.tr("Delete"))

    def _check(self) -> None:
        self.save.setEnabled(bool(self.text.toPlainText().strip()))

    def _save(self) -> None:
        text = self.text.toPlainText().strip()[:MAX_TEXT]
        if text:
            self.saved.emit(text, self._choices[self.about.currentIndex()])
            self.close()

    def _delete(self) -> None:
        self.deleted.emit()
        self.close()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()


class _Delegate(QStyledItemDelegate):
    """A note in the list: where it is pinned, quietly, and below that its text, as many lines as it has."""

    MARGIN, GAP, MOST_LINES = 8, 2, 6

    def _parts(self, option: QStyleOptionViewItem, note: Note) -> tuple[QRect, QRect, str]:
        """Where the heading and the text stand, and the text as far as it is shown."""
        area = QRect(option.rect).adjusted(self.MARGIN, self.MARGIN, -self.MARGIN, -self.MARGIN)
        heading = QRect(area.topLeft(), QSize(area.width(), QFontMetrics(font(11)).height()))
        metrics = QFontMetrics(font(13))
        text = QRect(QPoint(area.left(), heading.bottom() + self.GAP), QSize(area.width(), 10_000))
        bounds = metrics.boundingRect(text, _WRAPPED, note.text)
        text.setHeight(min(bounds.height(), self.MOST_LINES * metrics.lineSpacing()))
        return heading, text, note.text

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        view = self.parent()
        assert isinstance(view, QListWidget)
        option.rect = QRect(0, 0, view.viewport().width(), 0)
        _heading, text, _ = self._parts(option, index.data(Qt.ItemDataRole.UserRole))
        return QSize(0, text.bottom() + self.MARGIN)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        note = index.data(Qt.ItemDataRole.UserRole)
        heading, text, shown = self._parts(option, note)
        t = theme()
        state = option.state
        if state & (QStyle.StateFlag.State_Selected | QStyle.StateFlag.State_MouseOver):
            chosen = bool(state & QStyle.StateFlag.State_Selected)
            painter.fillRect(option.rect, with_alpha(t.accent, 0.22) if chosen else t.hover)
        painter.setFont(font(11))
        painter.setPen(QColor(t.secondary))
        painter.drawText(heading, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, note_heading(note))
        painter.setFont(font(13))
        painter.setPen(QColor(t.text))
        painter.save()
        painter.setClipRect(text)
        painter.drawText(text, _WRAPPED, shown)
        painter.restore()


class NoteList(QDialog):
    """All notes in order of their steps: a click goes to the step, a double click or Return edits the note."""

    chosen = Signal(object)  # a Note: go there
    edit_asked = Signal(object)
    delete_asked = Signal(object)
    new_asked = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._notes: list[Note] = []
        self.list = QListWidget()
        self.list.setItemDelegate(_Delegate(self.list))
        self.list.setMouseTracking(True)
        self.list.setResizeMode(QListWidget.ResizeMode.Adjust)
        self.list.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        self._empty = QLabel()
        self._empty.setWordWrap(True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty.setProperty("role", "secondary")
        self._stack = QStackedWidget()
        self._stack.addWidget(self.list)
        self._stack.addWidget(self._empty)
        self.new, self.edit, self.delete = QPushButton(), QPushButton(), QPushButton()
        for button in (self.new, self.edit, self.delete):
            button.setAutoDefault(False)
        bottom = QHBoxLayout()
        bottom.setSpacing(8)
        bottom.addWidget(self.new)
        bottom.addStretch(1)
        bottom.addWidget(self.edit)
        bottom.addWidget(self.delete)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 16, 16, 16)
        column.setSpacing(12)
        column.addWidget(self._stack, 1)
        column.addLayout(bottom)
        self.list.itemClicked.connect(lambda: self._tell(self.chosen))
        self.list.itemActivated.connect(lambda: self._tell(self.edit_asked))
        self.list.itemSelectionChanged.connect(self._check)
        self.new.clicked.connect(self.new_asked)
        self.edit.clicked.connect(lambda: self._tell(self.edit_asked))
        self.delete.clicked.connect(lambda: self._tell(self.delete_asked))
        self.retranslate()
        self.show_notes([])
        self.resize(QSize(420, 420))

    @property
    def notes(self) -> list[Note]:
        return self._notes

    def show_notes(self, notes: Sequence[Note]) -> None:
        current = self.current()
        self._notes = list(notes)
        self.list.clear()
        for note in self._notes:
            item = QListWidgetItem(f"{note_heading(note)}\n{note.text}")  # which a screen reader reads
            item.setData(Qt.ItemDataRole.UserRole, note)
            self.list.addItem(item)
            if current is not None and note.note_id == current.note_id:
                self.list.setCurrentItem(item)
        self._stack.setCurrentIndex(0 if self._notes else 1)
        self._check()

    def current(self) -> Note | None:
        row = self.list.currentRow()
        return self._notes[row] if 0 <= row < len(self._notes) and self.list.currentItem().isSelected() else None

    def _tell(self, signal: SignalInstance) -> None:
        note = self.current()
        if note is not None:
            signal.emit(note)

    def _check(self) -> None:
        for button in (self.edit, self.delete):
            button.setEnabled(self.current() is not None)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Delete:
            self._tell(self.delete_asked)
        elif event.key() == Qt.Key.Key_M and not event.modifiers():
            self.new_asked.emit()
        else:
            super().keyPressEvent(event)

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Notes"))
        self._empty.setText(self.tr(
            "There are no notes yet. M writes one about the step in view, or about the request or block selected."))
        self.new.setText(self.tr("New note"))
        self.edit.setText(self.tr("Edit"))
        self.delete.setText(self.tr("Delete"))
        self.show_notes(self._notes)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
