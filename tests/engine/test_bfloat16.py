"""SmolLM2 in bfloat16 beside transformers, on a few real prompts; ``tests/numbers/smollm2_bf16.py`` takes fifty."""

from __future__ import annotations

import math

import pytest
import torch

from engine.model.library import find_model
from engine.model.tokenizer import Tokenizer
from tests.numbers.smollm2_bf16 import (
    make_runner,
    our_logits,
    parting,
    real_prompts,
    resolution,
    transformers_greedy,
    transformers_logits,
)

TOKENS = 8


def test_resolution() -> None:
    for logit in (17.3, -3.0, 0.7):
        number = torch.tensor(logit).bfloat16()
        above = (number.view(torch.int16) + 1).view(torch.bfloat16)
        assert abs(float(above) - float(number)) == resolution(logit)


def test_parting() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0], [9.0, 1.0, 8.98]])
    ours = torch.tensor([[0.0, 5.0, 4.0], [9.0, 1.0, 9.01]])
    assert parting([1, 0], [1, 0], logits, logits, logits) is None
    found = parting([1, 0], [1, 2], logits, ours, ours)
    assert found is not None
    assert (found.at, found.theirs, found.ours) == (1, 0, 2)
    assert found.gap_theirs == pytest.approx(0.02, abs=1e-5)
    assert found.gap_ours == pytest.approx(-0.01, abs=1e-5)
    assert found.explained
    far = parting([1, 0], [1, 1], logits, ours, ours)
    assert far is not None
    assert not far.explained


@pytest.mark.model
@pytest.mark.slow
def test_bfloat16_is_as_near_to_float32_as_transformers() -> None:
    from transformers import AutoModelForCausalLM

    folder = find_model()
    prompts = real_prompts(Tokenizer.load(folder), 2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    theirs = [transformers_greedy(model, prompt, TOKENS) for prompt in prompts]
    model = model.float()  # the same numbers, computed exactly
    exact = [transformers_logits(model, prompt, tokens) for prompt, (tokens, _) in zip(prompts, theirs, strict=True)]

    def distance(logits: list[torch.Tensor]) -> float:
        squares = [float((a - b).square().mean()) for a, b in zip(logits, exact, strict=True)]
        return math.sqrt(sum(squares) / len(squares))

    off = distance([logits for _, logits in theirs])
    assert off < 0.5
    for path, share in (("auto", 0.5), ("torch", 1.3)):
        runner, config = make_runner(folder, path, len(prompts), threads=1)
        ours = list(our_logits(runner, config, prompts, [tokens for tokens, _ in theirs]))
        # The fused path rounds weights and cache only, and is much nearer; the plain one rounds as transformers does.
        assert distance(ours) < share * off
        for (tokens, logits), own, right in zip(theirs, ours, exact, strict=True):
            found = parting(tokens, own.argmax(-1).tolist(), logits, own, right)
            assert found is None or found.explained, found
