"""Decides a recorded run again, step by step: from the recorded arrivals, aborts, knobs and tokens, and nothing else.

The engine is the real one; only a runner is not needed, because the tokens are known. What comes out has to equal what
was recorded, block number by block number. A difference says that the recording was changed, or that this version of
the scheduler decides differently from the one that made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.core import AtOnce
from engine.decisions import DECISIONS, difference
from engine.output_text import OutputText
from engine.plan import StepPlan
from engine.recorded_engine import RecordedEngine
from engine.recorded_workload import RerunError, inputs_of
from engine.request import RequestRefused, SamplingParams
from engine.trace.events import Finished, Logprobs, ModelInfo, PhaseTimes, RunInfo, Sampled, StepEvents
from engine.trace.knobs import KNOBS, KnobValue
from engine.trace.source import Notice, RunSource

DECIDED = tuple(name for name in DECISIONS if name not in ("knobs", "arrived"))
"""What the scheduler says of a step. What it was told may hold more than this version knows: a knob, say."""


def why_not(source: RunSource) -> Notice | None:
    """Why the decisions of a run cannot be repeated; None if they can."""
    if source.first_step > 0:
        return Notice("The recording begins in the middle of a run: its decisions cannot be repeated.")
    caching = source.info.knobs.get("enable_prefix_caching", True) or any(
        mark.kind == "knob" and mark.label.startswith("enable_prefix_caching") for mark in source.series.marks)
    if not source.info.prompt_text and caching:
        return Notice("The prompts were left out of the recording: what the prefix cache had to find cannot be known, "
                      "and so the decisions cannot be repeated.")
    return None


def eos_of(source: RunSource) -> set[int]:
    """The tokens that end a sequence: those that the recording names, else those that ended one in it."""
    if source.info.eos_token_ids is not None:
        return set(source.info.eos_token_ids)
    found: set[int] = set()
    for step in range(source.first_step, source.last_step + 1):
        events = source.events(step)
        ended = {f.request_id for f in events.finished if f.reason == "stop" and f.stop is None}
        if ended:
            found |= {s.token_id for s in events.sampled if s.request_id in ended}
    return found


def decide_again(source: RunSource) -> Iterator[StepEvents]:
    """Every step of ``source`` as it is decided now; times mean nothing. Raises :class:`RerunError` before the first
    one for a run whose decisions cannot be repeated."""
    problem = why_not(source)
    if problem is not None:
        raise RerunError(problem)
    redecider = Redecider(source.info, eos_of(source))
    for step in range(source.first_step, source.last_step + 1):
        yield redecider.decide(source.events(step))


class Redecider:
    """An engine that is driven by recorded steps, from the first one on."""

    def __init__(self, info: RunInfo, eos_token_ids: set[int]) -> None:
        self._told = _ToldRunner(info, eos_token_ids)
        self._engine = _TextEngine.of(self._told, None, info.knobs, info)
        self._engine.told = self._told

    def check(self, recorded: StepEvents) -> Notice | None:
        """Decide the next step; what differs from the recorded one, if anything. After a difference all is over."""
        try:
            decided = self.decide(recorded)
        except (ValueError, KeyError, RuntimeError, RequestRefused) as error:
            return Notice("Step {step} cannot have been decided ({problem}).", step=recorded.step, problem=error)
        found = difference(recorded, decided, DECIDED)
        if found is None:
            return None
        return Notice("Step {step}: {what} was recorded as {recorded}, and would be {decided}.", step=recorded.step,
                      what=found.field, recorded=_first_difference(found.first, found.second),
                      decided=_first_difference(found.second, found.first))

    def decide(self, recorded: StepEvents) -> StepEvents:
        """The step that follows from what came in before the recorded one, and from its tokens."""
        self._told.tell(recorded)
        inputs = inputs_of(recorded)
        if inputs is not None:
            inputs.knobs = [change for change in inputs.knobs if change.name in KNOBS]
            self._engine.hand_over(inputs)
        decided = self._engine.step_like(inputs)
        if decided is None:  # nothing to do, and nothing to tell: no engine tells of that, but neither is it wrong
            free = self._engine.scheduler.pool.num_free_blocks
            decided = StepEvents(recorded.step, 0, 0, PhaseTimes(), [], [], [], [], [], [], [], [], [], "", "", free,
                                 free)
        return decided


class _ToldRunner(AtOnce):
    """Stands where a runner does: the tokens of a step are those that were recorded."""

    def __init__(self, info: RunInfo, eos_token_ids: set[int]) -> None:
        # Nothing is allocated, however large the recorded pool was.
        self.model_info = ModelInfo(info.model.name, vocab_size=info.model.vocab_size)
        self.eos_token_ids = eos_token_ids
        self.max_model_len = info.max_model_len
        self.num_threads = 1
        self.phase_ns = {"prepare": 0, "forward": 0, "sample": 0}
        self.logprobs: Sequence[Logprobs | None] = []
        self.sampled: dict[str, Sampled] = {}  # of the recorded step, by request
        self.finished: dict[str, Finished] = {}
        self.aborted: dict[str, Finished] = {}

    def tell(self, step: StepEvents) -> None:
        """What comes of the next step is what came of the recorded ``step``."""
        self.sampled = {s.request_id: s for s in step.sampled}
        self.finished = {f.request_id: f for f in step.finished}
        self.aborted = {f.request_id: f for f in step.aborted}

    def execute(self, plan: StepPlan) -> list[int]:
        names = [entry.request.request_id for entry in plan.scheduled if entry.samples]
        sampled = self.sampled
        self.logprobs = [sampled[n].logprobs if n in sampled else None for n in names]
        # For somebody who got no token any will do: that is the difference, and it is told by what was scheduled.
        return [sampled[n].token_id if n in sampled else 0 for n in names]

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        """There is none."""

    def available_cache_bytes(self) -> int:
        return 0  # and nothing is wanted: what the model takes for a token is not known

    def free_request(self, request_id: str) -> None:
        """Nothing is kept."""

    def set_knob(self, name: str, value: KnobValue) -> None:
        """Nothing is computed."""


class _TextEngine(RecordedEngine):
    """An engine whose texts are those of the recorded step: stop strings are found in text, which nobody makes here."""

    told: _ToldRunner

    def _text_for(self, request_id: str, params: SamplingParams) -> OutputText:
        return _ToldText(self.told, request_id)

    def _with_texts(self, logprobs: Logprobs | None) -> Logprobs | None:
        return logprobs  # recorded log probabilities have their texts


class _ToldText(OutputText):
    """The recorded text of a request, step by step: what a detokenizer would say, without a tokenizer."""

    def __init__(self, told: _ToldRunner, request_id: str) -> None:
        self._told = told
        self._request_id = request_id
        self.stopped_by: str | None = None

    def add(self, token_id: int) -> str:
        finished, sampled = self._told.finished.get(self._request_id), self._told.sampled.get(self._request_id)
        self.stopped_by = finished.stop if finished is not None and isinstance(finished.stop, str) else None
        return sampled.text if sampled is not None else ""

    def flush(self) -> str:
        gone = self._told.finished.get(self._request_id) or self._told.aborted.get(self._request_id)
        return gone.text if gone is not None else ""


def _first_difference(mine: Any, other: Any) -> str:
    if not isinstance(mine, list):
        return repr(mine)
    for at, item in enumerate(mine):
        if at >= len(other) or item != other[at]:
            return f"{at}: {item!r}"[:200]
    return f"{len(mine)} of them"
