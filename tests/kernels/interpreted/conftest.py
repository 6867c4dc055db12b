"""Memory that nobody wrote is not a number, so that a result which depends on it shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernels.interpreter import mend_interpreter
from tests.kernels.memory import fresh_memory, poison

mend_interpreter()


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    with fresh_memory(poison):
        yield
