"""What the panels draw with, from one place: frame, text, numbers, hatching and samples, motion, words for codes.

    panel.py     the frame of a panel
    text.py      a line of text
    numbers.py   numbers as text
    swatches.py  hatching, legend samples, status signs, focus rings
    motion.py    functions of time
"""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from widgets.motion import Motion
from widgets.numbers import (
    format_bytes,
    format_int,
    format_ms,
    format_number,
    format_percent,
    nice_ticks,
)
from widgets.panel import MARGIN, LegendItem, Panel, header
from widgets.swatches import (
    Status,
    Swatch,
    draw_focus_ring,
    draw_status,
    draw_swatch,
    fill_hatched,
    hatch_brush,
    link_path,
    status_colour,
)
from widgets.text import draw_text, elide, metrics, text_width, title_font

__all__ = [
    "MARGIN",
    "STOP_REASONS",
    "LegendItem",
    "Motion",
    "Panel",
    "Status",
    "Swatch",
    "draw_focus_ring",
    "draw_status",
    "draw_swatch",
    "draw_text",
    "elide",
    "fill_hatched",
    "format_bytes",
    "format_int",
    "format_ms",
    "format_number",
    "format_percent",
    "hatch_brush",
    "header",
    "link_path",
    "metrics",
    "nice_ticks",
    "status_colour",
    "stop_reason_text",
    "text_width",
    "title_font",
]

STOP_REASONS = ("", "budget", "max_num_seqs", "no_free_blocks", "watermark", "chunked_prefill_off", "preemption")
"""The codes of ``StepEvents.stopped_by``."""


def stop_reason_text(stopped_by: str) -> str:
    """Why scheduling stopped, in words of the user's language; "" when nothing was left to schedule."""
    return {
        "": "",
        "budget": QCoreApplication.translate("StopReason", "token budget used up"),
        "max_num_seqs": QCoreApplication.translate("StopReason", "max_num_seqs reached"),
        "no_free_blocks": QCoreApplication.translate("StopReason", "no free blocks"),
        "watermark": QCoreApplication.translate("StopReason", "watermark: blocks kept back"),
        "chunked_prefill_off": QCoreApplication.translate(
            "StopReason", "next prompt exceeds what is left, chunked prefill is off"),
        "preemption": QCoreApplication.translate("StopReason", "a request was preempted, nobody is admitted"),
    }.get(stopped_by, stopped_by)
