"""What the inspector says of how a request's tokens were chosen, and of how likely they were."""

from __future__ import annotations

import math

from PySide6.QtCore import QCoreApplication

from engine.trace.events import TokenLogprob
from engine.trace.state import RequestView

_MOST_ALTERNATIVES = 3


def stop_text(request: RequestView) -> str:
    """What a request was stopped by, if it was a stop string or a stop token."""
    if isinstance(request.stop, str):
        return QCoreApplication.translate("Inspector", "finished at the stop string {text}").format(
            text=_quoted(request.stop))
    return QCoreApplication.translate("Inspector", "finished at the stop token {token}").format(token=request.stop)


def sampling_facts(request: RequestView) -> list[tuple[str, str]]:
    """Nothing of a greedy request that did not ask for log probabilities."""
    facts = []
    if request.temperature:
        facts.append((QCoreApplication.translate("Inspector", "temperature"), f"{request.temperature:g}"))
    latest = request.latest_logprobs
    if latest is None or not request.logprobs:
        return facts
    mean = math.fsum(request.logprobs) / len(request.logprobs)
    facts.append((QCoreApplication.translate("Inspector", "logprob, mean"),
                  QCoreApplication.translate("Inspector", "{mean} (perplexity {perplexity})").format(
                      mean=f"{mean:.2f}".replace("-", "−"), perplexity=f"{math.exp(min(-mean, 20.0)):.2f}")))
    facts.append((QCoreApplication.translate("Inspector", "latest token"), _likely(latest.sampled)))
    others = [t for t in latest.top if t.token_id != latest.sampled.token_id][:_MOST_ALTERNATIVES]
    if others:
        facts.append((QCoreApplication.translate("Inspector", "rather than"), ", ".join(map(_likely, others))))
    return facts


def _likely(token: TokenLogprob) -> str:
    return f"{_quoted(token.text)} {math.exp(min(token.logprob, 0.0)):.1%}"


def _quoted(text: str) -> str:
    return "“" + text.replace("\n", "⏎").replace("\t", "⇥") + "”"
