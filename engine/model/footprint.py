"""How much memory a model takes as it lies there: packed or not, shared between layers or not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch


def weight_bytes(*holders: object) -> int:
    """Bytes of the tensors and arrays that ``holders`` have: as attributes, or in tuples, lists and dictionaries.

    What several of them share, as an output head that is the embedding, is counted once.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()

    def note(address: int, size: int) -> None:
        found[address] = max(size, found.get(address, 0))

    def look(value: object) -> None:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            note(storage.data_ptr(), storage.nbytes())
        elif isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            note(value.ctypes.data, value.nbytes)
        elif id(value) not in seen and not isinstance(value, (str, bytes)):
            seen.add(id(value))
            parts: Iterable[object] = ()
            if isinstance(value, dict):
                parts = value.values()
            elif isinstance(value, (tuple, list)):
                parts = value
            elif type(value).__module__.startswith("engine.model."):
                slots = (getattr(value, name, None) for kind in type(value).__mro__
                         for name in getattr(kind, "__slots__", ()))
                parts = (*getattr(value, "__dict__", {}).values(), *slots)
            for part in parts:
                look(part)

    for holder in holders:
        look(holder)
    return sum(found.values())
