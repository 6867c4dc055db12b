"""A live run that can be looked back on: every step of it, in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

import msgspec
import zstandard

from engine.trace.events import RunInfo, StepEvents
from engine.trace.metrics import StepSeries
from engine.trace.source import SNAPSHOT_INTERVAL, step_out_of_range
from engine.trace.state import EngineState, decode_snapshot, encode_snapshot
from engine.trace.timeline import Timeline

PAGE_STEPS = 64
PAGES_CACHED = 8

_page_encoder = msgspec.msgpack.Encoder()
_page_decoder = msgspec.msgpack.Decoder(list[StepEvents])


class LiveHistory:
    """A :class:`RunSource` that grows by :meth:`append`. Not for several threads at once.

    Steps are kept packed, 64 together, with a snapshot every 256; the newest ones as they came. A step of 16 requests
    takes some 200 bytes. Beyond ``max_steps`` the oldest go, 256 at a time, and ``first_step`` says so.
    """

    def __init__(self, info: RunInfo, max_steps: int = 250_000) -> None:
        self.info = info
        self.complete = True
        self.warnings: list[str] = []
        self.series = StepSeries()
        self.timeline = Timeline()
        self.max_steps = max(max_steps, SNAPSHOT_INTERVAL)
        self._state = EngineState(info)
        self._first = -1
        self._pages: list[bytes] = []  # of PAGE_STEPS steps each, from _first on
        self._recent: list[StepEvents] = []  # those after the last page
        self._snapshot_steps: list[int] = [-1]
        self._snapshots: list[bytes] = [_pack(encode_snapshot(self._state.snapshot()))]
        self._cache: OrderedDict[int, list[StepEvents]] = OrderedDict()  # by the first step of the page

    @property
    def first_step(self) -> int:
        return self._first

    @property
    def last_step(self) -> int:
        return self._state.step if self._first >= 0 else -1

    @property
    def state(self) -> EngineState:
        """The engine after the newest step. For reading only: it moves on with the next :meth:`append`."""
        return self._state

    def append(self, events: StepEvents) -> None:
        """Take in the next step. Raises ValueError if it does not follow the one before."""
        if self._first < 0:
            self._begin(events.step)
        elif events.step != self._state.step + 1:
            raise ValueError(f"step {events.step} cannot follow step {self._state.step}")
        self._state.apply(events)
        self.series.append(events, self._state)
        self.timeline.append(events, self._state)
        self._recent.append(events)
        if len(self._recent) == 2 * PAGE_STEPS:  # so that the newest steps are always at hand unpacked
            self._pages.append(_pack(_page_encoder.encode(self._recent[:PAGE_STEPS])))
            del self._recent[:PAGE_STEPS]
        if (events.step - self._first + 1) % SNAPSHOT_INTERVAL == 0:
            self._snapshot_steps.append(events.step)
            self._snapshots.append(_pack(encode_snapshot(self._state.snapshot())))
            if events.step - self._first >= self.max_steps:
                self._forget()

    def _begin(self, step: int) -> None:
        self._first = step
        self._snapshot_steps[0] = step - 1

    def _forget(self) -> None:
        """Drop the oldest steps up to the second snapshot."""
        new_first = self._snapshot_steps[1] + 1
        del self._snapshot_steps[0], self._snapshots[0]
        del self._pages[:(new_first - self._first) // PAGE_STEPS]
        self._first = new_first
        self.series.forget_before(new_first)
        self.complete = False
        self.warnings = [f"Steps before {new_first} were dropped to bound memory."]

    def events(self, step: int) -> StepEvents:
        if self._first < 0 or not self._first <= step <= self._state.step:
            raise step_out_of_range(self, step)
        index, offset = divmod(step - self._first, PAGE_STEPS)
        if index >= len(self._pages):
            return self._recent[step - self._first - PAGE_STEPS * len(self._pages)]
        key = step - offset
        page = self._cache.get(key)
        if page is None:
            page = _page_decoder.decode(_unpack(self._pages[index]))
            self._cache[key] = page
            if len(self._cache) > PAGES_CACHED:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(key)
        return page[offset]

    def state_at(self, step: int) -> EngineState:
        if self._first >= 0 and step == self._state.step:
            return self._state.copy()
        before_first = self._snapshot_steps[0]
        if not before_first <= step <= max(self.last_step, before_first):
            raise step_out_of_range(self, step)
        nearest = bisect_right(self._snapshot_steps, step) - 1
        state = EngineState.from_snapshot(self.info, decode_snapshot(_unpack(self._snapshots[nearest])))
        for following in range(self._snapshot_steps[nearest] + 1, step + 1):
            state.apply(self.events(following))
        return state

    def close(self) -> None:
        """Nothing to let go of."""


def _pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unpack(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)
