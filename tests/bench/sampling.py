"""What choosing a step's tokens on the CPU takes, in microseconds a row.

    python -m tests.bench.sampling [--rows 32] [--against OLD.py]

Three sets of rows: *real*, the default model's own logits at as many positions of a text; *flat*, where no token is
likely; and *wide*, the real ones three times over, cut off at 151,936 tokens, which is the vocabulary of Qwen. With
``--against``, another version of ``engine/sampler_kernels.py`` takes turns with this one, round by round, so that the
ratio holds on a busy machine too:

    git show HEAD~1:engine/sampler_kernels.py > OLD.py

Figures are medians over the rounds of the processor's time for whole calls of the sampler, its Python included. *same*
is how many of the tokens are the old version's.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from engine.logit_rows import CompiledRows
from engine.model.fused import load_sampler_kernels
from engine.request import Request, SamplingParams
from engine.sampler import Sampler

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7": {"temperature": 0.7},
    "top_k 50": {"temperature": 1.0, "top_k": 50},
    "top_k 5000": {"temperature": 1.0, "top_k": 5000},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top_p 0.99": {"temperature": 1.0, "top_p": 0.99},
    "top_k 50, top_p 0.9": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "logprobs 5": {"logprobs": 5},
}

TEXT = """A city is never finished. Streets are laid, houses fill them, and a generation later somebody widens the
road, takes the tram away, or brings it back. In 1863 London opened the first underground railway; smoke, damp and
darkness had to be dealt with all at once. What was learned there went to Paris, to New York and to Moscow, and came
home changed. def stations(line): return [station.name for station in line if station.open]"""


def real_rows(count: int) -> np.ndarray:
    """Logits of the default model, float32 (count, vocabulary): of the last positions of a text."""
    import torch
    from transformers import AutoModelForCausalLM

    from engine.model.library import find_model
    from engine.model.tokenizer import Tokenizer

    folder = find_model(None)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.inference_mode():
        logits = model(torch.tensor([Tokenizer.load(folder).encode(TEXT)])).logits[0].float().numpy()
    return logits[np.arange(-count, 0) % len(logits)]


def flat_rows(count: int, vocabulary: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal((count, vocabulary)) * 0.5).astype(np.float32)


def load(path: Path) -> ModuleType:
    """Another version of the kernels, compiled for this process alone."""
    spec = importlib.util.spec_from_file_location("other_sampler_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sampler_of(kernels: ModuleType, logits: np.ndarray) -> Callable[[SamplingParams, int], tuple[float, list[int]]]:
    """A function that chooses a token for every row and returns the seconds it took, and the tokens."""
    count, vocabulary = logits.shape
    before = np.full((count, -(-vocabulary // 32) * 32), -np.inf, dtype=np.float32)
    before[:, :vocabulary] = logits
    padded = before.copy()
    peaks_before = np.maximum.reduceat(padded, range(0, padded.shape[1], kernels.CHUNK), axis=1)
    peaks = peaks_before.copy()
    likeliest = before.argmax(axis=1)
    scratch = kernels.make_scratch(padded.shape[1])
    chance = np.random.default_rng(1)
    prompts = [chance.integers(0, vocabulary, 300).tolist() for _ in range(count)]

    def sample(params: SamplingParams, turn: int) -> tuple[float, list[int]]:
        padded[:] = before
        peaks[:] = peaks_before
        requests = [Request(str(row), prompts[row], params.for_sample(row, seed=turn), token_ids=prompts[row] * 2)
                    for row in range(count)]
        sampler = Sampler()
        for request in requests:
            sampler._seen_by(request)  # counting the prompt is no part of a step
        start = time.thread_time()
        tokens = sampler.sample(CompiledRows(kernels, padded, vocabulary, scratch, peaks, likeliest), requests)
        return time.thread_time() - start, tokens

    return sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--against", type=Path, metavar="OLD.py")
    arguments = parser.parse_args()
    kernels = [load_sampler_kernels()] + ([load(arguments.against)] if arguments.against else [])
    real = real_rows(arguments.rows)
    sets = {"real": real, "flat": flat_rows(*real.shape), "wide": np.tile(real, 3)[:, :151_936]}
    print(f"{arguments.rows} rows, microseconds a row; vocabulary {real.shape[1]:,}\n")
    print(f"{'':24}{'':8}{'now':>8}" + (f"{'old':>10}{'old/now':>10}{'same':>8}" if arguments.against else ""))
    for name, settings in SETTINGS.items():
        params = SamplingParams(**settings)
        for kind, logits in sets.items():
            samplers = [sampler_of(one, logits) for one in kernels]
            times: list[list[float]] = [[] for _ in kernels]
            same = 0
            for turn in range(-1, arguments.rounds):
                found = []
                for index, sample in enumerate(samplers):
                    seconds, tokens = sample(params, turn)
                    if turn >= 0:  # the first is for compiling
                        times[index].append(seconds / arguments.rows * 1e6)
                    found.append(tokens)
                same += sum(one == other for one, other in zip(found[0], found[-1], strict=True)) if turn >= 0 else 0
            now, *old = [statistics.median(one) for one in times]
            line = f"{name:24}{kind:8}{now:8.1f}"
            if old:
                line += f"{old[0]:10.1f}{old[0] / now:10.2f}{same / arguments.rows / arguments.rounds:8.1%}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
