"""The small windows beside the main one: settings, the list of keys, about. None of them is modal."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QDialog, QFormLayout, QGridLayout, QLabel, QVBoxLayout, QWidget

from app.translation import LANGUAGES
from engine.version import VERSION


class SettingsDialog(QDialog):
    """Theme, language and motion; each acts at once."""

    def __init__(self, parent: QWidget, *, theme: str, language: str, motion: bool, set_theme: Callable[[str], None],
                 set_language: Callable[[str], None], set_motion: Callable[[bool], None]) -> None:
        super().__init__(parent)
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
        form = QFormLayout(self)
        form.setContentsMargins(24, 20, 24, 20)
        form.setSpacing(12)
        form.addRow(self.tr("Theme"), self.theme)
        form.addRow(self.tr("Language"), self.language)
        form.addRow("", self.motion)


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
