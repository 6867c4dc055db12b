"""How a GPU's memory is shared out, in the way of vLLM's ``gpu_memory_utilization``.

    utilization * total = weights + activations + other + graphs + KV cache

Weights, activations and what else came up while the model was loaded are measured with a full step before there is a
KV cache; what the graphs will take is estimated, because they are captured only when the cache lies where it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from engine.gpu.device import Device, Memory
from engine.trace.knobs import knob
from engine.trace.source import Notice

GRAPH_BYTES = 8 << 20
"""An allowance for what the driver keeps of a captured graph, apart from its intermediate results."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes. ``budget`` is the share of ``total`` that may be used; ``weights`` holds all that torch has allocated
    before a step, ``activations`` the most that a full step takes on top of it; ``other`` is what the process took past
    torch since before the model was loaded; ``graphs`` an estimate. ``cache`` is left for the KV cache: it may be
    negative, and it is never more than what is free on the device.
    """

    total: int
    budget: int
    weights: int
    activations: int
    other: int
    graphs: int
    cache: int


class NoRoom(RuntimeError):
    """A step, or a KV cache beside it, does not fit. The message says what would help."""


def profile(device: Device, before: Memory, utilization: float, num_graphs: int, full_step: Callable[[], None],
            decode_step: Callable[[], None]) -> MemoryUse:
    """Run both steps and see what they take. ``before`` is from before the model was loaded.

    Raises :class:`NoRoom` if a step does not fit.
    """
    with step_must_fit():
        decode = _peak_of(decode_step, device)
        full = _peak_of(full_step, device)
    device.release()
    return share_out(utilization, before, device.memory(), activations=max(full, decode),
                     graphs=estimate_graphs(num_graphs, decode))


@contextmanager
def step_must_fit() -> Iterator[None]:
    """Raises :class:`NoRoom` where a step in the block finds no memory."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise NoRoom(Notice("A full step does not fit into the GPU's memory. Lower max_num_batched_tokens or "
                            "max_num_seqs, or choose a smaller model or dtype.")) from None


def _peak_of(step: Callable[[], None], device: Device) -> int:
    """Bytes that tensors take at most while ``step`` runs, on top of those that are there before."""
    device.release()
    device.reset_peak()
    allocated = device.memory().allocated
    step()
    device.synchronize()
    return device.memory().peak - allocated


def share_out(utilization: float, before: Memory, loaded: Memory, *, activations: int, graphs: int) -> MemoryUse:
    """What is left for the KV cache. ``before`` is from before the model was loaded, ``loaded`` from after that and
    after a full step, with nothing cached in torch but what tensors hold.
    """
    budget = int(utilization * loaded.total)
    other = max(0, _past_torch(loaded) - _past_torch(before))
    left = budget - loaded.allocated - activations - other - graphs
    # Others may have taken more of the device than the share that is left to them.
    there = loaded.free + loaded.reserved - loaded.allocated - activations - graphs
    return MemoryUse(loaded.total, budget, loaded.allocated, activations, other, graphs, min(left, there))


def _past_torch(memory: Memory) -> int:
    return memory.total - memory.free - memory.reserved


def estimate_graphs(num_graphs: int, activations: int) -> int:
    """Bytes of ``num_graphs`` graphs, of which the largest has ``activations`` bytes of intermediate results.

    They share one piece of memory for these, since no two are played at once.
    """
    return activations + num_graphs * GRAPH_BYTES if num_graphs else 0


def cache_room(device: Device, pool_bytes: int, use: MemoryUse | None) -> int:
    """Bytes that a KV cache in place of the present one, of ``pool_bytes``, may take."""
    memory = device.memory()
    reserve = use.activations + use.graphs if use is not None else memory.total // 20
    return max(0, memory.free + memory.reserved - memory.allocated + pool_bytes - reserve)


def blocks_that_fit(use: MemoryUse, block_bytes: int) -> int:
    """How many blocks the KV cache gets, within what the knob can be turned to. Raises :class:`NoRoom`."""
    blocks, range_of = use.cache // block_bytes, knob("num_blocks")
    if blocks < range_of.minimum:
        raise NoRoom(Notice(
            "There is no room for a KV cache: of {budget} GiB ({share} of the GPU's {total} GiB) weights take "
            "{weights}, a full step {activations}, CUDA graphs {graphs} and the rest of the process {other}. Raise "
            "gpu_memory_utilization, lower max_num_batched_tokens or max_num_seqs, or choose a smaller model or dtype.",
            budget=_gib(use.budget), share=f"{use.budget / use.total:.0%}", total=_gib(use.total),
            weights=_gib(use.weights), activations=_gib(use.activations), graphs=_gib(use.graphs),
            other=_gib(use.other)))
    return int(min(blocks, range_of.maximum))


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f}"
