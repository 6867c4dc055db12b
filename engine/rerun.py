"""Runs a recorded workload again, without a window, and writes a recording of it: with other knobs, or with the same.

How requests are admitted says what can be compared:

- by **step**, when no knob differs: every request is handed over before the same step as in the recording, so that
  the engine decides everything alike. Only times are new.
- by **time**, when a knob differs: every request arrives when it did on the run's clock. How many steps have passed by
  then is up to the knobs.

In both, a request's tokens are the recorded ones (unless asked otherwise): the forward pass is done and timed, and
what it samples is replaced. So every request has the length it had, on any machine. Where nothing runs, the clock is
put forward instead of waiting for the next arrival.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from engine.config import RUNNER_KNOBS, SCHEDULER_KNOBS, rerun_knobs
from engine.core import Engine
from engine.feeds import Feed, StepFeed, TimeFeed
from engine.loaded_model import LoadedModel
from engine.recorded_engine import RecordedEngine
from engine.recorded_runner import RecordedRunner
from engine.recorded_workload import RecordedWorkload, RerunCancelled, RerunError
from engine.trace.events import SCHEMA_VERSION, RunInfo, StepEvents
from engine.trace.export.files import why_not_written
from engine.trace.growing_file import InUse
from engine.trace.knobs import KnobError, KnobValue, default_knobs, knob
from engine.trace.recording import Recorder
from engine.trace.source import Notice
from engine.version import VERSION

Admission = Literal["step", "time"]
TELL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class RerunProgress:
    """How far a run has come: ``requests`` of ``all_requests`` have left the engine (0: nobody knows how many)."""

    requests: int
    all_requests: int
    steps: int
    run_ns: int

    @property
    def fraction(self) -> float:
        return min(1.0, self.requests / self.all_requests) if self.all_requests else 0.0


@dataclass(frozen=True, slots=True)
class RerunResult:
    """What came of it. ``notes`` say what could not be repeated, for people."""

    path: Path
    admission: Admission
    steps: int
    notes: list[str] = field(default_factory=list)


def rerun(workload: RecordedWorkload, changes: Mapping[str, KnobValue], path: str | os.PathLike[str],
          model: LoadedModel, *, forced: bool = True, prompt_text: bool = True,
          progress: Callable[[RerunProgress], None] | None = None,
          cancel: threading.Event | None = None) -> RerunResult:
    """Run ``workload`` with the knobs in ``changes`` set differently, for the whole run, and record it to ``path``.

    ``forced`` keeps the recorded tokens; otherwise the model's own are taken. Without ``prompt_text`` the recording
    holds of prompts only how long they are, whatever the one that is repeated holds. The file appears when the run is
    over: a cancelled or failed one leaves nothing. Raises :class:`RerunError`,
    :class:`~engine.trace.knobs.KnobError` for a knob that cannot be so, and :class:`RerunCancelled`.
    """
    changes = {name: knob(name).check(value) for name, value in changes.items()}
    check_changes(changes, model.machine.device)
    # Those of a GPU change no decision, so that the steps stay the same ones.
    turned = workload.turned()
    deciding = {name: value for name, value in changes.items() if name in SCHEDULER_KNOBS or name in turned}
    notes: list[str] = []
    by_step = workload.whole and not workload.differs(deciding)
    if not by_step and workload.num_refused:
        notes.append(Notice("Refused when the run was recorded: {count}. Their prompts are not in the "
                            "recording, so they were left out.", count=workload.num_refused))
    if not by_step and workload.num_unfinished:
        notes.append(Notice("Not finished when the recording ended: {count}. Here they are served to "
                            "their end.", count=workload.num_unfinished))
    if not workload.whole:
        notes.append(Notice("The recording begins in the middle of a run: the requests that were there already were "
                            "taken to arrive at its beginning."))
    knobs = {**default_knobs(model.machine.device), **workload.knobs, **changes}
    runner = RecordedRunner(workload, model.runner) if forced else model.runner
    engine = RecordedEngine.of(runner, model.tokenizer, knobs, workload.info)
    engine.warm_up()
    feed: Feed = StepFeed(workload) if by_step else TimeFeed(workload, tuple(changes))
    info = describe_run(workload.info, model, engine)
    steps = record(engine, feed, info, Path(path), prompt_text=prompt_text, progress=progress, cancel=cancel)
    return RerunResult(Path(path), "step" if by_step else "time", steps, notes)


def check_changes(names: Iterable[str], device: str) -> None:
    """Raise :class:`~engine.trace.knobs.KnobError` for a knob that a rerun on ``device`` cannot turn."""
    for name in names:
        if name in rerun_knobs(device):
            continue
        if name in RUNNER_KNOBS:
            raise KnobError(f"{name} is about how a GPU runs a step; this one runs on the CPU")
        raise KnobError(f"{name} shapes a workload; a recorded workload is what it is")


def describe_run(recorded: RunInfo, model: LoadedModel, engine: Engine) -> RunInfo:
    """The header of a run that repeats another one's workload."""
    described = model.runner.model_info
    return RunInfo(
        schema=SCHEMA_VERSION, version=VERSION, created=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_start_ns=engine.clock.wall_start_ns, model=described, machine=model.machine, scenario=recorded.scenario,
        seed=recorded.seed, max_model_len=engine.scheduler.config.max_model_len, knobs=dict(engine.knobs),
        eos_token_ids=sorted(model.runner.eos_token_ids), memory=getattr(model.runner, "memory", None),
        path=getattr(model.runner, "forward_path", ""))


