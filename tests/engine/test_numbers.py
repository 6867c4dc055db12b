"""Scheduling, block size, chunks, the prefix cache and preemption never change a number, whatever the family.

``python -m tests.numbers.families`` goes all the ways with all families; here each goes some, and a few go all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model.config import ModelConfig
from engine.model.fused import why_not
from tests.engine.families import FAMILIES
from tests.engine.forward_driver import Driver, make_runner, random_prompt, reference_logits
from tests.engine.ways import WAYS, check_way, make_subject

EVERY = {"auto": 4, "torch": 17}  # on each path every so manieth way is gone, each family beginning with another one
ALL = ("llama", "qwen3")  # on the fast path
CASES = [(name, path) for name, family in FAMILIES.items() for path in EVERY if family.plain or path == "torch"]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_numbers_whatever_way_the_work_is_cut(name: str, path: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    runner, reference = make_subject(family, tmp_path, path)
    assert runner.forward_path.startswith("fused" if path == "auto" else "torch")
    step = 1 if name in ALL and path == "auto" else EVERY[path]
    for way in WAYS[list(FAMILIES).index(name) % step :: step]:
        try:
            check_way(runner, reference, way)
        except AssertionError as error:
            raise AssertionError(f"{way}: {error}") from error


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.plain])
def test_the_fused_path_refuses_what_it_would_get_wrong(name: str, tmp_path: Path) -> None:
    FAMILIES[name].make(tmp_path)
    assert why_not(ModelConfig.load(tmp_path), "float32", "cpu")
    runner = make_runner(tmp_path)
    assert runner.forward_path.startswith("torch (cpu); not fused: ")


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_and_reach(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = family.make(tmp_path)
    config = ModelConfig.load(tmp_path)
    assert config.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert config.max_position == family.reach


@pytest.mark.parametrize("name", ["mistral, up to its window", "qwen2, some layers with a window"])
def test_a_context_as_long_as_the_window(name: str, tmp_path: Path) -> None:
    """At the last position that is allowed a windowed layer still sees everything; at the next it would not."""
    family = FAMILIES[name]
    model = family.make(tmp_path)
    prompt = random_prompt(family.reach, seed=1)
    for path in ("auto", "torch"):
        driver = Driver(make_runner(tmp_path, path=path), 16)
        assert driver.runner.max_model_len == family.reach
        driver.step([(driver.request("a", prompt), 1000)])
        torch.testing.assert_close(driver.logits[0], reference_logits(model, prompt)[-1], atol=1e-4, rtol=0)
