"""Small arrays to the device and results back, through pinned memory, so that the host waits once a step and no more.

One step at a time: what was sent from pinned memory has arrived when the results have, so its room is used again then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from engine.gpu.device import Device

ALIGNMENT = 16
FIRST_ROOM = 1 << 16
_TYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.float64): torch.float64, np.dtype(np.float32): torch.float32}


class Transfers:
    """What one step of sampling sends and fetches."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pin(FIRST_ROOM)
        self._outgrown: list[torch.Tensor] = []  # copies out of it may still be under way
        self._fetching = device.pinned(FIRST_ROOM)
        self._expected: list[tuple[torch.dtype, torch.Size]] = []
        self._arrived = device.event()

    def upload(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """Queue one copy of all of them to the device; the arrays may be changed at once."""
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        begin = self._room(end)
        on_device = torch.empty(end, dtype=torch.uint8, device=self._device.name)
        sent = []
        for start, array in zip(starts, arrays, strict=True):
            place = self._on_host[begin + start : begin + start + array.nbytes]
            place.view(array.dtype)[:] = array.reshape(-1)
            sent.append(on_device[start : start + array.nbytes].view(_TYPES[array.dtype]).view(array.shape))
        on_device.copy_(self._sending[begin : begin + end], non_blocking=True)
        return sent

    def _room(self, nbytes: int) -> int:
        """Where in the pinned memory there is room that no copy of this step comes from yet."""
        if self._used + nbytes > len(self._sending):
            self._outgrown.append(self._sending)
            self._pin(max(2 * len(self._sending), nbytes))
        begin = self._used
        self._used += nbytes
        return begin

    def _pin(self, nbytes: int) -> None:
        self._sending = self._device.pinned(nbytes)
        self._on_host = self._sending.numpy()
        self._used = 0

    def begin_download(self, *tensors: torch.Tensor) -> None:
        """Queue one copy of all of them to the host. Wider types come first, so that all lie at multiples of theirs."""
        parts = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
        packed = parts[0] if len(parts) == 1 else torch.cat(parts)
        if len(packed) > len(self._fetching):
            self._fetching = self._device.pinned(max(2 * len(self._fetching), len(packed)))
        self._fetching[: len(packed)].copy_(packed, non_blocking=True)
        self._expected = [(tensor.dtype, tensor.shape) for tensor in tensors]
        self._arrived.record()

    def finish_download(self) -> list[torch.Tensor]:
        """Wait for the copy of :meth:`begin_download`; what came is valid until the next one."""
        self._arrived.synchronize()
        self._used = 0
        self._outgrown.clear()
        return list(self._unpack())

    def _unpack(self) -> Iterator[torch.Tensor]:
        at = 0
        for dtype, shape in self._expected:
            end = at + shape.numel() * dtype.itemsize
            yield self._fetching[at:end].view(dtype).view(shape)
            at = end
