"""A live run that can be looked back on: every step of it, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec
import numpy as np
import zstandard

from engine.trace.events import RunInfo, StepEvents
from engine.trace.index import INDEX_STEPS, BlockRows, pack_detail, unpack_detail_part
from engine.trace.metrics import BlockDetail
from engine.trace.source import SNAPSHOT_INTERVAL, Notice, PagedRun
from engine.trace.spill import Place, SpillFile
from engine.trace.state import EngineState, Snapshot, decode_snapshot, encode_snapshot
from engine.trace.timeline import Timeline

PAGE_STEPS = 64
DETAILS_KEPT = 8

_page_encoder = msgspec.msgpack.Encoder()
_page_decoder = msgspec.msgpack.Decoder(list[StepEvents])


class LiveHistory(PagedRun):
    """A :class:`RunSource` that grows by :meth:`append`. Not for several threads at once.

    Steps are kept packed, 64 together, with a snapshot every 128; the newest ones as they came. What is packed goes to
    a temporary file in the cache folder (see :mod:`engine.trace.spill`), and so do the details of the series and the
    rows of the timeline, 2,048 steps at a time: what stays in memory is some 130 bytes a step. The oldest steps go
    beyond ``max_spilled_steps``, or beyond ``max_steps`` of them in memory when nothing (more) can be written;
    ``first_step`` and ``warnings`` say so. Without ``spill`` everything stays in memory.
    """

    def __init__(self, info: RunInfo, max_steps: int = 250_000, *, max_spilled_steps: int = 2_000_000,
                 spill: bool = True, spill_file: SpillFile | None = None) -> None:
        super().__init__(info)
        self.max_steps = max(max_steps, SNAPSHOT_INTERVAL)
        self.max_spilled_steps = max(max_spilled_steps, self.max_steps)
        self.timeline = Timeline(collect=spill)
        self._spill = (spill_file or SpillFile()) if spill else None
        self._state = EngineState(info)
        self._packed: list[bytes | Place] = []  # PAGE_STEPS steps each, from _first on
        self._recent: list[StepEvents] = []  # those after the last page
        self._snapshot_steps = [-1]
        self._snapshots: list[bytes | Place] = [_pack(encode_snapshot(self._state.snapshot()))]
        self._spilled = 0  # steps before this one are not in memory
        self._put_away = 0  # details of steps before this one neither
        self._details: OrderedDict[Place, tuple[BlockDetail, Callable[[], BlockRows]]] = OrderedDict()

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
            self._packed.append(self._keep(_pack(_page_encoder.encode(self._recent[:PAGE_STEPS]))))
            del self._recent[:PAGE_STEPS]
        if (events.step + 1) % SNAPSHOT_INTERVAL == 0:
            self._snapshot_steps.append(events.step)
            self._snapshots.append(self._keep(_pack(encode_snapshot(self._state.snapshot()))))
            if (events.step + 1) % INDEX_STEPS == 0:
                self._put_details_away()
            surplus = self._last - self.max_spilled_steps
            if not self._spills:
                surplus = max(surplus, self._last - self.max_steps if self._last - self._spilled >= self.max_steps
                              else -1)
            if surplus >= self._first:
                self._forget_to(surplus)

    @property
    def _spills(self) -> bool:
        return self._spill is not None and not self._spill.failed

    def _keep(self, data: bytes) -> bytes | Place:
        if self._spill is None:
            return data
        place = self._spill.write(data)
        if place is not None:
            self._spilled = self._last + 1 - len(self._recent)
        return data if place is None else place

    def _forget_to(self, step: int) -> None:
        """Drop the oldest steps: those before the last snapshot before ``step``, but at least those up to the next."""
        while len(self._snapshot_steps) > 2 and self._snapshot_steps[0] < step:
            first = self._snapshot_steps[1] + 1
            del self._snapshot_steps[0], self._snapshots[0]
            del self._packed[:(first - self._first) // PAGE_STEPS]
            self._first = first
        self.series.forget_before(self._first)
        self.complete = False
        self.warnings = [Notice("Steps before {step} were dropped to keep memory in bounds.", step=self._first)]

    # ---- details of the series, and the timeline's rows ------------------------------------------------------------

    def _put_details_away(self) -> None:
        """Write what nobody looks at all the time of the last INDEX_STEPS steps to the disk."""
        if not self._spills or self._put_away != self._last + 1 - INDEX_STEPS or self._first > self._put_away:
            return
        assert self._spill is not None
        block = self.series.cut_block(self.series.index_of(self._put_away), self.series.n)
        rows = BlockRows(self.timeline.take_finished(), list(self.timeline.open_rows()))
        shape = (len(block.detail.segments), len(block.detail.itl_ns), len(block.detail.labels))
        place = self._spill.write(pack_detail(block.detail, rows))
        if place is None:
            return
        self._put_away = self._last + 1
        self.series.put_away_before(self._put_away, lambda: self._detail(place, shape)[0])
        self.timeline.add_block(self._last, lambda: self._detail(place, shape)[1]())

    def _detail(self, place: Place, shape: tuple[int, int, int]) -> tuple[BlockDetail, Callable[[], BlockRows]]:
        detail = self._details.get(place)
        if detail is None:
            assert self._spill is not None
            try:
                detail = unpack_detail_part(self._spill.read(place), *shape)
            except (OSError, ValueError):  # a picture that is painted once more after the end: nothing is to be seen
                return (BlockDetail(np.zeros(shape[0], np.uint32), np.full(shape[1], np.nan, np.float32),
                                    [""] * shape[2]), lambda: BlockRows([], []))
            self._details[place] = detail
            if len(self._details) > DETAILS_KEPT:
                self._details.popitem(last=False)
        else:
            self._details.move_to_end(place)
        return detail

    # ---- reading ---------------------------------------------------------------------------------------------------

    def state_at(self, step: int) -> EngineState:
        if step == self._last:
            self.timeline.look_at(step)
            return self._state.copy()
        return super().state_at(step)

    def events(self, step: int) -> StepEvents:
        recent = step - (self._last + 1 - len(self._recent))
        if 0 <= recent < len(self._recent):
            self.timeline.look_at(step)
            return self._recent[recent]
        return super().events(step)

    def _page_of(self, step: int) -> int:
        return step // PAGE_STEPS

    def _load_page(self, page: int) -> tuple[int, list[StepEvents]]:
        first = page * PAGE_STEPS
        return first, _page_decoder.decode(self._unpack(self._packed[(first - self._first) // PAGE_STEPS]))

    def _load_snapshot(self, index: int) -> Snapshot:
        return decode_snapshot(self._unpack(self._snapshots[index]))

    def _unpack(self, packed: bytes | Place) -> bytes:
        if isinstance(packed, Place):
            assert self._spill is not None
            packed = self._spill.read(packed)
        return zstandard.ZstdDecompressor().decompress(packed)

    def close(self) -> None:
        """Let go of the temporary file: only what is in memory can be looked at afterwards."""
        if self._spill is not None:
            self._spill.close()


def _pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)
