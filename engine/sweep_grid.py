"""What a sweep runs: the values that its knobs take, every combination of them, and which points nothing beats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.trace.knobs import Knob, KnobError, KnobValue, knob

DEFAULT_COUNT = 5
MAX_POINTS = 400
NAME = "sweep.json"

GOALS = (("output_tokens_per_s", 1), ("itl_p99_ms", -1), ("ttft_p99_ms", -1))
"""What a point is judged by: 1 where more is better, -1 where less is."""


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """The values that a knob takes in a sweep, in order."""

    knob: str
    values: tuple[KnobValue, ...]

    @property
    def text(self) -> str:
        """The values, as :func:`parse_axis` reads them."""
        return ", ".join(map(_text, self.values))


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


def find_sweep(path: Path) -> Path | None:
    """The sweep that ``path`` means: a JSON file, or a folder that holds a sweep's; None for anything else."""
    if path.suffix.lower() == ".json" and not path.is_dir():
        return path
    inside = path / NAME
    return inside if path.is_dir() and inside.is_file() else None


def as_rows(points: Sequence[SweepPoint]) -> list[dict[str, object]]:
    """The points for JSON: NaN is None."""
    return [{"knobs": point.knobs, "recording": point.path.name if point.path else None, "error": point.error,
             "pareto": best,
             **{name: None if math.isnan(value) else round(value, 4) for name, value in point.metrics.items()}}
            for point, best in zip(points, pareto_front(points), strict=True)]


def _text(value: KnobValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
