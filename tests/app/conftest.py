"""The window's tests run without a screen, and fail when they leave a thread behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from app.application import make_application
from app.main_window import MainWindow
from app.session import LiveSession
from app.settings import Settings
from app.translation import Language
from engine.trace.history import LiveHistory
from engine.trace.recording import Recorder
from engine.worker import RunSpec
from tests.app.live import BUSY, TokenThread, make_run
from widgets.theme import themes

OURS = ("engine", "recorder", "recorder-feed", "recording-check", "session-end")
STEPS = 300


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> LiveHistory:
    """A run of 300 steps with something of everything in it."""
    return make_run(tmp_path_factory.mktemp("tokens"), STEPS)


@pytest.fixture(scope="session")
def recording(run: LiveHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run as a file."""
    path = tmp_path_factory.mktemp("recordings") / "Aufnahme 录像.mcap"
    recorder = Recorder(path, run.info)
    for step in range(STEPS):
        recorder.put(run.events(step))
    assert recorder.close()
    assert recorder.error is None
    return path


@pytest.fixture
def window(qtbot: Any, tmp_path: Path) -> Iterator[MainWindow]:
    make_application()
    themes.set("dark")
    window = MainWindow(Settings(tmp_path / "settings.ini"), Language("en"))
    window.show()
    qtbot.waitExposed(window)
    yield window
    window.close()
    assert window.ended_cleanly
    Language("en")
    themes.set("dark")
    themes.set_scale(1.0)
    left = [t.name for t in threading.enumerate() if t.name in OURS]
    assert not left, f"left behind: {left}"
    window.deleteLater()


@pytest.fixture
def live(window: MainWindow, tmp_path: Path) -> Callable[..., LiveSession]:
    """Starts a live run in the window; everything but the model is real."""

    def start(record: Path | None = None, **options: Any) -> LiveSession:
        spec = RunSpec(scenario="shared-prefix", knobs=BUSY)
        session = LiveSession(spec, record=record, engine=TokenThread(spec, tmp_path / "tokens", **options))
        window.show_session(session)
        session.start()
        return session

    return start
