"""The marks of a run as a picture: binned to pixels with numpy, so that a million steps cost no more than a hundred.

Marks of one kind differ from those of another by height and shape as well as by colour, and a pixel that stands for
many of them is stronger than one that stands for few.
"""

from __future__ import annotations

import math

import numpy as np
from PySide6.QtGui import QColor, QImage

from engine.trace.metrics import MARK_KINDS, StepSeries
from widgets.theme import theme

MARK_HEIGHT = 12

# Rows (0 is the top) that a kind fills of MARK_HEIGHT, how many pixels wide, from the back to the front.
SHAPES: dict[str, tuple[tuple[tuple[int, int], ...], int]] = {
    "finish": (((10, 12),), 1),
    "hit": (((7, 12),), 1),
    "eviction": (((3, 5), (7, 9), (11, 12)), 1),
    "preemption": (((2, 12),), 2),
    "knob": (((0, 12),), 1),
}


def mark_colour(kind: str) -> QColor:
    """The colour of a kind of mark in the theme in force."""
    t = theme()
    return QColor({"finish": t.secondary, "hit": t.good, "eviction": t.warning, "preemption": t.bad,
                   "knob": t.accent}[kind])


def draw_marks(series: StepSeries, first: float, last: float, width: int, ratio: float) -> QImage:
    """The marks of steps ``first`` to ``last`` in a picture ``width`` device pixels wide, transparent where there are
    none. ``first`` stands in its leftmost pixel and ``last`` in its rightmost."""
    scale = max(1, round(ratio))
    pixels = np.zeros((MARK_HEIGHT * scale, width), np.uint32)
    start, end = np.searchsorted(series.marks.steps, (math.ceil(first), math.floor(last) + 1))
    steps, kinds = series.marks.steps[start:end], series.marks.kinds[start:end]
    per_step = (width - 1) / max(1e-9, last - first)
    whole = math.floor(first)  # exact in 32 bits, where a step of a long run would not be
    bins = ((steps - np.int32(whole)) * np.float32(per_step)
            - np.float32((first - whole) * per_step)).astype(np.int32)
    np.clip(bins, 0, width - 1, out=bins)
    bins += kinds * np.int32(width)  # one count for all kinds: each has a row of bins
    table = np.bincount(bins, minlength=len(MARK_KINDS) * width).reshape(len(MARK_KINDS), width)
    for kind, (bands, thickness) in SHAPES.items():
        counts = table[MARK_KINDS.index(kind)]
        hit = np.flatnonzero(counts)
        if not len(hit):
            continue
        # Few marks in a pixel: 60% strong; the fullest pixel of its kind: 100%.
        strength = 0.6 + 0.4 * np.log1p(counts[hit] - 1) / max(1e-9, np.log1p(counts.max() - 1))
        values = _premultiplied(mark_colour(kind), strength)
        for extra in range(thickness * scale):
            at = np.minimum(hit + extra, width - 1)
            for top, bottom in bands:
                pixels[top * scale:bottom * scale, at] = values
        if kind == "knob":  # a cap, so that it reads as a T
            for extra in range(-2 * scale, 3 * scale):
                at = np.clip(hit + extra, 0, width - 1)
                pixels[:2 * scale, at] = values
    image = QImage(pixels.data, width, pixels.shape[0], 4 * width, QImage.Format.Format_ARGB32_Premultiplied)
    return image.copy()  # the copy owns its pixels


def _premultiplied(colour: QColor, alpha: np.ndarray) -> np.ndarray:
    def channel(value: int) -> np.ndarray:
        return np.round(value * alpha).astype(np.uint32)

    return (channel(255) << np.uint32(24) | channel(colour.red()) << np.uint32(16)
            | channel(colour.green()) << np.uint32(8) | channel(colour.blue()))
