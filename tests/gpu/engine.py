"""The whole engine on the kernels: the tokens of transformers, of the CPU, and the same with graphs as without."""

from __future__ import annotations

import copy
import gc
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.gpu.warm_up import full_step
from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request, SamplingParams
from engine.runner import Runner
from tests.engine.families import FAMILIES, Family
from tests.engine.forward_driver import VOCAB, Driver, random_prompt
from tests.engine.mixed_requests import mixed_requests
from tests.engine.ways import WAYS, Reference, Way, check_way, remembered_logits
from tests.gpu.deadline import Deadline
from tests.gpu.models import SMOLLM2, TINY, make_runner
from tests.gpu.report import Report, Row
from tests.kernels.memory import fresh_memory, poison

SECTION = "the engine is right"
POOL_ROOM = 12 << 30
"""Bytes for a model of 270 MB, its graphs and its pool; the pool then stays below the most blocks that there may be."""
POOL_SLACK = 3 << 29
"""Bytes that may be amiss: what the driver took before the model came, and what the graphs were thought to take."""

_SIZES = {
    "llama, three wide heads a key": {"num_hidden_layers": 2},
    "qwen3": {"head_dim": 128},
    "gemma 3": {"head_dim": 256, "query_pre_attn_scalar": 2000},  # scores that float32 has digits for
    "llama, biases everywhere": {"head_dim": 80},
    "llama 3 positions": {"head_dim": 96},
    "qwen2": {"head_dim": 64},
    "mistral": {"head_dim": 64},
    "mixtral": {"head_dim": 64},
    "qwen3 moe": {"head_dim": 64},
}
"""The families, each at a head size that the kernels know."""

_TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 72, "head_dim": 64}
"""For the interpreter, where every head of every token costs."""

_TINY_WAY = Way(chunk=32, block_size=16, hit=True, preempted=True, mixed=False)


def families(small: bool) -> dict[str, Family]:
    sizes = {"qwen3": _TINY} if small else _SIZES
    return {name: replace(FAMILIES[name], settings=FAMILIES[name].settings | size) for name, size in sizes.items()}


def check_engine(report: Report, device: str, small: bool, deadline: Deadline) -> None:
    """Everything of this module, each in a row of its own; what says most comes first."""
    with tempfile.TemporaryDirectory() as name:
        (first, family), *others = families(small).items()
        folder = Path(name) / "first"
        model = family.make(folder)
        rows: list[tuple[str, Callable[[], str]]] = [
            (f"{first}: float32 as transformers", lambda: _check_ways(folder, model, device, small)),
            ("graphs as eager, bfloat16", lambda: _check_graphs("bfloat16", device, small)),
            ("draws as on the CPU", lambda: _check_draws(folder, device, small)),
            (f"{first}: bfloat16 as near as transformers", lambda: _check_bfloat16(folder, model, device, small)),
        ]
        if device == "cuda":  # where there is something to wait for
            rows.append(("launching a step waits for nothing", lambda: _check_no_waiting(folder)))
            rows.append(("graphs as eager, float32", lambda: _check_graphs("float32", device, small)))
            rows.append(("the KV pool takes what memory is left", _check_memory))
        rows += [(f"{other}: float32 as transformers", partial(_make_and_check_ways, other_family, Path(name) / other,
                                                               device)) for other, other_family in others]  # fmt: skip
        for row, check in rows:
            if deadline.over:
                return deadline.stop(f"not {row} and what follows")
            _row(report, row, check)
    return None


def _row(report: Report, name: str, check: Callable[[], str]) -> None:
    """A row that says what the check returned, or what it raised."""
    start = time.perf_counter()
    try:
        ok, note = True, check()
    except Exception as error:  # a check that cannot run has failed, and the others go on
        ok, note = False, f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    report.add(Row(SECTION, name, ok=ok, note=f"{note} ({time.perf_counter() - start:.1f} s)"))


def _config(device: str, dtype: str, path: str = "triton", **scheduler: Any) -> EngineConfig:
    return EngineConfig(device=device, dtype=dtype, forward_path=path, num_threads=1,
                        scheduler=SchedulerConfig(**scheduler))  # fmt: skip


