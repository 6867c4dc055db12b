"""Everything that a user can do to the window, at random, with a real engine and a very small model.

    python -m tests.robustness.soak [--minutes 3] [--seed 0] [--patience 3] [--verbose]

It fails on any exception in any thread, on a warning of Qt, on a panel that fails, on a window that does not answer for
``--patience`` seconds, and on threads, processes and half-written files that are left at the end. The seed chooses what
is done; when it is done depends on the machine.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from pathlib import Path
from types import TracebackType

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import psutil
from PySide6.QtCore import QMessageLogContext, QTimer, QtMsgType, qInstallMessageHandler

import app.asking
import app.comparing
import app.main_window
from app.application import make_application
from app.main_window import RECORDINGS, MainWindow
from app.session import LiveSession
from app.settings import Settings
from app.translation import Language
from engine.trace.reader import RecordingError, open_recording
from engine.worker import RunSpec
from tests.robustness.soak_actions import Actions

BEAT_MS = 50
GRACE_S = 20.0
TOLD = 25
"""How many of the latest actions are told of a failure."""

BENIGN = ("This plugin does not support", "XDG_RUNTIME_DIR", "OpenType support missing")
"""What Qt says of a screen that is none, and of fonts."""


class Trouble:
    """Collects what goes wrong, with what was done before it."""

    def __init__(self, verbose: bool) -> None:
        self.found: list[str] = []
        self.done: deque[str] = deque(maxlen=TOLD)
        self._verbose = verbose

    def did(self, what: str) -> None:
        self.done.append(what)
        if self._verbose:  # for a program that ends without a word
            print(what, file=sys.stderr, flush=True)

    def add(self, what: str) -> None:
        if what not in self.found:
            self.found.append(what)
            print(f"\n{what}\nafter:\n  " + "\n  ".join(self.done), file=sys.stderr, flush=True)

    def listen(self) -> None:
        def exception(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
            self.add("".join(traceback.format_exception(kind, error, where)))

        def message(kind: QtMsgType, context: QMessageLogContext, text: str) -> None:
            if kind != QtMsgType.QtDebugMsg and not any(benign in text for benign in BENIGN):
                self.add(f"Qt: {text}")

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                error = record.exc_info[1] if record.exc_info else None
                add(record.getMessage() + ("\n" + "".join(traceback.format_exception(error)) if error else ""))

        add = self.add
        sys.excepthook = exception
        threading.excepthook = lambda args: exception(args.exc_type, args.exc_value, args.exc_traceback)
        sys.unraisablehook = lambda args: exception(args.exc_type, args.exc_value, args.exc_traceback)
        warnings.showwarning = lambda text, kind, file, line, *_: self.add(f"{file}:{line}: {kind.__name__}: {text}")
        logging.getLogger().addHandler(Listener(logging.WARNING))
        qInstallMessageHandler(message)


class Watchdog(threading.Thread):
    """Tells of a window whose event loop stands still; says where it is."""

    def __init__(self, trouble: Trouble, patience_s: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._trouble, self._patience_s = trouble, patience_s
        self._window = threading.main_thread()
        self.beat = time.monotonic()
        self.worst = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            still = time.monotonic() - self.beat
            if still > self._patience_s > self.worst:
                frame = sys._current_frames().get(self._window.ident or 0)
                where = "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""
                self._trouble.add(f"the window has not answered for {still:.1f} s:\n{where}")
            self.worst = max(self.worst, still)


def make_model(folder: Path) -> Path:
    """A Llama of two small layers with random weights, and a tokenizer of bytes."""
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # a thread of the library that saves the model, which is no part of the program
    from tests.engine.forward_driver import make_llama
    from tests.engine.tiny_tokenizer import make_tokenizer

    make_tokenizer(folder)
    make_llama(folder, vocab_size=509, hidden_size=64, num_hidden_layers=2, max_position_embeddings=2048,
               bos_token_id=0, eos_token_id=0)
    return folder


def soak(seconds: float, seed: int, patience_s: float, folder: Path, *, verbose: bool = False) -> list[str]:
    """Returns what went wrong; the same is told on stderr as it happens, with what was done before."""
    trouble = Trouble(verbose)
    recordings = folder / "recordings"
    recordings.mkdir()
    # Copies: notes are written beside a recording.
    shipped = [Path(shutil.copy(path, folder)) for path in sorted(RECORDINGS.glob("*.mcap"))]
    for module in (app.asking, app.comparing, app.main_window):
        module.recordings_folder = lambda: recordings  # type: ignore[attr-defined]
    application = make_application()
    trouble.listen()
    window = MainWindow(Settings(remember=False), Language("en"))
    window.show()
    window.start_live(RunSpec(model=str(make_model(folder / "model")), scenario="shared-prefix", dtype="float32",
                              num_threads=1, seed=seed))
    chance = random.Random(seed)
    actions = Actions(window, recordings, shipped, chance)
    watchdog = Watchdog(trouble, patience_s)
    until = time.monotonic() + seconds
    count = steps = 0

    def act() -> None:
        nonlocal count, steps
        if time.monotonic() > until:
            application.quit()
            return
        count += 1
        QTimer.singleShot(chance.randrange(5, 120), act)
        trouble.did(actions.one())
        session = window.session
        if isinstance(session, LiveSession):
            steps = max(steps, session.time.last_step)
            if session.engine.error is not None:
                trouble.add(f"the engine: {session.engine.error}")
        for panel in window.panels.values():
            if panel.failure:
                trouble.add(f"{type(panel).__name__}: {panel.failure}")

    def beat() -> None:
        watchdog.beat = time.monotonic()

    pulse = QTimer()
    pulse.timeout.connect(beat)
    pulse.start(BEAT_MS)
    watchdog.start()
    QTimer.singleShot(0, act)
    application.exec()
    watchdog.over.set()
    watchdog.join()
    window.close()
    # What cannot be cancelled, like reading a model, the window does not wait for: the program ends without it.
    for thread in threading.enumerate():
        if not window.ended_cleanly and thread is not threading.main_thread():
            thread.join(GRACE_S)
    if not steps:
        trouble.add("no engine has run")
    trouble.found += left_behind(recordings)
    print(f"seed {seed}: {count} actions, the window stood still for {watchdog.worst:.1f} s at most, "
          f"{len(trouble.found)} faults", flush=True)
    return trouble.found


def left_behind(recordings: Path) -> list[str]:
    """Threads, processes and files that should be gone, and recordings that cannot be opened."""
    threads = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    found = [f"threads are left: {threads}"] if threads else []
    children = [" ".join(p.cmdline()[-3:]) for p in psutil.Process().children(recursive=True)
                if "resource_tracker" not in " ".join(p.cmdline())]
    found += [f"processes are left: {children}"] if children else []
    found += [f"a half-written file is left: {path}" for path in recordings.rglob("*.part*")]
    for path in sorted(recordings.rglob("*.mcap")):
        try:
            recording = open_recording(path)
        except RecordingError as refusal:
            found.append(str(refusal))
        else:
            found += [f"{path.name}: {warning}" for warning in recording.warnings if "no step" not in warning]
            recording.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--patience", type=float, default=3.0, help="seconds without an answer that are a hang")
    parser.add_argument("--verbose", action="store_true", help="tell every action")
    arguments = parser.parse_args()
    faulthandler.enable()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="cutaway-soak-") as folder:
        found = soak(60 * arguments.minutes, seed, arguments.patience, Path(folder), verbose=arguments.verbose)
    for what in found:
        print(f"- {what.strip().splitlines()[-1]}")
    sys.stdout.flush()
    os._exit(1 if found else 0)  # whatever is left does not hold the answer up


if __name__ == "__main__":
    sys.exit(main())
