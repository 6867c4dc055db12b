"""What was asked of a recorded run: who arrived when, who was aborted, which knobs were turned, and what was answered.

Read from the events of any :class:`~engine.trace.source.RunSource`; :mod:`engine.rerun` asks it of an engine again.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.request import SamplingParams
from engine.trace.events import Arrived, KnobChange, Logprobs, Refused, RunInfo, StepEvents
from engine.trace.knobs import KnobValue
from engine.trace.source import Notice, RunSource


class RerunError(ValueError):
    """A workload that cannot be run again. The message (a :class:`Notice`) says why and what to do."""


class RerunCancelled(Exception):
    """The user has asked to stop; nothing is left behind."""


@dataclass(slots=True)
class StepInputs:
    """What came in between two steps. ``idle`` marks a step in which nothing was scheduled: it only told the news."""

    step: int
    start_ns: int
    knobs: list[KnobChange]
    arrived: list[Arrived]
    refused: list[Refused]
    aborted: list[str]
    idle: bool = False


@dataclass(slots=True)
class Answer:
    """What a request got: ``tokens`` with the ``texts`` that became readable with them, and how it ended.

    ``reason`` is "" for one that the recording does not see to its end. ``rest`` is the text that came last.
    """

    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[Logprobs | None] = field(default_factory=list)
    reason: str = ""
    stop: str | int | None = None
    rest: str = ""


@dataclass(slots=True)
class RecordedWorkload:
    """A whole run's inputs. ``inputs`` holds the steps that had any, ascending; ``num_steps`` counts all steps.

    ``whole`` is False for a recording that begins in the middle of a run: the requests that were there already are
    then taken to arrive anew at its beginning, and its decisions cannot be repeated step by step.
    """

    info: RunInfo
    knobs: dict[str, KnobValue]
    inputs: list[StepInputs]
    num_steps: int
    answers: dict[str, Answer]
    whole: bool
    end_of_sequence: set[int]

    @property
    def num_requests(self) -> int:
        return sum(len(i.arrived) for i in self.inputs)

    @property
    def num_refused(self) -> int:
        return sum(len(i.refused) for i in self.inputs)

    @property
    def num_unfinished(self) -> int:
        """Requests that the recording does not see to their end."""
        return sum(not answer.reason for answer in self.answers.values())

    def turned(self) -> set[str]:
        """The knobs that were turned while the run went on."""
        return {change.name for i in self.inputs for change in i.knobs}

    def differs(self, changes: Mapping[str, KnobValue]) -> bool:
        """Whether running with ``changes`` would be another run: a value differs, or was not the same throughout."""
        turned = self.turned()
        return any(self.knobs.get(name) != value or name in turned for name, value in changes.items())


class WorkloadReader:
    """Goes through all steps of a run, bit by bit if need be. Raises :class:`RerunError` for a run without a step."""

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._first, self._last = source.first_step, source.last_step
        if self._last < 0:
            raise RerunError(Notice("There is no request in the recording: nothing can be run again."))
        self._next = self._first
        self._knobs = dict(source.info.knobs)
        self._inputs: list[StepInputs] = []
        self._answers: dict[str, Answer] = {}
        self._end_of_sequence = set(source.info.eos_token_ids or ())
        if self._first:
            self._take_in_those_there()

    @property
    def share(self) -> float:
        """How much has been read."""
        return (self._next - self._first) / (self._last - self._first + 1)

    def update(self, budget_s: float = math.inf) -> bool:
        """Read on, for so long at most; True when everything has been read."""
        until = time.perf_counter() + budget_s
        while self._next <= self._last:
            events = self._source.events(self._next)
            self._next += 1
            taken = inputs_of(events)
            if taken is not None:
                self._inputs.append(taken)
            _take_answers(events, self._answers, self._end_of_sequence)
            if self._next % 16 == 0 and time.perf_counter() > until:
                return False
        return True

    def workload(self) -> RecordedWorkload:
        """What has been read. Raises :class:`RerunError` if it cannot be run again."""
        workload = RecordedWorkload(self._source.info, self._knobs, self._inputs, self._next - self._first,
                                    self._answers, self._first == 0, self._end_of_sequence)
        _check(workload)
        return workload

    def _take_in_those_there(self) -> None:
        before = self._source.state_at(self._first - 1)
        self._knobs = dict(before.knobs)
        there = sorted(before.active(), key=lambda r: r.order)
        arrived = [Arrived(r.request_id, before.time_ns, r.prompt_token_ids, r.prompt_text, r.max_tokens,
                           r.temperature, r.priority, source=r.source) for r in there]
        self._inputs.append(StepInputs(self._first - 1, before.time_ns, [], arrived, [], []))
        for request in there:
            tokens = list(request.output_token_ids)
            self._answers[request.request_id] = Answer(tokens, [""] * len(tokens), [None] * len(tokens))


def read_workload(source: RunSource, *, cancel: threading.Event | None = None) -> RecordedWorkload:
    """Read all of ``source``. Raises :class:`RerunError` for a run that cannot be run again, and
    :class:`RerunCancelled`."""
    reader = WorkloadReader(source)
    while not reader.update(0.1):
        if cancel is not None and cancel.is_set():
            raise RerunCancelled
    return reader.workload()


def inputs_of(events: StepEvents) -> StepInputs | None:
    idle = not (events.scheduled or events.preempted or events.stopped_by)
    aborted = [gone.request_id for gone in events.aborted if gone.reason == "abort"]
    if not (idle or aborted or events.knobs or events.arrived or events.refused):
        return None
    return StepInputs(events.step, events.start_ns, events.knobs, events.arrived, events.refused, aborted, idle)


def _take_answers(events: StepEvents, answers: dict[str, Answer], end_of_sequence: set[int]) -> None:
    for arrived in events.arrived:
        answers[arrived.request_id] = Answer()
    for sampled in events.sampled:
        answer = answers[sampled.request_id]
        answer.tokens.append(sampled.token_id)
        answer.texts.append(sampled.text)
        answer.logprobs.append(sampled.logprobs)
    for gone in (*events.aborted, *events.finished):
        answer = answers[gone.request_id]
        answer.reason, answer.stop, answer.rest = gone.reason, gone.stop, gone.text
        if gone.reason == "stop" and gone.stop is None and answer.tokens:
            end_of_sequence.add(answer.tokens[-1])


def _check(workload: RecordedWorkload) -> None:
    if not workload.num_requests:
        raise RerunError(Notice("There is no request in the recording: nothing can be run again."))
    if not workload.info.prompt_text:
        raise RerunError(Notice("The recording holds no prompts, only their lengths: it cannot be run again."))
    vocabulary = workload.info.model.vocab_size or 2**31
    answered = (answer.tokens for answer in workload.answers.values())
    asked = (arrived.prompt_token_ids for i in workload.inputs for arrived in i.arrived)
    for tokens in itertools.chain(asked, answered):  # a model would look them up in a table
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise RerunError(Notice("The recording holds tokens that its model does not know: it cannot be run again."))


def sampling_of(arrived: Arrived) -> SamplingParams:
    """The sampling parameters that a recorded request came with; its seed makes its text the same again."""
    return SamplingParams(
        temperature=arrived.temperature, top_k=arrived.top_k, top_p=arrived.top_p, seed=arrived.seed,
        max_tokens=arrived.max_tokens, ignore_eos=arrived.ignore_eos, min_p=arrived.min_p,
        repetition_penalty=arrived.repetition_penalty, presence_penalty=arrived.presence_penalty,
        frequency_penalty=arrived.frequency_penalty, logit_bias=dict(arrived.logit_bias),
        min_tokens=arrived.min_tokens, stop=tuple(arrived.stop), stop_token_ids=tuple(arrived.stop_token_ids),
        logprobs=arrived.logprobs)
