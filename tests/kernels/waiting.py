"""Whether the host waits for the device, found out where there is none: nobody may look at a tensor's values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

WAITING = ("item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "__bool__", "__int__", "__float__",
           "__index__", "__contains__")  # fmt: skip


@contextmanager
def waiting_forbidden() -> Iterator[None]:
    """What makes a tensor's values known to the host fails, but for the interpreter at work on a kernel."""
    allowed = False

    def guard(name: str) -> Any:
        plain = getattr(torch.Tensor, name)

        def forbidden(*args: Any, **kwargs: Any) -> Any:
            if not allowed:
                raise AssertionError(f"{name} waits for the device")
            return plain(*args, **kwargs)

        return forbidden

    launch = InterpretedFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal allowed
        allowed = True
        try:
            return launch(self, *args, **kwargs)
        finally:
            allowed = False

    with pytest.MonkeyPatch.context() as patch:
        for name in WAITING:
            patch.setattr(torch.Tensor, name, guard(name))
        patch.setattr(InterpretedFunction, "run", run)
        yield
