"""The language of the window, switched while it runs: every widget hears of it as a LanguageChange event."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QTranslator

TRANSLATIONS = Path(__file__).resolve().parents[1] / "assets" / "translations"

LANGUAGES = {"en": "English", "zh": "中文"}
"""Code and name, each name in its own language."""

_QT_NAMES = {"zh": "zh_CN"}


class Language:
    """Installs the translators of one language at a time."""

    def __init__(self, code: str = "en") -> None:
        # A translator reads the bytes that it was given and does not keep them. They are not left to it to map from the
        # file: if that is written anew while the program runs, the next text would end it.
        self._installed: list[tuple[QTranslator, bytes]] = []
        self.code = "en"
        self.set(code)

    def set(self, code: str) -> None:
        """Switch to ``code``; an unknown one, or one whose files are missing, is English."""
        app = QCoreApplication.instance()
        assert app is not None
        for translator, _ in self._installed:
            app.removeTranslator(translator)
        self._installed = []
        name = _QT_NAMES.get(code)
        self.code = code if name else "en"
        QLocale.setDefault(QLocale(name or "en_US"))
        if name is None:
            return
        # Qt's own first, so that ours wins where both know a text.
        for folder, stem in ((Path(QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)), "qtbase_"),
                             (TRANSLATIONS, "cutaway_")):
            translator = QTranslator()
            try:
                data = (folder / f"{stem}{name}.qm").read_bytes()
            except OSError:
                continue
            if translator.load(data):
                app.installTranslator(translator)
                self._installed.append((translator, data))
