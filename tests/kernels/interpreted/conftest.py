"""Memory that nobody wrote is not a number, so that a result which depends on it shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.interpreter import teach_bfloat16

teach_bfloat16()


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "empty_like"):
        make = getattr(torch, name)

        def poisoned(*args: Any, make: Any = make, **kwargs: Any) -> torch.Tensor:
            made: torch.Tensor = make(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(-1)

        monkeypatch.setattr(torch, name, poisoned)
