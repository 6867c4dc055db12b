"""The whole engine on the kernels: the same tokens as on plain torch, however the work is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention.triton import TritonAttention
from engine.config import EngineConfig, SchedulerConfig
from engine.kernels import attention, split_attention
from engine.kernels.variants import variants
from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request, SamplingParams
from engine.runner import Runner, RunnerError
from engine.scheduler import Scheduler
from tests.engine.families import FAMILIES
from tests.engine.forward_driver import make_llama, random_prompt
from tests.kernels.recording_device import RecordingDevice
from tests.kernels.waiting import waiting_forbidden

SMALL = {"hidden_size": 72, "num_hidden_layers": 2, "head_dim": 64, "initializer_range": 0.15}


@pytest.fixture(autouse=True)
def _short_contexts_are_split_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_attention, "_KEYS_A_SPLIT", 16)


@pytest.fixture(autouse=True)
def _graphs_are_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided on the host when a step was captured stays so, as in a real graph."""
    monkeypatch.setattr("engine.gpu.device.make_device", lambda name: RecordingDevice())


def make_requests() -> list[Request]:
    """Greedy and drawn, alone and behind a common prefix; with penalties, bounds and biases."""
    common = random_prompt(24, seed=9)
    params = [
        {}, {"temperature": 0.9, "top_k": 20, "seed": 4}, {"temperature": 1.0, "top_p": 0.8, "min_p": 0.01, "seed": 5},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}, {"logit_bias": {7: 3.0}}, {},
    ]  # fmt: skip
    lengths = [1, 7, 8, 9, 3, 20]
    return [
        Request(f"r{i}", (common if i % 2 else []) + random_prompt(length, seed=i),
                SamplingParams(max_tokens=6, ignore_eos=True, **settings))  # type: ignore[arg-type]
        for i, (length, settings) in enumerate(zip(lengths, params, strict=True))
    ]  # fmt: skip


def run(
    folder: Path, path: str, dtype: str = "float32", requests: list[Request] | None = None, *, overlap: bool = False,
    **changes: Any,
) -> tuple[dict[str, list[int]], set[str]]:
    """The output tokens of each request, and what happened on the way."""
    config = SchedulerConfig(**({"max_num_batched_tokens": 20, "max_num_seqs": 6, "block_size": 8, "num_blocks": 8,
                                 "max_model_len": 96, "reserve_full_input": False} | changes))  # fmt: skip
    runner = Runner(folder, EngineConfig(dtype=dtype, num_threads=1, scheduler=config, forward_path=path))
    assert runner.forward_path.startswith(path)
    runner.set_knob("overlap", overlap)
    scheduler, requests, seen = Scheduler(config, ()), requests or make_requests(), set()
    arriving = list(requests)
    for step in range(1000):
        if arriving and step % 2 == 0:
            scheduler.add_request(arriving.pop(0))
        plan = scheduler.schedule()
        counts = [entry.num_tokens for entry in plan.scheduled]
        seen |= {"mixed"} if counts and min(counts) == 1 < max(counts) else set()
        seen |= {"decodes"} if len(counts) > 1 and max(counts) == 1 else set()
        seen |= {"chunk"} if any(not entry.samples for entry in plan.scheduled) else set()
        seen |= {"hit"} if any(entry.hit_tokens for entry in plan.scheduled) else set()
        seen |= {"preempted"} if plan.preempted else set()
        for request, _ in scheduler.commit(plan, runner.execute(plan)):
            runner.free_request(request.request_id)
        seen.add(runner.step_mode.partition(" ")[0])
        if not arriving and not scheduler.requests:
            break
    seen |= {"ahead"} if runner._inputs.guessed_right else set()
    return {request.request_id: request.token_ids[request.num_prompt_tokens :] for request in requests}, seen


