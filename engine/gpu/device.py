"""What the engine asks of CUDA, and the same on the CPU, where Triton's interpreter runs the kernels.

Everything that only a GPU can do lies behind :class:`Device`, so that all that is built upon it runs without one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``free`` and ``total`` are the whole device's, whoever uses it; ``reserved`` of that is torch's, and
    ``allocated`` of this is in tensors. ``peak`` is the most that was allocated since :meth:`Device.reset_peak`.
    """

    free: int
    total: int
    reserved: int
    allocated: int
    peak: int


class Event(Protocol):
    """A mark in the device's queue of work."""

    def record(self) -> None:
        """Put the mark behind everything that is queued now."""

    def query(self) -> bool:
        """Whether the device has come past it; True if it was never put."""

    def synchronize(self) -> None:
        """Wait until it has."""


class Mark(Protocol):
    """A place in the device's queue of work, and the time at which the device comes to it."""

    def ns_until(self, later: Mark) -> int:
        """Nanoseconds from this mark to a later one; the device must have passed both."""


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Queue all of it, on the same addresses as when it was recorded."""


class Device(Protocol):
    """``name`` is torch's, "cuda" or "cpu"; ``processors`` how many multiprocessors there are."""

    name: str
    processors: int

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory, uint8[nbytes], from and to which copies run while the host goes on."""

    def event(self) -> Event: ...

    def mark(self) -> Mark:
        """Put a mark behind everything that is queued now."""

    def synchronize(self) -> None:
        """Wait for everything that is queued."""

    def new_graph_pool(self) -> Any:
        """Memory for the intermediate results of graphs that are never played at the same time."""

    def capture(self, function: Callable[[], None], pool: Any) -> Graph:
        """Record what ``function`` queues, without running it. What it calls must have run before.

        Raises RuntimeError where that fails, most likely torch.OutOfMemoryError.
        """

    def memory(self) -> Memory: ...

    def reset_peak(self) -> None: ...

    def release(self) -> None:
        """Give back to the device what torch has reserved and no tensor uses."""


class CudaDevice:
    """The current CUDA device. Use it from one thread, the one that runs the model."""

    name = "cuda"

    def __init__(self) -> None:
        self.processors = torch.cuda.get_device_properties("cuda").multi_processor_count
        self._capture_stream: torch.cuda.Stream | None = None

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def event(self) -> Event:
        return torch.cuda.Event()

    def mark(self) -> Mark:
        return _CudaMark()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def new_graph_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None], pool: Any) -> Graph:
        if self._capture_stream is None:
            self._capture_stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        stream, collects = torch.cuda.current_stream(), gc.isenabled()
        gc.disable()  # what it finds may be graphs and events, and not everything may be destroyed during a capture
        try:
            # Other threads may do with CUDA what they like meanwhile; the default mode would fail for that.
            with torch.cuda.graph(graph, pool=pool, stream=self._capture_stream, capture_error_mode="thread_local"):
                function()
        finally:
            torch.cuda.set_stream(stream)  # torch leaves the other one in its place where a capture breaks off
            if collects:
                gc.enable()
        return graph

    def memory(self) -> Memory:
        free, total = torch.cuda.mem_get_info()
        return Memory(free, total, torch.cuda.memory_reserved(), torch.cuda.memory_allocated(),
                      torch.cuda.max_memory_allocated())

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        torch.cuda.empty_cache()


class _CudaMark:
    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def ns_until(self, later: Mark) -> int:
        assert isinstance(later, _CudaMark)
        later._event.synchronize()  # it may be the mark right behind the event that was waited for
        return round(self._event.elapsed_time(later._event) * 1e6)


class HostDevice:
    """The CPU as a device: nothing runs beside the host, and a graph is the function that it was recorded from."""

    name = "cpu"
    processors = 8
    """Which the interpreter has none of; so many are pretended when work is cut."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def event(self) -> Event:
        return _Passed()

    def mark(self) -> Mark:
        return _HostMark()

    def synchronize(self) -> None:
        pass

    def new_graph_pool(self) -> Any:
        return None

    def capture(self, function: Callable[[], None], pool: Any) -> Graph:
        return _Again(function)

    def memory(self) -> Memory:
        import psutil

        memory = psutil.virtual_memory()
        return Memory(memory.available, memory.total, 0, 0, 0)

    def reset_peak(self) -> None:
        pass

    def release(self) -> None:
        pass


class _Passed:
    """An event where nothing is ever queued."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class _HostMark:
    def __init__(self) -> None:
        self._time_ns = time.perf_counter_ns()

    def ns_until(self, later: Mark) -> int:
        assert isinstance(later, _HostMark)
        return later._time_ns - self._time_ns


@dataclass(frozen=True, slots=True)
class _Again:
    function: Callable[[], None]

    def replay(self) -> None:
        self.function()


def make_device(name: str) -> Device:
    """The device "cuda" or "cpu"."""
    return CudaDevice() if name == "cuda" else HostDevice()
