"""What was asked of a recorded run: who arrived when, who was aborted, which knobs were turned, and what was answered.

Read from the events of any :class:`~engine.trace.source.RunSource`; :mod:`engine.rerun` asks it of an engine again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.request import SamplingParams
from engine.trace.events import Arrived, KnobChange, Logprobs, Refused, RunInfo, StepEvents
from engine.trace.knobs import KnobValue
from engine.trace.source import Notice, RunSource

Told = Callable[[float], None]


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


def read_workload(source: RunSource, *, progress: Told | None = None,
                  cancel: threading.Event | None = None) -> RecordedWorkload:
    """Go through all steps of ``source``. ``progress`` is told the share that is done.

    Raises :class:`RerunError` for a run that cannot be run again, :class:`RerunCancelled`.
    """
    first, last = source.first_step, source.last_step
    if last < 0:
        raise RerunError(Notice("There is no request in the recording: nothing can be run again."))
    whole = first == 0
    knobs = dict(source.info.knobs)
    inputs: list[StepInputs] = []
    answers: dict[str, Answer] = {}
    end_of_sequence = set(source.info.eos_token_ids or ())
    if not whole:
        before = source.state_at(first - 1)
        knobs = dict(before.knobs)
        there = [Arrived(r.request_id, before.time_ns, r.prompt_token_ids, r.prompt_text, r.max_tokens, r.temperature,
                         r.priority, source=r.source) for r in sorted(before.active(), key=lambda r: r.order)]
        inputs.append(StepInputs(first - 1, before.time_ns, [], there, [], []))
        for request in before.active():
            answers[request.request_id] = Answer(list(request.output_token_ids), [request.text],
                                                 [None] * len(request.output_token_ids))
    for step in range(first, last + 1):
        if step % 512 == 0:
            if cancel is not None and cancel.is_set():
                raise RerunCancelled
            if progress is not None:
                progress((step - first) / (last - first + 1))
        events = source.events(step)
        taken = _inputs_of(events)
        if taken is not None:
            inputs.append(taken)
        _take_answers(events, answers, end_of_sequence)
    workload = RecordedWorkload(source.info, knobs, inputs, last - first + 1, answers, whole, end_of_sequence)
    _check(workload)
    return workload


def _inputs_of(events: StepEvents) -> StepInputs | None:
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
