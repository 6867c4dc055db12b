"""Every way in which the work on a request can be cut, and a check that none of them changes a number.

The real scheduler decides and the real runner computes; transformers says what must come out: the same greedy tokens,
and logits that are the same to 1e-4 wherever a token is sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.request import Request, SamplingParams
from engine.runner import Runner, StepInput
from engine.scheduler import Scheduler
from tests.engine.families import Family
from tests.engine.forward_driver import greedy_reference, random_prompt, reference_logits

MAX_TOKENS = 8
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Way:
    """``chunk`` tokens of a prompt at a time (0: the whole), blocks of ``block_size``, and what happens besides."""

    chunk: int
    block_size: int
    hit: bool  # a part of the prompt is found in the prefix cache
    preempted: bool
    mixed: bool  # other requests come and go beside it

    def __str__(self) -> str:
        parts = [f"chunk {self.chunk or 'whole'}", f"block {self.block_size}", "mixed" if self.mixed else "alone"]
        return ", ".join(parts + ["hit"] * self.hit + ["preempted"] * self.preempted)


WAYS = [
    Way(*values)
    for values in itertools.product((1, 7, 16, 64, 0), (8, 16, 32), (False, True), (False, True), (False, True))
]

MAIN = random_prompt(75, seed=2)
BEFORE = MAIN[:50] + random_prompt(7, seed=20)  # leaves its blocks in the prefix cache
OTHERS = [MAIN[:40] + random_prompt(19, seed=4), random_prompt(20, seed=3), random_prompt(1, seed=5),
          random_prompt(130, seed=6), random_prompt(33, seed=7)]  # fmt: skip


class Reference:
    """What transformers says about a prompt: its greedy tokens, and the logits that each was chosen from."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], tuple[list[int], torch.Tensor]] = {}

    def __call__(self, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
        known = self._known.get(tuple(prompt))
        if known is None:
            tokens = greedy_reference(self._model, prompt, MAX_TOKENS)
            logits = reference_logits(self._model, prompt + tokens[:-1])[len(prompt) - 1 :]
            known = self._known[tuple(prompt)] = tokens, logits
        return known


@dataclass
class Outcome:
    """What happened on a way: the largest difference of a logit, and counts that prove that it was that way."""

    error: float = 0.0
    logits: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    chunks: list[int] = field(default_factory=list)  # of the main request's prompt, until its first token
    most_together: int = 0


def make_subject(family: Family, folder: Path, path: str) -> tuple[Runner, Reference]:
    """A runner of the family's model on the given path, and transformers on the same weights."""
    reference = Reference(family.make(folder))
    config = EngineConfig(dtype="float32", num_threads=1, scheduler=SchedulerConfig(num_blocks=2, max_model_len=512))
    return Runner(folder, replace(config, forward_path=path)), reference


def check_way(runner: Runner, reference: Reference, way: Way) -> Outcome:
    """Go the way; raises AssertionError where a token or a logit is not the reference's."""
    # Tight pools make the scheduler preempt; a request alone is never preempted, unless the pool is rebuilt.
    tight = way.preempted and way.mixed
    tokens = 144 if tight else 800
    config = SchedulerConfig(
        block_size=way.block_size, num_blocks=1 + -(-tokens // way.block_size), enable_prefix_caching=way.hit,
        # The threshold cuts only prompts that have company; a request alone is cut by the budget.
        max_num_batched_tokens=1024 if way.mixed else way.chunk or 1024, long_prefill_token_threshold=way.chunk,
        reserve_full_input=not tight, max_model_len=runner.max_model_len,
    )  # fmt: skip
    scheduler = Scheduler(config, ())
    runner.allocate_cache(config.num_blocks, config.block_size)
    outcome = Outcome()
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    if way.hit:
        scheduler.add_request(Request("before", BEFORE, SamplingParams(max_tokens=1, ignore_eos=True)))
        _step(scheduler, runner, reference, Outcome(), until_idle=True)
    main = Request("main", MAIN, params)
    arriving = [Request(f"other {i}", prompt, params) for i, prompt in enumerate(OTHERS)] if way.mixed else []
    arriving.insert(1, main)
    requests = list(arriving)
    rebuild = way.preempted and not way.mixed
    scheduler.add_request(arriving.pop(0))
    while arriving or scheduler.requests:
        if arriving:
            scheduler.add_request(arriving.pop(0))
        _step(scheduler, runner, reference, outcome)
        if rebuild and main.num_output_tokens == 3:
            rebuild = False
            scheduler.reconfigure({"num_blocks": config.num_blocks + 3})
            runner.allocate_cache(config.num_blocks + 3, config.block_size)
    for request in requests:
        assert request.token_ids[request.num_prompt_tokens :] == reference(request.prompt_token_ids)[0], request
    assert outcome.logits == MAX_TOKENS * len(requests)
    assert outcome.error <= TOLERANCE, f"logits are off by {outcome.error:.1e}"
    # It really was that way.
    assert (outcome.preemptions > 0) == way.preempted
    assert (outcome.hit_tokens >= 32) == way.hit
    if way.chunk:
        assert outcome.chunks[0] == min(way.chunk, sum(outcome.chunks))
    else:
        assert len(outcome.chunks) == 1 or way.mixed
    assert (outcome.most_together > 1) == way.mixed
    return outcome


def _step(scheduler: Scheduler, runner: Runner, reference: Reference, outcome: Outcome,
          until_idle: bool = False) -> None:  # fmt: skip
    """One step of the engine (or all), every sampled row of logits compared with the reference's."""
    while scheduler.requests:
        plan = scheduler.schedule()
        outcome.preemptions += len(plan.preempted)
        outcome.most_together = max(outcome.most_together, len(plan.scheduled))
        for entry in plan.scheduled:
            outcome.hit_tokens += entry.hit_tokens
            if entry.request.request_id == "main" and not entry.request.num_output_tokens:
                outcome.chunks.append(entry.num_tokens)
        with remembered_logits(runner) as rows:
            tokens = runner.execute(plan)
        sampled = [entry.request for entry in plan.scheduled if entry.samples]
        logits = rows[0] if rows else torch.empty(0)
        for request, row in zip(sampled, logits, strict=True):
            expected = reference(request.prompt_token_ids)[1][request.num_output_tokens]
            outcome.error = max(outcome.error, float((row - expected).abs().max()))
            outcome.logits += 1
        for request, _ in scheduler.commit(plan, tokens):
            runner.free_request(request.request_id)
        if not until_idle:
            return


@contextmanager
def remembered_logits(runner: Runner) -> Iterator[list[torch.Tensor]]:
    """The logits of each step that is executed meanwhile: a list that grows."""
    rows: list[torch.Tensor] = []
    path = runner._forward_path
    forward = path.forward

    def remember(step: StepInput) -> torch.Tensor:
        logits = forward(step)
        rows.append(logits.clone().cpu())
        return logits

    path.forward = remember  # type: ignore[method-assign]
    try:
        yield rows
    finally:
        path.forward = forward  # type: ignore[method-assign]
