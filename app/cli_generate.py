"""The arguments of ``cutaway generate`` that say how tokens are chosen: vLLM's parameters, each as an option."""

from __future__ import annotations

import argparse
from typing import Any

_OPTIONS: tuple[tuple[str, type, str, str], ...] = (
    ("temperature", float, "T", "0 takes the likeliest token (default), up to 2"),
    ("top_k", int, "K", "draw from the K likeliest tokens (default: all)"),
    ("top_p", float, "P", "draw from the likeliest tokens that together have this probability (default: all)"),
    ("min_p", float, "P", "draw from tokens at least this share as likely as the likeliest (default: all)"),
    ("repetition_penalty", float, "X", "above 1: tokens that prompt or answer hold become less likely (default: 1)"),
    ("presence_penalty", float, "X", "subtracted from the logit of a token that the answer holds (default: 0)"),
    ("frequency_penalty", float, "X", "the same, for each time that the answer holds it (default: 0)"),
    ("max_tokens", int, "N", "stop after N tokens (default: 128)"),
    ("min_tokens", int, "N", "do not stop before N tokens (default: 0)"),
    ("n", int, "N", "so many answers; needs a temperature (default: 1)"),
    ("logprobs", int, "N", "tell the log probability of each token and of the N likeliest, on stderr"),
)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    for name, kind, metavar, text in _OPTIONS:
        parser.add_argument(_option(name), type=kind, metavar=metavar, help=text)
    parser.add_argument("--stop", action="append", metavar="TEXT",
                        help="stop before this text; may be given several times")
    parser.add_argument("--stop-token-ids", action="append", type=int, metavar="ID",
                        help="stop at this token; may be given several times")
    parser.add_argument("--ignore-eos", action="store_true", default=None, help="go on after the end of the answer")


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as :meth:`EngineThread.submit` takes it. Raises ValueError for what it would refuse."""
    from engine.sampling_params import SamplingParams

    names = [name for name, *_ in _OPTIONS] + ["stop", "stop_token_ids", "ignore_eos"]
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    given = {"temperature": 0.0, "max_tokens": 128, **given, "seed": arguments.seed}
    try:
        SamplingParams.parse(given)
    except ValueError as problem:
        text = str(problem)
        name = text.split(" ", 1)[0]
        raise ValueError(_option(name) + text.removeprefix(name) if name in given else text) from None
    return given


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
