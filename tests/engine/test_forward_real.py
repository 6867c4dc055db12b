"""The forward pass on the real default model, where it has been prepared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.model.library import default_model_ready, find_model
from engine.model.tokenizer import Tokenizer
from engine.runner import Runner
from tests.engine.forward_driver import Driver

pytestmark = pytest.mark.model

QUESTIONS = ("What is the capital of France? Answer briefly.", "Write two sentences about the sea.")


@pytest.fixture(scope="module")
def smollm() -> Path:
    if not default_model_ready():
        pytest.skip("the default model has not been prepared; `make setup` does it")
    return find_model(None)


def answers(folder: Path, dtype: str, path: str, max_tokens: int = 12) -> list[list[int]]:
    config = EngineConfig(dtype=dtype, num_threads=1, scheduler=SchedulerConfig(num_blocks=64))
    driver = Driver(Runner(folder, replace(config, forward_path=path)), 16)
    tokenizer = Tokenizer.load(folder)
    requests = [driver.request(text, tokenizer.chat([{"role": "user", "content": text}])) for text in QUESTIONS]
    for step in range(max_tokens + 8):
        # Prompts in chunks of different sizes, so that the requests decode beside each other's chunks.
        driver.step([(r, 9 + 8 * i + step) for i, r in enumerate(requests) if r.num_output_tokens < max_tokens])
        if all(r.num_output_tokens >= max_tokens for r in requests):
            break
    return [r.token_ids[r.num_prompt_tokens :] for r in requests]


def test_float32_agrees_with_transformers(smollm: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32)
    tokenizer = Tokenizer.load(smollm)
    expected = []
    for text in QUESTIONS:
        prompt = torch.tensor([tokenizer.chat([{"role": "user", "content": text}])])
        settings = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "eos_token_id": 1_000_000}
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
        expected.append(out[0, prompt.shape[1] :].tolist())
    assert answers(smollm, "float32", "auto") == expected
    assert answers(smollm, "float32", "torch") == expected


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_bfloat16_answers(smollm: Path, path: str) -> None:
    tokens = answers(smollm, "bfloat16", path, max_tokens=8)[0]
    text = Tokenizer.load(smollm).decode(tokens)
    assert text.startswith("The capital of France is Paris.")
