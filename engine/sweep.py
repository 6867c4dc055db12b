"""One knob or two over ranges, on a recorded workload or on a scenario's: what does each setting give?

Every point is a run of the real engine and keeps its recording. Whatever ends a sweep early, the points that are done
stay, and ``sweep.json`` in its folder lists them.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine.compare import run_metrics
from engine.loaded_model import LoadedModel
from engine.recorded_workload import RecordedWorkload, RerunError
from engine.rerun import RerunProgress, rerun
from engine.scenario_run import ScenarioRun, run_scenario
from engine.trace.knobs import Knob, KnobError, KnobValue, knob
from engine.trace.reader import open_recording
from engine.trace.source import Notice

DEFAULT_COUNT = 5
MAX_POINTS = 400

GOALS = (("output_tokens_per_s", 1), ("itl_p99_ms", -1), ("ttft_p99_ms", -1))
"""What a point is judged by: 1 where more is better, -1 where less is."""


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """The values that a knob takes in a sweep, in order."""

    knob: str
    values: tuple[KnobValue, ...]


@dataclass(slots=True)
class SweepPoint:
    """One setting. ``metrics`` as in :data:`engine.compare.METRICS`, empty with an ``error`` (or not run yet)."""

    knobs: dict[str, KnobValue]
    path: Path | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def name(self) -> str:
        return ", ".join(f"{name}={_text(value)}" for name, value in self.knobs.items())


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """``points`` of ``all_points`` are done; ``run`` tells how far the next one is."""

    points: int
    all_points: int
    run: RerunProgress | None

    @property
    def fraction(self) -> float:
        return (self.points + (self.run.fraction if self.run else 0.0)) / max(1, self.all_points)


def parse_axis(text: str) -> SweepAxis:
    """``KNOB=A,B,C`` or ``KNOB=LOW..HIGH`` or ``KNOB=LOW..HIGH:COUNT``. Raises :class:`KnobError`."""
    name, equals, values = text.partition("=")
    wanted = knob(name.strip())
    values = values.strip()
    if not equals or not values:
        raise KnobError(f"{text}: write it as {name.strip()}=A,B,C or {name.strip()}=LOW..HIGH")
    low, dots, high = values.partition("..")
    if not dots:
        return SweepAxis(wanted.name, tuple(dict.fromkeys(wanted.parse(v.strip()) for v in values.split(","))))
    high, colon, count = high.partition(":")
    if colon and not (count.strip().isdecimal() and 2 <= int(count) <= MAX_POINTS):
        raise KnobError(f"{text}: the number of values, {count.strip()!r}, must be from 2 to {MAX_POINTS}")
    ends = wanted.parse(low.strip()), wanted.parse(high.strip())
    if wanted.kind not in ("int", "float"):
        raise KnobError(f"{text}: {wanted.name} takes {wanted.describe_range()}; name the values, with commas")
    return SweepAxis(wanted.name, spread(wanted, float(ends[0]), float(ends[1]),
                                         int(count) if colon else DEFAULT_COUNT))


def spread(wanted: Knob, low: float, high: float, count: int = DEFAULT_COUNT) -> tuple[KnobValue, ...]:
    """``count`` values from ``low`` to ``high`` (fewer where whole numbers coincide), in equal ratios or steps."""
    if low > high:
        low, high = high, low
    if wanted.power_of_two:
        return tuple(1 << e for e in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1))
    if wanted.scale == "log2" and low > 0:
        raw = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    else:
        raw = [low + (high - low) * i / (count - 1) for i in range(count)]
    kept: list[KnobValue] = [round(v) if wanted.kind == "int" else float(f"{v:.4g}") for v in raw]
    kept[0], kept[-1] = wanted.check(low), wanted.check(high)
    return tuple(dict.fromkeys(kept))


def grid(axes: Sequence[SweepAxis]) -> list[SweepPoint]:
    """Every combination of one axis' or two axes' values. Raises :class:`KnobError`."""
    if not 1 <= len(axes) <= 2:
        raise KnobError(f"a sweep takes one knob or two, not {len(axes)}")
    if len({axis.knob for axis in axes}) < len(axes):
        raise KnobError(f"{axes[0].knob} is named twice")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_POINTS:
        raise KnobError(f"that makes {count:,} points; {MAX_POINTS} are allowed")
    return [SweepPoint(dict(zip((axis.knob for axis in axes), values, strict=True)))
            for values in itertools.product(*(axis.values for axis in axes))]


def pareto_front(points: Sequence[SweepPoint]) -> list[bool]:
    """For each point whether no other one is at least as good in every one of :data:`GOALS` and better in one."""
    scores = [tuple(sign * point.metrics.get(name, math.nan) for name, sign in GOALS) for point in points]

    def beaten(mine: tuple[float, ...]) -> bool:
        return any(other != mine and all(o >= m for o, m in zip(other, mine, strict=True)) for other in scores)

    return [not any(map(math.isnan, score)) and not beaten(score) for score in scores]


def run_sweep(workload: RecordedWorkload | ScenarioRun, axes: Sequence[SweepAxis], folder: Path, model: LoadedModel, *,
              fixed: Mapping[str, KnobValue] | None = None, on_point: Callable[[SweepPoint], None] | None = None,
              progress: Callable[[SweepProgress], None] | None = None,
              cancel: threading.Event | None = None) -> list[SweepPoint]:
    """Run every point and return them. ``fixed`` holds knobs that differ for all of them.

    ``folder`` is made if need be. A point that cannot run has an ``error`` and the sweep goes on. Raises
    :class:`KnobError`, :class:`RerunError` when nothing can be written, and
    :class:`~engine.recorded_workload.RerunCancelled`; ``on_point`` has been given what was done before.
    """
    points = grid(axes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise RerunError(Notice("{path} cannot be written: {reason}.", path=folder,
                                reason=failure.strerror or str(failure))) from None
    for index, point in enumerate(points):
        path = folder / f"{point.name.replace(', ', '+')}.mcap"

        def tell(report: RerunProgress, done: int = index) -> None:
            if progress is not None:
                progress(SweepProgress(done, len(points), report))

        knobs = {**(fixed or {}), **point.knobs}
        try:
            if isinstance(workload, RecordedWorkload):
                rerun(workload, knobs, path, model, progress=tell, cancel=cancel)
            else:
                run_scenario(workload, knobs, path, model, progress=tell, cancel=cancel)
        except KnobError as refusal:  # too large for this machine's memory, say
            point.error = str(refusal)
        else:
            recording = open_recording(path)
            try:
                point.metrics = run_metrics(recording)
            finally:
                recording.close()
            point.path = path
        _note(folder, points[:index + 1])
        if on_point is not None:
            on_point(point)
        if progress is not None:
            progress(SweepProgress(index + 1, len(points), None))
    return points


def as_rows(points: Sequence[SweepPoint]) -> list[dict[str, object]]:
    """The points for JSON: NaN is None."""
    return [{"knobs": point.knobs, "recording": point.path.name if point.path else None, "error": point.error,
             "pareto": best,
             **{name: None if math.isnan(value) else round(value, 4) for name, value in point.metrics.items()}}
            for point, best in zip(points, pareto_front(points), strict=True)]


def _note(folder: Path, points: Sequence[SweepPoint]) -> None:
    with suppress(OSError):  # the recordings are what counts, and they are there
        (folder / "sweep.json").write_text(json.dumps(as_rows(points), indent=1), "utf-8")


def _text(value: KnobValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