def run_engine(engine: RecordedEngine, feed: Feed, put: Callable[[StepEvents], None], *,
               progress: Callable[[RerunProgress], None] | None = None,
               cancel: threading.Event | None = None) -> int:
    """Run until the feed is over, and hand every step to ``put``. Returns the number of steps."""
    steps = gone = 0
    reported = 0.0

    def tell(events: StepEvents) -> None:
        nonlocal steps, gone, reported
        put(events)
        steps += 1
        gone += len(events.finished) + len(events.aborted) + len(events.refused)
        now = time.monotonic()
        if progress is not None and now - reported > TELL_INTERVAL_S:
            reported = now
            progress(RerunProgress(gone, feed.all_requests, steps, engine.clock.now_ns()))

    while True:
        if cancel is not None and cancel.is_set():
            raise RerunCancelled
        if not feed.hand_over(engine):
            break
        feed.step(engine, tell)
    engine.flush(tell)
    return steps


def record(engine: RecordedEngine, feed: Feed, info: RunInfo, path: Path, *, prompt_text: bool = True,
           progress: Callable[[RerunProgress], None] | None = None, cancel: threading.Event | None = None) -> int:
    """Run the engine to the feed's end and record it to ``path``; returns the number of steps.

    What is unfinished is written beside ``path`` and taken away if the run does not come to its end, so that neither
    a file of that name nor the recording that is repeated suffers. Raises :class:`RerunError` for the disk.
    """
    unfinished = path.with_name(f"{path.name}.part")
    recorder = Recorder(unfinished, info, prompt_text=prompt_text)
    others = isinstance(recorder.failure, InUse)  # then the file of that name is not ours to take away

    def put(events: StepEvents) -> None:
        if recorder.error is not None:
            raise _not_written(recorder, path)
        recorder.wait_for_room()
        recorder.put(events)

    try:
        if recorder.error is not None:
            raise _not_written(recorder, path)
        steps = run_engine(engine, feed, put, progress=progress, cancel=cancel)
        closed = recorder.close()
        if recorder.error is not None or not closed:
            raise _not_written(recorder, path)
        try:
            os.replace(unfinished, path)
        except OSError as failure:
            raise RerunError(Notice("{path} cannot be written: {reason}.", path=path,
                                    reason=failure.strerror or str(failure))) from None
        return steps
    finally:
        recorder.close()
        if not others:
            with suppress(OSError):
                unfinished.unlink()
        # The runner may serve other runs after this one.
        engine.release()


def _not_written(recorder: Recorder, path: Path) -> RerunError:
    """Why there is no recording at ``path``. The recorder speaks of a live run, which would go on without one."""
    if isinstance(recorder.failure, InUse):
        return RerunError(Notice("Another run is recorded to {path}: choose another name.", path=path))
    if isinstance(recorder.failure, OSError):
        return RerunError(why_not_written(recorder.failure, path))
    return RerunError(recorder.error or Notice("{path} could not be written in time.", path=path))
