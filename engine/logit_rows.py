"""The logits of a step, where the forward pass left them, and what a sampler asks of them.

:class:`TorchRows` works on any device; :class:`CompiledRows` works on the buffer of the fused forward pass and does not
take the interpreter lock. Both choose the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

_NUCLEUS = 1024  # how many of the likeliest tokens are looked at first; all of them only if these are not enough

Measured = tuple[float, list[int], list[float]]
"""Of a row: the logarithm of the sum of all exponentials, the tokens with the largest logits in order, and these."""


class LogitRows(Protocol):
    """Logits, float32 (rows, vocabulary)."""

    def get(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The logits at pairs of a row and a token: float32."""

    def put(self, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> None:
        """Change the logits at pairs of a row and a token, none of them twice."""

    def penalise(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray, repetition: np.ndarray,
                 frequency: np.ndarray, presence: np.ndarray) -> None:  # fmt: skip
        """Penalise pairs of a row and a token, none of them twice.

        For each pair, float32: how often the token is in the output, and the penalties of its request.
        """

    def copy_of(self, row: int) -> np.ndarray:
        """A whole row as it is now."""

    def measure(self, rows: Sequence[int], counts: Sequence[int]) -> list[Measured]:
        """What log probabilities are made of, with as many of the likeliest tokens as ``counts`` says."""

    def likeliest(self, rows: Sequence[int], changed: bool) -> list[int]:
        """The token with the largest logit of each row, the first of several; ``changed`` if ``put`` was called."""

    def draw(self, rows: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> list[int]:
        """A token at random for each row, by its parameters and its number in [0, 1)."""


class _PairwiseRows:
    """Penalties by getting, changing and putting logits."""

    def get(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def put(self, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> None:
        raise NotImplementedError

    def penalise(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray, repetition: np.ndarray,
                 frequency: np.ndarray, presence: np.ndarray) -> None:  # fmt: skip
        values = self.get(rows, tokens)
        values = np.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts
        values -= presence * (counts > 0)
        self.put(rows, tokens, values)


class TorchRows(_PairwiseRows):
    """Logits in a tensor on any device."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def _pairs(self, rows: np.ndarray, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        device = self._logits.device
        return torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)

    def get(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return self._logits[self._pairs(rows, tokens)].cpu().numpy()

    def put(self, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> None:
        import torch

        with torch.inference_mode():  # where the logits come from
            self._logits[self._pairs(rows, tokens)] = torch.from_numpy(values).to(self._logits.device)

    def copy_of(self, row: int) -> np.ndarray:
        return self._logits[row].cpu().numpy().copy()

    def measure(self, rows: Sequence[int], counts: Sequence[int]) -> list[Measured]:
        chosen = self._logits[list(rows)]
        totals = chosen.double().logsumexp(dim=-1).tolist()
        values, tokens = chosen.topk(min(max(counts), chosen.shape[1]), dim=-1)
        return [(total, ids[:count], largest[:count])
                for total, ids, largest, count in zip(totals, tokens.tolist(), values.tolist(), counts, strict=True)]

    def likeliest(self, rows: Sequence[int], changed: bool) -> list[int]:
        tokens: list[int] = self._logits.argmax(dim=-1).tolist()
        return [tokens[row] for row in rows]

    def draw(self, rows: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> list[int]:
        """Weigh, set what is excluded to 0, then invert the cumulated weights."""
        import torch

        logits = self._logits if len(rows) == self._logits.shape[0] else self._logits[list(rows)]
        device, vocabulary = logits.device, logits.shape[1]

        def column(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, device=device, dtype=torch.float64)[:, None]

        scaled = logits.double() / column([wanted.temperature for wanted in params])
        scaled -= scaled.amax(dim=-1, keepdim=True)  # the likeliest token weighs 1, however small the temperature
        weights = scaled.exp()
        if any(wanted.min_p > 0 for wanted in params):
            weights.masked_fill_(weights < column([wanted.min_p for wanted in params]), 0.0)
        for some, bounds in (
            ([row for row, wanted in enumerate(params) if 0 < wanted.top_k < vocabulary], _top_k_bounds),
            ([row for row, wanted in enumerate(params) if wanted.top_p < 1], _nucleus_bounds),
        ):
            if some:
                chosen = weights[some]
                weights[some] = chosen.masked_fill(chosen < bounds(chosen, [params[row] for row in some]), 0.0)
        cumulated = weights.cumsum(dim=-1)
        target = torch.from_numpy(uniform).to(device)[:, None] * cumulated[:, -1:]
        # The first token whose cumulated weight exceeds the target: never one that weighs, and so adds, nothing.
        return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=vocabulary - 1).tolist()


def _top_k_bounds(weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The k-th largest weight of each row: (rows, 1)."""
    import torch

    last = torch.tensor([[wanted.top_k - 1] for wanted in params], device=weights.device)
    return weights.topk(max(wanted.top_k for wanted in params), dim=-1).values.gather(1, last)


def _nucleus_bounds(weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The smallest weight in the smallest set of likeliest tokens that reach ``top_p`` of the total: (rows, 1)."""
    import torch

    shares = torch.tensor([[wanted.top_p] for wanted in params], device=weights.device, dtype=weights.dtype)
    wanted = weights.cumsum(dim=-1)[:, -1:] * shares
    for count in (min(_NUCLEUS, weights.shape[1]), weights.shape[1]):
        largest = weights.topk(count, dim=-1).values
        reached = largest.cumsum(dim=-1)
        if bool((reached[:, -1:] >= wanted).all()):
            break
    return largest.gather(1, torch.searchsorted(reached, wanted).clamp_(max=count - 1))


class CompiledRows(_PairwiseRows):
    """Logits in an array of whole vectors, in which -infinity fills what is not vocabulary.

    ``kernels`` is :mod:`engine.sampler_kernels`, ``scratch`` its scratch for this width. ``peaks`` are the largest
    logits of every chunk, and ``likeliest`` the token with the largest logit, of each row.
    """

    def __init__(self, kernels: ModuleType, logits: np.ndarray, vocab_size: int, scratch: Any, peaks: np.ndarray,
                 likeliest: np.ndarray) -> None:
        self._kernels = kernels
        self._logits = logits
        self._vocab_size = vocab_size
        self._scratch = scratch
        self._peaks = peaks
        self._likeliest = likeliest
        self._changed: set[int] = set()  # rows whose peaks are those of logits that are no more

    def get(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return self._logits[rows, tokens]

    def put(self, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> None:
        self._logits[rows, tokens] = values
        self._changed.update(rows.tolist())

    def _find_peaks(self) -> None:
        if self._changed:
            self._kernels.find_peaks_of(self._logits, self._peaks, np.array(sorted(self._changed), dtype=np.int64))
            self._changed.clear()

    def copy_of(self, row: int) -> np.ndarray:
        return self._logits[row].copy()

    def measure(self, rows: Sequence[int], counts: Sequence[int]) -> list[Measured]:
        self._find_peaks()
        most = np.minimum(np.array(counts, dtype=np.int64), self._vocab_size)
        totals = np.zeros(len(rows), dtype=np.float64)
        tokens = np.zeros((len(rows), max(1, most.max())), dtype=np.int32)
        values = np.zeros(tokens.shape, dtype=np.float32)
        self._kernels.measure_rows(self._logits, self._peaks, np.array(rows, dtype=np.int64), most, self._scratch,
                                   totals, tokens, values)
        return [(float(totals[i]), tokens[i, :count].tolist(), values[i, :count].tolist())
                for i, count in enumerate(most.tolist())]

    def likeliest(self, rows: Sequence[int], changed: bool) -> list[int]:
        if not changed:
            known: list[int] = self._likeliest.tolist()
            return known if len(rows) == len(known) else [known[row] for row in rows]
        self._find_peaks()
        tokens = np.zeros(len(rows), dtype=np.int64)
        self._kernels.find_likeliest(self._logits, self._peaks, np.array(rows, dtype=np.int64), tokens)
        return tokens.tolist()

    def draw(self, rows: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> list[int]:
        def column(name: str, dtype: type) -> np.ndarray:
            return np.array([getattr(wanted, name) for wanted in params], dtype=dtype)

        self._find_peaks()
        tokens = np.zeros(len(rows), dtype=np.int64)
        self._kernels.draw_rows(
            self._logits, self._peaks, np.array(rows, dtype=np.int64), column("temperature", np.float64),
            column("top_k", np.int64), column("top_p", np.float64), column("min_p", np.float64), uniform,
            self._scratch, tokens)
        return tokens.tolist()
