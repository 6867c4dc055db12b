"""How a knob's value travels along a slider, steps under the arrow keys, and reads as text. No Qt widgets in here."""

from __future__ import annotations

import math
import re

from PySide6.QtCore import QCoreApplication

from engine.trace.knobs import Knob, KnobError, KnobValue

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")


def _nice(value: float) -> float:
    """The next larger of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (1, 2, 5) if m * power >= value * 0.999), 10 * power)


class Scale:
    """Maps a number knob's values to positions 0..1 and back, and to text and back.

    A "log2" knob travels an equal way for each doubling, in eight steps an octave, so that 512 is easy to hit again.
    A "square" knob may be 0 and still gives its small values room.
    """

    def __init__(self, knob: Knob) -> None:
        self.knob = knob
        self.is_int = knob.kind == "int"
        self._low, self._high = float(knob.minimum), float(knob.maximum)
        span = self._high - self._low
        if self.is_int:
            self._grain = float(2 ** max(0, round(math.log2(max(1.0, span / 256)))))
        else:
            self._grain = _nice(span / (500 if knob.scale == "square" else 50))

    def position(self, value: float) -> float:
        """Where ``value`` stands on the way from the minimum (0) to the maximum (1)."""
        value = min(self._high, max(self._low, float(value)))
        if self.knob.scale == "log2":
            return math.log2(value / self._low) / math.log2(self._high / self._low)
        share = (value - self._low) / (self._high - self._low)
        return math.sqrt(share) if self.knob.scale == "square" else share

    def value(self, position: float) -> KnobValue:
        """The value at ``position``, snapped to a round one."""
        position = min(1.0, max(0.0, position))
        if self.knob.scale == "log2":
            return self._snap(self._low * (self._high / self._low) ** position)
        if self.knob.scale == "square":
            position *= position
        return self._snap(self._low + position * (self._high - self._low))

    def stepped(self, value: float, steps: int) -> KnobValue:
        """The value ``steps`` key presses up (or, if negative, down) from ``value``."""
        result = float(value)
        for _ in range(abs(steps)):
            if self.knob.power_of_two:
                result = result * 2 if steps > 0 else result / 2
            else:
                # Downwards from a power of two the finer grain below it applies.
                grain = self._grain_at(result if steps > 0 else result - 1e-9 * abs(result))
                result += grain if steps > 0 else -grain
        return self._snap(result)

    def format(self, value: KnobValue) -> str:
        """The value as it is read on the panel: 1,024 or 70% or 3.0 /s or off."""
        if self.knob.zero_means_off and value == 0:
            return QCoreApplication.translate("Knobs", "off")
        if self.knob.unit.startswith("of "):
            return f"{float(value) * 100:.4g}%"
        if self.knob.unit == "requests/s":
            return f"{float(value):.4g} /s" if float(value) % 1 else f"{float(value):.1f} /s"
        if self.is_int:
            return f"{int(value):,}"
        return f"{float(value):.2f}"

    def wanted(self) -> str:
        """What can be typed, in the user's language."""
        if self.knob.power_of_two:
            text = QCoreApplication.translate("Knobs", "A power of two from {low} to {high}")
        elif self.is_int:
            text = QCoreApplication.translate("Knobs", "A whole number from {low} to {high}")
        else:
            text = QCoreApplication.translate("Knobs", "A number from {low} to {high}")
        return text.format(low=self.format(self.value(0.0)), high=self.format(self.value(1.0)))

    def parse(self, text: str) -> KnobValue:
        """What a user typed, thousands separators, units and per cent included; raises :class:`KnobError`."""
        cleaned = text.strip().lower().replace(",", "").replace("_", "").replace(" ", "").replace("％", "%")
        if self.knob.zero_means_off and cleaned in ("off", QCoreApplication.translate("Knobs", "off").lower()):
            return self.knob.check(0)
        match = _NUMBER.match(cleaned)
        if not match:
            raise KnobError(f"{self.knob.name}: {text!r} is not {self.knob.describe_range()}")
        number: float = float(match.group())
        if cleaned[match.end():].startswith("%") or (self.knob.unit.startswith("of ") and number > 1):
            number /= 100
        return self.knob.check(number)

    def _grain_at(self, value: float) -> float:
        if self.knob.scale != "log2":
            return self._grain
        octave = math.floor(math.log2(max(1.0, value)))
        return float(2 ** max(0, octave - 3)) if self.is_int else 2.0 ** (octave - 3)

    def _snap(self, value: float) -> KnobValue:
        if self.knob.power_of_two:
            value = 2.0 ** round(math.log2(max(1.0, value)))
        else:
            grain = self._grain_at(value)
            value = round(value / grain) * grain
        value = min(self._high, max(self._low, value))
        return round(value) if self.is_int else round(value, 6)
