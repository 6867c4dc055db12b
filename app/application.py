"""Starts the window, and ends it: on its own after a while when asked to, on Ctrl-C, on SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from PySide6.QtCore import QMessageLogContext, QObject, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from app.frame_clock import share_the_interpreter
from app.main_window import MainWindow
from app.session import LiveSession
from app.settings import Settings
from app.translation import Language
from engine.trace.source import RunSource
from engine.worker import RunSpec
from widgets.theme import font, load_fonts, style_sheet, theme, themes

log = logging.getLogger(__name__)

POLL_MS = 50
SCREENSHOT_AFTER_S = 2.0


@dataclass(frozen=True)
class WindowRequest:
    """What the window is to show: a live run of ``spec``, or ``recording``, or the sweep at ``sweep``.

    With ``exit_after`` or ``screenshot`` the window is driven by a script: it starts with the layout as designed and
    remembers nothing.
    """

    spec: RunSpec | None = None
    record: Path | None = None
    recording: RunSource | None = None
    recording_path: Path | None = None
    step: int | None = None
    sweep: Path | None = None
    language: str | None = None
    theme: str | None = None
    layout: str | None = None
    screenshot: Path | None = None
    exit_after: float | None = None

    @property
    def scripted(self) -> bool:
        return self.exit_after is not None or self.screenshot is not None


def _connect() -> QApplication:
    """Connect to the screen. Where there is none, Qt aborts the process; this says why in one line and ends it."""
    said: list[str] = []

    def listen(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
        if kind == QtMsgType.QtFatalMsg:
            why = next((line for line in said if "display" in line), (said or [message])[0]).strip().rstrip(".")
            why = " ".join(why.split())
            print(f"cutaway: the window cannot be opened: {why}. Without a screen, run with --headless, or set "
                  "QT_QPA_PLATFORM=offscreen.", file=sys.stderr, flush=True)
            os._exit(1)
        said.append(message)

    qInstallMessageHandler(listen)
    try:
        app = QApplication(sys.argv[:1])
    finally:
        qInstallMessageHandler(None)
    for message in said:
        print(message, file=sys.stderr)
    return app


def make_application() -> QApplication:
    """The QApplication, with the program's fonts and its style; the one that exists already if there is one."""
    app = QApplication.instance()
    if not isinstance(app, QApplication):
        app = _connect()
    app.setApplicationName("Cutaway")
    app.setOrganizationName("Cutaway")
    app.setApplicationDisplayName("Cutaway")
    load_fonts()
    share_the_interpreter()
    app.setStyle("Fusion")  # the same base for the style sheet on every system
    app.setFont(font())
    if not app.property("restyles"):
        app.setProperty("restyles", True)
        themes.changed.connect(_restyle)
    _restyle()
    return app


def _restyle() -> None:
    app = QApplication.instance()
    if isinstance(app, QApplication):
        app.setFont(font())
        app.setStyleSheet(style_sheet(theme()))


def run_application(request: WindowRequest) -> int:
    """Show the window until it is closed. Returns the exit status."""
    signals = _Signals()  # before there is a window: Qt swallows a KeyboardInterrupt that is raised below it
    app = make_application()
    settings = Settings(remember=not request.scripted)
    themes.set(request.theme or settings.theme)  # what the command line asks for holds for this start only
    window = MainWindow(settings, Language(request.language or settings.language))
    if request.layout is not None:
        window.docks.choose(request.layout, remember=False)
    window.show()
    driver = _Driver(window, request, signals)
    signals.window = window
    QTimer.singleShot(0, driver.begin)
    status = app.exec()
    status = driver.finish(status)
    sys.stdout.flush()
    sys.stderr.flush()
    if not driver.ended_cleanly:
        os._exit(status)  # something in native code does not let go, and nothing of the user's depends on it
    return status


class _Signals:
    """Ctrl-C and SIGTERM close the window, whenever they come."""

    def __init__(self) -> None:
        self.came = False
        self.window: MainWindow | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if self.window is not None:
            self.window.close()
            QTimer.singleShot(0, QApplication.quit)  # before the event loop has begun, closing does not end it


class _Driver(QObject):
    """Begins the run, and ends the program when its time has come."""

    def __init__(self, window: MainWindow, request: WindowRequest, signals: _Signals) -> None:
        super().__init__(window)
        self._signals = signals
        self._window = window
        self._request = request
        self._deadline: float | None = None
        self._status = 0
        self.ended_cleanly = True
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._look)

    def begin(self, patience: int = 40) -> None:
        """Start what was asked for, as soon as the window is on the screen (or a second later, whatever it does)."""
        if self._signals.came:
            self._window.close()
            QApplication.quit()
            return
        request, window = self._request, self._window
        handle = window.windowHandle()
        if patience and (handle is None or not handle.isExposed()):
            QTimer.singleShot(25, lambda: self.begin(patience - 1))
            return
        # Even without a deadline: the interpreter must run now and then for a signal to be noticed.
        self._timer.start(POLL_MS)
        try:
            if request.recording is not None and request.recording_path is not None:
                window.show_recording(request.recording, request.recording_path, play=request.step is None)
                if request.step is not None:
                    window.with_session("seek", request.step)
            elif request.sweep is not None:
                window.comparing.open_sweep(request.sweep, show_best=True)
            elif request.spec is not None:
                window.start_live(request.spec, request.record)
        except Exception as failure:
            log.exception("the run cannot be shown")
            print(f"cutaway: {str(failure) or type(failure).__name__}", file=sys.stderr)
            self._timer.stop()
            self._status = 1
            window.close()

    def _look(self) -> None:
        request, session = self._request, self._window.session
        if not request.scripted:
            return
        engine = session.engine if isinstance(session, LiveSession) else None
        if engine is not None and engine.status in ("failed", "stopped"):
            if engine.error is not None:
                print(f"cutaway: {engine.error}", file=sys.stderr)
            self._end(1)
        elif self._deadline is None:
            if engine is None or engine.info is not None:
                self._deadline = time.monotonic() + (request.exit_after or SCREENSHOT_AFTER_S)
        elif time.monotonic() >= self._deadline:
            self._end(0)

    def _end(self, status: int) -> None:
        self._timer.stop()
        self._status = status
        session = self._window.session
        feed = session.recorder if isinstance(session, LiveSession) else None
        failed = self._window.presenter.failed
        try:
            path = self._request.screenshot
            if path is not None and not self._window.save_screenshot(path):
                print(f"cutaway: --screenshot {path}: cannot be written", file=sys.stderr)
                self._status = 1
        finally:
            self._window.close()
        if feed is not None and (feed.error or feed.dropped):
            print(f"cutaway: {feed.path}: {feed.error or f'{feed.dropped} steps were not recorded'}", file=sys.stderr)
            self._status = 1
        for name, reason in failed.items():
            print(f"cutaway: the panel {name} failed: {reason}", file=sys.stderr)
            self._status = 1

    def finish(self, status: int) -> int:
        """After the event loop: make sure that nothing is left running, and return the exit status."""
        self.ended_cleanly = self._window.ended_cleanly
        return status or self._status
