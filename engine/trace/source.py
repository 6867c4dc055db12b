"""Where a run comes from, for everything that only wants to look at it: live, from a file, later also compared."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from engine.trace.events import RunInfo, StepEvents
from engine.trace.metrics import StepSeries
from engine.trace.state import EngineState, Snapshot
from engine.trace.timeline import Timeline

SNAPSHOT_INTERVAL = 128
"""Steps from one kept snapshot to the next: reaching any step takes at most this many applications of events."""

WAYPOINT_INTERVAL = 32
WAYPOINTS_KEPT = 16
PAGES_KEPT = 6


class Notice(str):
    """A message for people that can be translated: the text itself is English.

    ``template`` is the text before ``values`` were put in: ``translate(notice.template).format(**notice.values)``.
    """

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Notice:
        notice = super().__new__(cls, template.format(**values))
        notice.template = template
        notice.values = values
        return notice


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage is collected meanwhile: for work that makes much at once, and nothing that refers to itself.

    Else one seek in a hundred takes three times as long as the others.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@runtime_checkable
class RunSource(Protocol):
    """A run, from ``first_step`` to ``last_step`` (both inclusive, both -1 when there is no step yet).

    ``complete`` is False when something of the run is missing, and ``warnings`` then says what, for people.
    ``series`` and ``timeline`` cover the whole run so far.
    """

    info: RunInfo
    complete: bool
    warnings: list[str]
    series: StepSeries
    timeline: Timeline

    @property
    def first_step(self) -> int: ...

    @property
    def last_step(self) -> int: ...

    def events(self, step: int) -> StepEvents:
        """What happened in ``step``: not to be changed. Raises IndexError outside ``first_step .. last_step``."""
        ...

    def state_at(self, step: int) -> EngineState:
        """The engine after ``step``: a state of the caller's own, to keep and to advance.

        ``first_step - 1`` is allowed and gives the engine before the first step. Raises IndexError beyond that.
        """
        ...

    @property
    def checked(self) -> bool:
        """Whether nothing is left for :meth:`check` to look at."""
        ...

    def check(self, stop: Callable[[], bool], *, thorough: bool = False) -> None:
        """Look for damage where nobody has looked yet, until ``stop`` says so; ``warnings`` grow by what is found.

        For a thread of its own, if need be. ``thorough`` looks also at what takes long, or is not surely damage.
        """
        ...

    def close(self) -> None: ...


class Page(Protocol):
    """The steps of a page."""

    def __getitem__(self, index: int, /) -> StepEvents: ...


class PagedRun:
    """The part that all sources share: steps that are kept in pages, and states reached from snapshots.

    A subclass says where pages and snapshots are, and keeps ``_first``, ``_last`` and ``_snapshot_steps`` (ascending,
    the first one is ``_first - 1``) up to date. Decoded pages are cached, and so are states on the way from a snapshot
    to the step asked for, so that stepping back is as quick as stepping forwards.
    """

    def __init__(self, info: RunInfo) -> None:
        self.info = info
        self.complete = True
        self.checked = True
        self.warnings: list[str] = []
        self.series = StepSeries()
        self.timeline = Timeline()
        self._first = -1
        self._last = -1
        self._snapshot_steps: list[int] = []
        self._pages: OrderedDict[int, tuple[int, Page]] = OrderedDict()
        self._waypoints: OrderedDict[int, Snapshot] = OrderedDict()

    def _page_of(self, step: int) -> int:
        """The number of the page that holds ``step``."""
        raise NotImplementedError

    def _load_page(self, page: int) -> tuple[int, Page]:
        """Its first step, and its steps."""
        raise NotImplementedError

    def _load_snapshot(self, index: int) -> Snapshot:
        """The snapshot of step ``_snapshot_steps[index]``."""
        raise NotImplementedError

    @property
    def first_step(self) -> int:
        return self._first

    @property
    def last_step(self) -> int:
        return self._last

    def events(self, step: int) -> StepEvents:
        if self._first < 0 or not self._first <= step <= self._last:
            raise self._no_such(step)
        self.timeline.look_at(step)
        number = self._page_of(step)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = self._load_page(number)
            if len(self._pages) > PAGES_KEPT:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(number)
        first, steps = page
        return steps[step - first]

    def state_at(self, step: int) -> EngineState:
        if not self._snapshot_steps[0] <= step <= max(self._last, self._snapshot_steps[0]):
            raise self._no_such(step)
        with collector_paused():
            state = self._reach(step)
        self.timeline.look_at(step)
        return state

    def _reach(self, step: int) -> EngineState:
        nearest = bisect_right(self._snapshot_steps, step) - 1
        start = self._snapshot_steps[nearest]
        for at in range(step - step % WAYPOINT_INTERVAL, start, -WAYPOINT_INTERVAL):
            waypoint = self._waypoints.get(at)
            if waypoint is not None:
                self._waypoints.move_to_end(at)
                start = at
                state = EngineState.from_snapshot(self.info, waypoint)
                break
        else:
            state = EngineState.from_snapshot(self.info, self._load_snapshot(nearest), copy=False)
        for following in range(start + 1, step + 1):
            state.apply(self.events(following))
            if following % WAYPOINT_INTERVAL == 0 and step - following < WAYPOINT_INTERVAL:
                self._waypoints[following] = state.snapshot()
                if len(self._waypoints) > WAYPOINTS_KEPT:
                    self._waypoints.popitem(last=False)
        return state

    def _no_such(self, step: int) -> IndexError:
        return IndexError(f"there is no step {step}: the run has steps {self._first} to {self._last}")

    def check(self, stop: Callable[[], bool], *, thorough: bool = False) -> None:
        """What is made here is not damaged."""

    def close(self) -> None:
        """Nothing to let go of."""
