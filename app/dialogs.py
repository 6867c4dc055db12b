"""The small windows beside the main one: settings, the list of keys, about. None of them is modal."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QDialog, QFormLayout, QGridLayout, QLabel, QVBoxLayout, QWidget

from app.translation import LANGUAGES
from engine.version import VERSION


class SettingsDialog(QDialog):
    """Theme, language, motion, and whether prompts stay out of recordings; each acts at once.

    ``must_leave_prompts_out``: they do, whatever is chosen here.
    """

    def __init__(self, parent: QWidget, *, theme: str, language: str, motion: bool, keep_prompts: bool,
                 must_leave_prompts_out: bool, set_theme: Callable[[str], None], set_language: Callable[[str], None],
                 set_motion: Callable[[bool], None], set_keep_prompts: Callable[[bool], None]) -> None:
        super().__init__(parent)
        self._must_leave_prompts_out = must_leave_prompts_out
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Settings"))
        self.theme = QComboBox()
        self.theme.addItem(self.tr("Dark"), "dark")
        self.theme.addItem(self.tr("Light"), "light")
        self.theme.setCurrentIndex(self.theme.findData(theme))
        self.theme.currentIndexChanged.connect(lambda: set_theme(self.theme.currentData()))
        self.language = QComboBox()
        for code, name in LANGUAGES.items():
            self.language.addItem(name, code)
        self.language.setCurrentIndex(self.language.findData(language))
        self.language.currentIndexChanged.connect(lambda: set_language(self.language.currentData()))
        self.motion = QCheckBox(self.tr("Show changes in motion"))
        self.motion.setChecked(motion)
        self.motion.toggled.connect(set_motion)
        self.leave_prompts_out = QCheckBox(self.tr("Leave the prompts out of recordings"))
        self.leave_prompts_out.setToolTip(
            self.tr("The program was started with --no-prompt-text: no recording holds prompts.")
            if self._must_leave_prompts_out else self.tr(
                "For a demonstration with something private in it: recordings that begin from now on hold only how "
                "long prompts are. The answers stay in them. Such a recording cannot be run again."))
        self.leave_prompts_out.setChecked(must_leave_prompts_out or not keep_prompts)
        self.leave_prompts_out.setEnabled(not must_leave_prompts_out)
        self.leave_prompts_out.toggled.connect(lambda out: set_keep_prompts(not out))
        form = QFormLayout(self)
        form.setContentsMargins(24, 20, 24, 20)
        form.setSpacing(12)
        form.addRow(self.tr("Theme"), self.theme)
        form.addRow(self.tr("Language"), self.language)
        form.addRow("", self.motion)
        form.addRow("", self.leave_prompts_out)


class KeysDialog(QDialog):
    """What the keys do."""

    def __init__(self, parent: QWidget, keys: list[tuple[str, str]]) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Keys"))
        grid = QGridLayout(self)
        grid.setContentsMargins(24, 20, 24, 20)
        grid.setHorizontalSpacing(24)
        grid.setVerticalSpacing(8)
        for row, (key, what) in enumerate(keys):
            label = QLabel(key)
            label.setProperty("role", "value")
            grid.addWidget(label, row, 0)
            grid.addWidget(QLabel(what), row, 1)


class AboutDialog(QDialog):
    """Name, version, and what it is."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("About Cutaway"))
        title = QLabel(f"Cutaway {VERSION}")
        title.setStyleSheet("font-size: 18px; font-weight: 600;")
        text = QLabel(self.tr(
            "A real LLM serving engine at work, with its side removed. Every mark on the screen comes from an event of "
            "the engine, or is computed from events alone."))
        text.setWordWrap(True)
        licence = QLabel(self.tr("Apache License 2.0"))
        licence.setProperty("role", "secondary")
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(12)
        for label in (title, text, licence):
            column.addWidget(label)
        self.setFixedWidth(420)
