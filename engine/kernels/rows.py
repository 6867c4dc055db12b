"""The logits of a step on a GPU, edited and drawn from by kernels; what they decide is fetched once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.kernels.sampling import draw, penalise
from engine.logit_rows import TorchRows
from engine.sampling_params import SamplingParams


class TritonRows(TorchRows):
    """As its base, which also says what the methods mean; nothing is copied to the host but the tokens."""

    def penalise(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray, repetition: np.ndarray,
                 frequency: np.ndarray, presence: np.ndarray) -> None:  # fmt: skip
        # Two copies to the device: what are integers, and what are floats.
        at = self._to_device(np.stack((rows, tokens)))
        numbers = self._to_device(np.stack((counts, repetition, frequency, presence)))
        penalise(self._logits, at[0], at[1], numbers[0], numbers[1], numbers[2], numbers[3])

    def draw(self, rows: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> list[int]:
        wanted = np.array(
            [(row, one.temperature, max(one.top_k, 0), one.top_p, one.min_p, number)
             for row, one, number in zip(rows, params, uniform.tolist(), strict=True)], dtype=np.float64)
        tokens: list[int] = draw(self._logits, self._to_device(wanted)).tolist()
        return tokens

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._logits.device, non_blocking=True)
