"""Decode steps from graphs: the same tokens as on plain torch, whatever else happens between two steps.

The kernels are stood in for by plain torch, so that runs can be long; ``interpreted/test_engine.py`` has the real ones.
A captured graph is a recording of operations on fixed tensors (:mod:`tests.kernels.recording_device`), and all memory
that a step must not depend on holds garbage.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.triton import TritonBatch
from engine.config import EngineConfig, SchedulerConfig
from engine.gpu.device import Graph, HostDevice
from engine.gpu.graphs import DecodeGraphs, DecodeShape, capture_sizes, padded_size
from engine.gpu.path import TritonPath
from engine.kernels import split_attention
from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request, SamplingParams
from engine.runner import Runner, StepInput
from engine.scheduler import Scheduler
from tests.engine.families import FAMILIES
from tests.engine.forward_driver import make_llama, random_prompt
from tests.kernels.plain_kernels import PlainOperations, use_plain_kernels
from tests.kernels.recording_device import RecordingDevice
from tests.kernels.waiting import waiting_forbidden

CONFIG = SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=5, block_size=8, num_blocks=40, max_model_len=96,
                         reserve_full_input=False)


@pytest.fixture(autouse=True)
def _plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In which contexts of 48 tokens and more may be cut into parts."""
    use_plain_kernels(monkeypatch)
    monkeypatch.setattr(split_attention, "_KEYS_A_SPLIT", 24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_llama(folder, num_hidden_layers=2, initializer_range=0.2)
    return folder


def make_runner(model: Path, device: HostDevice | None = None, config: SchedulerConfig = CONFIG) -> Runner:
    """On a ``device`` with the path of GPUs; without, on plain torch."""
    runner = Runner(model, EngineConfig(dtype="float32", num_threads=1, scheduler=config, forward_path="torch"))
    if device is not None:
        path = TritonPath(runner.decoder, device, runner.max_model_len, config.max_num_seqs)
        path.rows = runner._forward_path.rows  # type: ignore[method-assign]  # plain ones
        runner.decoder._operations = PlainOperations()
        runner._forward_path = runner._captures = path
    return runner


def path_of(runner: Runner) -> TritonPath:
    assert isinstance(runner._forward_path, TritonPath)
    return runner._forward_path


def poison(path: TritonPath, generator: np.random.Generator) -> None:
    """Garbage in everything that a step has to write before it reads it: the next step's results must not change.

    What was prepared ahead for it stays, but for its tokens.
    """
    for staging in (path._inputs.staging, path._mixed.staging):
        memories = [*staging.on_host, staging.on_device.numpy()]
        ahead = path._inputs._ahead if staging is path._inputs.staging else None
        if ahead is not None:
            del memories[ahead[1]]
            path._inputs._on_host[ahead[1]][0][:] = generator.integers(-(2**63), 2**63 - 1)
        for memory in memories:
            memory[:] = generator.integers(0, 256, len(memory), dtype=np.uint8)
    path._logits.fill_(float("nan"))


def texts_alone(model: Path, requests: list[Request]) -> list[list[int]]:
    """What each request says on plain torch with nobody beside it."""
    runner, texts = make_runner(model, config=replace(CONFIG, num_blocks=100)), []
    for request in requests:
        scheduler = Scheduler(CONFIG, ())
        again = Request(request.request_id, request.prompt_token_ids, request.params)
        scheduler.add_request(again)
        while scheduler.requests:
            plan = scheduler.schedule()
            scheduler.commit(plan, runner.execute(plan))
        runner.free_request(request.request_id)
        texts.append(again.token_ids)
    return texts


def make_requests(count: int, chance: random.Random) -> list[Request]:
    common = random_prompt(20, seed=99)
    requests = []
    for number in range(count):
        prompt = (common if chance.random() < 0.3 else []) + random_prompt(chance.randint(1, 30), seed=number)
        params = SamplingParams(max_tokens=chance.randint(2, 20), ignore_eos=True, seed=number,
                                temperature=chance.choice([0.0, 0.0, 1.0]))
        requests.append(Request(f"r{number}", prompt, params))
    return requests


def test_no_step_depends_on_graphs_padding_or_what_lay_in_memory(model: Path) -> None:
    seen: set[str] = set()
    for seed in range(4):
        seen |= serve_at_random(model, seed)
    assert seen == {"eager", "graph", "capture", "preempted", "split", "whole", "cut beside a prompt"}


def serve_at_random(model: Path, seed: int) -> set[str]:
    """Requests come and go, more than the graphs were made for; they are preempted and chunked, the knob is turned, the
    pool is made anew with other sizes. Returns what happened.
    """
    chance, generator, device = random.Random(seed), np.random.default_rng(seed), RecordingDevice()
    seen: set[str] = set()
    requests = make_requests(24, chance)
    expected = texts_alone(model, requests)
    runner = make_runner(model, device)
    path = path_of(runner)
    pack = path._pack

    def noted(step: StepInput) -> TritonBatch:
        batch = pack(step)
        seen.update({"cut beside a prompt"} if batch.cut is not None else ())
        return batch

    path._pack = noted  # type: ignore[method-assign]
    runner.allocate_cache(CONFIG.num_blocks, CONFIG.block_size)
    runner.warm_up()
    runner.set_knob("overlap", seed % 2 == 1)
    scheduler, arriving = Scheduler(CONFIG, ()), list(requests)
    while arriving or scheduler.requests:
        if arriving and chance.random() < 0.35:
            scheduler.add_request(arriving.pop(0))
        if chance.random() < 0.08:
            runner.set_knob("enforce_eager", chance.random() < 0.4)
        if chance.random() < 0.05:
            scheduler.reconfigure({"max_num_seqs": chance.choice([1, 2, 5, 14, 20])})
        if chance.random() < 0.03:
            sizes = {"num_blocks": chance.choice([14, 20, 60]), "block_size": chance.choice([8, 16, 32])}
            if scheduler.reconfigure(sizes):
                runner.allocate_cache(sizes["num_blocks"], sizes["block_size"])
        poison(path, generator)
        plan = scheduler.schedule()
        seen |= {"preempted"} if plan.preempted else set()
        tokens = runner.execute(plan)
        if plan.computed:
            seen.add(runner.step_mode.split()[0])
            longest = max(entry.num_computed_tokens + entry.num_tokens for entry in plan.computed)
            if runner.step_mode.startswith("graph"):
                seen.add("split" if longest >= 48 else "whole")
        for request, _ in scheduler.commit(plan, tokens):
            runner.free_request(request.request_id)
    assert [request.token_ids for request in requests] == expected
    assert device.replays > 10
    assert (runner._inputs.guessed_right > 10) == (seed % 2 == 1)
    return seen


def decode_plan(count: int, length: int = 9, samples: bool = True) -> StepPlan:
    """``count`` requests with a token each, far into contexts of ``length`` tokens of their own."""
    plan = StepPlan()
    for number in range(count):
        request = Request(f"d{number}", random_prompt(length, seed=number), block_ids=[1 + number] * -(-length // 8))
        plan.scheduled.append(ScheduledRequest(request, 1, length - 1, samples, "first"))
    return plan


def test_how_a_step_ran_is_told(model: Path) -> None:
    runner = make_runner(model, RecordingDevice())
    told: list[tuple[str, float | None]] = []
    runner.warm_up(lambda stage, done: told.append((stage, done)))
    assert told[0] == ("Compiling kernels", 0.0)
    count = path_of(runner).num_graphs()
    assert [done for stage, done in told if stage == "Capturing CUDA graphs"] == [n / count for n in range(count + 1)]

    def mode(plan: StepPlan) -> str:
        runner.execute(plan)
        return runner.step_mode

    assert [mode(decode_plan(count)) for count in range(1, 9)] == [
        "graph 1", "graph 2", "graph 4", "graph 4", "graph 8", "graph 8", "graph 8", "graph 8"]
    # More than the graphs were made for.
    assert [mode(decode_plan(count)) for count in (9, 10, 16)] == ["eager", "capture 16", "graph 16"]
    # A prompt beside a decode, a token that nothing is sampled from.
    mixed = decode_plan(2)
    mixed.scheduled[1] = replace_entry(mixed.scheduled[1], num_tokens=2, num_computed_tokens=7)
    assert mode(mixed) == "eager"
    assert mode(decode_plan(2, samples=False)) == "eager"
    runner.set_knob("enforce_eager", True)
    assert mode(decode_plan(2)) == "eager"
    runner.set_knob("enforce_eager", False)
    assert mode(decode_plan(2)) == "graph 2"
    # The old graphs read from a cache that is gone.
    runner.allocate_cache(30, 16)
    assert mode(decode_plan(2)) == "graph 2"
    assert mode(decode_plan(12)) == "capture 16"
    assert make_runner(model).step_mode == ""


def replace_entry(entry: ScheduledRequest, **changes: Any) -> ScheduledRequest:
    fields = ("request", "num_tokens", "num_computed_tokens", "samples", "admission")
    return ScheduledRequest(**{name: getattr(entry, name) for name in fields} | changes)


def test_graphs_are_the_same_to_the_bit_as_no_graphs(model: Path) -> None:
    rows = []
    for enforce_eager in (False, True):
        runner = make_runner(model, RecordingDevice())
        runner.warm_up()
        runner.set_knob("enforce_eager", enforce_eager)
        path = path_of(runner)
        runner.execute(prefill_plan(3))
        rows.append(path.forward(runner._prepare(decode_plan(3))).clone())
        assert runner.step_mode == ("eager" if enforce_eager else "graph 4")
    assert torch.equal(rows[0], rows[1])
    assert not rows[0].isnan().any()


def prefill_plan(count: int, length: int = 9) -> StepPlan:
    plan = decode_plan(count, length)
    plan.scheduled = [replace_entry(e, num_tokens=length - 1, num_computed_tokens=0) for e in plan.scheduled]
    return plan


def test_long_contexts_have_graphs_of_their_own(model: Path) -> None:
    """One that cuts contexts into parts and one that does not, wherever cutting may pay off."""
    device = RecordingDevice()
    device.processors = 4  # which 4 requests with 2 key-value heads keep busy
    runner = make_runner(model, device)
    runner.warm_up()
    path = path_of(runner)
    assert path.captured == [(1, False), (1, True), (2, False), (2, True), (4, False), (8, False)]
    assert path.num_graphs() == device.captures == 6
    seen: list[int] = []
    plain = DecodeGraphs.play

    def noted(self: DecodeGraphs, shape: DecodeShape) -> str:
        seen.append(shape.split)
        return plain(self, shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodeGraphs, "play", noted)
        for count, length in ((1, 47), (1, 48), (2, 90), (3, 90), (4, 90)):
            runner.execute(decode_plan(count, length))
            assert runner.step_mode.startswith("graph")
    assert seen == [False, True, True, False, False]


@given(st.integers(1, 300))
def test_sizes_of_graphs(max_num_seqs: int) -> None:
    sizes = capture_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] >= max_num_seqs
    for requests in range(1, max_num_seqs + 1):
        padded = padded_size(requests)
        assert padded in sizes
        assert requests <= padded < requests + 8
        assert all(size < requests or size >= padded for size in sizes), "a smaller one would do"


def test_sizes_are_those_of_vllm() -> None:
    assert capture_sizes(1) == [1]
    assert capture_sizes(32) == [1, 2, 4, 8, 16, 24, 32]
    assert capture_sizes(20) == [1, 2, 4, 8, 16, 24]
    assert len(capture_sizes(256)) == 35


def test_the_largest_graph_is_captured_first_and_all_share_one_memory(model: Path) -> None:
    class Noting(HostDevice):
        made = 0

        def new_graph_pool(self) -> int:
            self.made += 1
            return self.made

        def capture(self, function: Callable[[], None], pool: Any) -> Graph:
            with torch.inference_mode():
                function()
            captured.append((max(map(len, seen)), pool))
            seen.clear()
            return super().capture(function, pool)

    captured: list[tuple[int, int]] = []
    seen: list[torch.Tensor] = []
    runner = make_runner(model, Noting())
    forward = runner.decoder.forward
    runner.decoder.forward = lambda batch, *rest: seen.append(batch.slots) or forward(batch, *rest)  # type: ignore
    runner.allocate_cache(40, 8)
    path_of(runner).capture()
    sizes = [size for size, _ in captured]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 8
    assert {pool for _, pool in captured} == {1}
    # What its graphs took was given back with the last of them: a new cache, a new memory.
    captured.clear()
    runner.allocate_cache(40, 16)
    path_of(runner).capture()
    assert {pool for _, pool in captured} == {2}


def test_a_graph_that_does_not_fit_into_memory_is_done_without(model: Path) -> None:
    class Small(RecordingDevice):
        refused = 0
        pools = 0
        gone = 0  # the last graph of a pool, and with it the pool

        def new_graph_pool(self) -> int:
            self.pools += 1
            return self.pools

        def capture(self, function: Callable[[], None], pool: Any) -> Graph:
            assert pool != self.gone
            graph = super().capture(function, pool)
            if len(path_of(runner)._batches) == 1:  # the first and largest
                self.refused += 1
                self.gone = pool
                raise torch.OutOfMemoryError
            return graph

    device = Small()
    runner = make_runner(model, device, replace(CONFIG, max_model_len=32))
    runner.warm_up()
    modes = []
    for count in (8, 8, 4):
        runner.execute(decode_plan(count))
        modes.append(runner.step_mode)
    assert modes == ["eager", "eager", "graph 4"]
    assert device.refused == 1


@pytest.mark.parametrize("family", ["mixtral", "qwen3 moe", "gemma 3"])
def test_other_families_play_graphs_too(tmp_path: Path, family: str) -> None:
    """Which experts are wanted changes from step to step, and a graph does not."""
    FAMILIES[family].make(tmp_path)
    texts = []
    for device in (RecordingDevice(), None):
        runner = make_runner(tmp_path, device)
        runner.warm_up()
        scheduler = Scheduler(CONFIG, ())
        requests = [Request(str(n), random_prompt(n, seed=n), SamplingParams(max_tokens=9, ignore_eos=True))
                    for n in (3, 12)]
        for request in requests:
            scheduler.add_request(request)
        while scheduler.requests:
            plan = scheduler.schedule()
            scheduler.commit(plan, runner.execute(plan))
        assert runner.step_mode == ("graph 2" if device else "")
        texts.append([request.token_ids for request in requests])
    assert texts[0] == texts[1]


def test_the_host_never_waits_for_the_device_within_a_forward_pass(model: Path) -> None:
    runner = make_runner(model, HostDevice())
    runner.warm_up()
    prefill, decodes = runner._prepare(prefill_plan(3)), decode_plan(3)
    path = path_of(runner)
    with waiting_forbidden():
        path.forward(prefill)
    step = runner._prepare(decodes)
    for enforce_eager in (False, True):
        path.set_enforce_eager(enforce_eager)
        with waiting_forbidden():
            logits = path.forward(step)
        assert logits.shape == (3, runner.model_config.vocab_size)
    with waiting_forbidden(), pytest.raises(AssertionError, match="item"):
        logits.sum().item()
