"""What is worth finding on a time axis."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from engine.trace.columns import Table

MARK_KINDS = ("knob", "preemption", "hit", "eviction", "chunk", "finish", "refused")


class Mark(NamedTuple):
    """Something worth finding on a time axis.

    ``label`` is data, not prose: ``name old → new`` for a knob, the number of blocks for an eviction, the request
    for all other kinds. Aborted requests are marked as "finish" too.
    """

    step: int
    kind: str
    label: str


class MarkList(Sequence[Mark]):
    """The marks in order of their steps, kept in columns. ``steps`` and ``kinds`` (indices into :data:`MARK_KINDS`)
    are arrays for those who count or search instead of reading each one. Older labels may be on the disk."""

    def __init__(self) -> None:
        self._table = Table(step=np.int32, kind=np.uint8)
        self._labels: list[str] = []  # the newest ones
        self._labels_from = 0  # the place of the first of them, counted from the beginning of the run
        self._ends: list[int] = []  # of the blocks of labels that were put away
        self._loads: list[Callable[[], list[str]]] = []

    def add(self, step: int, kind: str, label: str) -> None:
        at = self._table.reserve()
        self._table.columns["step"][at] = step
        self._table.columns["kind"][at] = MARK_KINDS.index(kind)
        self._labels.append(label)

    @property
    def steps(self) -> np.ndarray:
        return self._table.view("step")

    @property
    def kinds(self) -> np.ndarray:
        return self._table.view("kind")

    def next_after(self, step: int, kind: str | None = None) -> Mark | None:
        """The first mark later than ``step``, of one kind or of any."""
        start = int(np.searchsorted(self.steps, step, "right"))
        if kind is None:
            return self[start] if start < len(self) else None
        found = np.flatnonzero(self.kinds[start:] == MARK_KINDS.index(kind))
        return self[start + int(found[0])] if len(found) else None

    def previous_before(self, step: int, kind: str | None = None) -> Mark | None:
        """The last mark earlier than ``step``, of one kind or of any."""
        end = int(np.searchsorted(self.steps, step, "left"))
        if kind is None:
            return self[end - 1] if end else None
        found = np.flatnonzero(self.kinds[:end] == MARK_KINDS.index(kind))
        return self[int(found[-1])] if len(found) else None

    def between(self, first_step: int, last_step: int) -> list[Mark]:
        """Marks of steps ``first_step`` to ``last_step``, inclusive."""
        start, end = np.searchsorted(self.steps, (first_step, last_step + 1))
        return [self[i] for i in range(int(start), int(end))]

    def drop_before(self, step: int) -> None:
        self._table.drop(int(np.searchsorted(self.steps, step)))
        place = self._table.dropped
        if place > self._labels_from:
            del self._labels[:place - self._labels_from]
            self._labels_from = place

    def put_away(self, end: int, load: Callable[[], list[str]]) -> None:
        """Labels before the place ``end`` that are in memory can be had from ``load`` from now on."""
        self._ends.append(end)
        self._loads.append(load)
        del self._labels[:end - self._labels_from]
        self._labels_from = end

    def add_put_away(self, steps: np.ndarray, kinds: np.ndarray, load: Callable[[], list[str]]) -> None:
        """The same for a block of marks that never was in memory; before the first :meth:`add`."""
        at = self._table.reserve(len(steps))
        self._table.columns["step"][at:at + len(steps)] = steps
        self._table.columns["kind"][at:at + len(steps)] = kinds
        self.put_away(len(self._table), load)

    @property
    def num_dropped(self) -> int:
        """How many marks were dropped at the front."""
        return self._table.dropped

    def _label(self, place: int) -> str:
        if place >= self._labels_from:
            return self._labels[place - self._labels_from]
        block = bisect_right(self._ends, place)
        labels = self._loads[block]()
        place -= self._ends[block]  # from the end: the beginning of the first block may be forgotten
        return labels[place] if -len(labels) <= place else ""

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> Mark: ...

    @overload
    def __getitem__(self, index: slice) -> list[Mark]: ...

    def __getitem__(self, index: int | slice) -> Mark | list[Mark]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Mark(int(self.steps[index]), MARK_KINDS[self.kinds[index]], self._label(
            self._table.dropped + range(len(self))[index]))

    def __iter__(self) -> Iterator[Mark]:
        for place, (step, kind) in enumerate(zip(self.steps.tolist(), self.kinds.tolist(), strict=True),
                                             self._table.dropped):
            yield Mark(step, MARK_KINDS[kind], self._label(place))