def _check_ways(folder: Path, model: Any, device: str, small: bool, every: int = 7) -> str:
    """Chunks, mixed batches, prefix hits, preemptions: the tokens and the logits of transformers, in float32.

    One way of ``every`` so many, which shares no factor with how many there are, so that all that differs occurs.
    """
    ways = [_TINY_WAY] if small else [*WAYS[::every], _TINY_WAY]
    with fresh_memory(poison):
        runner = Runner(folder, _config(device, "float32", num_blocks=2, max_model_len=512))
        reference = Reference(model)
        outcomes = [check_way(runner, reference, way) for way in ways]
    return (f"{len(ways)} ways of cutting the work, {sum(o.logits for o in outcomes)} rows of logits, off by "
            f"{max(o.error for o in outcomes):.1e}, {sum(o.preemptions for o in outcomes)} preemptions, "
            f"{sum(o.hit_tokens for o in outcomes)} tokens hit")  # fmt: skip


def _make_and_check_ways(family: Family, folder: Path, device: str) -> str:
    return _check_ways(folder, family.make(folder), device, small=False, every=19)


def _check_bfloat16(folder: Path, model: Any, device: str, small: bool) -> str:
    """bfloat16 is no further from what its weights give in float32 than transformers' bfloat16 is."""
    prompts = [random_prompt(length, seed=length) for length in ([20] if small else range(5, 400, 13))]
    rounded = in_bfloat16(model).to(device)
    exact = copy.deepcopy(rounded).float()
    runner = Runner(folder, _config(device, "bfloat16", num_blocks=64, max_model_len=512))

    def last_row(of: Any, prompt: list[int]) -> torch.Tensor:
        with torch.no_grad():
            row: torch.Tensor = of(torch.tensor([prompt], device=device)).logits[0, -1].float().cpu()
        return row

    ours, theirs, total = 0.0, 0.0, 0
    for number, prompt in enumerate(prompts):
        request = Request(f"b{number}", prompt, SamplingParams(max_tokens=1))
        request.block_ids = list(range(1, 1 + -(-len(prompt) // 16)))
        with remembered_logits(runner) as rows, fresh_memory(poison):
            runner.execute(StepPlan([ScheduledRequest(request, len(prompt), 0, True, "first")]))
        right = last_row(exact, prompt)
        ours += float((rows[0][0] - right).square().sum())
        theirs += float((last_row(rounded, prompt) - right).square().sum())
        total += len(right)
        runner.free_request(request.request_id)
    ours, theirs = math.sqrt(ours / total), math.sqrt(theirs / total)
    if not ours <= 1.5 * theirs:
        raise AssertionError(f"off by {ours:.4f}, transformers by {theirs:.4f}")
    return f"{len(prompts)} prompts, logits off by {ours:.4f}, transformers' by {theirs:.4f} (root mean square)"


def in_bfloat16(model: Any) -> Any:
    """A copy with rounded weights. What is no weight, as the frequencies of rotation, stays as it is when loading: in
    bfloat16 they would turn the last of 400 tokens by half a radian too much or too little.
    """
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16()
    return rounded


def _check_graphs(dtype: str, device: str, small: bool) -> str:
    """Decode batches of many sizes, alternating so that old inputs lie about: the same bits from a graph as without.

    A decode step is padded alike in both, so the same kernels run on the same shapes.
    """
    counts = [3, 1, 3] if small else [3, 1, 9, 2, 33, 4, 5, 17, 8, 1, 16, 33]
    lengths = [5, 17, 16] if small else [2000, 5, 31, 32, 33, 300, 1, 700, 64, 15, 1500]
    tokens = sum(lengths[i % len(lengths)] + 1 for i in range(max(counts)))
    num_blocks = 40 + tokens // 16 + max(counts)
    config = _config(device, dtype, num_blocks=num_blocks, max_num_seqs=max(counts), max_model_len=2048)
    with fresh_memory(poison):
        runner = make_runner(TINY, config)
        runner.allocate_cache(num_blocks, 16)
        if not small:  # without it a graph is made when its size comes the second time
            runner.warm_up()
        driver = Driver(runner, 16, num_blocks)
        requests = [driver.request(f"g{i}", random_prompt(lengths[i % len(lengths)], seed=i))
                    for i in range(max(counts))]  # fmt: skip
        for request in requests:
            driver.step([(request, 10_000)])
        played, off, worst = set(), 0, 0.0
        for count in counts:
            batch = requests[-count:] if count % 2 else requests[:count]
            results = []
            for enforce_eager in (True, False):
                runner.set_knob("enforce_eager", enforce_eager)
                tokens_of = driver.step([(request, 1) for request in batch])
                results.append((tokens_of, driver.logits))
                if not enforce_eager:
                    played.add(runner.step_mode)
                elif runner.step_mode != "eager":
                    raise AssertionError(f"eagerly asked for, and it ran as {runner.step_mode!r}")
                for request in batch:  # back to before the step
                    request.token_ids.pop()
                    request.num_computed_tokens -= 1
            (eager_tokens, eager), (graph_tokens, graph) = results
            if not bool(eager.isfinite().all()):
                raise AssertionError(f"batch {count}: memory was read that nobody wrote")
            off += not torch.equal(eager, graph) or eager_tokens != graph_tokens
            worst = max(worst, float((eager - graph).abs().max()))
    if not all(mode.startswith(("graph", "capture") if small else "graph") for mode in played):
        raise AssertionError(f"no graph was played for some batches: {', '.join(sorted(played))}")
    if off:
        raise AssertionError(f"{off} of {len(counts)} batches differ, by up to {worst:.1e}")
    return f"{len(counts)} batches equal to the bit; played were {', '.join(sorted(played))}"


def _check_draws(folder: Path, device: str, small: bool) -> str:
    """Every way of choosing a token, in float32: the CPU's plain path chooses the same."""
    chosen = {}
    count = 4 if small else 60
    for path, where in (("triton", device), ("torch", "cpu")):
        config = _config(where, "float32", path, num_blocks=3 * count + 1, max_model_len=64)
        runner, requests = Runner(folder, config), mixed_requests(count, VOCAB)
        for number, request in enumerate(requests):
            request.block_ids = [3 * number + 1, 3 * number + 2]
        tokens: list[list[int]] = []
        for _ in range(2 if small else 6):  # the second one knows penalties for what the first one chose
            plan = StepPlan([
                ScheduledRequest(request, request.num_tokens - request.num_computed_tokens,
                                 request.num_computed_tokens, True, "" if request.num_computed_tokens else "first")
                for request in requests])  # fmt: skip
            step = runner.execute(plan)
            tokens.append(list(step))
            for request, token in zip(requests, step, strict=True):
                request.num_computed_tokens = request.num_tokens
                request.token_ids.append(token)
        chosen[path] = [token for step in tokens for token in step]
    count = len(chosen["torch"])
    differ = sum(mine != theirs for mine, theirs in zip(chosen["triton"], chosen["torch"], strict=True))
    if differ:
        raise AssertionError(f"{differ} of {count} tokens differ")
    return f"{count} tokens the same, greedy and drawn, with penalties, bounds and biases"


def _check_no_waiting(folder: Path) -> str:
    """Between the scheduler's plan and the fetch of the tokens torch waits for the device in no operation."""
    runner = Runner(folder, _config("cuda", "bfloat16", num_blocks=200, max_num_seqs=16, max_model_len=256))
    runner.warm_up()
    requests = mixed_requests(16, VOCAB)
    for number, request in enumerate(requests):
        request.block_ids = list(range(1 + 8 * number, 9 + 8 * number))
    modes: list[str] = []
    for eager in (False, True):
        runner.set_knob("enforce_eager", eager)
        for _ in range(4):  # the first step is prompts, the others are decodes
            plan = StepPlan([
                ScheduledRequest(request, request.num_tokens - request.num_computed_tokens,
                                 request.num_computed_tokens, True, "" if request.num_computed_tokens else "first")
                for request in requests])  # fmt: skip
            torch.cuda.set_sync_debug_mode("error")
            try:
                runner.launch(plan)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            modes.append(runner.step_mode)
            for request, token in zip(requests, runner.collect(), strict=True):
                request.num_computed_tokens = request.num_tokens
                request.token_ids.append(token)
    return f"steps of 16 requests: {', '.join(modes)}"


def _check_memory() -> str:
    """A pool as large as ``gpu_memory_utilization`` allows: what is in use afterwards is what was asked for."""
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    wanted = total - free + POOL_ROOM
    scheduler = SchedulerConfig(max_num_batched_tokens=4096, max_num_seqs=64, max_model_len=4096)
    runner = make_runner(SMOLLM2, EngineConfig(device="cuda", num_threads=1, gpu_memory_utilization=wanted / total,
                                               scheduler=scheduler))  # fmt: skip
    num_blocks = runner.profile_num_blocks()
    runner.allocate_cache(num_blocks, scheduler.block_size)
    runner.warm_up()
    largest = full_step(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.max_model_len,
                        scheduler.block_size)  # fmt: skip
    runner.execute(largest)
    free, _ = torch.cuda.mem_get_info()
    note = (f"{num_blocks:,} blocks; {wanted / 2**30:.2f} GiB of {total / 2**30:.0f} were allowed, "
            f"{(total - free) / 2**30:.2f} are in use")  # fmt: skip
    if not abs(total - free - wanted) <= POOL_SLACK:
        raise AssertionError(note)
    return note
