"""What a run launches was compiled while it was warmed up: nobody waits a second for the compiler in mid-run.

The kernels are neither compiled nor run here. A stand-in for Triton's driver notes for what they would be compiled:
types, constants, and what the compiler is told of numbers and addresses, which depends on their values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from engine.config import EngineConfig, SchedulerConfig
from engine.gpu.device import HostDevice
from engine.gpu.path import TritonPath
from engine.kernels import operations, split_attention
from engine.request import Request, SamplingParams
from engine.runner import Runner
from engine.scheduler import Scheduler
from tests.engine.families import FAMILIES
from tests.engine.forward_driver import VOCAB
from tests.engine.mixed_requests import mixed_requests
from tests.kernels.memory import fresh_memory

CONFIG = SchedulerConfig(max_num_batched_tokens=200, max_num_seqs=13, block_size=16, num_blocks=120, max_model_len=512)


class _Driver:
    """``device`` is what Triton keeps its compiled kernels by."""

    def __init__(self, device: object) -> None:
        self.device = device

    def get_current_device(self) -> object:
        return self.device

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of 80 tokens and more may be cut."""
    monkeypatch.setattr(split_attention, "_KEYS_A_SPLIT", 40)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What each kernel that is launched would have to be compiled for."""
    wanted: list[str] = []
    kernel = SimpleNamespace(launch_metadata=lambda *_: None, run=lambda *_: None, function=None, packed_metadata=None)

    def compile(self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, hints: Any,
                warmup: bool) -> Any:  # fmt: skip
        wanted.append(f"{self.fn.__name__} {signature} {constants} {hints}")
        self.device_caches[device][0][key] = kernel
        return kernel

    monkeypatch.setattr(JITFunction, "_do_compile", compile)
    monkeypatch.setattr(driver, "_active", _Driver(object()))
    with fresh_memory(torch.Tensor.zero_):  # tokens that nobody chooses are the first one
        yield wanted


def make_runner(folder: Path) -> Runner:
    """On the path of GPUs."""
    runner = Runner(folder, EngineConfig(dtype="bfloat16", num_threads=1, scheduler=CONFIG, forward_path="torch"))
    runner.decoder._operations = operations
    path: Any = TritonPath(runner.decoder, HostDevice(), runner.max_model_len, CONFIG.max_num_seqs)
    runner._forward_path = runner._captures = path
    runner._config = replace(runner._config, device="cuda")
    return runner


def serve_at_random(runner: Runner, seed: int) -> set[str]:
    """All kinds of steps: how they ran."""
    chance = random.Random(seed)
    scheduler, arriving = Scheduler(CONFIG, ()), mixed_requests(40, VOCAB)
    for number, request in enumerate(arriving):
        length = chance.choice([1, 2, 15, 16, 17, 33, 100, 199, 240, 300])
        params = replace(request.params, max_tokens=chance.randint(1, 20), ignore_eos=True)
        arriving[number] = Request(f"r{number}", [chance.randrange(VOCAB) for _ in range(length)],
                                   params if number % 3 else SamplingParams(max_tokens=9, ignore_eos=True))
    modes = set()
    while arriving or scheduler.requests:
        if arriving and chance.random() < 0.3:
            scheduler.add_request(arriving.pop())
        plan = scheduler.schedule()
        tokens = runner.execute(plan)
        modes.add(runner.step_mode.split()[0] if plan.computed else "")
        for request, _ in scheduler.commit(plan, tokens):
            runner.free_request(request.request_id)
    return modes


@pytest.mark.parametrize(
    ("family", "head"), [("llama, three wide heads a key", 64), ("qwen3", 128), ("gemma 3", 256), ("mixtral", 64)])
def test_a_run_compiles_nothing_that_warming_up_has_not(
    tmp_path: Path, compiled: list[str], family: str, head: int
) -> None:
    chosen = FAMILIES[family]
    replace(chosen, settings=chosen.settings | {"head_dim": head}).make(tmp_path)
    runner = make_runner(tmp_path)
    runner.warm_up()
    assert len(set(compiled)) == len(compiled) > 8
    compiled.clear()
    assert serve_at_random(runner, seed=1) >= {"eager", "graph"}
    assert compiled == []
