"""The text of one request as its tokens come, and the stop strings in it.

What could be the beginning of a stop string is held back until it is known whether it is one, so that nothing of a
stop string is ever shown. Text is searched once: a stop string counts where it is completed.
"""

from __future__ import annotations

from engine.model.detokenizer import IncrementalDetokenizer


class OutputText:
    """The text of a request that has stop strings; ``stop`` must not be empty, nor hold an empty string.

    Until more than ``min_tokens`` tokens have been added no stop string counts, unless it is completed later.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer, stop: tuple[str, ...], min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._min_tokens = min_tokens
        self._tokens = 0
        self._waiting = ""  # detokenized and not given out
        self._searched = 0  # how much of it, and of what the detokenizer holds back, has been searched
        self.stopped_by: str | None = None
        """The stop string that the text has come to."""

    def add(self, token_id: int) -> str:
        """What can be shown now. If :attr:`stopped_by` is set then, the text ends with it."""
        self._tokens += 1
        self._waiting += self._detokenizer.add(token_id)
        # An emoji that may not be over is text all the same, and the stop string may end with it.
        text = self._waiting + self._detokenizer.held
        if self._tokens > self._min_tokens:
            end = self._find(text)
            if end >= 0:
                self._waiting = ""
                return text[:end]
        shown = min(len(self._waiting), len(text) - self._length_of_open_stop(text))
        out, self._waiting = self._waiting[:shown], self._waiting[shown:]
        self._searched = len(text) - shown
        return out

    def flush(self) -> str:
        """What was still held back, nothing after a stop string."""
        rest = self._detokenizer.flush()
        text = "" if self.stopped_by is not None else self._waiting + rest
        self._waiting = ""
        return text

    def _find(self, text: str) -> int:
        """Where the stop string begins that is completed first, by the text that is new; -1 if none is."""
        begin, best = -1, len(text) + 1
        for stop in self._stop:
            at = text.find(stop, max(0, self._searched + 1 - len(stop)))
            if at >= 0 and at + len(stop) < best:
                begin, best = at, at + len(stop)
                self.stopped_by = stop
        return begin

    def _length_of_open_stop(self, text: str) -> int:
        """The length of the longest end of the text that a stop string begins with."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
