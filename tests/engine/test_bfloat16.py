"""SmolLM2 in bfloat16 beside transformers, on a few real prompts; ``tests/numbers/smollm2_bf16.py`` takes fifty."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from engine.model.library import find_model
from engine.model.tokenizer import Tokenizer
from tests.engine.families import FAMILIES
from tests.engine.forward_driver import Driver, random_prompt
from tests.engine.forward_driver import make_runner as make_small_runner
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


@pytest.mark.parametrize("name", FAMILIES)
def test_the_torch_path_gives_transformers_bits(name: str, tmp_path: Path) -> None:
    """A whole prompt, and then token by token: every sum in the same order, every rounding at the same place."""
    from transformers import AutoModelForCausalLM

    FAMILIES[name].make(tmp_path)
    runner = make_small_runner(tmp_path, dtype="bfloat16", path="torch")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    prompt = random_prompt(75, seed=2)
    tokens, expected = transformers_greedy(model, prompt, TOKENS)
    driver = Driver(runner, 16)
    request, rows = driver.request("a", prompt), []
    for _ in range(TOKENS):
        driver.step([(request, 1000)])
        rows.append(driver.logits[0])
    assert request.token_ids[75:] == tokens
    assert torch.equal(torch.stack(rows), expected)


@pytest.mark.model
@pytest.mark.slow
def test_bfloat16_is_transformers_or_nearer_to_float32() -> None:
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
    for path in ("auto", "torch"):
        runner, _ = make_runner(folder, path, threads=1)
        ours = list(our_logits(runner, prompts, [tokens for tokens, _ in theirs]))
        if path == "torch":  # it rounds as transformers does
            assert all(torch.equal(own, logits) for own, (_, logits) in zip(ours, theirs, strict=True))
            continue
        assert distance(ours) < 0.5 * off  # it rounds weights and cache only, and is much nearer
        for (tokens, logits), own, right in zip(theirs, ours, exact, strict=True):
            found = parting(tokens, own.argmax(-1).tolist(), logits, own, right)
            assert found is None or found.explained, found
