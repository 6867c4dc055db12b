"""What playing can run until: something that happens in a step, or a gauge that rises above a value or falls below it.

A condition is a text, so that it can be kept, sent and compared: a kind of mark ("preemption"), or a gauge, "above" or
"below" as > or <, and a number: "kv_use>90", "waiting>8", "itl_p99>50". A gauge's condition is met in the step in which
the gauge *comes* to be above or below, not in every step in which it is: going on from there leads to the next time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.trace.metrics import MARK_KINDS, MarkList, StepSeries

CONDITIONS = ("preemption", "hit", "chunk", "eviction", "finish", "knob")
"""The conditions that are kinds of marks, see ``StepSeries.marks``."""

EVENT_KINDS = ("knob", "preemption", "hit", "eviction", "finish")
"""The kinds of marks that a time axis shows and that one jumps to from one to the next."""

SEARCH_AT_ONCE = 4096


class GaugeKind(NamedTuple):
    """What can be compared: its unit ("" for a count), the largest value that makes sense, and one to begin with."""

    unit: str
    largest: float
    usual: float


GAUGES = {
    "kv_use": GaugeKind("%", 100, 90),  # of the pool's blocks without the null block
    "waiting": GaugeKind("", 1_000_000, 8),  # requests after the step
    "running": GaugeKind("", 1_000_000, 8),
    "budget_use": GaugeKind("%", 100, 95),  # of max_num_batched_tokens
    "itl_p99": GaugeKind("ms", 1_000_000, 50),  # rolling, as the latency chart shows it
    "ttft_p50": GaugeKind("ms", 10_000_000, 500),
    "step": GaugeKind("ms", 1_000_000, 50),  # how long the step took
    "tokens_per_s": GaugeKind("tok/s", 10_000_000, 100),
}


class Gauge(NamedTuple):
    """``name`` is one of :data:`GAUGES`; ``value`` is in its unit."""

    name: str
    above: bool
    value: float

    @property
    def text(self) -> str:
        """The condition, as :func:`parse_gauge` reads it."""
        return f"{self.name}{'>' if self.above else '<'}{self.value:.10g}"


def parse_gauge(condition: str) -> Gauge | None:
    """The gauge that a condition is about, None if it is a kind of mark. Raises ValueError if it is neither."""
    if condition in CONDITIONS:
        return None
    sign = next((s for s in "><" if s in condition), "")
    name, _, number = condition.partition(sign) if sign else (condition, "", "")
    kind = GAUGES.get(name.strip())
    if kind is None:
        raise ValueError(f"there is no condition {condition!r}; there are {', '.join(CONDITIONS)}, and "
                         f"{', '.join(GAUGES)} with > or < and a number")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"condition {condition!r}: {number.strip()!r} is no number") from None
    if not 0 <= value <= kind.largest:
        raise ValueError(f"condition {condition!r}: the number must be from 0 to {kind.largest:g}")
    return Gauge(name.strip(), sign == ">", value)


def gauge_values(series: StepSeries, name: str, first: int, end: int) -> np.ndarray:
    """The gauge in rows ``first`` to ``end - 1``, float64; NaN where nothing was measured."""
    rows = slice(first, end)
    if name == "kv_use":
        return 100.0 * series.used_blocks[rows] / np.maximum(series.usable_blocks[rows], 1)
    if name == "budget_use":
        tokens = series.decode_tokens[rows] + series.prefill_tokens[rows]
        return 100.0 * tokens / np.maximum(series.budget[rows], 1)
    if name == "step":
        return (series.end_ns[rows] - series.start_ns[rows]) / 1e6
    column = {"waiting": series.waiting, "running": series.running, "tokens_per_s": series.tokens_per_s,
              "itl_p99": series.itl_p99_ms, "ttft_p50": series.ttft_p50_ms}[name]
    return column[rows].astype(np.float64)


def next_match(series: StepSeries, condition: str, after: int, upto: int) -> int | None:
    """The first step in ``after < step <= upto`` that meets ``condition``, or None. Raises ValueError."""
    gauge = parse_gauge(condition)
    if gauge is not None:
        return _next_crossing(series, gauge, after, upto)
    marks = series.marks
    start, end = (int(i) for i in np.searchsorted(marks.steps, (after + 1, upto + 1)))
    found = np.flatnonzero(marks.kinds[start:end] == MARK_KINDS.index(condition))
    return int(marks.steps[start + int(found[0])]) if len(found) else None


def _next_crossing(series: StepSeries, gauge: Gauge, after: int, upto: int) -> int | None:
    first, end = series.index_of(after) + 1, series.index_of(upto) + 1
    if end <= first:
        return None
    before = max(0, first - 1)  # whether it was met already in the step before
    values = gauge_values(series, gauge.name, before, end)
    met = values > gauge.value if gauge.above else values < gauge.value
    began = met.copy()
    began[1:] &= ~met[:-1]
    began[:first - before] = False
    found = np.flatnonzero(began)
    return int(series.step[before + int(found[0])]) if len(found) else None


_IS_EVENT = np.array([kind in EVENT_KINDS for kind in MARK_KINDS])


def event_after(marks: MarkList, step: int) -> int | None:
    """The first step after ``step`` with a mark of :data:`EVENT_KINDS`."""
    start = int(np.searchsorted(marks.steps, step, "right"))
    while start < len(marks):
        found = np.flatnonzero(_IS_EVENT[marks.kinds[start:start + SEARCH_AT_ONCE]])
        if len(found):
            return int(marks.steps[start + int(found[0])])
        start += SEARCH_AT_ONCE
    return None


def event_before(marks: MarkList, step: int) -> int | None:
    """The last step before ``step`` with a mark of :data:`EVENT_KINDS`."""
    end = int(np.searchsorted(marks.steps, step, "left"))
    while end > 0:
        start = max(0, end - SEARCH_AT_ONCE)
        found = np.flatnonzero(_IS_EVENT[marks.kinds[start:end]])
        if len(found):
            return int(marks.steps[start + int(found[-1])])
        end = start
    return None
