"""What moves in the block table: which blocks were touched lately, and how they look on their way.

A touch is shown for 250 ms from when its step came onto the screen, however fast steps follow one another. How a
block looks is a function of the state, of that time and of nothing else, so it comes out the same in either
direction of play.
"""

from __future__ import annotations

import numpy as np

from engine.trace.events import Allocated, Evicted, Freed
from engine.trace.pool_state import Touch
from engine.trace.state import NUM_COLOURS
from widgets.cells import CACHED, EVICTED, FLASH, FREE, GLOW, TileSet, blend
from widgets.painting import Motion
from widgets.view import View

_LONG_AGO = -1e9
_LARGEST_STRIDE = 64
"""Going forward by more steps than this is a jump: what happened on the way does not move any more."""


_LOOKS = np.array([FREE, FREE, GLOW, CACHED, GLOW, EVICTED, FLASH], np.int32)
"""What a touched block is mixed with, by :class:`Touch`."""


def _shares(t: float) -> tuple[float, ...]:
    """How much of that there is at ``t``, by :class:`Touch`: all of it is gone at 1."""
    glow = Motion.glow(t)
    gone = Motion.fade(t)
    return 0.0, 1.0 - Motion.appear(t), 0.85 * glow, gone, 0.3 * glow, gone, Motion.flash(t)


class BlockMotion:
    """Follows the views that are shown. ``touched_at`` float64[num_blocks] is on the clock of ``View.shown_at``."""

    def __init__(self) -> None:
        self._run: object = None
        self._step = -1
        self.touched_at = np.empty(0)
        self.kind = np.empty(0, np.uint8)
        self.colour = np.empty(0, np.int8)  # whose the block was, where that is known

    def track(self, view: View) -> None:
        """Take in the view that is now shown."""
        state = view.state
        onward = (self._run is state.info and len(self.kind) == state.num_blocks
                  and 0 <= state.step - self._step <= _LARGEST_STRIDE)
        if onward:
            fresh = np.flatnonzero(state.touch_step > self._step)
        else:
            self.touched_at = np.full(state.num_blocks, _LONG_AGO)
            self.kind = np.zeros(state.num_blocks, np.uint8)
            self.colour = np.full(state.num_blocks, -1, np.int8)
            fresh = np.flatnonzero(state.touch_step == state.step)
        self._run, self._step = state.info, state.step
        if not len(fresh):
            return
        self.touched_at[fresh] = view.shown_at
        self.kind[fresh] = state.touch[fresh]
        self.colour[fresh] = -1
        if view.events is not None and view.events.step == state.step:
            self._refine(view, state.num_blocks)

    def _refine(self, view: View, num_blocks: int) -> None:
        """The state keeps a block's last touch; the events tell of the first too, and whose a freed block was.

        A block that is taken and filled in one step ends up as "cached", but what there is to see is that it came.
        """
        assert view.events is not None
        for event in view.events.pool:
            if not isinstance(event, (Allocated, Evicted, Freed)) or max(event.blocks, default=0) >= num_blocks:
                continue  # of no interest, or of a pool that was larger before it was rebuilt
            if isinstance(event, Freed):
                request = view.state.requests.get(event.request_id)
                if request is not None:
                    self.colour[event.blocks] = request.colour
            else:
                blocks = np.array(event.blocks, np.int64)
                cached = blocks[self.kind[blocks] == Touch.CACHED]
                self.kind[cached] = Touch.ALLOCATED if isinstance(event, Allocated) else Touch.EVICTED

    def moving(self, now: float) -> np.ndarray:
        """The blocks that are on their way at ``now``."""
        if not Motion.enabled:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.touched_at > now - Motion.DURATION)

    def pictures(self, tiles: TileSet, index: np.ndarray, blocks: np.ndarray, now: float) -> np.ndarray:
        """``blocks`` at ``now``, uint32[k, height, width]; ``index`` int32[k] is how they look at rest."""
        if not len(blocks):
            return tiles.tiles[index]
        kinds = self.kind[blocks]
        moments, at = np.unique(self.touched_at[blocks], return_inverse=True)
        shares = np.array([_shares(Motion.progress(moment, now)) for moment in moments.tolist()], np.float32)
        strength, other = shares[at, kinds], _LOOKS[kinds]
        left = (kinds == Touch.FREED) & (self.colour[blocks] >= 0)
        if left.any():
            full = np.array([tiles.owned(colour, False, tiles.levels) for colour in range(NUM_COLOURS)], np.int32)
            other[left] = full[self.colour[blocks[left]]]
        return blend(tiles.tiles[index], tiles.tiles[other], strength)
