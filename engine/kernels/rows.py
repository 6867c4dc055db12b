"""The logits of a step on a GPU, edited and chosen from by kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.kernels.sampling import argmax, draw, penalise
from engine.logit_rows import TorchRows
from engine.sampling_params import SamplingParams

_GREEDY = (1.0, 0.0, 1.0, 1.0, 0.0)
"""Temperature, top-k, top-p, min-p and the number: only the likeliest tokens take part, and the first one is drawn."""


class TritonRows(TorchRows):
    """As its base, which also says what the methods mean."""

    def penalise(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray, repetition: np.ndarray,
                 frequency: np.ndarray, presence: np.ndarray) -> None:  # fmt: skip
        penalise(self._logits, *self._upload(rows, tokens, counts, repetition, frequency, presence))

    def _choose(self, drawn: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> torch.Tensor:
        if not drawn:
            return argmax(self._logits)
        wanted = np.array([(row, *_GREEDY) for row in range(len(self._logits))], dtype=np.float64)
        wanted[drawn, 1:] = [(one.temperature, max(one.top_k, 0), one.top_p, one.min_p, number)
                             for one, number in zip(params, uniform.tolist(), strict=True)]
        return draw(self._logits, *self._upload(wanted))
