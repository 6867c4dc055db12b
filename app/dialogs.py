"""The small windows beside the main one: settings, the list of keys, about. None of them is modal."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QDialog, QFormLayout, QLabel, QVBoxLayout, QWidget

from app.translation import LANGUAGES
from engine.version import VERSION
from widgets.theme import px


class _Dialog(QDialog):
    """Gone when it is closed, and in the language of the program while it is there."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)

    def retranslate(self) -> None:
        raise NotImplementedError

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()


class SettingsDialog(_Dialog):
    """Theme, language, motion, and whether prompts stay out of recordings; each acts at once.

    ``must_leave_prompts_out``: they do, whatever is chosen here.
    """

    def __init__(self, parent: QWidget, *, theme: str, language: str, motion: bool, keep_prompts: bool,
                 must_leave_prompts_out: bool, set_theme: Callable[[str], None], set_language: Callable[[str], None],
                 set_motion: Callable[[bool], None], set_keep_prompts: Callable[[bool], None]) -> None:
        super().__init__(parent)
        self._must_leave_prompts_out = must_leave_prompts_out
        self.theme = QComboBox()
        for name in ("dark", "light"):
            self.theme.addItem("", name)
        self.theme.setCurrentIndex(self.theme.findData(theme))
        self.theme.currentIndexChanged.connect(lambda: set_theme(self.theme.currentData()))
        self.language = QComboBox()
        for code, name in LANGUAGES.items():
            self.language.addItem(name, code)
        self.language.setCurrentIndex(self.language.findData(language))
        self.language.currentIndexChanged.connect(lambda: set_language(self.language.currentData()))
        self.motion = QCheckBox()
        self.motion.setChecked(motion)
        self.motion.toggled.connect(set_motion)
        self.leave_prompts_out = QCheckBox()
        self.leave_prompts_out.setChecked(must_leave_prompts_out or not keep_prompts)
        self.leave_prompts_out.setEnabled(not must_leave_prompts_out)
        self.leave_prompts_out.toggled.connect(lambda out: set_keep_prompts(not out))
        form = QFormLayout(self)
        form.setContentsMargins(24, 20, 24, 20)
        form.setSpacing(12)
        self.theme_label, self.language_label = QLabel(), QLabel()
        form.addRow(self.theme_label, self.theme)
        form.addRow(self.language_label, self.language)
        form.addRow("", self.motion)
        form.addRow("", self.leave_prompts_out)
        self.retranslate()

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("Settings"))
        self.theme_label.setText(self.tr("Theme"))
        self.language_label.setText(self.tr("Language"))
        for index, text in enumerate((self.tr("Dark"), self.tr("Light"))):
            self.theme.setItemText(index, text)
        self.motion.setText(self.tr("Show changes in motion"))
        self.leave_prompts_out.setText(self.tr("Leave the prompts out of recordings"))
        self.leave_prompts_out.setToolTip(
            self.tr("The program was started with --no-prompt-text: no recording holds prompts.")
            if self._must_leave_prompts_out else self.tr(
                "For a demonstration with something private in it: recordings that begin from now on hold only how "
                "long prompts are. The answers stay in them. Such a recording cannot be run again."))


class AboutDialog(_Dialog):
    """Name, version, and what it is."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        title = QLabel(f"Cutaway {VERSION}")
        title.setStyleSheet(f"font-size: {px(18)}px; font-weight: 600;")
        self._text, self._licence = QLabel(), QLabel()
        self._text.setWordWrap(True)
        self._licence.setProperty("role", "secondary")
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(12)
        for label in (title, self._text, self._licence):
            column.addWidget(label)
        self.setFixedWidth(px(420))
        self.retranslate()

    def retranslate(self) -> None:
        self.setWindowTitle(self.tr("About Cutaway"))
        self._text.setText(self.tr(
            "A real LLM serving engine at work, with its side removed. Every mark on the screen comes from an event of "
            "the engine, or is computed from events alone."))
        self._licence.setText(self.tr("Apache License 2.0"))
