"""How a request wants its tokens chosen, in vLLM's names and with vLLM's meaning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from engine.trace.source import Notice

MAX_LOGPROBS = 20
"""The most alternatives that are reported for a token (vLLM's ``--max-logprobs``)."""

MAX_N = 64
"""The most samples of one prompt."""

MAX_TEMPERATURE = 2.0
GREEDY_BELOW = 1e-5
"""A temperature below this is greedy."""

_SEEDS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The defaults change nothing: greedy, nothing penalised, nothing reported, ended by the end of the sequence.

    In the order in which they act:

    - ``logprobs``: report the log probability of the sampled token and of that many likeliest ones (0: of the sampled
      one alone; None: nothing). Of the model's own logits, before anything below: vLLM's "raw logprobs".
    - ``min_tokens``: until then neither the end of the sequence nor a stop token can be sampled, and no stop string
      ends the request.
    - ``logit_bias``: added to the logits of single tokens.
    - ``repetition_penalty`` divides the positive logits, and multiplies the negative ones, of tokens in the prompt or
      the output; ``frequency_penalty`` is subtracted for each time that a token is in the output, and
      ``presence_penalty`` once if it is.
    - ``temperature``: 0 takes the likeliest token. Otherwise it divides the logits, and the token is drawn from what
      ``min_p`` (at least that share of the likeliest token's probability), ``top_k`` (so many tokens; 0 or -1: all)
      and then ``top_p`` (the likeliest tokens that together have this probability; 1: all) leave.
    - ``seed`` gives the request a random stream of its own, so that its text does not depend on the batch it is in.
      None lets the engine choose one. Of ``n`` samples the i-th has the seed ``seed + i``.
    - ``stop`` ends the request as soon as its text holds one of the strings; the text ends before it.
      ``stop_token_ids`` end it like the end of the sequence, which ``ignore_eos`` ignores.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 64
    ignore_eos: bool = False
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    n: int = 1

    # Asked at every step, so found out once.
    is_greedy: bool = field(init=False, repr=False, compare=False)
    penalises: bool = field(init=False, repr=False, compare=False)
    edits_logits: bool = field(init=False, repr=False, compare=False)
    plain: bool = field(init=False, repr=False, compare=False)
    """Greedy, and nothing that sampling has to care about besides."""

    def __post_init__(self) -> None:
        def note(name: str, value: bool) -> None:
            object.__setattr__(self, name, value)

        try:
            note("is_greedy", self.temperature < GREEDY_BELOW)
        except TypeError:  # no number; what is wrong is for `problem` to say
            note("is_greedy", False)
        note("penalises", (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0))
        note("edits_logits", self.penalises or bool(self.logit_bias) or self.min_tokens != 0)
        note("plain", self.is_greedy and not self.edits_logits and self.logprobs is None)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SamplingParams:
        """Parameters as a user gives them: one stop string may stand without a list, token ids may be text.

        Raises ValueError, with a message that says what is allowed, for what is no parameter or no value of one.
        """
        known = {f.name for f in fields(cls) if f.init}
        for name in given:
            if name not in known:
                raise ValueError(Notice("{name} is no parameter of a request; there are {known}.", name=name,
                                        known=", ".join(sorted(known))))
        values = {name: value for name, value in given.items() if value is not None or name in ("seed", "logprobs")}
        stop = values.get("stop", ())
        values["stop"] = (stop,) if isinstance(stop, str) else _tuple("stop", stop, "strings")
        ids = _tuple("stop_token_ids", values.get("stop_token_ids", ()), "token ids")
        values["stop_token_ids"] = tuple(dict.fromkeys(ids))
        bias = values.get("logit_bias", {})
        try:
            values["logit_bias"] = {int(token): float(add) for token, add in bias.items()}
        except (AttributeError, TypeError, ValueError):
            raise ValueError(Notice("logit_bias must map token ids to numbers from -100 to 100.")) from None
        if values.get("seed") == -1:
            values["seed"] = None
        params = cls(**values)
        if problem := params.problem():
            raise ValueError(problem)
        return params

    def problem(self, vocab_size: int = 0) -> Notice | None:
        """What is wrong with these values, and what is allowed; None if nothing is. ``vocab_size`` 0 is unknown."""
        return (self._problem_of_whole_numbers() or self._problem_of_numbers() or self._problem_of_tokens(vocab_size)
                or self._problem_of_samples())

    def _problem_of_whole_numbers(self) -> Notice | None:
        for name, low in (("n", 1), ("max_tokens", 1), ("min_tokens", 0), ("top_k", -1), ("logprobs", 0)):
            value = getattr(self, name)
            if value is None and name == "logprobs":
                continue
            good = _is_int(value) and value >= low
            if name == "n" and not (good and value <= MAX_N):
                return Notice("{name} is {value}; it must be a whole number from {low} to {high}.", name=name,
                              value=repr(value), low=low, high=MAX_N)
            if name == "logprobs" and not (good and value <= MAX_LOGPROBS):
                return Notice("{name} is {value}; it must be a whole number from {low} to {high}, or not given.",
                              name=name, value=repr(value), low=low, high=MAX_LOGPROBS)
            if name == "top_k" and not good:
                return Notice("{name} is {value}; it must be a whole number at least {low}; 0 is off.", name=name,
                              value=repr(value), low=low)
            if not good:
                return Notice("{name} is {value}; it must be a whole number at least {low}.", name=name,
                              value=repr(value), low=low)
        return None

    def _problem_of_numbers(self) -> Notice | None:
        for name, low, high in (("temperature", 0.0, MAX_TEMPERATURE), ("min_p", 0.0, 1.0),
                                ("presence_penalty", -2.0, 2.0), ("frequency_penalty", -2.0, 2.0)):
            value = getattr(self, name)
            if not _is_number(value) or not low <= value <= high:
                return Notice("{name} is {value}; it must be a number from {low} to {high}.", name=name,
                              value=repr(value), low=f"{low:g}", high=f"{high:g}")
        if not _is_number(self.top_p) or not 0.0 < self.top_p <= 1.0:
            return Notice("{name} is {value}; it must be a number above 0, up to 1; 1 is off.", name="top_p",
                          value=repr(self.top_p))
        if not _is_number(self.repetition_penalty) or not 0.0 < self.repetition_penalty < math.inf:
            return Notice("{name} is {value}; it must be a number above 0; 1 is off.", name="repetition_penalty",
                          value=repr(self.repetition_penalty))
        if self.min_tokens > self.max_tokens:
            return Notice("{name} is {value}; it must be at most max_tokens, which is {high}.", name="min_tokens",
                          value=self.min_tokens, high=self.max_tokens)
        if self.seed is not None and (not _is_int(self.seed) or self.seed not in _SEEDS):
            return Notice("{name} is {value}; it must be a whole number of at most 64 bits.", name="seed",
                          value=repr(self.seed))
        if not isinstance(self.ignore_eos, bool):
            return Notice("{name} is {value}; it must be true or false.", name="ignore_eos",
                          value=repr(self.ignore_eos))
        return None

    def _problem_of_tokens(self, vocab_size: int) -> Notice | None:
        if not all(isinstance(text, str) and text for text in self.stop):
            return Notice("{name} is {value}; it must be strings that are not empty.", name="stop",
                          value=repr(list(self.stop)))
        for name, tokens in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias)):
            for token in tokens:
                if not _is_int(token) or token < 0 or 0 < vocab_size <= token:
                    if vocab_size:
                        return Notice("{name} holds {value}; its token ids must be whole numbers from 0 to {high}.",
                                      name=name, value=repr(token), high=f"{vocab_size - 1:,}")
                    return Notice("{name} holds {value}; its token ids must be whole numbers of 0 or more.",
                                  name=name, value=repr(token))
        for token, add in self.logit_bias.items():
            if not _is_number(add) or not -100.0 <= add <= 100.0:
                return Notice("{name} adds {value} to token {token}; it must be a number from -100 to 100.",
                              name="logit_bias", value=repr(add), token=token)
        return None

    def _problem_of_samples(self) -> Notice | None:
        if self.n > 1 and self.is_greedy:
            return Notice("{name} is {value}; with temperature 0 all samples would be the same, so it must be 1.",
                          name="n", value=self.n)
        return None

    def for_sample(self, index: int, seed: int) -> SamplingParams:
        """Of the ``index``-th of the ``n`` samples; ``seed`` is the first one's."""
        seed += index
        return replace(self, n=1, seed=seed if seed in _SEEDS else seed - 2**64)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _tuple(name: str, values: Any, what: str) -> tuple[Any, ...]:
    try:
        if not isinstance(values, (str, bytes, Mapping)):
            return tuple(values)
    except TypeError:
        pass
    if what == "strings":
        raise ValueError(Notice("{name} is {value}; it must be a list of strings.", name=name, value=repr(values)))
    raise ValueError(Notice("{name} is {value}; it must be a list of token ids.", name=name, value=repr(values)))
