"""Columns that grow, and columns of which the older part is on the disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np


class Table:
    """Columns of one length that grow at the end and can be dropped from the front, both in amortised O(1)."""

    def __init__(self, capacity: int = 256, **dtypes: Any) -> None:
        self.columns = {name: np.empty(capacity, dtype) for name, dtype in dtypes.items()}
        self.capacity = capacity
        self.low = 0
        self.high = 0
        self.dropped = 0  # rows that ever left at the front

    def __len__(self) -> int:
        return self.high - self.low

    def reserve(self, count: int = 1) -> int:
        """Make room for ``count`` rows at the end; returns where the first of them is in the columns."""
        start = self.high
        if start + count > self.capacity:
            start = self._move(count)
        self.high = start + count
        return start

    def _move(self, count: int) -> int:
        """Shift everything to the front, into larger arrays unless half of the room is unused."""
        length = len(self)
        if 2 * (length + count) > self.capacity:
            self.capacity = max(length + count, self.capacity + max(256, self.capacity // 4))
        for name, old in self.columns.items():
            new = np.empty(self.capacity, old.dtype)
            new[:length] = old[self.low:self.high]
            self.columns[name] = new
        self.low, self.high = 0, length
        return length

    def drop(self, count: int) -> None:
        self.low += count
        self.dropped += count

    def view(self, name: str) -> np.ndarray:
        return self.columns[name][self.low:self.high]


class PagedColumn:
    """One column of which the older part was put away, block by block, and is read back when it is asked for.

    Places count from the beginning of the run and never change. ``load`` gives a block's part by its number; the
    newest part is in memory.
    """

    def __init__(self, dtype: Any) -> None:
        self.hot = Table(values=dtype)
        self.first = 0  # the first place that can be had
        self._ends: list[int] = []  # of the blocks that were put away
        self._loads: list[Callable[[], np.ndarray]] = []
        self._base = 0  # where the first of them begins

    @property
    def end(self) -> int:
        return self.hot.dropped + len(self.hot)

    def extend(self, values: list[int] | np.ndarray) -> None:
        at = self.hot.reserve(len(values))
        self.hot.columns["values"][at:at + len(values)] = values

    def put_away(self, end: int, load: Callable[[], np.ndarray]) -> None:
        """What comes before ``end`` and is still in memory can be had from ``load`` from now on."""
        if not self._ends:
            self._base = self.hot.dropped
        self._ends.append(end)
        self._loads.append(load)
        self.hot.drop(end - self.hot.dropped)

    def add_put_away(self, end: int, load: Callable[[], np.ndarray]) -> None:
        """The same for what never was in memory: it comes before everything that is."""
        self._ends.append(end)
        self._loads.append(load)
        self.hot.dropped = end

    def forget_before(self, place: int) -> None:
        place = max(place, self.first)
        while self._ends and self._ends[0] <= place:
            self._base = self._ends.pop(0)
            del self._loads[0]
        if place > self.hot.dropped:
            self.hot.drop(place - self.hot.dropped)
        self.first = place

    def between(self, start: int, end: int) -> np.ndarray:
        """The values at places ``start`` to ``end - 1``."""
        hot = self.hot
        if start >= hot.dropped:
            return hot.view("values")[start - hot.dropped:end - hot.dropped]
        parts = []
        block = bisect_right(self._ends, start)
        while block < len(self._ends) and start < end:
            began = self._ends[block - 1] if block else self._base
            stop = min(end, self._ends[block])
            parts.append(self._loads[block]()[start - began:stop - began])
            start = stop
            block += 1
        if start < end:
            parts.append(hot.view("values")[:end - hot.dropped])
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else hot.view("values")[:0]
