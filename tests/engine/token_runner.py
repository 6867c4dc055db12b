"""A runner whose "keys and values" are the token ids themselves.

It writes each scheduled token into its slot of a paged cache and derives the next token from what it reads back
through the block table. A block owned twice, a stale hit or a wrong position changes the text at once.
"""

from __future__ import annotations

import zlib

import numpy as np

from engine.core import AtOnce
from engine.plan import StepPlan
from engine.trace.events import ModelInfo
from engine.trace.knobs import KnobValue

EOS = 0
VOCABULARY = 509


def next_token(token_ids: list[int]) -> int:
    """The token that follows: any function of the whole context would do. About one in 80 ends the sequence."""
    value = zlib.crc32(np.asarray(token_ids, np.int64).tobytes())
    return EOS if value % 80 == 0 else 1 + value % (VOCABULARY - 1)


class TokenRunner(AtOnce):
    """Stands where :class:`engine.runner.Runner` does, without a model."""

    def __init__(self) -> None:
        self.model_info = ModelInfo("tokens", bytes_per_token=8)
        self.eos_token_ids = {EOS}
        self.max_model_len = 4096
        self.num_threads = 1
        self.phase_ns = {"prepare": 0, "forward": 0, "sample": 0}
        self.freed: list[str] = []
        self.turned: list[tuple[str, KnobValue]] = []

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._cache = np.full((num_blocks, block_size), -1, np.int64)

    def available_cache_bytes(self) -> int:
        return 1 << 34

    def execute(self, plan: StepPlan) -> list[int]:
        for entry in plan.computed:
            request = entry.request
            for position in range(entry.num_computed_tokens, entry.num_computed_tokens + entry.num_tokens):
                block = request.block_ids[position // self._block_size]
                assert block != 0, "the null block was written to"
                self._cache[block, position % self._block_size] = request.token_ids[position]
        tokens = []
        for entry in plan.computed:
            request = entry.request
            known = entry.num_computed_tokens + entry.num_tokens
            context = self._cache[request.block_ids].reshape(-1)[:known].tolist()
            assert context == request.token_ids[:known], f"{request.request_id}: the cache holds other tokens"
            if entry.samples:
                tokens.append(next_token(context))
        return tokens

    def set_knob(self, name: str, value: KnobValue) -> None:
        self.turned.append((name, value))

    def free_request(self, request_id: str) -> None:
        self.freed.append(request_id)


def text_of(prompt_token_ids: list[int], max_tokens: int) -> list[int]:
    """What a request must yield when served alone, or in any company."""
    tokens = list(prompt_token_ids)
    while len(tokens) - len(prompt_token_ids) < max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt_token_ids):]
