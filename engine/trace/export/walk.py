"""What exporters ask of a run: its steps and states, with refusals that are for people."""

from __future__ import annotations

from engine.trace.events import StepEvents
from engine.trace.export.files import ExportError
from engine.trace.source import Notice, RunSource
from engine.trace.state import EngineState


def step_range(source: RunSource, first: int | None, last: int | None) -> tuple[int, int]:
    """The steps to export, both inclusive; None means the run's own end. Raises :class:`ExportError`."""
    known = source.first_step, source.last_step
    if known[1] < 0:
        raise ExportError(Notice("There is no step in the recording."))
    start, stop = known[0] if first is None else first, known[1] if last is None else last
    for step in (start, stop):
        if not known[0] <= step <= known[1]:
            raise ExportError(Notice("There is no step {step}: the run has steps {first} to {last}.", step=step,
                                     first=known[0], last=known[1]))
    if start > stop:
        raise ExportError(Notice("The first step ({first}) comes after the last one ({last}).", first=start, last=stop))
    return start, stop


def events_of(source: RunSource, step: int) -> StepEvents:
    """The events of a step. Raises :class:`ExportError` when a live run has dropped it meanwhile."""
    try:
        return source.events(step)
    except IndexError:
        raise _dropped(step) from None


def state_before(source: RunSource, step: int) -> EngineState:
    """The engine before ``step``: a state to advance. Raises :class:`ExportError` as above."""
    try:
        return source.state_at(step - 1)
    except IndexError:
        raise _dropped(step) from None


def _dropped(step: int) -> ExportError:
    return ExportError(Notice("Step {step} is no longer in memory: record the run, and export the recording.",
                              step=step))
