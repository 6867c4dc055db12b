"""``sweep.json``: what a sweep runs and what came of it, kept beside its recordings.

With it a sweep can be looked at again, and one that was ended early can be gone on with. The recordings are named
without a folder, so that the folder may be moved as a whole.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.compare import METRICS
from engine.scenario_run import ScenarioRun
from engine.sweep_grid import MAX_POINTS, NAME, SweepAxis, SweepPoint, as_rows, grid
from engine.trace.knobs import KnobError, KnobValue, knob
from engine.trace.source import Notice
from engine.version import VERSION

FORMAT = 1
LARGEST = 4 << 20
"""In bytes; 400 points take a twentieth of that."""


class SweepFileError(ValueError):
    """A file that is no sweep. The message (a :class:`Notice`) says why."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The run whose workload is swept: the recording of it, None if there is no file, and when it was made, by which
    it is known again."""

    path: Path | None
    created: str


@dataclass(slots=True)
class SavedSweep:
    """A sweep as it stands. ``points`` are those that were run; the path of one whose recording is gone is None."""

    axes: list[SweepAxis]
    workload: RecordedRun | ScenarioRun
    fixed: dict[str, KnobValue] = field(default_factory=dict)
    points: list[SweepPoint] = field(default_factory=list)

    @property
    def all_points(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def rest(self) -> int:
        """How many points have not been run."""
        return self.all_points - len(self.points)

    @property
    def lost(self) -> int:
        """How many points have been run, and their recordings are not there any more."""
        return sum(point.path is None and not point.error for point in self.points)


def write_sweep(folder: Path, sweep: SavedSweep) -> None:
    """Keep ``sweep`` in its folder. Raises OSError; what was there before is then as it was."""
    unfinished = folder / f"{NAME}.part"
    try:
        unfinished.write_text(json.dumps({
            "cutaway_sweep": FORMAT, "version": VERSION, "workload": _workload_json(sweep.workload, folder),
            "vary": [{"knob": axis.knob, "values": list(axis.values)} for axis in sweep.axes],
            "set": sweep.fixed, "points": as_rows(sweep.points)}, ensure_ascii=False, indent=1), "utf-8")
        os.replace(unfinished, folder / NAME)
    finally:
        unfinished.unlink(missing_ok=True)


def read_sweep(path: Path) -> SavedSweep:
    """Read a sweep's file. Raises :class:`SweepFileError`."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise SweepFileError(Notice("There is no file {path}.", path=path)) from None
    except OSError as failure:
        raise SweepFileError(Notice("{path} cannot be read: {reason}.", path=path,
                                    reason=failure.strerror or str(failure))) from None
    if len(data) > LARGEST:
        raise SweepFileError(Notice("{path} is no sweep of Cutaway. Open the sweep.json in the folder of a sweep.",
                                    path=path))
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as failure:
        reason = failure.msg if isinstance(failure, json.JSONDecodeError) else type(failure).__name__
        raise SweepFileError(Notice("{path} cannot be read as JSON ({reason}): it is no sweep, or a damaged one.",
                                    path=path, reason=reason)) from None
    if not isinstance(said, dict) or not isinstance(said.get("cutaway_sweep"), int):
        raise SweepFileError(Notice("{path} is no sweep of Cutaway. Open the sweep.json in the folder of a sweep.",
                                    path=path))
    if said["cutaway_sweep"] > FORMAT:
        raise SweepFileError(Notice("{path} needs Cutaway {version} or later.", path=path,
                                    version=str(said.get("version", "?"))))
    try:
        axes = [SweepAxis(knob(axis["knob"]).name, tuple(knob(axis["knob"]).check(v) for v in axis["values"]))
                for axis in said["vary"]]
        fixed = {str(name): knob(name).check(value) for name, value in said["set"].items()}
        known = {key(point.knobs) for point in grid(axes)}
        points: dict[tuple[object, ...], SweepPoint] = {}
        for row in said["points"][:MAX_POINTS]:
            point = _point(row, path.parent)
            if key(point.knobs) not in known:
                raise KnobError(f"{point.name} is not a point of the sweep")
            points[key(point.knobs)] = point
        return SavedSweep(axes, _workload(said["workload"], path.parent), fixed, list(points.values()))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as failure:
        raise SweepFileError(Notice("{path} is damaged: {reason}. The recordings beside it open all the same.",
                                    path=path, reason=_reason(failure))) from None


def key(knobs: Mapping[str, KnobValue]) -> tuple[object, ...]:
    """What tells one point of a sweep from another."""
    return tuple(sorted(knobs.items(), key=lambda item: item[0]))


def _reason(failure: Exception) -> str:
    return f"{failure.args[0]!r} is missing" if isinstance(failure, KeyError) and failure.args else str(failure)


def _workload_json(workload: RecordedRun | ScenarioRun, folder: Path) -> dict[str, Any]:
    if isinstance(workload, ScenarioRun):
        return {"scenario": workload.scenario, "seed": workload.seed, "requests": workload.requests,
                "knobs": dict(workload.knobs), "model": workload.model, "dtype": workload.dtype}
    where: dict[str, Any] = {"recording": None, "created": workload.created}
    if workload.path is not None:
        absolute = workload.path.absolute()
        # Beside the sweep if both were moved together, else where it was.
        where["recording"] = [Path(os.path.relpath(absolute, folder.absolute())).as_posix(), absolute.as_posix()]
    return where


def _workload(said: Any, folder: Path) -> RecordedRun | ScenarioRun:
    if "scenario" in said:
        return ScenarioRun(str(said["scenario"]), int(said["seed"]), max(1, int(said["requests"])),
                           {str(n): knob(n).check(v) for n, v in said["knobs"].items()}, str(said["model"]),
                           str(said["dtype"]))
    places = [folder / str(name) for name in said["recording"] or ()]
    path = next((place for place in places if place.is_file()), places[-1] if places else None)
    return RecordedRun(path, str(said["created"]))


def _point(row: Any, folder: Path) -> SweepPoint:
    knobs = {str(name): knob(name).check(value) for name, value in row["knobs"].items()}
    metrics = {name: math.nan if row[name] is None else float(row[name]) for name in METRICS if name in row}
    name = row["recording"]
    path = folder / Path(str(name)).name if name else None  # beside the file, and nowhere else
    return SweepPoint(knobs, path if path is not None and path.is_file() else None, metrics, str(row["error"]))
