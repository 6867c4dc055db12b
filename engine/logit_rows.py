"""The logits of a step, where the forward pass left them, and what a sampler asks of them.

    measure -> add, penalise -> choose      queued: on a GPU none of them waits for the device
                                  |
                                fetch       waits, once, for the tokens and for what was measured

:class:`TorchRows` works on any device; :class:`CompiledRows` works on the buffer of the fused forward pass and does not
take the interpreter lock. Both choose the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from engine.gpu.transfers import Transfers

_NUCLEUS = 1024  # how many of the likeliest tokens are looked at first; all of them only if these are not enough


class Measured(NamedTuple):
    """Of a row as the model made it, before anything was added or penalised."""

    total: float
    """The logarithm of the sum of all exponentials."""
    tokens: list[int]
    """Those with the largest logits, the largest first."""
    logits: list[float]
    chosen: float
    """The logit of the token that was chosen."""


class LogitRows(Protocol):
    """Logits, float32 (rows, vocabulary). Called in the order of the methods, all but ``choose`` and ``fetch`` at will.

    Arrays of rows and tokens are int64, numbers are float32; lists of rows are in ascending order.
    """

    def measure(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Take down what log probabilities are made of, with as many of the likeliest tokens as ``counts`` says."""

    def add(self, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> None:
        """Add to the logits at pairs of a row and a token, none of them twice; -infinity forbids a token."""

    def penalise(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray, repetition: np.ndarray,
                 frequency: np.ndarray, presence: np.ndarray) -> None:  # fmt: skip
        """Penalise pairs of a row and a token, none of them twice.

        For each pair: how often the token is in the output, and the penalties of its request.
        """

    def choose(self, drawn: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> None:
        """Choose a token for every row.

        For the rows in ``drawn`` at random, by their parameters and their numbers in [0, 1), float64; for all others
        the token with the largest logit, the first of several.
        """

    def fetch(self) -> tuple[list[int], list[Measured]]:
        """The token of every row, and what was measured of those asked for."""


class TorchRows:
    """Logits in a tensor. Without ``transfers``, on a device that is not the host, every way there waits."""

    def __init__(self, logits: torch.Tensor, transfers: Transfers | None = None) -> None:
        self._logits = logits
        self._transfers = transfers
        self._counts: Sequence[int] = ()
        self._measured: tuple[torch.Tensor, ...] = ()  # rows asked for, their logits, totals, likeliest, their logits
        self._found: list[torch.Tensor] = []

    def _upload(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        import torch

        if self._transfers is not None:
            return self._transfers.upload(*arrays)
        return [torch.from_numpy(array).to(self._logits.device) for array in arrays]

    def measure(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        (at,) = self._upload(np.array(rows, dtype=np.int64))
        logits = self._logits.index_select(0, at)  # a copy: what the model said, whatever is done to it
        values, tokens = logits.topk(min(max(counts), logits.shape[1]), dim=-1)
        self._measured = (at, logits, logits.double().logsumexp(dim=-1), tokens, values)
        self._counts = counts

    def _places(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Where pairs of a row and a token are, the logits being one line."""
        return rows * self._logits.shape[1] + tokens

    def add(self, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> None:
        import torch

        places, added = self._upload(self._places(rows, tokens), values)
        with torch.inference_mode():  # where the logits come from
            self._logits.view(-1).scatter_add_(0, places, added)

    def penalise(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray, repetition: np.ndarray,
                 frequency: np.ndarray, presence: np.ndarray) -> None:  # fmt: skip
        import torch

        places, *numbers = self._upload(self._places(rows, tokens), repetition, frequency * counts,
                                        presence * (counts > 0))  # fmt: skip
        by, *subtracted = numbers
        with torch.inference_mode():
            line = self._logits.view(-1)
            values = line.gather(0, places)
            values = torch.where(values > 0, values / by, values * by)
            for less in subtracted:
                values -= less
            line.scatter_(0, places, values)

    def choose(self, drawn: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> None:
        tokens = self._choose(drawn, params, uniform)
        self._found = [tokens]
        if self._measured:
            at, logits, totals, likeliest, values = self._measured
            chosen = logits.gather(1, tokens.index_select(0, at)[:, None])
            self._found += [totals, likeliest, values, chosen]
        if self._transfers is not None:
            self._transfers.begin_download(*self._found)

    def fetch(self) -> tuple[list[int], list[Measured]]:
        found = self._found if self._transfers is None else self._transfers.finish_download()
        tokens, *measured = [one.tolist() for one in found]
        if not measured:
            return tokens, []
        return tokens, [Measured(total, likeliest[:count], values[:count], chosen)
                        for total, likeliest, values, (chosen,), count in zip(*measured, self._counts, strict=True)]

    def _choose(self, drawn: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> torch.Tensor:
        """Tokens, int64 (rows)."""
        if not drawn:
            return self._logits.argmax(dim=-1)  # the first of several, as torch promises
        if len(drawn) == self._logits.shape[0]:
            return self._draw(self._logits, params, uniform)
        (at,) = self._upload(np.array(drawn, dtype=np.int64))
        return self._logits.argmax(dim=-1).index_copy(
            0, at, self._draw(self._logits.index_select(0, at), params, uniform))

    def _draw(self, logits: torch.Tensor, params: Sequence[SamplingParams], uniform: np.ndarray) -> torch.Tensor:
        """Weigh, set what is excluded to 0, then invert the cumulated weights."""
        import torch

        vocabulary = logits.shape[1]
        bounded = {
            "top_k": [row for row, wanted in enumerate(params) if 0 < wanted.top_k < vocabulary],
            "top_p": [row for row, wanted in enumerate(params) if wanted.top_p < 1],
        }
        temperature, min_p, number, top_k, k_rows, top_p, p_rows = self._upload(
            np.array([wanted.temperature for wanted in params]), np.array([wanted.min_p for wanted in params]), uniform,
            np.array([params[row].top_k for row in bounded["top_k"]], dtype=np.int64), _rows(bounded["top_k"]),
            np.array([params[row].top_p for row in bounded["top_p"]]), _rows(bounded["top_p"]))

        scaled = logits.double() / temperature[:, None]
        scaled -= scaled.amax(dim=-1, keepdim=True)  # the likeliest token weighs 1, however small the temperature
        weights = scaled.exp()
        if any(wanted.min_p > 0 for wanted in params):
            weights = weights.masked_fill(weights < min_p[:, None], 0.0)
        if bounded["top_k"]:
            some = weights.index_select(0, k_rows)
            largest = some.topk(max(params[row].top_k for row in bounded["top_k"]), dim=-1).values
            some = some.masked_fill(some < largest.gather(1, top_k[:, None] - 1), 0.0)
            weights = weights.index_copy(0, k_rows, some)
        if bounded["top_p"]:
            some = weights.index_select(0, p_rows)
            some = some.masked_fill(some < self._nucleus_bounds(some, top_p[:, None]), 0.0)
            weights = weights.index_copy(0, p_rows, some)
        cumulated = weights.cumsum(dim=-1)
        target = number[:, None] * cumulated[:, -1:]
        # The first token whose cumulated weight exceeds the target: never one that weighs, and so adds, nothing.
        return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=vocabulary - 1)

    def _nucleus_bounds(self, weights: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """The smallest weight in the smallest set of likeliest tokens that reach ``shares`` of the total: (rows, 1)."""
        import torch

        wanted = weights.cumsum(dim=-1)[:, -1:] * shares
        # Whether a few of them are enough is for the host to ask, and only a host that need not wait asks.
        counts = (min(_NUCLEUS, weights.shape[1]), weights.shape[1])
        for count in counts if self._transfers is None else counts[1:]:
            largest = weights.topk(count, dim=-1).values
            reached = largest.cumsum(dim=-1)
            if count == weights.shape[1] or bool((reached[:, -1:] >= wanted).all()):
                break
        return largest.gather(1, torch.searchsorted(reached, wanted).clamp_(max=count - 1))


def _rows(rows: Sequence[int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


class CompiledRows:
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
        self._changed: set[int] = set()  # rows whose peaks and likeliest token are those of logits that are no more
        self._asked: list[tuple[int, float, list[int], list[float]]] = []
        self._before: dict[int, np.ndarray | None] = {}  # rows asked for; as they were, if they were changed since
        self._tokens: list[int] = []

    def measure(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        most = np.minimum(np.array(counts, dtype=np.int64), self._vocab_size)
        totals = np.zeros(len(rows), dtype=np.float64)
        tokens = np.zeros((len(rows), max(1, most.max())), dtype=np.int32)
        values = np.zeros(tokens.shape, dtype=np.float32)
        self._kernels.measure_rows(self._logits, self._peaks, _rows(rows), most, self._scratch, totals, tokens, values)
        self._asked = [(row, float(totals[i]), tokens[i, :count].tolist(), values[i, :count].tolist())
                       for i, (row, count) in enumerate(zip(rows, most.tolist(), strict=True))]
        self._before = dict.fromkeys(rows)

    def _change(self, rows: np.ndarray) -> None:
        """The logits of ``rows`` are about to change."""
        changing = set(rows.tolist())
        for row in changing & self._before.keys():
            if self._before[row] is None:
                self._before[row] = self._logits[row].copy()
        self._changed |= changing

    def add(self, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray) -> None:
        self._change(rows)
        self._logits[rows, tokens] += values

    def penalise(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray, repetition: np.ndarray,
                 frequency: np.ndarray, presence: np.ndarray) -> None:  # fmt: skip
        self._change(rows)
        values = self._logits[rows, tokens]
        values = np.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts
        values -= presence * (counts > 0)
        self._logits[rows, tokens] = values

    def choose(self, drawn: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> None:
        if not drawn and not self._changed:
            self._tokens = self._likeliest.tolist()
            return
        changed = _rows(sorted(self._changed))
        if len(changed):
            self._kernels.find_peaks_of(self._logits, self._peaks, changed)
        tokens = self._likeliest.copy()
        greedy = _rows(sorted(self._changed.difference(drawn)))
        if len(greedy):
            tokens[greedy] = self._find_likeliest(greedy)
        if drawn:
            tokens[_rows(drawn)] = self._draw(drawn, params, uniform)
        self._tokens = tokens.tolist()

    def fetch(self) -> tuple[list[int], list[Measured]]:
        measured = []
        for row, total, tokens, values in self._asked:
            before = self._before[row]
            logits = self._logits[row] if before is None else before
            measured.append(Measured(total, tokens, values, float(logits[self._tokens[row]])))
        return self._tokens, measured

    def _find_likeliest(self, rows: np.ndarray) -> np.ndarray:
        tokens = np.zeros(len(rows), dtype=np.int64)
        self._kernels.find_likeliest(self._logits, self._peaks, rows, tokens)
        return tokens

    def _draw(self, rows: Sequence[int], params: Sequence[SamplingParams], uniform: np.ndarray) -> np.ndarray:
        def column(name: str, dtype: type) -> np.ndarray:
            return np.array([getattr(wanted, name) for wanted in params], dtype=dtype)

        tokens = np.zeros(len(rows), dtype=np.int64)
        self._kernels.draw_rows(
            self._logits, self._peaks, _rows(rows), column("temperature", np.float64), column("top_k", np.int64),
            column("top_p", np.float64), column("min_p", np.float64), uniform, self._scratch, tokens)
        return tokens
