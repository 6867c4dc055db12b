"""Decode steps as CUDA graphs: recorded once for a few batch sizes, then queued with one call instead of hundreds.

A smaller batch is padded to the next size. The captured work reads its inputs from fixed addresses and decides nothing
on the host, so what it is recorded for is all that a :class:`DecodeShape` says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from engine.gpu.device import Device, Graph

log = logging.getLogger(__name__)

Progress = Callable[[str, float | None], None]


def padded_size(requests: int) -> int:
    """The size that a batch of so many requests is padded to: 1, 2, 4, then multiples of 8, as in vLLM."""
    if requests <= 2:
        return requests
    return 4 if requests <= 4 else -(-requests // 8) * 8


def capture_sizes(max_num_seqs: int) -> list[int]:
    """The sizes that batches of 1 to ``max_num_seqs`` requests are padded to, ascending."""
    return sorted({padded_size(requests) for requests in range(1, max_num_seqs + 1)})


class DecodeShape(NamedTuple):
    """A batch of ``size`` single tokens; whether contexts are cut into parts that are attended to in parallel."""

    size: int
    split: bool


class DecodeGraphs:
    """The graphs of a forward pass. ``run`` queues a shape's work, reading inputs from where they lie."""

    def __init__(self, device: Device, run: Callable[[DecodeShape], None]) -> None:
        self._device = device
        self._run = run
        self._graphs: dict[DecodeShape, Graph] = {}
        self._pool: Any = None
        self._warm: set[DecodeShape] = set()  # their kernels are compiled and loaded
        self._impossible: set[DecodeShape] = set()

    @property
    def captured(self) -> list[DecodeShape]:
        """What there are graphs for, ascending."""
        return sorted(self._graphs)

    def play(self, shape: DecodeShape) -> str:
        """Queue the work of ``shape`` and say how: "graph N", "capture N" (the graph was made on the way) or "eager".

        A shape that is new, because more requests run than at the start, is run eagerly once, which loads its kernels,
        and captured when it comes again.
        """
        graph = self._graphs.get(shape)
        if graph is not None:
            graph.replay()
            return f"graph {shape.size}"
        if shape in self._warm and shape not in self._impossible:
            graph = self._capture(shape)
            if graph is not None:
                graph.replay()
                return f"capture {shape.size}"
        self.run_eagerly(shape)
        return "eager"

    def run_eagerly(self, shape: DecodeShape) -> None:
        """Queue the same work kernel by kernel: the same results, to the bit."""
        self._run(shape)
        self._warm.add(shape)

    def capture(self, shapes: Collection[DecodeShape], progress: Progress | None = None) -> None:
        """Make the graphs that are missing, the largest first: the smaller ones then fit into its memory.

        The inputs must be those of an empty batch.
        """
        missing = sorted(set(shapes) - self._graphs.keys() - self._impossible, reverse=True)
        for done, shape in enumerate(missing):
            if progress is not None:
                progress("Capturing CUDA graphs", done / len(missing))
            if shape not in self._warm:
                self.run_eagerly(shape)
            self._capture(shape)
        if missing and progress is not None:
            progress("Capturing CUDA graphs", 1.0)

    def clear(self) -> None:
        """Forget all graphs, because what they read or write is about to move."""
        # A pool cannot be used again once the last of its graphs is gone.
        self._graphs, self._pool = {}, None
        self._impossible.clear()

    def _capture(self, shape: DecodeShape) -> Graph | None:
        if self._pool is None:
            self._pool = self._device.new_graph_pool()
        try:
            graph = self._device.capture(lambda: self._run(shape), self._pool)
        except RuntimeError as problem:  # no memory is left, most likely: this shape runs eagerly
            log.warning("no CUDA graph for %d requests: %s", shape.size, problem)
            self._impossible.add(shape)
            if not self._graphs:  # it was the first: its memory cannot be used again, as in `clear`
                self._pool = None
            return None
        self._graphs[shape] = graph
        return graph
