"""Records a live run, in a thread of its own: neither a slow window nor a slow disk loses a step.

The engine hands every step over in passing. Where recording begins in the middle of a run, the steps before come out
of the window's history: what made somebody want to record has just happened.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from engine.trace.events import StepEvents
from engine.trace.history import LiveHistory
from engine.trace.state import EngineState
from engine.worker import EngineThread

if TYPE_CHECKING:
    from engine.trace.recording import Recorder

POLL_S = 0.02
PAST_BUDGET_S = 0.003
PAST_AHEAD = 512
"""How many steps of the past may wait to be written: the recorder's queue is bounded, and the past is in no hurry."""

PAST_STEPS = 4096
"""How far back a recording reaches that begins in the middle of a run: minutes, and a second or two of work."""


class RecorderFeed(threading.Thread):
    """Feeds a :class:`engine.trace.recording.Recorder` from ``engine``; starts at once and waits for the model.

    ``midway`` says that the run is under way: then the owner brings its history up to date, calls :meth:`begin_past`,
    and :meth:`take_past` now and then until :attr:`wants_past` is False. Without ``prompt_text``, or where the run's
    spec says so, the recording holds of prompts only how long they are.
    """

    def __init__(self, engine: EngineThread, path: Path, *, midway: bool = False, prompt_text: bool = True) -> None:
        super().__init__(name="recorder-feed", daemon=True)
        self.path = path
        self.prompt_text = prompt_text and engine.spec.record_prompt_text
        self._engine = engine
        self._recorder: Recorder | None = None
        self._since = 0.0
        self._finishing = threading.Event()
        self._closing = threading.Event()
        self._live: deque[StepEvents] = deque()
        self._past: deque[StepEvents] = deque()
        self._next_past = 0
        self._past_until = -1
        self._state: EngineState | None = None  # before the recording's first step, if that is not the run's first
        self._begun = threading.Event()
        if not midway:
            self._begun.set()
        engine.hub.add_sink(self._live.append)
        self.start()

    # ---- what the owner's thread asks ----------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """True while the run is being recorded."""
        return self.is_alive() and not self.ending and self.error is None

    @property
    def ending(self) -> bool:
        """True while nothing more is recorded, and not everything is on the disk yet."""
        return self.is_alive() and (self._finishing.is_set() or self._closing.is_set())

    @property
    def error(self) -> str | None:
        """Why recording has ended early, if it has."""
        return self._recorder.error if self._recorder is not None else None

    @property
    def paths(self) -> list[Path]:
        """The file, and those in which the recording goes on because it had become large."""
        return list(self._recorder.paths) if self._recorder is not None else [self.path]

    @property
    def bytes_written(self) -> int:
        return self._recorder.bytes_written if self._recorder is not None else 0

    @property
    def dropped(self) -> int:
        """Steps that the disk was too slow for."""
        return self._recorder.dropped if self._recorder is not None else 0

    @property
    def seconds(self) -> float:
        """How long the run has been recorded for."""
        return time.monotonic() - self._since if self._since else 0.0

    def begin_past(self, history: LiveHistory | None) -> None:
        """The newest of the steps that ``history`` holds now belong into the recording too."""
        if history is not None and history.last_step >= 0:
            self._next_past = max(history.first_step, history.last_step + 1 - PAST_STEPS)
            if self._next_past > 0:
                self._state = history.state_at(self._next_past - 1)
        self._past_until = history.last_step if history is not None else -1
        self._begun.set()

    @property
    def wants_past(self) -> bool:
        return self._next_past <= self._past_until and not self._closing.is_set()

    def take_past(self, history: LiveHistory, budget_s: float = PAST_BUDGET_S) -> None:
        """Copy some more of the steps before recording began; called in the thread that owns ``history``."""
        until = time.perf_counter() + budget_s
        while self._next_past <= self._past_until and time.perf_counter() < until and len(self._past) < PAST_AHEAD:
            self._past.append(history.events(self._next_past))
            self._next_past += 1

    def finish(self) -> None:
        """Record nothing more; returns at once. What is still there is written, the past as :meth:`take_past` brings
        it, and then the file is closed: :attr:`ending` is True until then."""
        self._engine.hub.remove_sink(self._live.append)
        self._finishing.set()

    def close(self, history: LiveHistory | None = None, timeout: float = 5.0) -> None:
        """Write what is still there and close the file. May be called again."""
        while history is not None and self.wants_past and self.is_alive() and self.error is None:
            self.take_past(history, 1.0)
            time.sleep(POLL_S)
        self._closing.set()
        self.join(timeout)

    # ---- the thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        from engine.trace.recording import Recorder

        while not (self._engine.loaded.wait(POLL_S) and self._begun.wait(POLL_S)):
            if self._closing.is_set() or self._finishing.is_set():
                break
        try:
            if self._engine.info is not None:  # else the model could not be had: there is nothing to record
                self._recorder = Recorder(self.path, self._engine.info, self._state,
                                          prompt_text=self.prompt_text)
                self._since = time.monotonic()
                self._feed(self._recorder)
        finally:
            self._engine.hub.remove_sink(self._live.append)
            if self._recorder is not None:
                self._recorder.close()

    def _feed(self, recorder: Recorder) -> None:
        last = -1
        while recorder.error is None:
            # An engine that has failed has nothing more to record: the file is closed, and so is safe, at once.
            over = self._finishing.is_set() or not self._engine.is_alive()
            ending = self._closing.is_set() or (over and not self.wants_past)
            while self._past:
                events = self._past.popleft()
                recorder.put(events)
                last = events.step
            recorder.wait_for_room()
            while not self.wants_past and not self._past and self._live:
                events = self._live.popleft()
                if events.step > last:
                    recorder.put(events)
                    last = events.step
            if ending and not self._past and not self._live:
                return
            time.sleep(POLL_S)
