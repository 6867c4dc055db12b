"""What is going on in a run, found by plain rules from its series, its timeline and its state. No Qt in here.

A finding has a code, figures and the steps that prove it; the words are the panel's. Every figure is of the steps up
to the viewing step, so that the same step always says the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from engine.trace.metrics import StepSeries
from engine.trace.state import EngineState
from engine.trace.timeline import Timeline

WINDOW = 64  # steps that "now" means
PREEMPTION_WINDOW = 100

Level = Literal["bad", "warning", "info", "good"]
LEVELS: tuple[Level, ...] = ("bad", "warning", "info", "good")


@dataclass(frozen=True, slots=True)
class Finding:
    """``numbers`` holds the figures by name; ``names`` requests or a knob; ``steps`` (first, last) pairs, inclusive."""

    code: str
    level: Level
    numbers: dict[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()


def find(series: StepSeries, timeline: Timeline, state: EngineState, at_most: int = 4) -> list[Finding]:
    """The findings at ``state.step``, the most pressing first; rules that belong together name only one of them."""
    row = series.index_of(state.step)
    if row < 0:
        return []
    rise = itl_rise(series, timeline, row, state)
    found = [
        preemptions(series, row, state),
        rise,
        chunked_prompts(series, row) if rise is None else None,
        waiting_for_blocks(series, row, state) or waiting_for_seqs(series, row, state),
        head_of_line(row, series, state),
        budget_full(series, row),
        knob_effect(series, row),
        prefix_cache(series, state),
    ]
    findings = [f for f in found if f is not None]
    findings.sort(key=lambda f: LEVELS.index(f.level))
    return findings[:at_most]


def itl_rise(series: StepSeries, timeline: Timeline, row: int, state: EngineState) -> Finding | None:
    """ITL p99 is half as high again as it was: because decodes share steps with prefill, or for another reason."""
    # The rolling window reaches WINDOW steps back; one as long before it is the time to compare with.
    earlier = row - 2 * WINDOW
    if earlier < 8:
        return None
    before, now = float(series.itl_p99_ms[earlier]), float(series.itl_p99_ms[row])
    if not (now > 1.5 * before and now - before > 3.0):  # also when either is NaN
        return None
    first = row - WINDOW + 1
    prefill, decode = series.prefill_tokens[first:row + 1], series.decode_tokens[first:row + 1]
    lasted = (series.end_ns[first:row + 1] - series.start_ns[first:row + 1]) / 1e6
    # Steps that made someone wait as long as the new p99, or nearly so.
    shared = (prefill > 0) & (decode > 0) & (lasted > 0.6 * now)
    numbers = {"before_ms": before, "now_ms": now}
    if shared.any():
        rows = first + np.flatnonzero(shared)
        steps = series.step[rows]
        numbers |= {"steps": len(rows), "decodes": float(np.median(decode[shared]))}
        return Finding("itl_prefill", "warning", numbers, prefilled_in(timeline, state, steps), ranges(steps))
    if series.preemptions[first:row + 1].any():
        steps = series.step[first + np.flatnonzero(series.preemptions[first:row + 1])]
        numbers["count"] = float(series.preemptions[first:row + 1].sum())
        return Finding("itl_preemption", "warning", numbers, (), ranges(steps))
    slowest = first + int(np.argmax(lasted))
    step = int(series.step[slowest])
    return Finding("itl_slow_steps", "warning", numbers | {"slowest_ms": float(lasted.max())}, (), ((step, step),))


def prefilled_in(timeline: Timeline, state: EngineState, steps: np.ndarray) -> tuple[str, ...]:
    """The requests whose prefill took part in ``steps``, those that took part most first; at most three."""
    wanted = set(steps.tolist())
    taken: dict[str, int] = {}
    for request_id in (*state.running, *state.waiting, *state.finished):
        row = timeline.row(request_id)
        for span in row.spans if row is not None else ():
            if span.kind == "prefill" and span.first_step in wanted:
                taken[request_id] = taken.get(request_id, 0) + 1
    return tuple(sorted(taken, key=lambda r: -taken[r])[:3])


def chunked_prompts(series: StepSeries, row: int) -> Finding | None:
    """Long prompts have been computed in chunks, beside decodes."""
    first = max(0, row - WINDOW + 1)
    marks = [m for m in series.marks.between(int(series.step[first]), int(series.step[row])) if m.kind == "chunk"]
    steps = np.unique(np.array([m.step for m in marks], np.int64))
    rows = np.array([series.index_of(int(step)) for step in steps], np.int64)
    beside = series.decode_tokens[rows] > 0 if len(rows) else np.zeros(0, bool)
    if not beside.any():
        return None
    times: dict[str, int] = {}
    for mark in marks:
        times[mark.label] = times.get(mark.label, 0) + 1
    names = sorted(times, key=lambda name: -times[name])[:3]
    return Finding("chunked_prompts", "info", {
        "steps": int(beside.sum()), "decodes": float(np.median(series.decode_tokens[rows[beside]]))}, tuple(names),
        ranges(steps))


def preemptions(series: StepSeries, row: int, state: EngineState) -> Finding | None:
    """Running requests lost their blocks lately."""
    first = max(0, row - PREEMPTION_WINDOW + 1)
    recent = series.preemptions[first:row + 1]
    count = int(recent.sum())
    if not count:
        return None
    steps = series.step[first + np.flatnonzero(recent)]
    # Those that a knob caused, by having the pool made anew, say nothing about the pool's size.
    rebuilt = [m.step for m in series.marks.between(int(series.step[first]), int(series.step[row]))
               if m.kind == "knob" and m.label.startswith(("num_blocks ", "block_size "))]
    by_knob = np.isin(steps, rebuilt)
    if by_knob.all():
        return Finding("pool_rebuilt", "info", {"count": count, "lost_tokens": state.counters.lost_tokens}, (),
                       ranges(steps))
    count = int(recent[recent > 0][~by_knob].sum())
    steps = steps[~by_knob]
    return Finding("preemptions", "bad", {
        "count": count, "window": row - first + 1, "running": float(series.running[first:row + 1].max()),
        "lost_tokens": state.counters.lost_tokens, "total": state.counters.preemptions}, (), ranges(steps))


def waiting_for_blocks(series: StepSeries, row: int, state: EngineState) -> Finding | None:
    """The queue's head waits until blocks become free."""
    if not state.waiting or state.stopped_by not in ("no_free_blocks", "watermark"):
        return None
    # How long the queue has not been empty while nine tenths of the pool were held.
    first = max(0, row - 20 * WINDOW)
    usable = np.maximum(1, series.usable_blocks[first:row + 1])
    pressed = (series.waiting[first:row + 1] > 0) & (series.used_blocks[first:row + 1] / usable > 0.9)
    others = np.flatnonzero(~pressed)
    since = first + (int(others[-1]) + 1 if len(others) else 0)
    since = min(since, row)
    return Finding("waiting_for_blocks", "warning", {
        "waiting": len(state.waiting), "usage": state.kv_usage, "steps": row - since + 1,
        "running": len(state.running)}, (state.stopped_at,) if state.stopped_at else (),
        ((int(series.step[since]), int(series.step[row])),))


