"""Numbers as the panels write them: in the C locale, with units, a dash for what was not measured."""

from __future__ import annotations

import math


def format_int(value: float) -> str:
    """A whole number with a comma every three digits, in every language."""
    return f"{round(value):,}"


def format_number(value: float, digits: int = 1) -> str:
    """A number with at most ``digits`` decimals (none from 100 on); a dash for what was not measured (NaN)."""
    if math.isnan(value):
        return "–"
    if abs(value) >= 100 or value == int(value):
        return format_int(value)
    return f"{value:,.{digits}f}"


def format_percent(share: float, digits: int = 1) -> str:
    """A share of 1 as a percentage: 0.598 is 59.8%."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f}%"


def format_ms(milliseconds: float) -> str:
    """A duration in the unit that reads best: µs, ms or s."""
    if math.isnan(milliseconds):
        return "–"
    if milliseconds < 1:
        return f"{milliseconds * 1000:.0f} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    return f"{milliseconds / 1000:.2f} s" if milliseconds < 60_000 else f"{milliseconds / 60_000:.1f} min"


def format_bytes(count: float) -> str:
    """A size in decimal units: 3,100,000 is 3.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def nice_ticks(maximum: float, at_most: int = 4) -> list[float]:
    """Round values from 0 up to ``maximum``, at most ``at_most`` steps apart by 1, 2, 2.5 or 5 times a power of 10."""
    if maximum <= 0 or at_most < 1:
        return [0.0]
    raw = maximum / at_most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.9999)
    return [i * step for i in range(int(maximum / step + 1e-9) + 1)]
