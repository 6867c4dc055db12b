"""Exports from the window: the dialog for a run, and a picture of any panel from its context menu."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QPointF, QStandardPaths, Qt, QUrl
from PySide6.QtGui import QContextMenuEvent, QDesktopServices
from PySide6.QtWidgets import QFileDialog, QMenu

from app.engine_texts import say
from app.export import save_picture
from app.export_dialog import ExportDialog
from app.session import ReplaySession
from engine.trace.export import ExportError
from widgets.panel import Panel
from widgets.request_list import RequestList

if TYPE_CHECKING:
    from app.main_window import MainWindow


class Exporting(QObject):
    """What the window ``window`` can hand on."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self.dialog: ExportDialog | None = None
        for panel in window.panels.values():
            panel.installEventFilter(self)

    def show_dialog(self) -> None:
        """Ask what to export of the run that is shown; the dialog that is open already comes to the front."""
        if self.dialog is not None:
            self.dialog.raise_()
            self.dialog.activateWindow()
            return
        session = self._window.session
        source = session.source if session is not None else None
        if session is None or source is None or source.last_step < 0:
            self._window.banner.tell(self.tr("There is nothing to export yet."), "info")
            return
        path = session.path if isinstance(session, ReplaySession) else None
        name = path.stem if path is not None else source.info.scenario or "run"
        # The session may be closed while the export goes on.
        release = session.hold_source()
        self.dialog = ExportDialog(self._window, source, path, Path(name).stem, session.time.step,
                                   on_end=lambda: self._forget(release))
        self.dialog.done_with.connect(self._done)
        self.dialog.show()

    def _forget(self, release: Callable[[], None]) -> None:
        self.dialog = None
        release()

    def stop(self) -> None:
        """The window closes: nothing may be left half written."""
        if self.dialog is not None:
            self.dialog.close()

    def _done(self, path: Path) -> None:
        folder = path if path.is_dir() else path.parent
        self._window.banner.tell(self.tr("{path} was written.").format(path=path), "good", [
            (self.tr("Open the folder"), lambda: QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))))])

    # ---- pictures of panels --------------------------------------------------------------------------------------

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QContextMenuEvent) and isinstance(watched, Panel):
            menu = self.build_menu(watched, QPointF(event.pos()))
            menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            menu.popup(event.globalPos())
            return True
        return super().eventFilter(watched, event)

    def build_menu(self, panel: Panel, position: QPointF) -> QMenu:
        """The panel's context menu at ``position``: its own, if it has one there, and the picture."""
        request = panel.request_at(position) if isinstance(panel, RequestList) else None
        if isinstance(panel, RequestList) and request is not None:
            panel.selection.select(request_id=request)
            menu = panel.build_menu(request)
            menu.addSeparator()
        else:
            menu = QMenu(panel)
        menu.addAction(self.tr("Save picture…")).triggered.connect(lambda: self.choose_picture(panel))
        return menu

    def choose_picture(self, panel: Panel) -> None:
        """Ask where a picture of ``panel`` is to go, and save it."""
        pictures = Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.PicturesLocation))
        start = pictures / f"{panel.title}-{datetime.now():%Y%m%d-%H%M%S}.png"
        name, chosen = QFileDialog.getSaveFileName(
            self._window, self.tr("Save picture"), str(start), self.tr("Pictures (*.png);;Drawings (*.svg)"))
        if not name:
            return
        path = Path(name)
        if not path.suffix:
            path = path.with_suffix(".svg" if "svg" in chosen else ".png")
        self.save(panel, path, overwrite=path == Path(name))  # the file dialog has asked about that name only

    def save(self, panel: Panel, path: Path, *, overwrite: bool) -> None:
        """Save a picture of ``panel``, and say so, or why not, in the banner."""
        try:
            panel.show_now()
            save_picture(panel, path, overwrite=overwrite)
        except ExportError as refusal:
            self._window.banner.tell(say(refusal), "bad", [(self.tr("Choose…"), lambda: self.choose_picture(panel))])
        else:
            self._done(path)
