"""What ``cutaway generate`` prints: one answer as it comes, several one after the other when all are there."""

from __future__ import annotations

import math
import sys

from engine.trace.events import Sampled, StepEvents, TokenLogprob


class Answers:
    """Takes a run's steps in order. The answers go to stdout; log probabilities, if there are any, to stderr."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._sampled: dict[str, list[Sampled]] = {}
        self._open: set[str] = set()

    def add(self, events: StepEvents) -> bool:
        """True when all answers are complete, and printed."""
        for arrived in events.arrived:
            self._texts[arrived.request_id] = ""
            self._sampled[arrived.request_id] = []
            self._open.add(arrived.request_id)
        for sampled in events.sampled:
            self._say(sampled.request_id, sampled.text)
            if sampled.logprobs is not None:
                self._sampled[sampled.request_id].append(sampled)
        for finish in (*events.finished, *events.aborted):
            self._say(finish.request_id, finish.text)
            self._open.discard(finish.request_id)
        if not self._texts or self._open:
            return False
        self._end()
        return True

    def _say(self, request_id: str, text: str) -> None:
        self._texts[request_id] += text
        if len(self._texts) == 1:
            print(text, end="", flush=True)

    def _end(self) -> None:
        if len(self._texts) == 1:
            print()
        else:
            print("\n\n".join(f"[{number}] {text.strip()}" for number, text in enumerate(self._texts.values(), 1)))
        sys.stdout.flush()
        for number, sampled in enumerate(self._sampled.values(), 1):
            if sampled and len(self._texts) > 1:
                print(f"[{number}]", file=sys.stderr)
            for one in sampled:
                assert one.logprobs is not None
                others = "   ".join(_describe(token) for token in one.logprobs.top)
                print(f"{_describe(one.logprobs.sampled):<32}{'  of  ' + others if others else ''}", file=sys.stderr)


def _describe(token: TokenLogprob) -> str:
    return f"{token.text!r} {token.logprob:.3f} ({math.exp(token.logprob):.1%})"
