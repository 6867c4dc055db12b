"""Runs without a window, and without Qt: ``run --headless`` and ``generate``."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from app.answers import Answers
from app.recorder_feed import RecorderFeed
from engine.trace.events import StepEvents
from engine.worker import EngineThread, RunSpec

POLL_S = 0.05


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C does, so that files are closed on the way out."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Progress:
    """One line on stderr that is written over where stderr is a terminal, and now and then a line where it is not."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._terminal = sys.stderr.isatty()
        self._interval_s = interval_s if self._terminal else 5 * interval_s
        self._next = 0.0
        self._last = ""

    def tell(self, text: str, *, now: bool = False) -> None:
        if text == self._last or (not now and time.monotonic() < self._next):
            return
        self._next = time.monotonic() + self._interval_s
        self._last = text
        print(f"\r\x1b[K{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr,
              flush=True)

    def end(self) -> None:
        if self._terminal and self._last:
            print(file=sys.stderr)


def wait_loaded(engine: EngineThread, progress: Progress) -> bool:
    """Wait until the model is loaded, telling how it goes. False, and the reason on stderr, when it cannot be had."""
    while not engine.loaded.wait(0.1):
        report = engine.progress
        share = "" if report.fraction is None else f" {report.fraction:.0%}"
        progress.tell(f"{report.stage}{share}" if report.stage else "")
    if engine.info is not None and engine.error is None:
        return True
    progress.end()
    print(f"cutaway: {engine.error or 'stopped while loading'}", file=sys.stderr)
    return False


def run_headless(spec: RunSpec, *, record: Path | None = None, exit_after: float | None = None) -> int:
    """Run a scenario to its end, or for ``exit_after`` seconds from when the engine runs. Returns the exit status."""
    engine = EngineThread(spec)
    events = engine.hub.subscribe()
    feed = RecorderFeed(engine, record) if record is not None else None
    progress = Progress()
    tally = _Tally()
    status = 0
    with ending_on_sigterm():
        try:
            engine.start()
            if not wait_loaded(engine, progress):
                return 1
            ends = time.monotonic() + exit_after if exit_after is not None else float("inf")
            while engine.is_alive() and time.monotonic() < ends:
                time.sleep(POLL_S)
                tally.add(events.drain())
                progress.tell(tally.line())
                while engine.notices:
                    progress.tell(f"cutaway: {engine.notices.popleft()}", now=True)
                if engine.status == "finished" and not len(events):
                    break
        except KeyboardInterrupt:
            pass
        finally:
            engine.stop(timeout=10)
            if feed is not None:
                feed.close()
    tally.add(events.drain())
    progress.tell(tally.line(), now=True)
    progress.end()
    if engine.error is not None:
        print(f"cutaway: the engine failed: {engine.error}", file=sys.stderr)
        status = 1
    if feed is not None and (feed.error or feed.dropped):
        trouble = feed.error or f"{feed.dropped} steps were not recorded: the disk is too slow"
        print(f"cutaway: {record}: {trouble}", file=sys.stderr)
        status = 1
    return status


class _Tally:
    """What the progress line says."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps = self._tokens = self._finished = self._preemptions = self._hits = 0

    def add(self, steps: list[StepEvents]) -> None:
        for events in steps:
            self._steps += 1
            self._tokens += len(events.sampled)
            self._finished += len(events.finished)
            self._preemptions += len(events.preempted)
            self._hits += sum(s.hit_tokens for s in events.scheduled)

    def line(self) -> str:
        rate = self._tokens / max(1e-9, time.monotonic() - self._began)
        return (f"step {self._steps:,}: {self._tokens:,} tokens ({rate:.0f}/s), {self._finished} requests finished, "
                f"{self._hits:,} prefix-hit tokens, {self._preemptions} preemptions")


def generate(spec: RunSpec, text: str, sampling: Mapping[str, Any]) -> int:
    """Answer ``text`` on stdout as the tokens come. ``sampling`` as for :meth:`EngineThread.submit`.

    Returns the exit status.
    """
    engine = EngineThread(spec)
    answers = Answers()
    events = engine.hub.subscribe()
    progress = Progress(interval_s=0.5)
    with ending_on_sigterm():
        try:
            engine.start()
            if not wait_loaded(engine, progress):
                return 1
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            engine.submit(text, **sampling)
            while engine.is_alive() or len(events):
                for step in events.drain():
                    if step.refused:
                        print(f"cutaway: {step.refused[0].message}", file=sys.stderr)
                        return 2
                    if answers.add(step):
                        return 0
                time.sleep(0.005)
            print(f"\ncutaway: the engine failed: {engine.error}", file=sys.stderr)
            return 1
        finally:
            engine.stop(timeout=10)
