"""How a GPU's memory is shared out, on a device that only says what it is told to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig, SchedulerConfig
from engine.gpu.device import HostDevice, Memory
from engine.gpu.memory import GRAPH_BYTES, NoRoom, blocks_that_fit, cache_room, estimate_graphs, profile, share_out
from engine.gpu.warm_up import decode_step, full_step, warm_up_steps
from engine.runner import Runner, RunnerError
from engine.trace.knobs import knob
from tests.engine.forward_driver import make_llama

GIB = 1 << 30
EMPTY = Memory(free=79 * GIB, total=80 * GIB, reserved=0, allocated=0, peak=0)
"""A card of 80 GiB, of which the driver took one."""


class TellingDevice(HostDevice):
    """``tensors`` bytes are allocated; a step takes so many more for a while, and leaves them with torch."""

    def __init__(self, tensors: int, cached: int = 0, past_torch: int = GIB, total: int = 80 * GIB) -> None:
        self.tensors, self.cached, self.past_torch, self.total = tensors, cached, past_torch, total
        self.peak = 0

    def use(self, nbytes: int) -> None:
        self.peak = max(self.peak, self.tensors + nbytes)
        self.cached = max(self.cached, nbytes)

    def memory(self) -> Memory:
        reserved = self.tensors + self.cached
        return Memory(self.total - self.past_torch - reserved, self.total, reserved, self.tensors, self.peak)

    def reset_peak(self) -> None:
        self.peak = self.tensors

    def release(self) -> None:
        self.cached = 0


def test_what_is_left_of_the_budget_is_the_cache() -> None:
    loaded = Memory(free=62 * GIB, total=80 * GIB, reserved=16 * GIB, allocated=16 * GIB, peak=18 * GIB)
    use = share_out(0.9, EMPTY, loaded, activations=2 * GIB, graphs=GIB)
    assert (use.total, use.budget, use.weights, use.activations) == (80 * GIB, 72 * GIB, 16 * GIB, 2 * GIB)
    assert (use.other, use.graphs) == (GIB, GIB)  # two are past torch now, one was before
    assert use.cache == (72 - 16 - 2 - 1 - 1) * GIB


def test_the_cache_never_takes_what_others_have() -> None:
    """Another program has half of the card: before the model was loaded, or since."""
    loaded = Memory(free=23 * GIB, total=80 * GIB, reserved=16 * GIB, allocated=16 * GIB, peak=0)
    for before in (replace(EMPTY, free=39 * GIB), EMPTY):
        use = share_out(0.9, before, loaded, activations=2 * GIB, graphs=0)
        assert use.cache <= 21 * GIB
    assert share_out(0.9, replace(EMPTY, free=39 * GIB), loaded, activations=2 * GIB, graphs=0).cache == 21 * GIB


@given(st.floats(0.1, 1.0), st.integers(0, 79), st.integers(0, 79), st.integers(0, 20), st.integers(0, 4))
def test_all_parts_fit(utilization: float, tensors: int, past_torch: int, step: int, graphs: int) -> None:
    device = TellingDevice(tensors * GIB, past_torch=min(past_torch, 79 - tensors) * GIB + GIB)
    use = share_out(utilization, EMPTY, device.memory(), activations=step * GIB, graphs=graphs * GIB)
    parts = use.weights + use.activations + use.other + use.graphs + use.cache
    assert parts <= use.budget
    assert parts - use.other <= use.total - device.past_torch


def test_a_profile_is_the_largest_step_on_top_of_what_is_there() -> None:
    device = TellingDevice(tensors=10 * GIB, cached=3 * GIB)
    use = profile(device, EMPTY, 0.5, 4, lambda: device.use(2 * GIB), lambda: device.use(GIB // 2))
    assert use.activations == 2 * GIB
    assert use.graphs == GIB // 2 + 4 * GRAPH_BYTES
    assert use.weights == 10 * GIB
    assert use.cache == 40 * GIB - 12 * GIB - use.graphs
    assert device.cached == 0
    assert estimate_graphs(0, GIB) == 0


def test_a_step_that_does_not_fit_is_said() -> None:
    def too_large() -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(NoRoom, match=r"(?i)a full step does not fit.*lower max_num_batched_tokens or max_num_seqs"):
        profile(TellingDevice(0), EMPTY, 0.9, 0, too_large, lambda: None)


def test_blocks_stay_within_what_the_knob_takes() -> None:
    use = share_out(0.9, EMPTY, EMPTY, activations=0, graphs=0)
    assert blocks_that_fit(use, GIB) == 72
    assert blocks_that_fit(use, 1024) == knob("num_blocks").maximum
    assert blocks_that_fit(replace(use, cache=8 * GIB), GIB) == 8
    with pytest.raises(NoRoom, match=r"no room for a KV cache: of 72.0 GiB \(90% of the GPU's 80.0 GiB\) weights take "
                                     "0.0.*Raise gpu_memory_utilization"):
        blocks_that_fit(replace(use, cache=8 * GIB - 1), GIB)
    with pytest.raises(NoRoom):
        blocks_that_fit(replace(use, cache=-5 * GIB), GIB)


def test_another_cache_may_take_what_the_present_one_has() -> None:
    device = TellingDevice(tensors=60 * GIB, cached=2 * GIB)  # 40 of them the present cache
    use = share_out(0.9, EMPTY, EMPTY, activations=GIB, graphs=GIB)
    assert cache_room(device, 40 * GIB, use) == (80 - 1 - 60 + 40 - 2) * GIB
    assert cache_room(device, 40 * GIB, None) == (80 - 1 - 60 + 40 - 4) * GIB
    assert cache_room(TellingDevice(79 * GIB), 0, use) == 0


# ---- the runner ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_llama(folder)
    return folder


def runner_on(model: Path, device: HostDevice, utilization: float = 0.9, **scheduler: Any) -> Runner:
    """A runner that takes the CPU for a GPU with the memory that ``device`` tells of."""
    config = EngineConfig(dtype="float32", num_threads=1, gpu_memory_utilization=utilization,
                          scheduler=SchedulerConfig(**scheduler))
    runner = Runner(model, replace(config, forward_path="torch"))
    runner._config = replace(config, device="cuda")
    runner._device, runner._memory_before = device, EMPTY
    return runner


def test_the_runner_counts_blocks_after_a_full_step(model: Path) -> None:
    device = TellingDevice(tensors=8 * GIB)
    runner = runner_on(model, device, max_num_batched_tokens=300, max_num_seqs=7, block_size=32, max_model_len=128)
    computed: list[tuple[int, int, int]] = []
    forward = runner._forward_path.forward

    def noted(step: Any) -> torch.Tensor:
        logits = forward(step)
        device.use(GIB)
        computed.append((len(step.token_ids), len(step.context_lens), len(logits)))
        return logits

    runner._forward_path.forward = noted  # type: ignore[method-assign]
    wanted = (72 - 8 - 1) * GIB // (32 * runner.model_info.bytes_per_token)
    assert runner.profile_num_blocks() == min(wanted, 65536)
    assert computed == [(7, 7, 7), (300, 7, 7)]
    assert runner.memory_use is not None
    assert runner.memory_use.activations == GIB
    assert runner._inputs._tables._row_of == {}, "the made-up requests are forgotten"
    # A run after it is like one without it.
    fresh = Runner(model, EngineConfig(dtype="float32", num_threads=1, forward_path="torch"))
    for one in (runner, fresh):
        one.allocate_cache(20, 32)
    plan = full_step(50, 3, 128, 32)
    for number, entry in enumerate(plan.scheduled):
        entry.request.block_ids = [1 + number]
    assert runner.execute(plan) == fresh.execute(plan)


def test_the_runner_says_what_to_do_where_nothing_is_left(model: Path) -> None:
    with pytest.raises(RunnerError, match=r"(?i)raise gpu_memory_utilization, lower max_num_batched_tokens"):
        runner_on(model, TellingDevice(tensors=60 * GIB), utilization=0.5).profile_num_blocks()


def test_the_room_for_a_cache_is_the_devices(model: Path) -> None:
    device = TellingDevice(tensors=20 * GIB)
    runner = runner_on(model, device)
    assert runner.available_cache_bytes() == (80 - 1 - 20 - 4) * GIB
    runner.allocate_cache(10, 16)
    assert runner.available_cache_bytes() == (80 - 1 - 20 - 4) * GIB + 160 * runner.model_info.bytes_per_token


def test_on_a_cpu_the_configuration_says_how_many_blocks(model: Path) -> None:
    runner = Runner(model, EngineConfig(dtype="float32", scheduler=SchedulerConfig(num_blocks=77)))
    assert runner.profile_num_blocks() == 77
    assert runner.memory_use is None
    assert runner.available_cache_bytes() > 0
    told: list[str] = []
    runner.warm_up(lambda stage, _: told.append(stage))
    assert told == []


@given(st.integers(1, 9000), st.integers(1, 300), st.integers(1, 4096), st.sampled_from([8, 16, 256]))
def test_the_largest_step(max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
    plan = full_step(max_num_batched_tokens, max_num_seqs, max_model_len, block_size)
    requests = min(max_num_seqs, max_num_batched_tokens)
    assert len(plan.scheduled) == requests
    assert plan.num_tokens == min(max_num_batched_tokens, plan.num_tokens)
    assert plan.num_tokens == max_num_batched_tokens or max(e.num_tokens for e in plan.scheduled) == max_model_len
    for entry in plan.scheduled:
        assert 1 <= entry.num_tokens <= max_model_len
        assert entry.samples
        assert len(entry.request.block_ids) * block_size >= entry.num_tokens
        assert set(entry.request.block_ids) == {0}, "what is written goes to the null block"


def test_made_up_steps_write_to_the_null_block_alone() -> None:
    for plan in (*warm_up_steps(16), decode_step(5, 8)):
        assert {block for entry in plan.scheduled for block in entry.request.block_ids} == {0}
