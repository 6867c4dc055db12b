"""A step's inputs on their way to the device: written to pinned memory, sent with one copy, read at known addresses.

There are two pinned buffers, and a buffer is written again only when its copy has arrived: the host may prepare a step
while the device is still busy with the one before.

Everything lies in one piece of memory, each array at a multiple of 16 bytes. For a decode step the places are fixed,
since a CUDA graph reads from them; any other step is packed anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from engine.gpu.device import Device

if TYPE_CHECKING:
    from engine.runner import StepInput

ALIGNMENT = 16
NULL_TOKEN = 0
NO_SLOT = -1


class Staging:
    """Memory on the device, and two pinned buffers from which it is filled in turn."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.nbytes = nbytes
        self.on_device = torch.zeros(nbytes, dtype=torch.uint8, device=device.name)
        self._pinned = [device.pinned(nbytes) for _ in range(2)]
        self.on_host = [pinned.numpy() for pinned in self._pinned]
        self._sent = [device.event() for _ in range(2)]
        self._turn = 0

    def take(self) -> int:
        """Which of the buffers to write to. Both are in use only if the device is two steps behind."""
        self._turn = 1 - self._turn
        if not self._sent[self._turn].query():
            self._sent[self._turn].synchronize()
        return self._turn

    def send(self, nbytes: int) -> None:
        """Queue the copy of the first ``nbytes`` of the buffer that was taken last."""
        self.on_device[:nbytes].copy_(self._pinned[self._turn][:nbytes], non_blocking=True)
        self._sent[self._turn].record()


class _Part(NamedTuple):
    """An array's place in the piece of memory."""

    start: int
    dtype: np.dtype
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length * self.dtype.itemsize

    def on_host(self, memory: np.ndarray) -> np.ndarray:
        view: np.ndarray = memory[self.start : self.end].view(self.dtype)
        return view

    def on_device(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[self.start : self.end].view(torch.int64 if self.dtype.itemsize == 8 else torch.int32)


def _lay_out(*arrays: tuple[type, int]) -> list[_Part]:
    parts, at = [], 0
    for dtype, length in arrays:
        part = _Part(at, np.dtype(dtype), length)
        parts.append(part)
        at = -(-part.end // ALIGNMENT) * ALIGNMENT
    return parts


class DecodeInputs:
    """The inputs of a step in which each of up to ``max_requests`` requests has one token: at fixed addresses.

    int64: ``token_ids``, ``positions``, ``slots``; int32: ``context_lens``, ``block_tables`` (max_requests,
    max_blocks). The rows behind a step's own are those of an empty request: it has no context and writes to no slot.
    """

    def __init__(self, device: Device, max_requests: int, max_blocks: int, block_size: int) -> None:
        self.max_requests = max_requests
        self._width = max_blocks
        self._block_size = block_size
        parts = _lay_out((np.int64, max_requests), (np.int64, max_requests), (np.int64, max_requests),
                         (np.int32, max_requests), (np.int32, max_requests * max_blocks))
        self._tables_start = parts[-1].start
        self.staging = Staging(device, parts[-1].end)
        self._on_host = [[part.on_host(memory) for part in parts] for memory in self.staging.on_host]
        for arrays in self._on_host:
            arrays[-1] = arrays[-1].reshape(max_requests, max_blocks)
        on_device = [part.on_device(self.staging.on_device) for part in parts]
        self.token_ids, self.positions, self.slots, self.context_lens, tables = on_device
        self.block_tables = tables.view(max_requests, max_blocks)
        self._rows = np.arange(max_requests)
        self._ahead: tuple[StepInput, int] | None = None  # a step that is written, but for its tokens, and where

    def fill(self, step: StepInput | None, size: int) -> None:
        """Send a step, padded to ``size`` requests; None: an empty batch."""
        ahead, self._ahead = self._ahead, None
        count = 0 if step is None else len(step.context_lens)
        if ahead is not None and ahead[0] is step:
            turn = ahead[1]
            # What begins a block was written before that block was there.
            self._write_blocks(turn, step, np.flatnonzero(step.positions % self._block_size == 0))
        else:
            turn = self.staging.take()
            if step is not None:
                self._write(turn, step)
        token_ids, positions, slots, contexts, _ = self._on_host[turn]
        if step is not None:
            token_ids[:count] = step.token_ids
        token_ids[count:size] = NULL_TOKEN
        positions[count:size] = 0
        slots[count:size] = NO_SLOT
        contexts[count:size] = 0
        self.staging.send(self._tables_start + 4 * size * self._width)

    def fill_ahead(self, step: StepInput) -> None:
        """Write a step that may come next, all but its tokens, while the device may be busy with another.

        If it comes, as the same object, its blocks may be others where its tokens begin one.
        """
        self._ahead = step, self.staging.take()
        self._write(self._ahead[1], step)

    def _write(self, turn: int, step: StepInput) -> None:
        _, positions, _, contexts, _ = self._on_host[turn]
        count = len(step.context_lens)
        positions[:count] = step.positions
        contexts[:count] = step.context_lens
        self._write_blocks(turn, step, self._rows[:count])

    def _write_blocks(self, turn: int, step: StepInput, rows: np.ndarray) -> None:
        _, _, slots, _, tables = self._on_host[turn]
        size, positions = self._block_size, step.positions[rows]
        blocks = step.block_tables[rows, positions // size].astype(np.int64)
        slots[rows] = blocks * size + positions % size
        if len(rows) == len(step.context_lens):
            tables[: len(rows), : step.block_tables.shape[1]] = step.block_tables  # nobody reads beyond a context's end
        else:
            tables[rows, : step.block_tables.shape[1]] = step.block_tables[rows]


class MixedInputs:
    """The inputs of any other step, one after the other; the memory grows to the largest step seen."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.staging = Staging(device, 1 << 16)

    def send(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """The arrays, int32 or int64, on the device with their shapes; until the next call."""
        parts = _lay_out(*((array.dtype.type, array.size) for array in arrays))
        if parts[-1].end > self.staging.nbytes:
            self.staging = Staging(self._device, max(parts[-1].end, 2 * self.staging.nbytes))
        host = self.staging.on_host[self.staging.take()]
        for part, array in zip(parts, arrays, strict=True):
            part.on_host(host)[:] = array.reshape(-1)
        self.staging.send(parts[-1].end)
        memory = self.staging.on_device
        return [part.on_device(memory).view(array.shape) for part, array in zip(parts, arrays, strict=True)]
