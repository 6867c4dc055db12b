"""``cutaway bench gui``: what a frame takes while the engine works, and what being watched costs the engine.

A closed loop keeps the asked-for number of requests in the engine: real questions, answers of a fixed length, a new
one as soon as one is finished. One process alternates between halves in which the window shows the run and halves in
which it is hidden and nothing is drawn, with the same engine, the same threads and the same load.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from app.application import make_application
from app.main_window import MainWindow
from app.session import LiveSession
from app.settings import Settings
from app.translation import Language
from engine.trace.events import StepEvents
from engine.worker import EngineThread, RunSpec

QUESTIONS = Path(__file__).resolve().parents[1] / "assets" / "prompts" / "questions"
OUTPUT_TOKENS = 96
LOAD_TIMEOUT_S = 600.0
WARM_UP_S = 5.0
SETTLE_S = 1.0
"""Left out at the beginning of each half: the window catches up, or the last of it is drawn."""


class ClosedLoop:
    """Keeps ``requests`` requests in the engine and counts the tokens that come out."""

    def __init__(self, engine: EngineThread, requests: int) -> None:
        self._engine = engine
        self._questions = [line.strip() for path in sorted(QUESTIONS.glob("*.txt"))
                           for line in path.read_text("utf-8").splitlines() if line.strip() and line[0] != "#"]
        self._next = 0
        self.tokens = 0
        self.steps = 0
        engine.hub.add_sink(self._take)
        for _ in range(requests):
            self._submit()

    def _submit(self) -> None:
        question = self._questions[self._next % len(self._questions)]
        self._next += 1
        self._engine.submit(question, max_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0.0)

    def _take(self, events: StepEvents) -> None:
        self.steps += 1
        self.tokens += len(events.sampled)
        for _ in (*events.finished, *events.aborted, *events.refused):
            self._submit()


@dataclass
class Halves:
    """What was measured in the halves of one kind."""

    seconds: float = 0.0
    tokens: int = 0
    frames: int = 0
    frames_per_s: list[float] = field(default_factory=list)
    frame_ms: list[np.ndarray] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def run_bench(*, model: str | None, blocks: int, requests: int, seconds: float, rounds: int, seed: int, dtype: str,
              device: str = "cpu", threads: int, as_json: bool) -> int:
    """Measure and print. Returns the exit status."""
    app = make_application()
    spec = RunSpec(model=model, knobs={"num_blocks": blocks, "max_num_seqs": requests}, seed=seed, dtype=dtype,
                   device=device, num_threads=threads)
    window = MainWindow(Settings(remember=False), Language("en"))
    window.show()
    session = LiveSession(spec)
    window.show_session(session)
    session.start()
    try:
        if not _loaded(session.engine):
            print(f"cutaway: {session.engine.error or 'the model was not loaded in time'}", file=sys.stderr)
            return 1
        loop = ClosedLoop(session.engine, requests)
        _wait(WARM_UP_S)
        watched, unwatched = Halves(), Halves()
        for _ in range(rounds):
            _measure(window, loop, watched, seconds, show=True)
            _measure(window, loop, unwatched, seconds, show=False)
        failure = session.engine.error
    finally:
        window.close()
        app.processEvents()
    if failure is not None or not watched.tokens or not unwatched.tokens:
        print(f"cutaway: the engine failed: {failure or 'it made no tokens'}", file=sys.stderr)
        return 1
    _report(watched, unwatched, blocks, requests, spec, as_json)
    return 0


def _loaded(engine: EngineThread) -> bool:
    until = time.monotonic() + LOAD_TIMEOUT_S
    while not engine.loaded.is_set() and time.monotonic() < until:
        _wait(0.05)
    return engine.info is not None and engine.is_alive()


def _wait(seconds: float) -> None:
    loop = QEventLoop()
    QTimer.singleShot(round(seconds * 1000), loop.quit)
    loop.exec()


def _measure(window: MainWindow, loop: ClosedLoop, halves: Halves, seconds: float, *, show: bool) -> None:
    window.setVisible(show)
    window.clock.start() if show else window.clock.stop()
    QApplication.processEvents()
    _wait(SETTLE_S)
    window.clock.reset()
    began, tokens = time.perf_counter(), loop.tokens
    _wait(seconds)
    halves.seconds += time.perf_counter() - began
    halves.tokens += loop.tokens - tokens
    halves.frames += window.clock.frames
    halves.frames_per_s.append(window.clock.frames_per_s)
    halves.frame_ms.append(window.clock.times_ms().copy())


def _report(watched: Halves, unwatched: Halves, blocks: int, requests: int, spec: RunSpec, as_json: bool) -> None:
    frames = np.concatenate(watched.frame_ms)
    p50, p99 = np.percentile(frames, [50, 99]) if len(frames) else (float("nan"), float("nan"))
    figures = {
        # While there is something to draw: a window with nothing new draws nothing.
        "frames_per_s": round(float(np.mean(watched.frames_per_s)), 1),
        "frame_p50_ms": round(float(p50), 2),
        "frame_p99_ms": round(float(p99), 2),
        "watched_over_unwatched": round(watched.tokens_per_s / unwatched.tokens_per_s, 3),
        "watched_tokens_per_s": round(watched.tokens_per_s, 1),
        "unwatched_tokens_per_s": round(unwatched.tokens_per_s, 1),
        "frames": watched.frames,
        "blocks": blocks,
        "requests": requests,
        "threads": spec.choose_threads(),
    }
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<24}{value}")
