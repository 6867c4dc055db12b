"""Two runs side by side: what differs, for better or worse, and which step of one belongs to which of the other.

Everything is computed from the two :class:`~engine.trace.source.RunSource`; a run that still grows is taken in bit by
bit (:meth:`Comparison.update`). Percentiles are nearest-rank, as everywhere.
"""

from __future__ import annotations

import math
import time
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from engine.decisions import Divergence, first_divergence
from engine.trace.events import StepEvents
from engine.trace.knobs import KNOBS, KnobValue
from engine.trace.metrics import nearest_rank
from engine.trace.source import Notice, RunSource

NAN = float("nan")
SAME_WITHIN = 0.005
"""A change of less than this share is none: clocks and machines are no steadier."""

MANIFOLD = 4.0
"""A change beyond this share is told in times: "24 times as high" says more than "higher by 2301%"."""

Better = Literal["lower", "higher", ""]

METRICS: dict[str, tuple[str, Better]] = {
    "ttft_p50_ms": ("ms", "lower"), "ttft_p99_ms": ("ms", "lower"),
    "itl_p50_ms": ("ms", "lower"), "itl_p99_ms": ("ms", "lower"),
    "output_tokens_per_s": ("tok/s", "higher"), "seconds": ("s", ""), "steps": ("", ""),
    "budget_use": ("%", ""), "kv_use": ("%", ""), "kv_use_max": ("%", ""),
    "hit_tokens": ("tokens", "higher"), "preemptions": ("", "lower"), "evictions": ("blocks", "lower"),
}
"""What is compared of two runs: the unit, and which direction is better ("": neither)."""

COUNTS = ("steps", "hit_tokens", "preemptions", "evictions")


@dataclass(slots=True)
class RequestFigures:
    """One request of a run; run-clock nanoseconds, -1 for what has not happened."""

    request_id: str
    prompt_tokens: int
    prompt_key: int
    arrival_ns: int
    arrival_step: int
    first_token_ns: int = -1
    last_token_ns: int = -1
    finished_ns: int = -1
    finished_step: int = -1
    output_tokens: int = 0
    preemptions: int = 0
    hit_tokens: int = 0

    @property
    def ttft_ms(self) -> float:
        return (self.first_token_ns - self.arrival_ns) / 1e6 if self.first_token_ns >= 0 else NAN

    @property
    def itl_ms(self) -> float:
        """The mean time between its tokens (TPOT)."""
        if self.output_tokens < 2:
            return NAN
        return (self.last_token_ns - self.first_token_ns) / 1e6 / (self.output_tokens - 1)

    @property
    def e2e_ms(self) -> float:
        return (self.finished_ns - self.arrival_ns) / 1e6 if self.finished_ns >= 0 else NAN