def waiting_for_seqs(series: StepSeries, row: int, state: EngineState) -> Finding | None:
    """Requests wait although blocks are free, because max_num_seqs run."""
    if not state.waiting or state.stopped_by != "max_num_seqs":
        return None
    step = int(series.step[row])
    return Finding("waiting_for_seqs", "warning", {
        "waiting": len(state.waiting), "running": len(state.running), "free": 1.0 - state.kv_usage}, (),
        ((step, step),))


def head_of_line(row: int, series: StepSeries, state: EngineState) -> Finding | None:
    """Without chunked prefill a long prompt blocks everybody behind it."""
    if not state.waiting or state.stopped_by != "chunked_prefill_off":
        return None
    step = int(series.step[row])
    return Finding("head_of_line", "warning", {"waiting": len(state.waiting)}, (state.stopped_at,), ((step, step),))


def budget_full(series: StepSeries, row: int) -> Finding | None:
    """At least half of the latest steps used their whole token budget."""
    first = max(0, row - WINDOW + 1)
    tokens = series.prefill_tokens[first:row + 1] + series.decode_tokens[first:row + 1]
    full = (tokens >= series.budget[first:row + 1]) & (tokens > 0)
    count, of = int(full.sum()), row - first + 1
    if of < 16 or count * 2 < of:
        return None
    steps = series.step[first + np.flatnonzero(full)]
    prefill = int(series.prefill_tokens[first:row + 1][full].sum()) / max(1, int(tokens[full].sum()))
    return Finding("budget_full", "warning", {"count": count, "of": of, "prefill": prefill}, (), ranges(steps))


def knob_effect(series: StepSeries, row: int) -> Finding | None:
    """What became of latency and throughput after the last knob change, once it has had time to show."""
    step = int(series.step[row])
    mark = series.marks.previous_before(step + 1, "knob")
    if mark is None or not WINDOW <= step - mark.step <= 5 * WINDOW:
        return None
    before = series.index_of(mark.step - 1)
    if before < 16:
        return None
    numbers = {"itl_before": float(series.itl_p99_ms[before]), "itl_now": float(series.itl_p99_ms[row]),
               "rate_before": float(series.tokens_per_s[before]), "rate_now": float(series.tokens_per_s[row])}
    if any(np.isnan(v) for v in numbers.values()):
        return None
    changes = [abs(numbers["itl_now"] / max(1e-9, numbers["itl_before"]) - 1),
               abs(numbers["rate_now"] / max(1e-9, numbers["rate_before"]) - 1)]
    if max(changes) < 0.1:
        return None
    return Finding("knob_effect", "info", numbers, (mark.label,), ((mark.step, mark.step),))


def prefix_cache(series: StepSeries, state: EngineState) -> Finding | None:
    """How much of the prompts the prefix cache has served so far."""
    queried, hit = state.counters.queried_tokens, state.counters.hit_tokens
    if queried < 500 or not state.knobs.get("enable_prefix_caching", True):
        return None
    share = hit / queried
    if 0.05 <= share < 0.2:
        return None
    last = series.marks.previous_before(state.step + 1, "hit")
    steps = ((last.step, last.step),) if last is not None else ()
    shared = [holders for holders in state.holders.values() if len(holders) > 1]
    numbers = {"share": share, "hit_tokens": hit, "shared_blocks": len(shared),
               "holders": max((len(h) for h in shared), default=0)}
    return Finding("cache_serves" if share >= 0.2 else "cache_idle", "good" if share >= 0.2 else "info", numbers, (),
                   steps)


def ranges(steps: np.ndarray, at_most: int = 2, gap: int = 4) -> tuple[tuple[int, int], ...]:
    """Ascending steps as the latest few (first, last) stretches; steps up to ``gap`` apart belong together."""
    if not len(steps):
        return ()
    breaks = np.flatnonzero(np.diff(steps) > gap)
    firsts = steps[np.append(0, breaks + 1)]
    lasts = steps[np.append(breaks, len(steps) - 1)]
    return tuple((int(a), int(b)) for a, b in zip(firsts[-at_most:], lasts[-at_most:], strict=True))
