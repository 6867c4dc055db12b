"""What a run on a GPU tells and how its pool gets its size, with a runner that stands in for one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.config import EngineConfig, SchedulerConfig, rerun_knobs
from engine.core import Engine
from engine.model.footprint import weight_bytes
from engine.plan import StepPlan
from engine.request import SamplingParams
from engine.rerun import check_changes
from engine.runner import Runner
from engine.trace.events import MemoryInfo, PhaseTimes, RunInfo, StepEvents, decode_step, encode_step
from engine.trace.knobs import KnobError, KnobValue
from engine.worker import EngineThread, LoadingStopped, RunSpec
from tests.engine.forward_driver import make_llama
from tests.engine.test_worker import collect, wait_for
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner

MEMORY = MemoryInfo(weights=300, pool=500, total=1000, utilization=0.9, activations=60, graphs=30, other=10)


class GraphRunner(TokenRunner):
    """Says what one on a GPU would: steps in which everybody decodes are played from graphs, others are not."""

    forward_path = "triton (cuda)"
    memory = MEMORY
    made: GraphRunner

    def __init__(self, folder: Path, config: EngineConfig, *, progress: Callable[[str, float | None], None]) -> None:
        super().__init__()
        self.config = config
        self.calls: list[str] = []
        self.step_mode = ""
        self._eager = False
        GraphRunner.made = self

    def profile_num_blocks(self) -> int:
        self.calls.append("profile")
        return 77

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        self.calls.append(f"allocate {num_blocks}")
        super().allocate_cache(num_blocks, block_size)

    def warm_up(self, progress: Callable[[str, float | None], None] | None = None) -> None:
        self.calls.append("warm up")
        if progress is not None:
            progress("Capturing CUDA graphs", 0.5)

    def set_knob(self, name: str, value: KnobValue) -> None:
        super().set_knob(name, value)
        if name == "enforce_eager":
            self._eager = bool(value)

    def execute(self, plan: StepPlan) -> list[int]:
        decode = all(s.num_tokens == 1 for s in plan.scheduled)
        self.step_mode = f"graph {len(plan.scheduled)}" if decode and not self._eager else "eager"
        return super().execute(plan)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EngineThread]]:
    make_tokenizer(tmp_path)
    monkeypatch.setattr("engine.model.library.find_model", lambda *_, **__: tmp_path)
    monkeypatch.setattr("engine.runner.Runner", GraphRunner)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "Some GPU")
    started: list[EngineThread] = []

    def begin(**spec: Any) -> EngineThread:
        thread = EngineThread(RunSpec(**{"device": "cuda", **spec}))
        started.append(thread)
        thread.start()
        assert thread.loaded.wait(10)
        return thread

    yield begin
    for thread in started:
        assert thread.stop(5)


@pytest.mark.parametrize(("spec", "blocks", "share"), [
    ({}, 77, 0.9),
    ({"gpu_memory_utilization": 0.4}, 77, 0.4),
    ({"knobs": {"num_blocks": 50}}, 50, 0.9),
    ({"knobs": {"num_blocks": 50}, "gpu_memory_utilization": 0.4}, 50, 0.4),  # as in vLLM: the number goes before
    ({"scenario": "memory-pressure"}, None, 0.9),  # the scenario is about its pool
    ({"scenario": "memory-pressure", "gpu_memory_utilization": 0.4}, 77, 0.4),  # asked for: goes before a preset
])
def test_the_pool_is_what_memory_gives_where_nobody_says_how_large(start: Any, spec: dict[str, Any],
                                                                   blocks: int | None, share: float) -> None:
    thread = start(**spec)
    assert thread.error is None
    runner = GraphRunner.made
    assert ("profile" in runner.calls) == (blocks == 77)
    assert runner.config.gpu_memory_utilization == share
    info = thread.info
    assert info is not None
    if blocks is not None:
        assert info.knobs["num_blocks"] == blocks == thread._engine.scheduler.config.num_blocks
    assert (info.machine.device, info.memory, info.path) == ("Some GPU", MEMORY, "triton (cuda)")
    assert info.knobs["enforce_eager"] is False
    # Once, when the cache lies where it stays.
    allocated = [c for c in runner.calls if c.startswith("allocate")]
    assert runner.calls[-2:] == [allocated[-1], "warm up"]
    assert runner.calls.count("warm up") == 1


def test_each_step_tells_how_it_ran_and_the_knob_acts_at_once(start: Any) -> None:
    thread = start()
    events = thread.hub.subscribe()
    thread.pause()
    thread.submit("Hello", max_tokens=100, ignore_eos=True)
    thread.single_step(3)
    steps: list[StepEvents] = []
    collect(events, steps, lambda s: s.mode == "graph 1" and s.step >= 2)
    thread.set_knob("enforce_eager", True)
    thread.single_step(2)
    collect(events, steps, lambda s: bool(s.knobs))
    thread.resume()
    collect(events, steps, lambda s: bool(s.finished))
    ran = [s for s in steps if s.scheduled]
    turned = next(s.step for s in steps if s.knobs)
    assert ran[0].mode == "eager"  # the prompt
    assert {s.mode for s in ran[1:] if s.step < turned} == {"graph 1"}
    assert {s.mode for s in ran if s.step > turned} == {"eager"}
    assert all(s.mode == "" for s in steps if not s.scheduled)


def test_loading_that_is_stopped_while_graphs_are_captured_ends(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[EngineThread] = []

    def slow(self: GraphRunner, progress: Any = None) -> None:
        held[0].stop(timeout=0)
        with pytest.raises(LoadingStopped):
            progress("Capturing CUDA graphs", 0.1)
        raise LoadingStopped

    monkeypatch.setattr(GraphRunner, "warm_up", slow)
    thread = EngineThread(RunSpec(device="cuda"))
    held.append(thread)
    thread.start()
    wait_for(lambda: thread.status == "stopped")
    thread.join(5)
    assert (thread.error, thread.info) == (None, None)


def test_a_run_on_the_cpu_has_none_of_it(tmp_path: Path) -> None:
    engine = Engine(TokenRunner(), make_tokenizer(tmp_path), SchedulerConfig())
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=2))
    events = engine.step()
    assert events is not None
    assert events.mode == ""
    assert "enforce_eager" not in RunSpec().all_knobs(None)


# ---- what is told, by old and by new ---------------------------------------------------------------------------------


def make_step(**changes: Any) -> StepEvents:
    return StepEvents(3, 1, 2, PhaseTimes(), [], [], [], [], [], [], [], [], [], "", "", 9, 9, **changes)


def test_a_step_of_before_there_were_modes_is_read_and_one_with_a_mode_by_old_readers() -> None:
    data = encode_step(make_step(mode="graph 8"))
    assert decode_step(data).mode == "graph 8"
    fields = msgspec.msgpack.decode(data)
    assert fields[-1] == "graph 8"
    assert decode_step(msgspec.msgpack.encode(fields[:-1])) == make_step()
    longer = decode_step(msgspec.msgpack.encode([*fields, "of a later version"]))  # as this one is to an older reader
    assert longer == make_step(mode="graph 8")


def test_a_header_of_before_tells_nothing_of_memory(start: Any) -> None:
    info = start().info
    again = msgspec.json.decode(msgspec.json.encode(info), type=RunInfo)
    assert again.memory == MEMORY
    old = msgspec.json.decode(msgspec.json.encode(info))
    del old["memory"], old["path"]
    before = msgspec.json.decode(msgspec.json.encode(old), type=RunInfo)
    assert (before.memory, before.path) == (None, "")


# ---- reruns ----------------------------------------------------------------------------------------------------------


def test_knobs_of_a_gpu_are_turned_in_reruns_only_on_one() -> None:
    check_changes(["enforce_eager", "num_blocks"], "Some GPU")
    check_changes(["num_blocks"], "cpu")
    with pytest.raises(KnobError, match="runs on the CPU"):
        check_changes(["enforce_eager"], "cpu")
    for device in ("cpu", "Some GPU"):
        with pytest.raises(KnobError, match="shapes a workload"):
            check_changes(["arrival_rate"], device)
    assert set(rerun_knobs("Some GPU")) - set(rerun_knobs("cpu")) == {"enforce_eager", "overlap"}


# ---- where memory goes -----------------------------------------------------------------------------------------------


def test_weights_are_counted_once_however_often_they_are_held() -> None:
    a, b = torch.zeros(10, dtype=torch.float32), np.zeros(7, dtype=np.uint8)
    assert weight_bytes({"head": a, "embedding": a.view(5, 2)[1:]}, [b, b[2:]], (a.numpy(),), "text") == 47


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_a_runner_tells_where_memory_went(tmp_path: Path, path: str) -> None:
    make_llama(tmp_path, tie_word_embeddings=False)
    config = SchedulerConfig(num_blocks=50, block_size=16, max_model_len=512)
    runner = Runner(tmp_path, EngineConfig(dtype="float32", num_threads=1, scheduler=config, forward_path=path))
    file = tmp_path / "model.safetensors"
    (header,) = struct.unpack("<Q", file.open("rb").read(8))
    stored = file.stat().st_size - header - 8
    memory = runner.memory
    tables = 2 * runner.decoder.cos.nbytes  # rotary angles lie beside the weights
    if path == "torch":
        assert 0 <= memory.weights - stored - tables < 4096
    else:  # packed in panels: padded, and at most twice as much
        assert stored <= memory.weights - tables <= 2 * stored
    assert memory.pool == 0
    runner.allocate_cache(50, 16)
    assert runner.memory.pool == 50 * 16 * runner.model_info.bytes_per_token
    assert (runner.memory.total, runner.memory.utilization) == (0, 0.0)
