"""What can be known of the CUDA device without one: torch's part is played by stand-ins."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.gpu.device import CudaDevice


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The current stream is the last one."""
    current = ["usual"]
    properties = SimpleNamespace(multi_processor_count=132)
    for name, stand_in in (("get_device_properties", lambda _: properties), ("Stream", lambda: "for captures"),
                           ("CUDAGraph", object), ("current_stream", lambda: current[-1]),
                           ("set_stream", current.append)):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return current


def test_a_capture_that_breaks_off_leaves_nothing_as_it_was_meanwhile(
    monkeypatch: pytest.MonkeyPatch, streams: list[str]
) -> None:
    @contextmanager
    def breaks(graph: Any, pool: Any, stream: str, capture_error_mode: str) -> Iterator[None]:
        streams.append(stream)  # and, as torch does where the end of the capture fails, that is that
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "graph", breaks)
    collected: list[bool] = []
    with pytest.raises(RuntimeError, match="during capture"):
        CudaDevice().capture(lambda: collected.append(gc.isenabled()), None)
    assert collected == [False]
    assert gc.isenabled()
    assert streams == ["usual", "for captures", "usual"]


def test_whoever_does_without_garbage_collection_still_does(
    monkeypatch: pytest.MonkeyPatch, streams: list[str]
) -> None:
    @contextmanager
    def works(graph: Any, pool: Any, stream: str, capture_error_mode: str) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "graph", works)
    gc.disable()
    try:
        CudaDevice().capture(lambda: None, None)
        assert not gc.isenabled()
    finally:
        gc.enable()
