"""What lies in memory that nobody wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def fresh_memory(fill: Callable[[torch.Tensor], object]) -> Iterator[None]:
    """Until the end of the block, whatever ``torch.empty`` and ``torch.empty_like`` return goes through ``fill``."""
    plain = {name: getattr(torch, name) for name in ("empty", "empty_like")}

    def filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            fill(tensor)
            return tensor

        return made

    try:
        for name, make in plain.items():
            setattr(torch, name, filled(make))
        yield
    finally:
        for name, make in plain.items():
            setattr(torch, name, make)


def poison(tensor: torch.Tensor) -> None:
    """Not a number, or all bits set: a result that depends on it shows."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(-1 if tensor.dtype.is_signed else True if tensor.dtype == torch.bool else 255)
