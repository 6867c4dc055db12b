"""A forward pass on the kernels touches the device alone: tensors that hold nothing are enough to find that out.

On torch's "meta" device nothing is computed, nothing can be fetched, and an operation that is given a tensor of the
host's shows: on a GPU it would be a copy in the middle of a step, and in a graph a copy of what was there at capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime import JITFunction

from engine.gpu.device import Graph, HostDevice
from engine.gpu.path import TritonPath
from engine.kernels import operations as kernels
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.weights import weight_shapes
from engine.runner import StepInput
from tests.engine.families import FAMILIES


class MetaDevice(HostDevice):
    name = "meta"

    def capture(self, function: Callable[[], None], pool: Any) -> Graph:
        function()  # as a capture runs through it
        return super().capture(function, pool)


class OnDevice(TorchDispatchMode):
    """The inputs of a step come from the host, in one copy; after that nothing does."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0
        self.operations = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
        if {t.device.type for t in tensors} == {"cpu"}:
            return result  # views of pinned memory
        self.operations += 1
        if any(t.device.type == "cpu" for t in tensors):
            assert function is torch.ops.aten.copy_.default, f"{function} is given a tensor of the host's"
            self.copies += 1
        return result


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that would have been launched, none of which is; every tensor that they are given is checked."""
    names: list[str] = []

    def run(self: Any, *args: Any, **_: Any) -> None:
        names.append(self.fn.__name__)
        wrong = [arg.device for arg in args if isinstance(arg, torch.Tensor) and arg.device.type != "meta"]
        assert not wrong, f"{self.fn.__name__} is given tensors on {wrong}"

    monkeypatch.setattr(JITFunction, "run", run)
    return names


def make_path(folder: Path, family: str) -> tuple[TritonPath, MetaDevice]:
    """A path whose weights hold nothing."""
    chosen = FAMILIES[family]
    replace(chosen, settings=chosen.settings | {"head_dim": 64}).make(folder)
    config = ModelConfig.load(folder)
    weights = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta")
               for name, shape in weight_shapes(config).items()}
    device = MetaDevice()
    path = TritonPath(Decoder(config, weights, 512, kernels), device, max_model_len=512, max_num_seqs=9)
    path.allocate(num_blocks=40, block_size=16)
    return path, device


def step_of(*requests: tuple[int, int]) -> StepInput:
    """Requests with so many tokens of a context of so many."""
    counts, contexts = np.array(requests).T
    starts = np.concatenate(([0], counts.cumsum()))
    positions = np.concatenate([np.arange(context - count, context) for count, context in requests])
    tables = np.ones((len(requests), -(-contexts.max() // 16)), dtype=np.int32)
    return StepInput(np.zeros(len(positions), np.int64), positions, starts, contexts, tables, starts[1:] - 1)


@pytest.mark.parametrize("family", ["llama, biases everywhere", "qwen3", "gemma 3", "mixtral", "qwen3 moe"])
def test_a_step_is_one_copy_and_then_the_device_alone(tmp_path: Path, launched: list[str], family: str) -> None:
    path, _ = make_path(tmp_path, family)
    seen = set()
    for step in (step_of((1, 5), (40, 70), (1, 510)), step_of((7, 7)), step_of((1, 9), (1, 30), (1, 2)),
                 step_of((1, 512)), step_of((1, 512))):
        launched.clear()
        with OnDevice() as watch:
            logits = path.forward(step)
        assert logits.shape == (len(step.sample_rows), path._decoder.config.vocab_size)
        assert watch.copies == 1
        assert watch.operations > 10
        seen |= {path.last_mode.split()[0], *launched}
    assert seen >= {"eager", "capture", "attention_kernel", "split_kernel", "merge_kernel", "rotate_and_cache_kernel",
                    "rms_norm_kernel"}
    assert ("expert_kernel" in seen) == ("moe" in family or family == "mixtral")


def test_a_tensor_of_the_hosts_would_be_noticed() -> None:
    there = torch.empty(3, device="meta")
    with OnDevice() as watch, pytest.raises(AssertionError, match="add"):
        torch.add(there, torch.tensor(1.0))
    assert watch.copies == 0
