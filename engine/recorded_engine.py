"""An engine that is given what a recording holds: requests under their recorded names, knobs, aborts, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from engine.clock import RunClock
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.core import Engine, ModelRunner, Tell
from engine.model.detokenizer import IncrementalDetokenizer
from engine.output_text import OutputText
from engine.recorded_workload import StepInputs, sampling_of
from engine.request import Request, RequestRefused, SamplingParams
from engine.step_events import arrival_of
from engine.trace.events import Arrived, Refused, RunInfo, StepEvents
from engine.trace.knobs import KnobValue


class SkippingClock(RunClock):
    """A run's clock that can be put forward over a time in which nothing would happen."""

    def skip_to(self, time_ns: int) -> None:
        self._origin -= max(0, time_ns - self.now_ns())


class RecordedEngine(Engine):
    """An engine that takes recorded requests under their recorded names."""

    clock: SkippingClock

    @classmethod
    def of(cls, runner: ModelRunner, tokenizer: Any, knobs: Mapping[str, KnobValue], info: RunInfo) -> Self:
        """One that stands where that of the run ``info`` stood before its first step, with ``knobs``."""
        config = SchedulerConfig(max_model_len=info.max_model_len).with_knobs(
            {name: value for name, value in knobs.items() if name in SCHEDULER_KNOBS})
        return cls(runner, tokenizer, config, knobs, SkippingClock(), info.seed)

    def take(self, arrived: Arrived, arrival_ns: int) -> None:
        """Queue a recorded request; one that the engine, as it is now, can never serve is refused."""
        params = sampling_of(arrived)
        if problem := params.problem(self._runner.model_info.vocab_size):
            self._refuse(arrived.request_id, RequestRefused("bad_parameters", problem), arrived.prompt_text)
            return
        request = Request(arrived.request_id, list(arrived.prompt_token_ids), params, priority=arrived.priority,
                          salt=arrived.salt, prompt_text=arrived.prompt_text, source=arrived.source,
                          arrival_ns=arrival_ns)
        try:
            self.scheduler.add_request(request)
        except RequestRefused as refusal:
            self._refuse(arrived.request_id, refusal, arrived.prompt_text)
            return
        self._texts[arrived.request_id] = self._text_for(arrived.request_id, params)
        self._arrived.append(arrival_of(request, parent=arrived.parent))

    def _text_for(self, request_id: str, params: SamplingParams) -> IncrementalDetokenizer | OutputText:
        return self._make_text(params)

    def take_refused(self, refused: Refused) -> None:
        self._refused.append(refused)

    def release(self) -> None:
        """Let the runner forget the requests that are still there."""
        for request_id in self.scheduler.requests:
            self._runner.free_request(request_id)

    @property
    def has_news(self) -> bool:
        return bool(self._arrived or self._refused or self._aborted or self._knob_changes)

    def hand_over(self, inputs: StepInputs) -> None:
        """Give it what came in before a step, in the order in which an engine acts on it."""
        if not self.has_work:
            self.clock.skip_to(inputs.start_ns)
        now = self.clock.now_ns()
        for change in inputs.knobs:
            self.set_knob(change.name, change.new)
        for arrived in inputs.arrived:
            # It has waited for this step as long as it did then: its place within another clock is not known better.
            self.take(arrived, max(0, now - max(0, inputs.start_ns - arrived.arrival_ns)))
        for refused in inputs.refused:
            self.take_refused(refused)
        for request_id in inputs.aborted:
            self.abort(request_id)

    def step_like(self, inputs: StepInputs | None) -> StepEvents | None:
        """The step that ``inputs`` (None: nothing came in) were handed over for."""
        return self.tell_news() if _only_told(inputs) else self.step()

    def advance_like(self, inputs: StepInputs | None, tell: Tell) -> None:
        """The same, in the way of :meth:`advance`."""
        if not _only_told(inputs):
            self.advance(tell)
            return
        self.flush(tell)
        news = self.tell_news()
        if news is not None:
            tell(news)


def _only_told(inputs: StepInputs | None) -> bool:
    """Whether nothing was scheduled after ``inputs``, though there may have been work.

    So an engine tells the news while it is paused. A new pool is told of when it is made, and that is by a step.
    """
    return inputs is not None and inputs.idle and not any(
        change.name in ("num_blocks", "block_size") for change in inputs.knobs)
