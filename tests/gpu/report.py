"""What came out: rows, and how they are told to people (one table) and to programs (JSON)."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MEANINGLESS = "CPU, Triton's interpreter, tiny sizes: the checks hold, the times mean nothing"


@dataclass(slots=True)
class Row:
    """One line of the table. What does not apply to it is None.

    A check has ``ok``; a measurement has ``seconds`` and what it got done in them: ``moved`` bytes, ``operations``
    (floating-point), ``tokens``. ``share`` is that of the ceiling ``of``, "copy" or "product".
    """

    section: str
    name: str
    ok: bool | None = None
    seconds: float | None = None
    moved: float | None = None
    operations: float | None = None
    tokens: float | None = None
    share: float | None = None
    of: str = ""
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    """More numbers, for the JSON alone."""


@dataclass(slots=True)
class Section:
    """One part of the run: how long it took, how long it might have, and why it stopped short ("" if it did not).

    ``failed``: because something broke, or before all was checked; without it only figures are missing.
    """

    name: str
    seconds: float
    deadline: float
    stopped: str = ""
    failed: bool = False


@dataclass(slots=True)
class Report:
    """Rows as they come; ``about`` says on what, with what and when."""

    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """What did not hold, what broke, and what ought to have been checked and was not."""
        wrong = [f"{row.section}: {row.name}: {row.note}" for row in self.rows if row.ok is False]
        return wrong + [f"{section.name}: {section.stopped}" for section in self.sections if section.failed]

    def add(self, row: Row) -> Row:
        """Keep a row and say it at once, as progress."""
        self.rows.append(row)
        say(f"  {_line(row)}")
        return row

    def table(self) -> str:
        """Everything as one table."""
        lines = [f"{name:>16}: {value}" for name, value in self.about.items()]
        lines += ["", _heading()]
        for section in dict.fromkeys(row.section for row in self.rows):
            lines.append(f"-- {section}")
            lines += [_line(row) for row in self.rows if row.section == section]
        lines += ["", f"{'section':28} {'seconds':>8} {'deadline':>8}"]
        lines += [f"{s.name:28} {s.seconds:8.1f} {s.deadline:8.0f}  {s.stopped}".rstrip() for s in self.sections]
        checks = sum(row.ok is not None for row in self.rows)
        failures = self.failures
        lines += ["", f"{checks} checks, {sum(row.ok is False for row in self.rows)} of them failed"]
        return "\n".join(lines + [f"FAILED {failure}" for failure in failures])

    def write_json(self, path: Path) -> None:
        content = {
            "about": self.about,
            "ok": not self.failures,
            "failures": self.failures,
            "sections": [asdict(section) for section in self.sections],
            "rows": [_without_nan(asdict(row)) for row in self.rows],
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


_STARTED = time.monotonic()


def say(text: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _STARTED:6.1f}] {text}", file=sys.stderr, flush=True)


def _heading() -> str:
    return (f"{'':50} {'':6} {'time':>10} {'moved':>9} {'rate':>11} {'tokens/s':>10} {'share':>6} {'of':7}").rstrip()


def _line(row: Row) -> str:
    verdict = "" if row.ok is None else "ok" if row.ok else "FAILED"
    rate = ""
    if row.seconds:
        if row.of == "product" and row.operations:
            rate = f"{row.operations / row.seconds / 1e12:.1f} TF/s"
        elif row.moved:
            rate = f"{row.moved / row.seconds / 1e9:,.1f} GB/s"
    tokens = f"{row.tokens / row.seconds:,.0f}" if row.tokens and row.seconds else ""
    share = f"{100 * row.share:.0f}%" if row.share is not None else ""
    moved = _bytes(row.moved) if row.moved else ""
    taken = _time(row.seconds) if row.seconds is not None else ""
    return (f"{row.name:50} {verdict:6} {taken:>10} {moved:>9} {rate:>11} {tokens:>10} {share:>6} {row.of:7} "
            f"{row.note}").rstrip()  # fmt: skip


def _time(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def _bytes(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count / 1e3:.1f} kB"


def _without_nan(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


