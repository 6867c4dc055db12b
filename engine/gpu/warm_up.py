"""Steps of requests that nobody sent: to measure what a step takes, and to compile what it launches.

Their blocks are all the null block. It is never read, so such a step may run at any time and leaves no trace in the KV
cache.
"""

from __future__ import annotations

from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request
from engine.sampling_params import SamplingParams

PROFILED = SamplingParams(temperature=1.0, top_k=50, top_p=0.9)

SAMPLING = (
    SamplingParams(),
    PROFILED,
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5),
    SamplingParams(logit_bias={0: 1.0}, min_tokens=4),
    SamplingParams(logprobs=5),
    SamplingParams(temperature=1.0, repetition_penalty=1.1, logprobs=5),
)
"""One of each kind of work that sampling may have with a request."""


def made_up_step(tokens: list[int], block_size: int, params: list[SamplingParams]) -> StepPlan:
    """A step in which request ``i`` computes the last ``tokens[i]`` tokens of its prompt, and samples."""
    plan = StepPlan()
    for number, (count, wanted) in enumerate(zip(tokens, params, strict=True)):
        request = Request(f"warm-up {number}", [0] * count, wanted, block_ids=[0] * -(-count // block_size))
        plan.scheduled.append(ScheduledRequest(request, count, 0, samples=True, admission="first"))
    return plan


def full_step(max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int, block_size: int) -> StepPlan:
    """The largest step that there can be: the whole budget, shared evenly, and everybody samples."""
    requests = min(max_num_seqs, max_num_batched_tokens)
    each, rest = divmod(max_num_batched_tokens, requests)
    tokens = [min(each + (number < rest), max_model_len) for number in range(requests)]
    return made_up_step(tokens, block_size, [PROFILED] * requests)


def decode_step(requests: int, block_size: int) -> StepPlan:
    """Everybody has one token."""
    return made_up_step([1] * requests, block_size, [PROFILED] * requests)


def warm_up_steps(block_size: int) -> list[StepPlan]:
    """Small steps that together launch whatever a prompt and sampling can; decode steps are left to capturing."""
    alone = [made_up_step([2], block_size, [params]) for params in SAMPLING]
    return [*alone, made_up_step([2] * len(SAMPLING), block_size, list(SAMPLING))]
