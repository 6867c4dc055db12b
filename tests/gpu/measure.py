"""Times on the device, and the two ceilings that everything else is a share of."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

COPY_BYTES = 2 << 30
MATRIX = 8192


class Meter:
    """Measures on ``device``, "cuda" or "cpu".

    ``bandwidth`` (bytes a second, of a copy, read and written together) and ``products`` (floating-point operations
    a second of a bf16 matrix product) are measured by :meth:`measure_ceilings`; None until then, and on the CPU, where
    shares of them would mean nothing.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.on_gpu = device == "cuda"
        self.bandwidth: float | None = None
        self.products: float | None = None
        self._flush: torch.Tensor | None = None

    def measure_ceilings(self) -> None:
        if self.on_gpu:
            self.bandwidth = self._measure_copy()
            self.products = self._measure_product()
            torch.cuda.empty_cache()

    def _measure_copy(self) -> float:
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        return 2 * COPY_BYTES / self.time(lambda: target.copy_(source), repeats=20)

    def _measure_product(self) -> float:
        # Of random numbers: zeros take less power, and so less time.
        a, b = (torch.randn(MATRIX, MATRIX, device="cuda").bfloat16() for _ in range(2))
        return 2 * MATRIX**3 / self.time(lambda: a @ b, repeats=20)

    def time(self, work: Callable[[], object], repeats: int = 30) -> float:
        """Seconds that ``work`` takes, the median of ``repeats``, with nothing of it in the L2 cache.

        Its launches go into a CUDA graph first, so that what is measured is the device and not Python. On the CPU
        it runs once.
        """
        if not self.on_gpu:
            return self.wall(work)
        for _ in range(2):
            work()
        torch.cuda.synchronize()
        replay = _captured(work)
        flush = self._flushing_buffer()
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        for begin, end in events:
            # Takes the device longer than the host needs for the four calls. It reads: what is written would still have
            # to be brought from the cache to memory, in the time of the work.
            flush.sum()
            begin.record()
            replay()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1e3

    def time_in_a_row(self, work: Callable[[], object], repeats: int = 20) -> float:
        """Seconds for each of ``repeats`` calls that follow one another without a pause; nothing is flushed."""
        if not self.on_gpu:
            return self.wall(work)
        work()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / repeats

    def wall(self, work: Callable[[], object], repeats: int = 20) -> float:
        """Seconds on the wall clock, the median, for ``work`` that waits for its own result."""
        taken = []
        for _ in range(repeats if self.on_gpu else 1):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    def share_of_bandwidth(self, moved: float, seconds: float) -> float | None:
        return moved / seconds / self.bandwidth if self.bandwidth else None

    def share_of_products(self, operations: float, seconds: float) -> float | None:
        return operations / seconds / self.products if self.products else None

    def free_memory(self) -> int:
        """Bytes that can be had on the device; without one, so many that nothing tiny fails."""
        gc.collect()  # runners, graphs and engines refer to one another
        if not self.on_gpu:
            return 1 << 34
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def _flushing_buffer(self) -> torch.Tensor:
        if self._flush is None:
            properties = torch.cuda.get_device_properties("cuda")
            size = max(256 << 20, 3 * getattr(properties, "L2_cache_size", 0))
            self._flush = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
        return self._flush


def _captured(work: Callable[[], object]) -> Callable[[], Any]:
    """``work`` as a CUDA graph; as it is if it cannot be captured."""
    with suppress(RuntimeError):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay
    torch.cuda.synchronize()
    return work
