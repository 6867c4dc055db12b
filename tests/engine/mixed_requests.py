"""Requests whose tokens are chosen in every way there is."""

from __future__ import annotations

import numpy as np

from engine.request import Request, SamplingParams


def mixed_requests(count: int, vocabulary: int, salt: int = 0) -> list[Request]:
    """So many requests, with prompts and outputs of tokens below ``vocabulary``."""
    chance = np.random.default_rng(salt)
    requests = []
    for i in range(count):
        params = SamplingParams(
            temperature=(0.0, 0.8, 1.5, 0.3)[i % 4], top_k=(0, 20, 1, 5000, 0)[i % 5], top_p=(1.0, 0.9, 0.3)[i % 3],
            min_p=(0.0, 0.0, 0.1)[(i // 3) % 3], seed=(i * 7919, -i, 2**63 - 1)[i % 3], logprobs=(None, 3)[i % 7 == 0],
            repetition_penalty=(1.0, 1.3)[i % 6 == 1], presence_penalty=(0.0, 0.5)[i % 6 == 2],
            frequency_penalty=(0.0, 1.1)[i % 8 == 3], logit_bias=({}, {3: 2.0})[i % 9 == 4], min_tokens=i % 3)
        prompt = chance.integers(0, vocabulary, 20).tolist()
        output = chance.integers(0, vocabulary, i % 4).tolist()
        requests.append(Request(f"r{i}", prompt, params, token_ids=prompt + output))
    return requests
