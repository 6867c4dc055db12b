"""Figures for people or for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

Figures = dict[str, Any]


def print_figures(figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one figure a line, or all as one JSON object; what was not measured is "-", or null."""
    if as_json:
        print(json.dumps({name: _plain(value) for name, value in figures.items()}))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {_text(value)}")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(map(_text, value))
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:,}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
