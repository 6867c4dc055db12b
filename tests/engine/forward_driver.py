"""Help for tests of the forward pass: small random models, and a driver that feeds a runner without a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import EngineConfig, SchedulerConfig
from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request, SamplingParams
from engine.runner import Runner, StepInput

VOCAB = 211


def make_llama(folder: Path, seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """Save a small random Llama to ``folder`` as float32 safetensors and return it."""
    return make_model(LlamaForCausalLM, LlamaConfig, folder, seed, **changes)


def make_model(model_class: Any, config_class: Any, folder: Path, seed: int = 0, **changes: object) -> Any:
    """The same for any family that transformers knows."""
    torch.manual_seed(seed)
    settings: dict[str, object] = {
        "vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 112, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2,
    }
    settings.update(changes)
    model = model_class(config_class(**settings)).eval()
    spread_norms_and_biases(model)
    model.save_pretrained(folder)
    return model


def spread_norms_and_biases(model: torch.nn.Module) -> None:
    """Fresh norms are all one and fresh biases all zero, which would hide that one of them is left out."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.uniform_(-0.3, 0.3)


def make_runner(folder: Path, *, dtype: str = "float32", block_size: int = 16, num_blocks: int = 64,
                path: str = "auto", threads: int = 1) -> Runner:
    scheduler = SchedulerConfig(block_size=block_size, num_blocks=num_blocks, max_model_len=512)
    return Runner(folder, EngineConfig(dtype=dtype, num_threads=threads, scheduler=scheduler, forward_path=path))


@dataclass
class Driver:
    """Hands plans to a runner by hand: each request gets its own blocks, in an order that is nobody's logical one."""

    runner: Runner
    block_size: int
    num_blocks: int = 64

    def __post_init__(self) -> None:
        self.logits = torch.empty(0)  # of the last step, one row for each sampled token
        forward = self.runner._forward_path.forward

        def remember(step: StepInput) -> torch.Tensor:
            self.logits = forward(step).clone()
            return self.logits

        self.runner._forward_path.forward = remember  # type: ignore[method-assign]
        self.free = [block for start in (5, 1, 3, 2, 4) for block in range(start, self.num_blocks, 5)]
        self.admitted: set[str] = set()

    def request(self, name: str, prompt: list[int], **params: object) -> Request:
        return Request(name, list(prompt), SamplingParams(**params))  # type: ignore[arg-type]

    def grow(self, request: Request, tokens: int) -> None:
        while len(request.block_ids) * self.block_size < tokens:
            request.block_ids.append(self.free.pop())

    def preempt(self, request: Request) -> None:
        self.free.extend(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0
        self.admitted.discard(request.request_id)

    def share_prefix(self, request: Request, other: Request, tokens: int) -> None:
        """Start ``request`` behind the whole blocks of ``other``'s first ``tokens`` tokens, as a prefix hit does."""
        request.block_ids = other.block_ids[: tokens // self.block_size]
        request.num_computed_tokens = len(request.block_ids) * self.block_size

    def step(self, work: list[tuple[Request, int]]) -> dict[str, int]:
        """One step: so many tokens of each request (at most what it has left); the sampled tokens by request."""
        plan = StepPlan()
        for request, wanted in work:
            n = min(wanted, request.num_tokens - request.num_computed_tokens)
            self.grow(request, request.num_computed_tokens + n)
            admission = "" if request.request_id in self.admitted else "first"
            self.admitted.add(request.request_id)
            samples = request.num_computed_tokens + n == request.num_tokens
            plan.scheduled.append(ScheduledRequest(request, n, request.num_computed_tokens, samples, admission))
        tokens = self.runner.execute(plan)
        sampling = [entry.request for entry in plan.scheduled if entry.samples]
        for entry in plan.scheduled:
            entry.request.num_computed_tokens += entry.num_tokens
        for request, token in zip(sampling, tokens, strict=True):
            request.token_ids.append(token)
        return {request.request_id: token for request, token in zip(sampling, tokens, strict=True)}

    def generate(self, request: Request, max_tokens: int, chunk: int = 10_000) -> list[int]:
        """Run one request alone, its prompt in chunks; the output tokens."""
        while request.num_output_tokens < max_tokens:
            self.step([(request, chunk)])
        return request.token_ids[request.num_prompt_tokens :]


def reference_logits(model: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    """Transformers' logits of every position: float32 (tokens, vocabulary)."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def greedy_reference(model: LlamaForCausalLM, prompt: list[int], max_tokens: int) -> list[int]:
    """What transformers generates, without any cache of its own: every step from the whole text."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(max_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def random_prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()
