"""The forward pass against transformers, both paths, step by step; every family is tried in ``test_numbers``."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.engine.forward_driver import (
    Driver,
    greedy_reference,
    make_llama,
    make_runner,
    random_prompt,
    reference_logits,
)

PATHS = ("auto", "torch")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, make_llama(folder)


@pytest.fixture(scope="module")
def expected(llama: tuple[Path, LlamaForCausalLM]) -> Callable[[int, int, int], list[int]]:
    """Greedy output of transformers for ``random_prompt(length, seed)``, computed once."""
    known: dict[tuple[int, int, int], list[int]] = {}

    def reference(length: int, seed: int, max_tokens: int) -> list[int]:
        key = (length, seed, max_tokens)
        if key not in known:
            known[key] = greedy_reference(llama[1], random_prompt(length, seed), max_tokens)
        return known[key]

    return reference


Reference = Callable[[int, int, int], list[int]]
Llama = tuple[Path, LlamaForCausalLM]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_chunks_and_blocks(llama: Llama, expected: Reference, block_size: int, path: str) -> None:
    for chunk in (1, 7, 16, 64, 1000):
        driver = Driver(make_runner(llama[0], block_size=block_size, path=path), block_size)
        request = driver.request("a", random_prompt(75, seed=2))
        assert driver.generate(request, 12, chunk) == expected(75, 2, 12), f"chunks of {chunk}"


@pytest.mark.parametrize("path", PATHS)
def test_prefix_hit(llama: Llama, expected: Reference, path: str) -> None:
    for block_size in (8, 16, 32):
        driver = Driver(make_runner(llama[0], block_size=block_size, path=path), block_size)
        prompt = random_prompt(75, seed=2)
        first = driver.request("a", prompt)
        driver.generate(first, 2)
        for name, known in (("b", 40), ("c", 64)):
            second = driver.request(name, prompt)
            driver.share_prefix(second, first, known)
            assert second.num_computed_tokens > 0
            assert driver.generate(second, 12, chunk=9) == expected(75, 2, 12)


@pytest.mark.parametrize("path", PATHS)
def test_preemption_and_a_new_pool(llama: Llama, expected: Reference, path: str) -> None:
    driver = Driver(make_runner(llama[0], path=path), 16)
    request = driver.request("a", random_prompt(75, seed=2))
    other = driver.request("b", random_prompt(20, seed=3))
    driver.generate(request, 5)
    driver.preempt(request)
    driver.generate(other, 6)  # writes over the blocks that were given up
    driver.generate(request, 8, chunk=20)
    driver.preempt(request)
    driver.preempt(other)
    driver.runner.allocate_cache(40, 8)
    driver.block_size, driver.free = 8, list(range(1, 40))
    assert driver.generate(request, 12) == expected(75, 2, 12)
    assert driver.generate(other, 12) == expected(20, 3, 12)


@pytest.mark.parametrize("path", PATHS)
def test_mixed_batches(llama: Llama, expected: Reference, path: str) -> None:
    """Decodes and chunks in one step, in changing company, order and number."""
    driver = Driver(make_runner(llama[0], num_blocks=200, path=path), 16, num_blocks=200)
    lengths = [75, 20, 1, 130, 33, 16]
    requests = [driver.request(str(i), random_prompt(n, seed=i)) for i, n in enumerate(lengths)]
    for step in range(100):
        work = [(r, 5 + 11 * ((step + i) % 3)) for i, r in enumerate(requests)
                if r.num_output_tokens < 12 and (step + i) % 4 and step >= 2 * i]  # fmt: skip
        if step % 2:
            work.reverse()
        if work:
            driver.step(work)
    for i, (n, request) in enumerate(zip(lengths, requests, strict=True)):
        assert request.token_ids[n:] == expected(n, i, 12)


def logits_of(folder: Path, *, block_size: int = 16, chunk: int = 1000, company: int = 0, threads: int = 1,
              dtype: str = "float32") -> torch.Tensor:  # fmt: skip
    """Logits of eight tokens after one prompt, computed in the given way with others in the batch."""
    runner = make_runner(folder, block_size=block_size, num_blocks=300, threads=threads, dtype=dtype)
    assert runner.forward_path.startswith("fused")
    driver = Driver(runner, block_size, num_blocks=300)
    request = driver.request("a", random_prompt(75, seed=2))
    others = [driver.request(f"other {i}", random_prompt(5 + 9 * i, seed=i)) for i in range(company)]
    rows = []
    while request.num_output_tokens < 8:
        sampled = driver.step([(other, 6) for other in others] + [(request, chunk)])
        if "a" in sampled:
            rows.append(driver.logits[-1])
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_logits_are_the_same_bits_in_any_company(llama: Llama, dtype: str) -> None:
    alone = logits_of(llama[0], dtype=dtype)
    ways: list[dict[str, int]] = [
        {"chunk": 1}, {"chunk": 7}, {"chunk": 64}, {"block_size": 8}, {"block_size": 32}, {"company": 1},
        {"company": 13}, {"threads": 2, "company": 3}, {"threads": 3, "block_size": 8, "chunk": 20, "company": 7},
    ]  # fmt: skip
    for way in ways:
        assert torch.equal(logits_of(llama[0], dtype=dtype, **way), alone), way


def test_bfloat16_stays_near_float32(llama: Llama) -> None:
    """Only weights and cache are rounded, so the fused path is nearer to float32 than plain bfloat16 is."""
    prompt = random_prompt(75, seed=2)
    exact = reference_logits(llama[1], prompt)[-1]
    errors = {}
    for path in PATHS:
        driver = Driver(make_runner(llama[0], dtype="bfloat16", path=path), 16)
        driver.step([(driver.request("a", prompt), 1000)])
        errors[path] = (driver.logits[0] - exact).norm() / exact.norm()
    assert errors["torch"] < 0.03
    assert errors["auto"] < errors["torch"]


def test_where_the_fused_path_does_not_serve(llama: Llama, tmp_path: Path) -> None:
    assert "not float16" in make_runner(llama[0], dtype="float16").forward_path
    model = make_llama(tmp_path, head_dim=12)
    driver = Driver(make_runner(tmp_path), 16)
    assert driver.runner.forward_path.startswith("torch (cpu); not fused: heads of 12")
    prompt = random_prompt(30, seed=1)
    assert driver.generate(driver.request("a", prompt), 8, chunk=8) == greedy_reference(model, prompt, 8)


def test_without_numba_the_plain_path_serves(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.model import fused

    def missing() -> None:
        raise ImportError("no module named numba")

    monkeypatch.setattr(fused, "load_kernels", missing)
    assert "Numba cannot be used: ImportError" in make_runner(llama[0]).forward_path


def test_a_dropped_runner_leaves_no_thread_and_no_memory(llama: Llama) -> None:
    before = set(threading.enumerate())
    runner = make_runner(llama[0], threads=3)
    path = weakref.ref(runner._forward_path)
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 2
    del runner
    gc.collect()
    assert path() is None
    for thread in helpers:
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_a_busy_machine_makes_the_caller_go_on_alone() -> None:
    from engine.model.fused import _Crew

    crew = _Crew(1)
    seen: list[tuple[int, int]] = []
    busy = [True]

    def work(thread: int, threads: int) -> None:
        seen.append((thread, threads))
        start = time.perf_counter()
        while time.perf_counter() - start < 0.02:
            if busy[0] and thread == 1:
                time.sleep(0.02)  # no processor for this thread

    until = time.monotonic() + 10
    while (0, 1) not in seen and time.monotonic() < until:
        crew.run(work)
    assert (1, 2) in seen
    assert (0, 1) in seen, "it never went on alone"
    busy[0] = False
    seen.clear()
    while (1, 2) not in seen and time.monotonic() < until:
        crew.run(work)
    assert (1, 2) in seen, "it never tried again together"
    crew.close()
