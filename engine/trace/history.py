"""A live run that can be looked back on: every step of it, in bounded memory."""

from __future__ import annotations

import msgspec
import zstandard

from engine.trace.events import RunInfo, StepEvents
from engine.trace.source import SNAPSHOT_INTERVAL, Notice, PagedRun
from engine.trace.state import EngineState, Snapshot, decode_snapshot, encode_snapshot

PAGE_STEPS = 64

_page_encoder = msgspec.msgpack.Encoder()
_page_decoder = msgspec.msgpack.Decoder(list[StepEvents])


class LiveHistory(PagedRun):
    """A :class:`RunSource` that grows by :meth:`append`. Not for several threads at once.

    Steps are kept packed, 64 together, with a snapshot every 256; the newest ones as they came. A step of 16 requests
    takes about 500 bytes. Beyond ``max_steps`` the oldest go, 256 at a time; ``first_step`` and ``warnings`` say so.
    """

    def __init__(self, info: RunInfo, max_steps: int = 250_000) -> None:
        super().__init__(info)
        self.max_steps = max(max_steps, SNAPSHOT_INTERVAL)
        self._state = EngineState(info)
        self._packed: list[bytes] = []  # PAGE_STEPS steps each, from _first on
        self._recent: list[StepEvents] = []  # those after the last page
        self._snapshot_steps = [-1]
        self._snapshots = [_pack(encode_snapshot(self._state.snapshot()))]

    @property
    def state(self) -> EngineState:
        """The engine after the newest step. For reading only: it moves on with the next :meth:`append`."""
        return self._state

    def append(self, events: StepEvents) -> None:
        """Take in the next step. Raises ValueError if it does not follow the one before."""
        if events.step != self._last + 1:
            raise ValueError(f"step {events.step} cannot follow step {self._last}")
        self._state.apply(events)
        self.series.append(events, self._state)
        self.timeline.append(events, self._state)
        self._recent.append(events)
        self._first = max(self._first, 0)
        self._last = events.step
        if len(self._recent) == 2 * PAGE_STEPS:  # the newest steps stay at hand unpacked
            self._packed.append(_pack(_page_encoder.encode(self._recent[:PAGE_STEPS])))
            del self._recent[:PAGE_STEPS]
        if (events.step + 1) % SNAPSHOT_INTERVAL == 0:
            self._snapshot_steps.append(events.step)
            self._snapshots.append(_pack(encode_snapshot(self._state.snapshot())))
            if events.step - self._first >= self.max_steps:
                self._forget()

    def _forget(self) -> None:
        """Drop the oldest steps, up to the second snapshot."""
        first = self._snapshot_steps[1] + 1
        del self._snapshot_steps[0], self._snapshots[0]
        del self._packed[:(first - self._first) // PAGE_STEPS]
        self._first = first
        self.series.forget_before(first)
        self.complete = False
        self.warnings = [Notice("Steps before {step} were dropped to keep memory in bounds.", step=first)]

    def state_at(self, step: int) -> EngineState:
        return self._state.copy() if step == self._last else super().state_at(step)

    def events(self, step: int) -> StepEvents:
        recent = step - (self._last + 1 - len(self._recent))
        return self._recent[recent] if 0 <= recent < len(self._recent) else super().events(step)

    def _page_of(self, step: int) -> int:
        return step // PAGE_STEPS

    def _load_page(self, page: int) -> tuple[int, list[StepEvents]]:
        first = page * PAGE_STEPS
        return first, _page_decoder.decode(_unpack(self._packed[(first - self._first) // PAGE_STEPS]))

    def _load_snapshot(self, index: int) -> Snapshot:
        return decode_snapshot(_unpack(self._snapshots[index]))


def _pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unpack(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)
