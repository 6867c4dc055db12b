"""Choosing tokens from logits, as :class:`~engine.sampling_params.SamplingParams` says, in vLLM's order.

Every random choice uses one number, drawn from the request's own seed and the position of the token, and from nothing
else. So a request's text depends neither on the requests beside it nor on how often it was preempted.

A choice is made by bounds instead of by sorting the vocabulary: a share of the likeliest token's weight bounds min-p,
the k-th largest logit top-k, and the lightest token of the nucleus top-p. Tokens exactly at a bound stay in. What is
left is walked through in the order of the token ids until the weights pass the random number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from engine.logit_rows import LogitRows, Measured
from engine.request import Request
from engine.trace.events import Logprobs, TokenLogprob

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1
_NO_NUMBERS = np.zeros(0)


class Sampler:
    """Chooses the tokens of a step. What penalties need of a request is kept until it is forgotten."""

    def __init__(self, eos_token_ids: Collection[int] = ()) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seen: dict[str, _SeenTokens] = {}
        self._rows: LogitRows | None = None
        self._asked: list[int] = []
        self.logprobs: Sequence[Logprobs | None] = ()
        """Of the last :meth:`finish`, for each row; empty if no request asked for any."""

    def sample(self, logits: LogitRows, requests: Sequence[Request]) -> list[int]:
        """The next token of each request, whose logits are the row of the same number; they may be changed."""
        self.begin(logits, requests)
        return self.finish()

    def begin(self, logits: LogitRows, requests: Sequence[Request]) -> None:
        """Queue all that :meth:`sample` does; on a GPU nothing of it waits for the device."""
        self._rows, self._asked = logits, []
        special = [row for row, request in enumerate(requests) if not request.params.plain]
        if not special:
            logits.choose((), (), _NO_NUMBERS)
            return
        self._asked = [row for row in special if requests[row].params.logprobs is not None]
        if self._asked:
            logits.measure(self._asked, [requests[row].params.logprobs or 0 for row in self._asked])
        self._edit(logits, requests, [row for row in special if requests[row].params.edits_logits])
        drawn = [row for row in special if not requests[row].params.is_greedy]
        params = [requests[row].params for row in drawn]
        uniform = uniforms([one.seed for one in params], [requests[row].num_tokens for row in drawn])
        logits.choose(drawn, params, uniform)

    def finish(self) -> list[int]:
        """Wait for the tokens of the last :meth:`begin`."""
        if self._rows is None:
            raise RuntimeError("there is nothing to finish: begin first")
        tokens, measured = self._rows.fetch()
        self._rows = None
        self.logprobs = ()
        if measured:
            found: list[Logprobs | None] = [None] * len(tokens)
            for row, of_row in zip(self._asked, measured, strict=True):
                found[row] = _logprobs(tokens[row], of_row)
            self.logprobs = found
        return tokens

    def forget(self, request_id: str) -> None:
        """A request left; one that was never seen is fine."""
        self._seen.pop(request_id, None)

    # ---- what changes logits --------------------------------------------------------------------------------------

    def _edit(self, logits: LogitRows, requests: Sequence[Request], rows: Sequence[int]) -> None:
        """Forbid the end before ``min_tokens``, add biases, subtract penalties."""
        added = _Pairs()
        penalised: list[int] = []
        for row in rows:
            request, params = requests[row], requests[row].params
            ends: Collection[int] = ()
            if request.num_output_tokens < params.min_tokens:
                ends = self._eos_token_ids.union(params.stop_token_ids)
                added.add(row, ends, [-np.inf] * len(ends))
            if params.logit_bias:
                # What is forbidden stays so, whatever is added to it; and no pair may come twice.
                bias = {token: value for token, value in params.logit_bias.items() if token not in ends}
                added.add(row, bias.keys(), bias.values())
            if params.penalises:
                penalised.append(row)
        if added.rows:
            logits.add(*added.arrays())
        if penalised:
            self._penalise(logits, requests, penalised)

    def _penalise(self, logits: LogitRows, requests: Sequence[Request], rows: Sequence[int]) -> None:
        seen = [self._seen_by(requests[row]) for row in rows]
        sizes = [len(one) for one in seen]

        def spread(name: str) -> np.ndarray:
            return np.repeat(np.array([getattr(requests[row].params, name) for row in rows], dtype=np.float32), sizes)

        at = np.repeat(np.array(rows, dtype=np.int64), sizes)
        tokens = np.concatenate([one.tokens for one in seen])
        counts = np.concatenate([one.counts for one in seen])
        logits.penalise(at, tokens, counts, spread("repetition_penalty"), spread("frequency_penalty"),
                        spread("presence_penalty"))  # fmt: skip

    def _seen_by(self, request: Request) -> _SeenTokens:
        seen = self._seen.get(request.request_id)
        if seen is None:
            seen = self._seen[request.request_id] = _SeenTokens(request.prompt_token_ids)
        seen.read(request.token_ids)
        return seen


class _SeenTokens:
    """Which tokens a request holds, each once, and how often each is in its output. A token is counted once."""

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._read = len(prompt_token_ids)
        prompt = np.unique(np.array(prompt_token_ids, dtype=np.int64))
        self._place = {token: place for place, token in enumerate(prompt.tolist())}
        self._tokens = np.concatenate((prompt, np.zeros(64, dtype=np.int64)))
        self._counts = np.zeros(len(self._tokens), dtype=np.float32)

    def __len__(self) -> int:
        return len(self._place)

    @property
    def tokens(self) -> np.ndarray:
        return self._tokens[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        """float32, because that is what they are multiplied as."""
        return self._counts[: len(self._place)]

    def read(self, token_ids: Sequence[int]) -> None:
        """Count the output tokens that are new since the last time."""
        for token in token_ids[self._read :]:
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._tokens):
                self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._tokens[place] = token
            self._counts[place] += 1
        self._read = len(token_ids)


class _Pairs:
    """Pairs of a row and a token, with a value for each."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._tokens: list[int] = []
        self._values: list[float] = []

    def add(self, row: int, tokens: Collection[int], values: Collection[float]) -> None:
        self.rows.extend([row] * len(tokens))
        self._tokens.extend(tokens)
        self._values.extend(values)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (np.array(self.rows, dtype=np.int64), np.array(self._tokens, dtype=np.int64),
                np.array(self._values, dtype=np.float32))


def _logprobs(token: int, measured: Measured) -> Logprobs:
    return Logprobs(TokenLogprob(token, measured.chosen - measured.total),
                    [TokenLogprob(other, value - measured.total)
                     for other, value in zip(measured.tokens, measured.logits, strict=True)])


def uniforms(seeds: Sequence[int | None], positions: Sequence[int]) -> np.ndarray:
    """A number in [0, 1) for each pair of a seed and a position: float64, the same on every machine.

    A request whose seed nobody has chosen has the seed 0.
    """
    # Any integer may be a seed; NumPy takes only those that fit.
    seed = np.array([(value or 0) & _MASK for value in seeds], dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    mixed = _mix(_mix(seed + _GOLDEN) ^ (position * _GOLDEN))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread 64 bits over 64 bits so that neighbours have nothing in common (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