class RunFigures:
    """Every request of a run, gathered from its events, as far as :meth:`update` has come.

    Without ``prompts`` nobody looks at what prompts say: another run that this is held against does not tell.
    """

    def __init__(self, source: RunSource, prompts: bool = True) -> None:
        self.source = source
        self._prompts = prompts
        self.requests: dict[str, RequestFigures] = {}
        self._next = max(0, source.first_step)

    def update(self, budget_s: float = math.inf) -> bool:
        """Take in steps that are new, for so long at most; True when there are no more just now."""
        until = time.perf_counter() + budget_s
        source = self.source
        self._next = max(self._next, source.first_step)
        while self._next <= source.last_step:
            self._take(source.events(self._next))
            self._next += 1
            if self._next % 16 == 0 and time.perf_counter() > until:
                return False
        return True

    @property
    def share(self) -> float:
        """How much of the run has been taken in."""
        first, last = self.source.first_step, self.source.last_step
        return (self._next - first) / (last - first + 1) if last >= 0 else 1.0

    def _take(self, events: StepEvents) -> None:
        known = self.requests
        for a in events.arrived:
            key = zlib.crc32(np.asarray(a.prompt_token_ids, np.int64).tobytes()) if self._prompts else 0
            known[a.request_id] = RequestFigures(a.request_id, len(a.prompt_token_ids), key, a.arrival_ns, events.step)
        for victim in events.preempted:
            if victim.request_id in known:
                known[victim.request_id].preemptions += 1
        for share in events.scheduled:
            if share.hit_tokens and share.request_id in known:
                known[share.request_id].hit_tokens += share.hit_tokens
        for sampled in events.sampled:
            request = known.get(sampled.request_id)
            if request is None:  # it was there before the recording began
                continue
            if request.first_token_ns < 0:
                request.first_token_ns = events.end_ns
            request.last_token_ns = events.end_ns
            request.output_tokens += 1
        for gone in (*events.aborted, *events.finished):
            if gone.request_id in known:
                request = known[gone.request_id]
                request.finished_ns, request.finished_step = events.end_ns, events.step


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of both runs. ``verdict`` is "better", "worse" or ""; NaN where a run has nothing of it."""

    metric: str
    unit: str
    first: float
    second: float

    @property
    def relative(self) -> float:
        """The change as a share of the first; NaN if that is 0 or unknown."""
        return (self.second - self.first) / self.first if self.first else NAN

    @property
    def direction(self) -> Literal["lower", "higher", "same", "unknown"]:
        if math.isnan(self.first) or math.isnan(self.second):
            return "unknown"
        within = 0.0 if self.metric in COUNTS else SAME_WITHIN * max(abs(self.first), abs(self.second))
        if abs(self.second - self.first) <= within:
            return "same"
        return "lower" if self.second < self.first else "higher"

    @property
    def verdict(self) -> Literal["better", "worse", ""]:
        wanted = METRICS[self.metric][1] if self.metric in METRICS else ""
        if not wanted or self.direction in ("same", "unknown"):
            return ""
        return "better" if self.direction == wanted else "worse"

    def words(self) -> str:
        """The change and its direction, for people (a :class:`Notice`)."""
        if self.direction == "unknown":
            return Notice("not measured in both")
        if self.direction == "same":
            return Notice("unchanged")
        difference = abs(self.second - self.first)
        if self.metric in COUNTS and (not self.first or difference < 100):
            amount = f"{difference:,.0f}"
        elif self.unit == "%" or not self.first:
            amount = f"{difference:.1f}"
        elif self.relative >= MANIFOLD:
            return self._judged(Notice("{times} times as high", times=f"{1 + self.relative:,.0f}"))
        else:
            share = abs(self.relative)
            amount = f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
        change = (Notice("lower by {amount}", amount=amount) if self.direction == "lower" else
                  Notice("higher by {amount}", amount=amount))
        if self.unit == "%":
            change = (Notice("lower by {amount} points", amount=amount) if self.direction == "lower" else
                      Notice("higher by {amount} points", amount=amount))
        return self._judged(change)

    def _judged(self, change: Notice) -> Notice:
        if self.verdict == "better":
            return Notice("{change}: better", change=change)
        return Notice("{change}: worse", change=change) if self.verdict == "worse" else change


@dataclass(frozen=True, slots=True)
class RequestDelta:
    """The same request in both runs."""

    first: RequestFigures
    second: RequestFigures

    def change(self, what: Literal["ttft_ms", "itl_ms", "e2e_ms"]) -> float:
        """Milliseconds that it takes longer in the second run; NaN where one has not measured it."""
        return float(getattr(self.second, what) - getattr(self.first, what))


def run_metrics(source: RunSource) -> dict[str, float]:
    """The figures of :data:`METRICS` for a whole run. Shares are percentages, over the steps that did anything."""
    series = source.series
    ttft, itl = nearest_rank(series.ttft_ns, 50, 99), nearest_rank(series.itl_ns, 50, 99)
    tokens = series.decode_tokens + series.prefill_tokens
    busy = tokens > 0
    seconds = (int(series.end_ns[-1]) - int(series.start_ns[0])) / 1e9 if series.n else NAN
    any_busy = bool(busy.any())
    kv = 100 * series.used_blocks[busy] / np.maximum(1, series.usable_blocks[busy])
    return {
        "ttft_p50_ms": ttft[0] / 1e6, "ttft_p99_ms": ttft[1] / 1e6, "itl_p50_ms": itl[0] / 1e6,
        "itl_p99_ms": itl[1] / 1e6,
        "output_tokens_per_s": float(series.output_tokens.sum()) / seconds if seconds > 0 else NAN,
        "seconds": seconds, "steps": float(series.n),
        "budget_use": float((100 * tokens[busy] / np.maximum(1, series.budget[busy])).mean()) if any_busy else NAN,
        "kv_use": float(kv.mean()) if any_busy else NAN, "kv_use_max": float(kv.max()) if any_busy else NAN,
        "hit_tokens": float(series.hit_tokens.sum()), "preemptions": float(series.preemptions.sum()),
        "evictions": float(series.evictions.sum()),
    }


class Comparison:
    """Two runs. :meth:`update` gathers what the requests need; the rest is computed when asked for."""

    def __init__(self, first: RunSource, second: RunSource) -> None:
        self.first, self.second = first, second
        self._prompts = first.info.prompt_text and second.info.prompt_text
        self.figures = RunFigures(first, self._prompts), RunFigures(second, self._prompts)

    def update(self, budget_s: float = math.inf) -> bool:
        """Take in what is new of both runs; True when there is no more just now."""
        done = [figures.update(budget_s / 2) for figures in self.figures]
        return all(done)

    @property
    def share(self) -> float:
        return sum(figures.share for figures in self.figures) / 2

    def changes(self) -> list[Change]:
        """Every figure of :data:`METRICS`, in that order."""
        first, second = run_metrics(self.first), run_metrics(self.second)
        return [Change(name, unit, first[name], second[name]) for name, (unit, _) in METRICS.items()]

    def knobs(self) -> list[tuple[str, KnobValue | None, KnobValue | None]]:
        """The knobs that differed at the start: name, value in the first, value in the second.

        A run that does not know a knob, because of its device or its age, ran as with the knob's default.
        """
        first, second = self.first.info.knobs, self.second.info.knobs
        found = []
        for name in {**first, **second}:
            default = KNOBS[name].default if name in KNOBS else None
            mine, theirs = first.get(name, default), second.get(name, default)
            if mine != theirs:
                found.append((name, mine, theirs))
        return found

    def deltas(self) -> list[RequestDelta]:
        """The requests that are in both runs, in the first one's order: by name and prompt, else by prompt alone.

        Where a run does not tell its prompts, by name and length.
        """
        mine, theirs = (figures.requests for figures in self.figures)
        pairs: dict[str, RequestFigures] = {}
        for request_id, request in mine.items():
            other = theirs.get(request_id)
            if other is not None and _same_prompt(request, other):
                pairs[request_id] = other
        taken = {other.request_id for other in pairs.values()}
        by_prompt: dict[tuple[int, int], list[RequestFigures]] = {}
        for other in theirs.values():
            if other.request_id not in taken and self._prompts:
                by_prompt.setdefault((other.prompt_tokens, other.prompt_key), []).append(other)
        for request_id, request in mine.items():
            alike = by_prompt.get((request.prompt_tokens, request.prompt_key))
            if request_id not in pairs and alike:
                pairs[request_id] = alike.pop(0)
        return [RequestDelta(request, pairs[request_id]) for request_id, request in mine.items() if request_id in pairs]

    def alone(self) -> tuple[int, int]:
        """How many requests only the first run has, and only the second."""
        both = len(self.deltas())
        return len(self.figures[0].requests) - both, len(self.figures[1].requests) - both

    def divergence(self) -> Divergence | None:
        """Where the second run first decides otherwise than the first; None if it decides everything alike."""
        second = self.second
        return first_divergence(self.first, (second.events(step) for step in range(max(0, second.first_step),
                                                                                   second.last_step + 1)),
                                prompts=self._prompts)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON: NaN is None."""
        def number(value: float) -> float | None:
            return None if math.isnan(value) else round(value, 4)

        only_first, only_second = self.alone()
        parted = self.divergence()
        return {
            "first_different_decision": {"step": parted.step, "what": parted.field} if parted else None,
            "knobs": {name: [a, b] for name, a, b in self.knobs()},
            "changes": {c.metric: {"first": number(c.first), "second": number(c.second),
                                   "relative": number(c.relative), "direction": c.direction, "verdict": c.verdict,
                                   "words": str(c.words())} for c in self.changes()},
            "requests_in_both": len(self.deltas()), "only_in_first": only_first, "only_in_second": only_second,
            "requests": [{
                "first": d.first.request_id, "second": d.second.request_id, "prompt_tokens": d.first.prompt_tokens,
                "output_tokens": [d.first.output_tokens, d.second.output_tokens],
                "preemptions": [d.first.preemptions, d.second.preemptions],
                "hit_tokens": [d.first.hit_tokens, d.second.hit_tokens],
                **{f"{what}_change": number(d.change(what)) for what in ("ttft_ms", "itl_ms", "e2e_ms")},
            } for d in self.deltas()],
        }


def _same_prompt(first: RequestFigures, second: RequestFigures) -> bool:
    return (first.prompt_tokens, first.prompt_key) == (second.prompt_tokens, second.prompt_key)
