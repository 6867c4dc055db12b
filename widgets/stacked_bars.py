"""Stacked bars by numpy: a picture of hundreds of steps with dozens of shares each costs less than a millisecond."""

from __future__ import annotations

import numpy as np


def stack_columns(offsets: np.ndarray, shares: np.ndarray, on_top: np.ndarray, paint: np.ndarray, scale: float,
                  height: int) -> np.ndarray:
    """One bar a column, one pixel wide: uint32[height, columns], row 0 at the top, 0 where nothing is.

    Column ``c`` holds the shares ``offsets[c]`` to ``offsets[c + 1]`` (``offsets`` int64[columns + 1], from 0), each
    ``shares[i]`` (int32) times ``scale`` pixels tall and of colour ``paint[i]`` (uint32, premultiplied). Shares that
    are ``on_top`` (bool) stand above the others and are set off by a pixel; otherwise their order is kept. What is
    more than nothing has at least a pixel, and no bar is higher than ``height``.
    """
    columns = len(offsets) - 1
    count = len(shares)
    column = np.repeat(np.arange(columns), np.diff(offsets))
    rank = column * 2 + on_top
    if count and np.any(rank[1:] < rank[:-1]):
        order = np.argsort(rank, kind="stable")
        shares, on_top, paint = shares[order], on_top[order], paint[order]
    total = np.zeros(count + 1, np.int64)
    np.cumsum(shares, out=total[1:])
    top = np.minimum(np.ceil((total[1:] - total[offsets[:-1]][column]) * scale - 1e-6), height).astype(np.int64)
    bottom = np.zeros(count, np.int64)
    if count:
        bottom[1:] = np.where(column[1:] == column[:-1], top[:-1], 0)
    gap = (on_top & (bottom > 0) & (top - bottom >= 3)).astype(np.int64)

    # Three kinds of pieces, in the order in which they lie: the gap below a share, the share, the rest of the column.
    pieces = 2 * count + columns
    value = np.zeros(pieces, np.uint32)
    length = np.empty(pieces, np.int64)
    at = 2 * np.arange(count) + column
    length[at], length[at + 1], value[at + 1] = gap, top - bottom - gap, paint
    last = np.zeros(columns, np.int64)
    filled = offsets[1:] > offsets[:-1]
    last[filled] = top[offsets[1:][filled] - 1]
    length[2 * offsets[1:] + np.arange(columns)] = height - last
    return np.repeat(value, length).reshape(columns, height)[:, ::-1].T


def spread(columns: np.ndarray, edges: np.ndarray, gap: int) -> np.ndarray:
    """Make column ``c`` reach from pixel ``edges[c]`` to ``edges[c + 1]`` (int64[columns + 1], from 0, ascending), its
    last ``gap`` (0 or 1) pixels empty: uint32[height, edges[-1]]."""
    result = np.repeat(columns, np.diff(edges), axis=1)
    if gap:
        result[:, edges[1:] - 1] = 0
    return result


def highest(totals: np.ndarray, buckets: int) -> np.ndarray:
    """``totals`` (int32[n], not negative) in ``buckets`` equal runs, at most ``n``: where each one's largest is,
    int64[buckets]. Of equal ones the last."""
    count = len(totals)
    packed = (totals.astype(np.int64) << 32) | np.arange(count)
    return np.maximum.reduceat(packed, np.arange(buckets) * count // buckets) & 0xFFFFFFFF
