"""Which step of one run belongs to which step of another: by number, by time, or by how far a request has come.

An :class:`Alignment` is a row of positions; each is a step in either run. Every step of both is at some position, but
for those outside the life of the request where that is what they are aligned by.
"""

from __future__ import annotations

import numpy as np

from engine.compare import RequestFigures
from engine.trace.source import RunSource


class Alignment:
    """``first`` and ``second`` hold the runs' steps, one entry a position; both ascend.

    ``times`` are run-clock nanoseconds, one a position, where that is what the runs are aligned by.
    """

    def __init__(self, first: np.ndarray, second: np.ndarray, times: np.ndarray | None = None) -> None:
        self.first = first
        self.second = second
        self.times = times

    def __len__(self) -> int:
        return len(self.first)

    def steps(self, position: int) -> tuple[int, int]:
        """The steps at a position; beyond the ends it is the nearest one. (-1, -1) when there is none at all."""
        if not len(self.first):
            return -1, -1
        at = max(0, min(position, len(self.first) - 1))
        return int(self.first[at]), int(self.second[at])

    def position_of(self, step: int) -> int:
        """The first position at which the first run is at ``step`` or later."""
        return min(int(np.searchsorted(self.first, step)), max(0, len(self.first) - 1))


def by_step(first: RunSource, second: RunSource) -> Alignment:
    """Steps of the same number; when a run is over it stays at its last step."""
    low = max(0, min(first.first_step, second.first_step))
    numbers = np.arange(low, max(first.last_step, second.last_step) + 1)
    return Alignment(*(np.clip(numbers, max(0, run.first_step), max(0, run.last_step)) for run in (first, second)))


def by_time(first: RunSource, second: RunSource) -> Alignment:
    """Steps that were the latest to be over at the same time of the runs' clocks."""
    times = np.union1d(first.series.end_ns, second.series.end_ns)
    return Alignment(_steps_at(first, times), _steps_at(second, times), times)


def _steps_at(run: RunSource, times: np.ndarray) -> np.ndarray:
    series = run.series
    if not series.n:
        return np.full(len(times), -1, np.int32)
    return series.step[np.clip(np.searchsorted(series.end_ns, times, "right") - 1, 0, series.n - 1)]


def by_request(first: RunSource, second: RunSource, one: RequestFigures, other: RequestFigures) -> Alignment:
    """Steps at which a request had come equally far: its tokens computed, recomputing after a preemption not counted.

    ``one`` is the request in the first run, ``other`` in the second. From its arrival to its end.
    """
    (steps_a, done_a), (steps_b, done_b) = progress_of(first, one), progress_of(second, other)
    marks = np.union1d(done_a, done_b)
    return Alignment(*(steps[np.minimum(np.searchsorted(done, marks), len(steps) - 1)]
                       for steps, done in ((steps_a, done_a), (steps_b, done_b))))


def progress_of(run: RunSource, request: RequestFigures) -> tuple[np.ndarray, np.ndarray]:
    """The steps in which a request got further than ever before, and how many of its tokens were computed by then.

    Both ascend; the first entry is its arrival, with 0.
    """
    steps, done = [request.arrival_step], [0]
    last = request.finished_step if request.finished_step >= 0 else run.last_step
    for step in range(request.arrival_step, last + 1):
        for share in run.events(step).scheduled:
            if share.request_id == request.request_id:
                reached = share.num_computed_tokens + share.num_tokens
                if reached > done[-1]:
                    steps.append(step)
                    done.append(reached)
    return np.asarray(steps, np.int64), np.asarray(done, np.int64)
