"""The panels of the window, by the names that layouts know them by."""

from __future__ import annotations

from engine.trace.knobs import KNOBS
from widgets.block_table import BlockTable
from widgets.insights import InsightsPanel
from widgets.inspector import Inspector
from widgets.knob_panel import KnobPanel
from widgets.latency import LatencyPanel
from widgets.painting import Panel
from widgets.request_list import RequestList
from widgets.request_timeline import RequestTimeline
from widgets.token_budget import TokenBudget
from widgets.view import Selection

INTERVALS_S = {
    "block_table": 0.0, "token_budget": 1 / 30, "timeline": 1 / 15, "requests": 1 / 12, "latency": 1 / 5,
    "inspector": 1 / 8, "insights": 1 / 3, "knobs": 1 / 5,
}
"""How often a panel is shown something new while the view moves by itself: what moves most is shown most often."""


def build_panels(selection: Selection) -> dict[str, Panel]:
    return {
        "knobs": KnobPanel(KNOBS.values()),
        "block_table": BlockTable(selection),
        "token_budget": TokenBudget(selection),
        "latency": LatencyPanel(selection),
        "timeline": RequestTimeline(selection),
        "requests": RequestList(selection),
        "inspector": Inspector(selection),
        "insights": InsightsPanel(selection),
    }
