"""The runner behind the real scheduler: whatever is decided, every request gets the text it would get alone."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.model.config import UnsupportedModel
from engine.plan import StepPlan
from engine.request import Request, SamplingParams
from engine.runner import Runner, RunnerError, default_num_threads
from engine.scheduler import Scheduler
from tests.engine.forward_driver import VOCAB, Driver, make_llama, make_runner, random_prompt

CHANGES = {
    "max_num_batched_tokens": (16, 40, 64, 512),
    "max_num_seqs": (1, 3, 16),
    "long_prefill_token_threshold": (0, 10, 24),
    "enable_chunked_prefill": (True, False),
    "enable_prefix_caching": (True, False),
    "policy": ("fcfs", "priority"),
    "watermark": (0.0, 0.1),
    "reserve_full_input": (True, False),
    "block_size": (8, 16, 32),
    "num_blocks": (12, 20, 64),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make_llama(folder, seed=3)
    return folder


def make_requests() -> list[Request]:
    """Twelve requests, most of them behind one common prefix; greedy and sampled ones."""
    common = random_prompt(40, seed=99)
    requests = []
    for i in range(12):
        prompt = (common if i % 3 else []) + random_prompt(5 + 4 * i, seed=i)
        params = SamplingParams(temperature=0.9 if i % 4 == 3 else 0.0, top_k=50 if i % 8 == 7 else 0, seed=i,
                                max_tokens=6 + i, ignore_eos=True)  # fmt: skip
        requests.append(Request(f"r{i}", prompt, params, priority=i % 2))
    return requests


def texts_alone(folder: Path, path: str) -> dict[str, list[int]]:
    runner = make_runner(folder, path=path)
    texts = {}
    for request in make_requests():
        driver = Driver(runner, 16)
        texts[request.request_id] = driver.generate(request, request.params.max_tokens)
        runner.free_request(request.request_id)
    return texts


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_knobs_never_change_the_text(folder: Path, path: str) -> None:
    expected = texts_alone(folder, path)
    preemptions = hits = chunks = 0
    for seed in range(4):
        chance = random.Random(seed)
        config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=8, block_size=8, num_blocks=30,
                                 max_model_len=256)  # fmt: skip
        runner = Runner(folder, EngineConfig(dtype="float32", num_threads=1, scheduler=config, forward_path=path))
        scheduler = Scheduler(config, ())
        requests = make_requests()
        arriving = list(requests)
        while arriving or scheduler.requests:
            if arriving and chance.random() < 0.5:
                scheduler.add_request(arriving.pop(0))
            if chance.random() < 0.25:
                name = chance.choice(list(CHANGES))
                before = scheduler.config
                scheduler.reconfigure({name: chance.choice(CHANGES[name])})
                after = scheduler.config
                if (before.num_blocks, before.block_size) != (after.num_blocks, after.block_size):
                    runner.allocate_cache(after.num_blocks, after.block_size)
                if scheduler.unservable() or after.num_blocks * after.block_size < 200:
                    scheduler.reconfigure({"num_blocks": 64})
                    runner.allocate_cache(64, after.block_size)
                if not after.enable_chunked_prefill and after.max_num_batched_tokens < 128:
                    scheduler.reconfigure({"max_num_batched_tokens": 128})
            plan = scheduler.schedule()
            preemptions += len(plan.preempted)
            hits += sum(entry.hit_tokens > 0 for entry in plan.scheduled)
            chunks += sum(not entry.samples for entry in plan.scheduled)
            for request, _ in scheduler.commit(plan, runner.execute(plan)):
                runner.free_request(request.request_id)
        assert {r.request_id: r.token_ids[r.num_prompt_tokens :] for r in requests} == expected
    assert min(preemptions, hits, chunks) > 5


def test_an_empty_plan_computes_nothing(folder: Path) -> None:
    runner = make_runner(folder)
    assert runner.execute(StepPlan()) == []
    assert runner.phase_ns == {"prepare": 0, "forward": 0, "sample": 0}


def test_what_the_runner_says_of_itself(folder: Path) -> None:
    runner = make_runner(folder, threads=2)
    info = runner.model_info
    assert (info.architecture, info.num_layers, info.vocab_size) == ("LlamaForCausalLM", 3, VOCAB)
    assert info.dtype == "float32"
    assert info.bytes_per_token == 2 * 3 * 2 * 32 * 4
    assert runner.eos_token_ids == {2}
    assert runner.max_model_len == 512
    assert runner.num_threads == 2
    driver = Driver(runner, 16)
    driver.generate(driver.request("a", random_prompt(10, seed=0)), 2)
    assert set(runner.phase_ns) == {"prepare", "forward", "sample"}
    assert all(value > 0 for value in runner.phase_ns.values())


def test_many_requests_outgrow_the_buffers(folder: Path) -> None:
    """More requests and tokens in one step than the first buffers hold."""
    driver = Driver(make_runner(folder, num_blocks=400), 16, num_blocks=400)
    requests = [driver.request(str(i), random_prompt(20, seed=i % 3)) for i in range(100)]
    driver.step([(request, 100) for request in requests])
    driver.step([(request, 1) for request in requests])
    for i, request in enumerate(requests):
        assert request.token_ids == requests[i % 3].token_ids
        driver.runner.free_request(request.request_id)


def test_progress_is_told(folder: Path) -> None:
    seen: list[tuple[str, float | None]] = []
    config = EngineConfig(dtype="float32", num_threads=1, scheduler=SchedulerConfig(num_blocks=8))
    Runner(folder, config, progress=lambda stage, done: seen.append((stage, done)))
    assert seen[0][0] == "Loading weights"
    assert seen[-1][0] == "Packing weights"
    assert all(done is None or 0 <= done <= 1 for _, done in seen)


def test_what_cannot_be_run_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="int8 is not one of bfloat16, float16, float32"):
        Runner(folder, EngineConfig(dtype="int8"))
    with pytest.raises(RunnerError, match="tpu is not one of cpu, cuda"):
        Runner(folder, EngineConfig(device="tpu"))
    if not torch.cuda.is_available():
        with pytest.raises(RunnerError, match="no usable NVIDIA GPU; use cpu"):
            Runner(folder, EngineConfig(device="cuda"))
    with pytest.raises(RunnerError, match="'fast' is not one of auto, torch, triton"):
        Runner(folder, EngineConfig(forward_path="fast"))
    if importlib.util.find_spec("triton"):
        with pytest.raises(RunnerError, match="triton cannot run here: heads of 32"):
            Runner(folder, EngineConfig(forward_path="triton"))
    with pytest.raises(UnsupportedModel, match="no model folder"):
        Runner(tmp_path, EngineConfig())
    with pytest.raises(ValueError, match="a KV cache of 0 blocks"):
        make_runner(folder).allocate_cache(0, 16)


def test_a_watched_engine_leaves_the_window_a_core() -> None:
    assert 1 <= default_num_threads(watched=True) <= default_num_threads(watched=False)
