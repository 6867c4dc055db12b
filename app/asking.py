"""The dialogs that the main window opens: files to open, to record to and to save to, settings, keys, about."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QStandardPaths
from PySide6.QtWidgets import QFileDialog

from app.dialogs import AboutDialog, SettingsDialog
from app.key_list import KeysDialog
from widgets.painting import Motion
from widgets.theme import themes

if TYPE_CHECKING:
    from app.main_window import MainWindow


class Asking(QObject):
    """Asks the user on behalf of ``window`` and does what the answer says."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window

    def choose_recording(self) -> None:
        w = self._window
        start = w.settings.recent[0].parent if w.settings.recent else recordings_folder()
        name, _ = QFileDialog.getOpenFileName(w, self.tr("Open"), str(start),
                                              self.tr("Recordings and sweeps (*.mcap sweep*.json);;All files (*)"))
        if name:
            w.open_path(Path(name))

    def choose_record_file(self) -> None:
        name, _ = QFileDialog.getSaveFileName(self._window, self.tr("Record to file"),
                                              str(recordings_folder() / "run.mcap"), self.tr("Recordings (*.mcap)"))
        if name:
            self._window.record_to(Path(name))

    def choose_screenshot(self) -> None:
        w = self._window
        pictures = Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.PicturesLocation))
        start = pictures / f"cutaway-{datetime.now():%Y%m%d-%H%M%S}.png"
        picture = w.grab()  # before a dialog covers the window
        name, _ = QFileDialog.getSaveFileName(w, self.tr("Save screenshot"), str(start), self.tr("Pictures (*.png)"))
        if name and not picture.save(name):
            text = self.tr("{path} could not be written. Choose another place.").format(path=name)
            w.banner.tell(text, "bad", [(self.tr("Choose…"), self.choose_screenshot)])

    def show_settings(self) -> None:
        w = self._window
        SettingsDialog(w, theme=themes.current.name, language=w.language.code, motion=Motion.enabled,
                       keep_prompts=w.settings.keep_prompts, must_leave_prompts_out=w.must_leave_prompts_out,
                       set_theme=w.set_theme, set_language=w.set_language, set_motion=w.set_motion,
                       set_keep_prompts=w.set_keep_prompts).show()

    def show_keys(self) -> None:
        """Show the list of keys, or take it away when it is there."""
        shown = [dialog for dialog in self._window.findChildren(KeysDialog) if dialog.isVisible()]
        for dialog in shown:
            dialog.close()
        if not shown:
            KeysDialog(self._window).show()

    def show_about(self) -> None:
        AboutDialog(self._window).show()


def recordings_folder() -> Path:
    """Where recordings go unless the user says otherwise."""
    documents = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
    return Path(documents or Path.home()) / "Cutaway"
