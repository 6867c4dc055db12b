"""The block tables of the requests, laid out: which rows there is room for, and which blocks stand in each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.trace.state import EngineState, RequestView

NOTHING, MORE = -1, -2
"""What stands in a place of a row instead of a block's number: nothing, or the mark for blocks left out."""


@dataclass(slots=True)
class Rows:
    """Requests from number ``first`` of ``total`` on, one a row.

    ``blocks`` int32[rows, columns] holds block numbers, :data:`NOTHING` or :data:`MORE`: a table that is longer than
    its row shows its head and its tail. ``more`` int64[rows] is the column of that mark, -1 if there is none.
    """

    requests: list[RequestView] = field(default_factory=list)
    first: int = 0
    total: int = 0
    blocks: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.int32))
    more: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def lay_out(cls, state: EngineState, first: int, rows: int, columns: int) -> Rows:
        """Running requests first, then those that wait; ``first`` is pulled back so that no room is left unused."""
        names = [*state.running, *state.waiting]
        first = max(0, min(first, len(names) - rows))
        shown = [state.requests[name] for name in names[first:first + rows]]
        blocks = np.full((len(shown), max(1, columns)), NOTHING, np.int32)
        for row, request in zip(blocks, shown, strict=True):
            fill_row(row, request.blocks)
        marks = blocks == MORE
        return cls(shown, first, len(names), blocks, np.where(marks.any(1), marks.argmax(1), -1))

    def row_of(self, request_id: str | None) -> int:
        """The row of a request, -1 if it has none."""
        return next((i for i, request in enumerate(self.requests) if request.request_id == request_id), -1)

    def places_of(self, block: int) -> list[tuple[int, int]]:
        """Row and column of every place where a block stands."""
        return [(int(row), int(column)) for row, column in np.argwhere(self.blocks == block)]


def fill_row(row: np.ndarray, table: list[int]) -> None:
    """Put a block table into ``row`` int32[columns]; two thirds of a long one are its head, the rest its tail."""
    columns, length = len(row), len(table)
    if length <= columns:
        row[:length] = table
        return
    tail = max(1, (columns - 1) // 3)
    head = columns - 1 - tail
    if head > 0:
        row[:head] = table[:head]
        row[head] = MORE
    row[head + 1:] = table[length - (columns - head - 1):]
