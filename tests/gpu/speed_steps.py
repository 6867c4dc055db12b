"""How long whole steps of a model take: decodes at several batch sizes, one long context, prompts.

The pool is filled with random numbers and the requests stand where they would after so many tokens, so that nothing
has to be computed to get there. A step's roofline is the larger of two times: its bytes (weights, keys and values)
over a copy's bandwidth, and its operations over a matrix product's rate, both measured in the same run.
"""

from __future__ import annotations

import random as chance
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request, SamplingParams
from engine.runner import Runner
from tests.gpu.deadline import Deadline
from tests.gpu.measure import Meter
from tests.gpu.models import LLAMA_8B, TINY, Size, make_runner
from tests.gpu.report import Report, Row, say
from tests.kernels.memory import fresh_memory

BLOCK = 16
AIM = 0.7
"""Of the roofline: what the largest batch and the longest context of the 8B model shall reach."""
HEADROOM = 6 << 30
"""Bytes for activations, logits and graphs."""


class Plan(NamedTuple):
    """What is measured of a model. ``mean`` tokens of context, half as many to half as many more."""

    batches: tuple[int, ...]
    mean: int
    prompts: tuple[int, ...]  # tokens of each prompt of a prefill step
    long: int  # of a single request
    max_model_len: int

    @property
    def num_blocks(self) -> int:
        most = max(max(self.batches) * self.mean, self.long, sum(self.prompts))
        return 2 + max(self.batches) + -(-most // BLOCK)  # a request's last block is not always full


def plan_of(size: Size, small: bool) -> Plan:
    if small:
        return Plan((1, 3), 20, (5, 2), 40, 64)
    if size is LLAMA_8B:
        return Plan((1, 8, 64, 256), 1024, (4096, 4096), 32768, 32768 + BLOCK)
    return Plan((1, 8, 64, 256), 1024, (4096, 4096), 4096, 4096 + BLOCK)


def time_steps(meter: Meter, size: Size, small: bool, report: Report, deadline: Deadline) -> None:
    """The rows of one model. Where memory does not suffice for it, a row says so."""
    plan = plan_of(TINY if small else size, small)
    shape = size.config
    needed = 2 * shape.num_parameters + plan.num_blocks * BLOCK * shape.bytes_per_token(2) + HEADROOM
    if meter.on_gpu and needed > meter.free_memory():
        report.add(Row(size.name, "left out", note=f"needs {needed / 2**30:.0f} GiB, "
                       f"{meter.free_memory() / 2**30:.0f} GiB are free"))  # fmt: skip
        return
    scheduler = SchedulerConfig(num_blocks=plan.num_blocks, block_size=BLOCK, max_num_seqs=max(plan.batches),
                                max_model_len=plan.max_model_len, max_num_batched_tokens=8192)  # fmt: skip
    runner = make_runner(size, EngineConfig(device=meter.device, num_threads=1, scheduler=scheduler))
    with fresh_memory(_random_numbers):
        runner.allocate_cache(plan.num_blocks, BLOCK)
    say(f"  {size.name}: {shape.num_parameters / 1e9:.2f}e9 weights are there; warming up")
    runner.warm_up()
    say(f"  {size.name}: warm")
    steps = _Steps(report, meter, size, runner, plan)
    for batch in plan.batches:
        if deadline.over:
            return deadline.stop(f"no decodes of {batch} and more")
        steps.time_decode(batch, _spread(batch, plan.mean))
    if deadline.over:
        return deadline.stop("no long context and no prefill")
    if size is LLAMA_8B or small:
        steps.time_decode(1, [plan.long])
    steps.time_prefill()
    return None


def _random_numbers(tensor: torch.Tensor) -> None:
    if tensor.is_floating_point():
        tensor.normal_()


def _spread(batch: int, mean: int) -> list[int]:
    """So many contexts from half the mean to one and a half of it, in no order."""
    contexts = [mean // 2 + mean * i // max(1, batch - 1) for i in range(batch)] if batch > 1 else [mean]
    chance.Random(batch).shuffle(contexts)
    return contexts


class _Steps:
    """Times steps of one runner."""

    def __init__(self, report: Report, meter: Meter, size: Size, runner: Runner, plan: Plan) -> None:
        self._report, self._meter, self._size, self._runner, self._plan = report, meter, size, runner, plan
        self._shape = size.config

    def time_decode(self, batch: int, contexts: list[int]) -> None:
        """One row: the whole step with graphs; beside it the forward pass alone, and both without graphs."""
        tokens = sum(contexts)
        moved = self._size.step_bytes(2) + tokens * self._shape.bytes_per_token(2)
        attended = 4 * tokens * self._shape.num_heads * self._shape.head_size * self._shape.num_layers
        head = 2 * self._shape.vocab_size * self._shape.hidden_size
        operations = batch * (self._size.step_operations() + head) + attended
        figures: dict[str, float] = {}
        with self._step([(context - 1, 1) for context in contexts]) as plan:
            for name, enforce_eager in (("eager", True), ("graph", False)):
                self._runner.set_knob("enforce_eager", enforce_eager)
                figures[f"{name}_forward_s"] = self._forward(plan)
                figures[f"{name}_step_s"] = self._meter.wall(lambda: self._runner.execute(plan))
            phases = dict(self._runner.phase_ns)
            mode = self._runner.step_mode
        seconds = figures["graph_step_s"]
        limit = self._roofline(moved, operations)
        share = limit / seconds if limit else None
        forward = f" ({100 * limit / figures['graph_forward_s']:.0f}% alone)" if limit else ""
        aimed_at = self._size is LLAMA_8B and (batch == max(self._plan.batches) or contexts == [self._plan.long])
        missed = f"; below the {100 * AIM:.0f}% aimed at" if aimed_at and share is not None and share < AIM else ""
        self._report.add(Row(
            self._size.name, f"decode, batch {batch}, context {tokens // batch}", seconds=seconds, moved=moved,
            operations=operations, tokens=batch, share=share, of=self._limited_by(moved, operations),
            note=f"forward {_ms(figures['graph_forward_s'])}{forward}; without graphs "
                 f"{_ms(figures['eager_step_s'])}; {mode}{missed}",
            figures=figures | {f"{name}_ns": value for name, value in phases.items()}))  # fmt: skip

    def time_prefill(self) -> None:
        """One row: prompts that fill a step, from nothing."""
        prompts = list(self._plan.prompts)
        tokens = sum(prompts)
        pairs = sum(prompt * (prompt + 1) // 2 for prompt in prompts)
        attended = 4 * pairs * self._shape.num_heads * self._shape.head_size * self._shape.num_layers
        operations = tokens * self._size.step_operations() + attended
        with self._step([(0, prompt) for prompt in prompts]) as plan:
            seconds = self._meter.wall(lambda: self._runner.execute(plan), repeats=5)
            forward = self._forward(plan, repeats=5)
        self._report.add(Row(
            self._size.name, f"prefill, {len(prompts)} prompts of {prompts[0]}", seconds=seconds,
            operations=operations, tokens=tokens, share=self._meter.share_of_products(operations, seconds),
            of="product" if self._meter.products else "", note=f"forward {_ms(forward)}",
            figures={"forward_s": forward}))  # fmt: skip

    @contextmanager
    def _step(self, work: list[tuple[int, int]]) -> Iterator[StepPlan]:
        """A plan in which each request has computed so many tokens and computes so many; blocks lie scattered."""
        free = list(range(1, self._plan.num_blocks))
        chance.Random(len(work)).shuffle(free)
        numbers = chance.Random(0)
        plan = StepPlan()
        for number, (computed, tokens) in enumerate(work):
            total = computed + tokens
            request = Request(f"s{number}", [numbers.randrange(self._shape.vocab_size) for _ in range(total)],
                              SamplingParams(ignore_eos=True))  # fmt: skip
            request.block_ids = [free.pop() for _ in range(-(-total // BLOCK))]
            plan.scheduled.append(ScheduledRequest(request, tokens, computed, True, "first"))
        self._runner.execute(plan)
        for entry in plan.scheduled:
            entry.admission = ""  # from now on they run
        try:
            yield plan
        finally:
            for entry in plan.scheduled:
                self._runner.free_request(entry.request.request_id)

    def _forward(self, plan: StepPlan, repeats: int = 20) -> float:
        """Seconds of the forward pass alone, one behind the other, so that the host runs ahead."""
        step = self._runner._prepare(plan)
        path = self._runner._forward_path
        with torch.inference_mode():
            return self._meter.time_in_a_row(lambda: path.forward(step), repeats)

    def _roofline(self, moved: float, operations: float) -> float | None:
        """The seconds that a step takes at least."""
        if not self._meter.bandwidth or not self._meter.products:
            return None
        return max(moved / self._meter.bandwidth, operations / self._meter.products)

    def _limited_by(self, moved: float, operations: float) -> str:
        limit = self._roofline(moved, operations)
        if limit is None or not self._meter.bandwidth:
            return ""
        return "copy" if moved / self._meter.bandwidth >= limit else "product"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"
