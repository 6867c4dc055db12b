"""One knob or two over ranges, on a recorded workload or on a scenario's: what does each setting give?

Every point is a run of the real engine and keeps its recording. Whatever ends a sweep early, the points that are done
stay, and ``sweep.json`` in its folder lists them; with it the sweep can be gone on with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.compare import run_metrics
from engine.loaded_model import LoadedModel
from engine.recorded_workload import RecordedWorkload, RerunError
from engine.rerun import RerunProgress, rerun
from engine.scenario_run import ScenarioRun, run_scenario
from engine.sweep_file import SavedSweep, key, write_sweep
from engine.sweep_grid import SweepPoint, grid
from engine.trace.knobs import KnobError, KnobValue
from engine.trace.reader import open_recording
from engine.trace.source import Notice


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """``points`` of ``all_points`` are done; ``run`` tells how far the next one is."""

    points: int
    all_points: int
    run: RerunProgress | None

    @property
    def fraction(self) -> float:
        return (self.points + (self.run.fraction if self.run else 0.0)) / max(1, self.all_points)


def run_sweep(sweep: SavedSweep, workload: RecordedWorkload | ScenarioRun, folder: Path, model: LoadedModel, *,
              prompt_text: bool = True, on_point: Callable[[SweepPoint], None] | None = None,
              progress: Callable[[SweepProgress], None] | None = None,
              cancel: threading.Event | None = None) -> list[SweepPoint]:
    """Run every point of ``sweep`` that it has not yet, and return all of them in order.

    ``workload`` is what ``sweep`` tells of. ``folder`` is made if need be; ``sweep`` itself is left as it is.
    ``prompt_text`` as for :func:`~engine.rerun.rerun`. A point that cannot run has an ``error`` and the sweep goes on.
    Raises :class:`KnobError`, :class:`RerunError` when nothing can be written, and
    :class:`~engine.recorded_workload.RerunCancelled`; ``on_point`` has been given what was done before.
    """
    wanted = grid(sweep.axes)
    there = {key(point.knobs): point for point in sweep.points}
    done = [there[key(point.knobs)] for point in wanted if key(point.knobs) in there]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise RerunError(Notice("{path} cannot be written: {reason}.", path=folder,
                                reason=failure.strerror or str(failure))) from None
    try:
        for point in wanted:
            if key(point.knobs) in there:
                continue

            def tell(report: RerunProgress, points: int = len(done)) -> None:
                if progress is not None:
                    progress(SweepProgress(points, len(wanted), report))

            _run_point(point, sweep.fixed, workload, folder, model, prompt_text, tell, cancel)
            done.append(point)
            _keep(sweep, done, folder)
            if on_point is not None:
                on_point(point)
            if progress is not None:
                progress(SweepProgress(len(done), len(wanted), None))
    finally:
        if not done:  # it came to nothing
            with suppress(OSError):
                folder.rmdir()
    return [there.get(key(point.knobs), point) for point in wanted]


def _run_point(point: SweepPoint, fixed: Mapping[str, KnobValue], workload: RecordedWorkload | ScenarioRun,
               folder: Path, model: LoadedModel, prompt_text: bool, tell: Callable[[RerunProgress], None],
               cancel: threading.Event | None) -> None:
    """Run ``point`` and put into it what came of it."""
    path = folder / f"{point.name.replace(', ', '+')}.mcap"
    knobs = {**fixed, **point.knobs}
    try:
        if isinstance(workload, RecordedWorkload):
            rerun(workload, knobs, path, model, prompt_text=prompt_text, progress=tell, cancel=cancel)
        else:
            run_scenario(workload, knobs, path, model, prompt_text=prompt_text, progress=tell, cancel=cancel)
    except KnobError as refusal:  # too large for this machine's memory, say
        point.error = str(refusal)
        return
    recording = open_recording(path)
    try:
        point.metrics = run_metrics(recording)
    finally:
        recording.close()
    point.path = path


def _keep(sweep: SavedSweep, done: list[SweepPoint], folder: Path) -> None:
    with suppress(OSError):  # the recordings are what counts, and they are there
        write_sweep(folder, SavedSweep(sweep.axes, sweep.workload, sweep.fixed, done))
