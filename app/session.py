"""What a window looks at: a run, live or recorded, together with the time control and the view at its step.

A session has no Qt. The window calls :meth:`Session.advance` at every tick of its frame clock, and the commands when
the user asks for something; whenever ``advance`` returns True, ``session.view`` is a new view to show.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.recorder_feed import RecorderFeed
from app.time_control import Pacing, TimeControl
from engine.model_holder import ModelHolder
from engine.scenario import load_scenario
from engine.trace.conditions import event_after, event_before, next_match
from engine.trace.events import SCHEMA_VERSION, MachineInfo, ModelInfo, Refused, RunInfo
from engine.trace.history import LiveHistory
from engine.trace.knobs import KnobValue
from engine.trace.notes import NoteBook, notes_path, read_notes, write_notes
from engine.trace.notes_copy import read_embedded_notes
from engine.trace.reader import RecordingError
from engine.trace.source import Notice, RunSource
from engine.trace.state import EngineState
from engine.version import VERSION
from engine.worker import EngineThread, RunSpec
from widgets.view import View

APPLY_AT_MOST = 48
"""A move further ahead than this jumps through a snapshot instead of applying every step on the way."""

DRAIN_BUDGET_S = 0.008
"""How long taking in new steps may hold up a frame; what is left waits for the next one."""


class SourceSteps:
    """A :class:`RunSource`, or none yet, as the time control sees it."""

    def __init__(self, source: RunSource | None, *, ended: bool) -> None:
        self.source = source
        self.ended = ended
        self.notes = NoteBook()

    @property
    def first_step(self) -> int:
        return max(0, self.source.first_step) if self.source is not None else 0

    @property
    def last_step(self) -> int:
        return self.source.last_step if self.source is not None else -1

    def end_ns(self, step: int) -> int:
        if self.source is None:
            return 0
        series = self.source.series
        index = series.index_of(step)
        return int(series.end_ns[index]) if index >= 0 else 0

    def step_at(self, time_ns: int) -> int:
        if self.source is None:
            return -1
        series = self.source.series
        index = int(series.end_ns.searchsorted(time_ns, side="right")) - 1
        return int(series.step[max(0, index)]) if series.n else -1

    def next_match(self, condition: str, after: int, upto: int) -> int | None:
        return next_match(self.source.series, condition, after, upto) if self.source is not None else None

    def event_after(self, step: int) -> int | None:
        event = event_after(self.source.series.marks, step) if self.source is not None else None
        note = self.notes.step_after(step)
        return min((s for s in (event, note) if s is not None), default=None)

    def event_before(self, step: int) -> int | None:
        event = event_before(self.source.series.marks, step) if self.source is not None else None
        note = self.notes.step_before(step)
        return max((s for s in (event, note) if s is not None), default=None)


class Session:
    """A run that is looked at. ``source`` and ``view`` are None until there is something to show."""

    is_live = False

    def __init__(self, source: RunSource | None, *, live: bool) -> None:
        self._steps = SourceSteps(source, ended=not live)
        self.time = TimeControl(self._steps, live=live)
        self.view: View | None = None
        self._own: EngineState | None = None  # a state that is only ours, and may be advanced
        self._shown = (-2, False)  # the step that the view shows, and whether it was following
        self._held = 0
        self._over = False

    @property
    def source(self) -> RunSource | None:
        return self._steps.source

    @property
    def on_gpu(self) -> bool:
        """Whether the run is, or was, on a GPU."""
        return self.source is not None and self.source.info.machine.on_gpu

    def hold_source(self) -> Callable[[], None]:
        """Keep the source open for somebody else, even when the session is closed, until what this returns is called.

        To be called in one thread only, as is what it returns.
        """
        self._held += 1

        def release() -> None:
            self._held -= 1
            if self._over and not self._held and self.source is not None:
                self.source.close()

        return release

    # ---- commands ------------------------------------------------------------------------------------------------

    def toggle_play(self) -> None:
        self.time.toggle()

    def step_forward(self, count: int = 1) -> None:
        self.time.step_forward(count)

    def step_back(self, count: int = 1) -> None:
        self.time.step_back(count)

    def seek(self, step: int) -> None:
        self.time.seek(step)

    def first(self) -> None:
        self.time.first()

    def follow(self) -> None:
        self.time.follow()

    def set_speed(self, speed: float, pacing: Pacing = "clock") -> None:
        self.time.set_speed(speed, pacing)

    def run_until(self, condition: str) -> None:
        self.time.run_until(condition)

    def detach(self) -> None:
        self.time.detach()

    def next_event(self) -> None:
        self.time.next_event()

    def previous_event(self) -> None:
        self.time.previous_event()

    def mark_loop_start(self) -> None:
        self.time.mark_loop_start()

    def mark_loop_end(self) -> None:
        self.time.mark_loop_end()

    def clear_loop(self) -> None:
        self.time.clear_loop()

    # ---- notes ---------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> NoteBook:
        """What was written down about this run."""
        return self._steps.notes

    @property
    def notes_files(self) -> list[Path]:
        """Where the notes are kept: beside the recording. Nowhere as long as there is no recording."""
        return []

    def save_notes(self) -> None:
        """Keep the notes beside the recording, if they have changed and there is one. Raises OSError."""
        if self.notes.changed and self.source is not None:
            try:
                for path in self.notes_files:
                    write_notes(path, self.notes, self.source.info)
            except OSError:
                self.notes.touch()  # one of several may be written: all of them again next time
                raise

    # ---- the view ------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        """Let time pass up to ``now`` (``time.perf_counter`` seconds). True when there is a new view to show."""
        self.time.tick(now)
        return self._look(now)

    def _look(self, now: float) -> bool:
        """Bring the view to the viewing step; False when it is there already."""
        source, step, following = self.source, self.time.step, self.time.following
        if source is None or self._shown == (step, following):
            return False
        moved = self.view is None or self._shown[0] != step
        if moved:
            try:
                state = self._state(source, step)
                events = source.events(step) if 0 <= source.first_step <= step else None
            except RecordingError:  # damage that is found when one comes there; the source's warnings tell it
                return self._stay(following)
            self.view = View(state, events, source.series, source.timeline, following, now)
        elif self.view is not None:
            self.view = replace(self.view, following=following)
        self._shown = (step, following)
        return True

    def _stay(self, following: bool) -> bool:
        """Stop at the last step that could be shown: the next one cannot be read."""
        self.time.pause()
        if self.view is not None:
            self.time.seek(self.view.state.step)
        self._shown = (self.time.step if self.view is None else -2, following)
        return False

    def _state(self, source: RunSource, step: int) -> EngineState:
        own = self._own
        if own is None or not 0 <= step - own.step <= APPLY_AT_MOST:
            own = source.state_at(step)
        else:
            while own.step < step:
                own.apply(source.events(own.step + 1))
        self._own = own
        return own

    def close(self, timeout: float = 2.5) -> bool:
        """Let go of everything; True when nothing is left running."""
        with suppress(OSError):  # they were saved when they were written; somebody was told if that failed
            self.save_notes()
        self._over = True
        if self.source is not None and not self._held:
            self.source.close()
        return True


class ReplaySession(Session):
    """A recording, looked at. Starts paused at its first step."""

    def __init__(self, recording: RunSource, path: Path | None = None) -> None:
        super().__init__(recording, live=False)
        self.path = path
        self._warned = 0
        self._stop_checking = threading.Event()
        self._checking: threading.Thread | None = None
        if not recording.checked:  # a large file: its bytes are compared with their checksums while it is looked at
            self._checking = threading.Thread(target=recording.check, args=(self._stop_checking.is_set,),
                                              name="recording-check", daemon=True)
            self._checking.start()
        self.note_warnings: list[Notice] = []
        if path is not None:
            self._steps.notes, self.note_warnings = read_notes(notes_path(path), recording.info)
            if not len(self.notes) and not notes_path(path).exists():
                self._steps.notes = NoteBook(read_embedded_notes(path))

    @property
    def notes_files(self) -> list[Path]:
        return [notes_path(self.path)] if self.path is not None else []

    def take_warnings(self) -> list[str]:
        """What the recording warns of and was not taken yet: damage is also found when one comes there, and later."""
        warnings = self.source.warnings if self.source is not None else []
        new, self._warned = warnings[self._warned:], len(warnings)
        return new

    def close(self, timeout: float = 2.5) -> bool:
        self._stop_checking.set()
        if self._checking is not None:
            self._checking.join(timeout)
        return super().close(timeout) and not (self._checking is not None and self._checking.is_alive())


class LiveSession(Session):
    """A live run: its engine thread, its history, and its recorder if there is one.

    Pausing and stepping act on the engine as long as the view belongs to the live edge; looking back does not stop it.
    ``keep_prompts`` says whether recordings that begin from now on hold what prompts say; where ``spec`` leaves them
    out they never do.
    """

    is_live = True

    def __init__(self, spec: RunSpec, *, record: Path | None = None, engine: EngineThread | None = None,
                 models: ModelHolder | None = None, keep_prompts: bool = True) -> None:
        super().__init__(None, live=True)
        self.spec = spec
        self.keep_prompts = keep_prompts
        self.engine = engine or EngineThread(spec, models)
        self._events = self.engine.hub.subscribe()
        self._engine_paused = False
        self._full_speed = 0.0  # steps a second, measured while nothing slowed the engine
        self._slowed = False
        self._refused: list[Refused] = []
        self._recorded: Path | None = None
        self._stopping = False  # the recording, as the user has asked
        self.recorder: RecorderFeed | None = (
            RecorderFeed(self.engine, record, prompt_text=keep_prompts) if record is not None else None)

    def start(self) -> None:
        """Start the engine's thread; ``engine.progress`` and ``engine.status`` tell how it goes."""
        self.engine.start()

    def blank_view(self) -> View:
        """The run before anything is known of it but what it is to be: an empty pool, and nobody in it."""
        knobs = self.spec.all_knobs(load_scenario(self.spec.scenario) if self.spec.scenario else None)
        info = RunInfo(SCHEMA_VERSION, VERSION, "", 0, ModelInfo(""), MachineInfo(), self.spec.scenario or "",
                       self.spec.seed, self.spec.max_model_len, knobs)
        run = LiveHistory(info)
        return View(run.state, None, run.series, run.timeline, True, time.perf_counter())

    @property
    def on_gpu(self) -> bool:
        return self.spec.device != "cpu"

    @property
    def history(self) -> LiveHistory | None:
        source = self.source
        return source if isinstance(source, LiveHistory) else None

    @property
    def engine_paused(self) -> bool:
        """Whether the engine was told to stand still."""
        return self._engine_paused

    # ---- commands ------------------------------------------------------------------------------------------------

    def toggle_play(self) -> None:
        if self.time.playing:
            if self.time.attached:
                self._pause_engine()
            self.time.pause()
        else:
            if (self.time.attached or self.time.at_edge) and not self.time.looping:
                self._resume_engine()
            self.time.play()

    def step_forward(self, count: int = 1) -> None:
        if self.time.attached:
            self._pause_engine()
        owed = self.time.step_forward(count)
        if owed and self._engine_paused:
            # Steps that have come out already, or are on their way, count too.
            self.engine.single_step(owed)

    def follow(self) -> None:
        self.time.follow()
        if self.time.live:
            self._resume_engine()
            self._set_slow_motion()

    def set_speed(self, speed: float, pacing: Pacing = "clock") -> None:
        """A view at the live edge slows the engine itself down; it cannot go faster than it goes."""
        self.time.set_speed(speed, pacing)
        if self.time.attached:
            self._set_slow_motion()

    def run_until(self, condition: str) -> None:
        was_playing = self.time.playing
        self.time.run_until(condition)
        if (self.time.playing and not was_playing and not self.time.looping
                and (self.time.attached or self.time.at_edge)):
            self._resume_engine()

    def set_knob(self, name: str, value: KnobValue) -> None:
        """Turn a knob at the engine's next step. Raises :class:`engine.trace.knobs.KnobError`."""
        self.engine.set_knob(name, value)

    def submit(self, text: str, **params: Any) -> None:
        self.engine.submit(text, **params)

    def take_refused(self) -> list[Refused]:
        """The requests that were turned away since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def start_recording(self, path: Path) -> None:
        """Record the run to ``path``, from the first of its steps that is still known."""
        if self.recorder is not None and (self.recorder.active or self.recorder.ending):
            return
        self.recorder = RecorderFeed(self.engine, path, midway=True, prompt_text=self.keep_prompts)
        self.notes.touch()
        self._take_in(float("inf"))  # so that between the history and what comes next no step is missing
        self.recorder.begin_past(self.history)

    def stop_recording(self) -> None:
        """Record nothing more. What is not written yet is written while the run goes on: see :meth:`take_recorded`."""
        if self.recorder is not None and self.recorder.active:
            self.recorder.finish()
            self._stopping = True

    def take_recorded(self) -> Path | None:
        """The recording that was stopped, once, when it is whole on the disk."""
        path, self._recorded = self._recorded, None
        return path

    def _see_recording_off(self) -> None:
        assert self.recorder is not None
        self._stopping = False
        if self.recorder.error is None:
            self._recorded = self.recorder.path
        self.notes.touch()  # it may have gone on in another file
        with suppress(OSError):  # the recording is what matters; the notes stay here to be saved elsewhere
            self.save_notes()

    @property
    def notes_files(self) -> list[Path]:
        """Beside the latest recording of this run, and each file in which that went on."""
        return [notes_path(path) for path in self.recorder.paths] if self.recorder is not None else []

    def _pause_engine(self) -> None:
        self._engine_paused = True
        self.engine.pause()

    def _resume_engine(self) -> None:
        if self._engine_paused:
            self._engine_paused = False
            self.engine.resume()

    def _set_slow_motion(self) -> None:
        speed, pacing = self.time.speed, self.time.pacing
        if not self._slowed:
            self._measure_full_speed()
        rate: float | None
        if pacing == "steps":
            rate = speed
        else:
            rate = max(0.5, speed * (self._full_speed or 30.0)) if speed < 1 else None
        self._slowed = rate is not None
        self.engine.set_slow_motion(rate)

    def _measure_full_speed(self) -> None:
        if self.source is not None and self.source.series.n:
            rate = self.source.series.latency(self.source.last_step, 64).steps_per_s
            if rate == rate:  # not NaN
                self._full_speed = rate

    # ---- the view ------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        self._take_in()
        if self.recorder is not None and self.recorder.wants_past and self.history is not None:
            self.recorder.take_past(self.history)
        if self._stopping and self.recorder is not None and not self.recorder.ending:
            self._see_recording_off()
        self.time.tick(now)
        if not self.time.playing and self.time.attached and self.time.stopped_by and not self._engine_paused:
            self._pause_engine()  # run until: it happened
        if self.engine.status in ("stopped", "failed") and self.time.live and not len(self._events):
            self._steps.ended = True
            self.time.end_of_run()
        return self._look(now)

    def _take_in(self, budget_s: float = DRAIN_BUDGET_S) -> None:
        """Move new steps from the hub into the history, for a few milliseconds at most."""
        history = self.history
        if history is None:
            if self.engine.info is None:
                return
            history = LiveHistory(self.engine.info)
            self._steps.source = history
        if not len(self._events):
            return
        if self.view is not None and self.view.state is history.state and not self.time.following:
            self._own = self.view.state = history.state.copy()  # the view stays here while the history goes on
        until = time.perf_counter() + budget_s
        while len(self._events) and time.perf_counter() < until:
            for events in self._events.drain(8):
                history.append(events)
                if events.refused:
                    self._refused += events.refused

    def _state(self, source: RunSource, step: int) -> EngineState:
        history = self.history
        if self.time.following and history is not None and step == history.last_step:
            return history.state
        return super()._state(source, step)

    def close(self, timeout: float = 2.5) -> bool:
        """Stop the engine after its step and close the recording. True when the engine's thread has ended in time."""
        ended = self.engine.stop(timeout)
        if self.recorder is not None:
            self.recorder.close(self.history)
            self._see_recording_off()
        return super().close() and ended
