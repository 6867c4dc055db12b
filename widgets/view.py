"""What every panel is given to show, and the selection that the panels share.

A panel implements ``show_view(view)``: it keeps the reference, works out what changed and calls ``update()``.
It never asks where the view came from: live run, recording or comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

from engine.trace.events import StepEvents
from engine.trace.metrics import StepSeries
from engine.trace.state import EngineState
from engine.trace.timeline import Timeline
from widgets.visible_steps import VisibleSteps


@dataclass(slots=True)
class View:
    """The run at the viewing step.

    ``state`` is the engine after ``state.step``; ``events`` is what happened in that step (None before the first).
    ``series`` and ``timeline`` know the whole run so far, also beyond the viewing step; a chart draws up to
    ``state.step`` and may show what lies beyond dimmed. ``following`` is True at the live edge. ``shown_at`` is the
    wall-clock second (``time.perf_counter``) at which this step came onto the screen: motion is a pure function of
    ``perf_counter() - shown_at``.
    """

    state: EngineState
    events: StepEvents | None
    series: StepSeries
    timeline: Timeline
    following: bool
    shown_at: float


class Selection(QObject):
    """What is hovered over and what is clicked, shared by all panels: a request, a block, or a step; and the steps
    that the charts show."""

    changed = Signal()
    step_requested = Signal(int)  # a panel asks to look at this step

    def __init__(self) -> None:
        super().__init__()
        self.request_id: str | None = None
        self.block: int | None = None
        self.hovered_request: str | None = None
        self.hovered_block: int | None = None
        self.visible = VisibleSteps(self)

    def select(self, *, request_id: str | None = None, block: int | None = None) -> None:
        if (request_id, block) != (self.request_id, self.block):
            self.request_id, self.block = request_id, block
            self.changed.emit()

    def hover(self, *, request_id: str | None = None, block: int | None = None) -> None:
        if (request_id, block) != (self.hovered_request, self.hovered_block):
            self.hovered_request, self.hovered_block = request_id, block
            self.changed.emit()