@pytest.fixture
def split_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Into how many parts contexts were cut."""
    found: set[int] = set()
    plain = TritonAttention.splits

    def noted(self: TritonAttention, requests: int, longest: int, window: int = 0) -> int:
        found.add(plain(self, requests, longest, window))
        return plain(self, requests, longest, window)

    monkeypatch.setattr(TritonAttention, "splits", noted)
    return found


def test_the_same_tokens_as_with_torch(tmp_path: Path, split_sizes: set[int]) -> None:
    make_llama(tmp_path, num_attention_heads=6, num_key_value_heads=2, **SMALL)
    found, seen = run(tmp_path, "triton", overlap=True)
    expected, _ = run(tmp_path, "torch")
    assert found == expected
    assert seen == {"mixed", "decodes", "chunk", "hit", "preempted", "eager", "capture", "graph", "ahead"}
    assert max(split_sizes) > 1
    assert min(split_sizes) == 1
    assert len({tuple(tokens) for tokens in found.values()}) > 3, "a model that always says the same proves little"


@pytest.mark.parametrize("name", ["qwen3", "gemma 3", "mixtral", "llama, biases everywhere"])
def test_every_kind_of_layer(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    settings = family.settings | {"head_dim": 64, "num_hidden_layers": 2}
    if name == "gemma 3":
        settings |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 11}
    replace(family, settings=settings).make(tmp_path)
    texts = []
    for path in ("triton", "torch"):
        requests = [Request(str(n), random_prompt(n, seed=n), SamplingParams(max_tokens=3)) for n in (29, 3)]
        texts.append(run(tmp_path, path, requests=requests, num_blocks=60)[0])
    assert texts[0] == texts[1]


def test_the_host_never_waits_within_a_forward_pass(tmp_path: Path) -> None:
    """Not even for which experts were chosen."""
    family = FAMILIES["mixtral"]
    replace(family, settings=family.settings | {"head_dim": 64, "num_hidden_layers": 1}).make(tmp_path)
    config = SchedulerConfig(num_blocks=8, max_model_len=64)
    runner = Runner(tmp_path, EngineConfig(dtype="float32", num_threads=1, scheduler=config, forward_path="triton"))
    request = Request("a", random_prompt(5, seed=1), block_ids=[3])
    modes = []
    for first, count in ((0, 4), (4, 1)):
        step = runner._prepare(StepPlan([ScheduledRequest(request, count, first, samples=True)]))
        with waiting_forbidden():
            logits = runner._forward_path.forward(step)
        assert logits.isfinite().all()
        modes.append(runner.step_mode)
    assert modes == ["eager", "eager"]


def test_the_host_never_waits_before_it_collects_the_tokens(tmp_path: Path) -> None:
    """Greedy and drawn, with penalties, biases, forbidden ends and log probabilities, in mixed steps and in decodes."""
    make_llama(tmp_path, num_attention_heads=2, num_key_value_heads=1, **SMALL | {"num_hidden_layers": 1})
    config = SchedulerConfig(max_num_batched_tokens=256, block_size=8, num_blocks=40, max_model_len=96)
    runner = Runner(tmp_path, EngineConfig(dtype="float32", num_threads=1, scheduler=config, forward_path="triton"))
    runner.allocate_cache(config.num_blocks, config.block_size)
    runner.set_knob("overlap", True)
    scheduler, asked = Scheduler(config, (2,)), Request("asked", random_prompt(9, seed=3), SamplingParams(
        max_tokens=6, min_tokens=4, logprobs=3, temperature=1.0, seed=5))  # fmt: skip
    for request in (*make_requests(), asked):
        scheduler.add_request(request)
    modes = set()
    for _ in range(4):
        plan = scheduler.schedule()
        with waiting_forbidden():
            runner.launch(plan)
        tokens = runner.collect()
        modes.add(runner.step_mode.partition(" ")[0])
        for index, entry in enumerate(s for s in plan.scheduled if s.samples):
            found = runner.logprobs[index] if entry.request is asked else None
            assert (entry.request is asked) == (found is not None and len(found.top) == 3)
        scheduler.commit(plan, tokens)
    assert runner._inputs.guessed_right == 3
    assert modes == {"eager", "capture", "graph"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_stay_near_float32(tmp_path: Path, dtype: str) -> None:
    make_llama(tmp_path, num_attention_heads=6, num_key_value_heads=2, **SMALL)
    rows = {}
    for path, kind in (("torch", "float32"), ("torch", dtype), ("triton", dtype)):
        config = EngineConfig(dtype=kind, num_threads=1, scheduler=SchedulerConfig(num_blocks=20, max_model_len=128))
        runner = Runner(tmp_path, replace(config, forward_path=path))
        logits: list[torch.Tensor] = []
        forward = runner._forward_path.forward
        runner._forward_path.forward = lambda step, f=forward, to=logits: to.append(f(step)) or to[-1]  # type: ignore
        scheduler = Scheduler(config.scheduler, ())
        scheduler.add_request(Request("a", random_prompt(50, seed=1), SamplingParams(max_tokens=1)))
        plan = scheduler.schedule()
        runner.execute(plan)
        rows[path, kind] = logits[0][0]
    exact = rows["torch", "float32"]
    errors = {path: float((rows[path, dtype] - exact).norm() / exact.norm()) for path in ("torch", "triton")}
    assert errors["triton"] < 0.03
    assert errors["triton"] < 1.5 * errors["torch"]


def test_what_the_kernels_cannot_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_llama(tmp_path, head_dim=32)
    with pytest.raises(RunnerError, match="heads of 32, the kernels know 64, 80, 96, 128, 256"):
        Runner(tmp_path, EngineConfig(dtype="float32", forward_path="triton"))
    make_llama(tmp_path, head_dim=64)
    config = EngineConfig(dtype="float32", forward_path="triton", scheduler=SchedulerConfig(num_blocks=8))
    runner = Runner(tmp_path, config)
    with pytest.raises(ValueError, match="a power of two, not 24"):
        runner.allocate_cache(8, 24)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(RunnerError, match="kernels need a GPU"):
        Runner(tmp_path, EngineConfig(dtype="float32", forward_path="triton"))


def test_the_list_of_variants_holds_what_the_engine_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every constant that a kernel is launched with is among those that are compiled and measured."""
    from triton.runtime.interpreter import InterpretedFunction

    listed = {(v.kernel.fn.__name__, tuple(sorted(v.constants.items())), v.num_warps) for v in variants()}
    launched = set()
    plain = InterpretedFunction.run

    def noted(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        constants = {name: value for name, value in kwargs.items() if name not in ("num_warps", "num_stages")}
        launched.add((self.fn.__name__, tuple(sorted(constants.items())), kwargs["num_warps"]))
        return plain(self, *args, grid=grid, warmup=warmup, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "run", noted)
    make_llama(tmp_path, num_attention_heads=6, num_key_value_heads=2, **SMALL)
    requests = make_requests()[1:4]
    for request in requests:
        request.params = replace(request.params, max_tokens=3)
    run(tmp_path, "triton", "bfloat16", requests=requests, num_blocks=30)
    assert launched <= listed
    assert {name for name, _, _ in launched} == {
        "attention_kernel", "split_kernel", "merge_kernel", "rotate_and_cache_kernel", "rms_norm_kernel",
        "gated_kernel", "largest_kernel", "first_kernel", "draw_kernel", "penalise_kernel"}
    assert attention.MAX_GROUP >= 16
