"""Sampling on a device: nothing is asked of it between the first thing queued and the one fetch, and nothing that a
copy still reads is written over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.gpu.device import HostDevice
from engine.gpu.transfers import FIRST_ROOM, Transfers
from engine.logit_rows import TorchRows
from engine.request import Request, SamplingParams
from engine.sampler import Sampler
from tests.engine.mixed_requests import mixed_requests


class FarDevice(HostDevice):
    """Torch's "meta": tensors without numbers, so that whoever looks at one fails."""

    name = "meta"  # type: ignore[assignment]


class FarTransfers(Transfers):
    downloads = 0

    def begin_download(self, *tensors: torch.Tensor) -> None:
        self.downloads += 1
        widths = [tensor.dtype.itemsize for tensor in tensors]
        assert widths == sorted(widths, reverse=True)
        assert all(tensor.is_contiguous() for tensor in tensors)


class NothingWaits(TorchDispatchMode):
    """Fails when the host meets the device anywhere but in a copy that was queued from pinned memory."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        # An index that is a list is sent on the quiet.
        assert func not in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default), f"{func} may wait"
        out = func(*args, **(kwargs or {}))
        places = {t.device.type for t in tensors} | ({out.device.type} if isinstance(out, torch.Tensor) else set())
        if places == {"cpu", "meta"}:
            assert func is torch.ops.aten.copy_.default, f"{func} goes between host and device"
            assert args[2], "a copy that waits"
            self.copies += 1
        return out


@pytest.mark.parametrize("requests", [
    mixed_requests(40, 97), [Request("a", [1], SamplingParams())] * 3,
    [Request("a", [1], SamplingParams(temperature=1.0, top_p=0.5))] * 3, []],
    ids=["every kind", "greedy", "drawn", "nobody"])  # fmt: skip
def test_nothing_waits_between_the_logits_and_the_fetch(requests: list[Request]) -> None:
    transfers = FarTransfers(FarDevice())
    rows = TorchRows(torch.empty(len(requests), 97, device="meta"), transfers)
    with NothingWaits() as watch:
        Sampler({1}).begin(rows, requests)
    assert transfers.downloads == 1
    assert (watch.copies > 0) == any(not one.params.plain for one in requests)


def test_the_watch_would_notice() -> None:
    logits = torch.empty(3, 97, device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        logits.argmax(-1).tolist()
    with NothingWaits(), pytest.raises(AssertionError, match="may wait"):
        logits[[0, 2]]
    with NothingWaits(), pytest.raises(AssertionError, match="goes between host and device"):
        torch.arange(3).to("meta")


# ---- pinned memory ---------------------------------------------------------------------------------------------------


class SlowDevice(HostDevice):
    """Copies are done only when somebody waits for them, from what the pinned memory holds by then."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.num_pinned = 0

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.num_pinned += 1
        return super().pinned(nbytes)

    def event(self) -> Any:
        return self

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return not self.queue

    def synchronize(self) -> None:
        for copy in self.queue:
            copy()
        self.queue.clear()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    device = SlowDevice()
    plain = torch.Tensor.copy_

    def later(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not non_blocking:
            return plain(self, source)
        device.queue.append(lambda: plain(self, source))
        return self

    monkeypatch.setattr(torch.Tensor, "copy_", later)
    return device


def test_what_is_sent_arrives_however_late(slow: SlowDevice) -> None:
    """Step after step, many arrays each, more of them than the first memory holds."""
    transfers = Transfers(slow)
    chance = np.random.default_rng(0)
    for step in range(12):
        sent, arrived = [], []
        for _ in range(3):
            arrays = [chance.integers(0, 2**40, chance.integers(0, 3000)), chance.random(chance.integers(0, 3000)),
                      chance.random((2, 7)).astype(np.float32)]
            sent += [array.copy() for array in arrays]
            arrived += transfers.upload(*arrays)
            for array in arrays:
                array.fill(0)
        results = [torch.arange(5 + step), torch.rand(3, 4, dtype=torch.float64), torch.rand(0, 2), torch.rand(5000)]
        transfers.begin_download(*results)
        back = transfers.finish_download()
        for found, expected in zip(arrived, sent, strict=True):
            np.testing.assert_array_equal(found.numpy(), expected)
        for tensor, original in zip(back, results, strict=True):
            assert tensor.dtype == original.dtype
            assert torch.equal(tensor, original)
    assert FIRST_ROOM < 3000 * 3 * 2 * 8
    assert slow.num_pinned <= 8, "memory is pinned again and again"


def test_a_step_that_failed_takes_nothing_from_the_next(slow: SlowDevice) -> None:
    transfers = Transfers(slow)
    transfers.upload(np.arange(100))  # and then nobody fetched
    (arrived,) = transfers.upload(np.arange(100, 200))
    transfers.begin_download(torch.arange(3))
    assert transfers.finish_download()[0].tolist() == [0, 1, 2]
    assert arrived.tolist() == list(range(100, 200))
