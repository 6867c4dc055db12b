"""Runs a recorded workload again, without a window, and writes a recording of it: with other knobs, or with the same.

How requests are admitted says what can be compared:

- by **step**, when no knob differs: every request is handed over before the same step as in the recording, so that
  the engine decides everything alike. Only times are new.
- by **time**, when a knob differs: every request arrives when it did on the run's clock. How many steps have passed by
  then is up to the knobs.

In both, a request's tokens are the recorded ones (unless asked otherwise): the forward pass is done and timed, and
what it samples is replaced. So every request has the length it had, on any machine. Where nothing runs, the clock is
put forward instead of waiting for the next arrival.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from engine.clock import RunClock
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.core import Engine, ModelRunner
from engine.output_text import OutputText
from engine.plan import StepPlan
from engine.recorded_workload import (
    Answer,
    RecordedWorkload,
    RerunCancelled,
    RerunError,
    read_workload,
    sampling_of,
)
from engine.request import Request, RequestRefused
from engine.step_events import arrival_of
from engine.trace.events import (
    SCHEMA_VERSION,
    Arrived,
    KnobChange,
    Logprobs,
    MachineInfo,
    ModelInfo,
    Refused,
    RunInfo,
    StepEvents,
)
from engine.trace.knobs import KNOBS, KnobError, KnobValue, knob
from engine.trace.recording import Recorder
from engine.trace.source import Notice
from engine.version import VERSION

if TYPE_CHECKING:
    from engine.workload import Workload

__all__ = ["Admission", "LoadedModel", "RerunCancelled", "RerunError", "RerunProgress", "RerunResult", "ScenarioRun",
           "decide_again", "load_model", "read_workload", "rerun", "run_scenario"]

Admission = Literal["step", "time"]
TELL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class RerunProgress:
    """How far a run has come: ``requests`` of ``all_requests`` have left the engine (0: nobody knows how many)."""

    requests: int
    all_requests: int
    steps: int
    run_ns: int

    @property
    def fraction(self) -> float:
        return min(1.0, self.requests / self.all_requests) if self.all_requests else 0.0


@dataclass(frozen=True, slots=True)
class RerunResult:
    """What came of it. ``notes`` say what could not be repeated, for people."""

    path: Path
    admission: Admission
    steps: int
    notes: list[str] = field(default_factory=list)


class SkippingClock(RunClock):
    """A run's clock that can be put forward over a time in which nothing would happen."""

    def skip_to(self, time_ns: int) -> None:
        self._origin -= max(0, time_ns - self.now_ns())


class RecordedRunner:
    """Stands where a runner does and yields the recorded tokens; ``inner`` does the work all the same, if there is one.

    Beyond what was recorded of a request, ``inner``'s own tokens are taken.
    """

    def __init__(self, workload: RecordedWorkload, inner: ModelRunner | None) -> None:
        self._inner = inner
        self._answers = workload.answers
        self._logprobs: list[Logprobs | None] = []
        info = workload.info.model
        # Without a model nothing is allocated, however large the recorded pool was.
        self.model_info = inner.model_info if inner else ModelInfo(info.name, vocab_size=info.vocab_size)
        self.eos_token_ids = set(inner.eos_token_ids) if inner else workload.end_of_sequence
        self.max_model_len = inner.max_model_len if inner else workload.info.max_model_len
        self.num_threads = inner.num_threads if inner else 1

    @property
    def phase_ns(self) -> dict[str, int]:
        return self._inner.phase_ns if self._inner else {"prepare": 0, "forward": 0, "sample": 0}

    @phase_ns.setter
    def phase_ns(self, value: dict[str, int]) -> None:
        raise AttributeError("phase_ns")

    @property
    def logprobs(self) -> Sequence[Logprobs | None]:
        return self._logprobs

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        if self._inner is not None:
            self._inner.allocate_cache(num_blocks, block_size)

    def free_request(self, request_id: str) -> None:
        if self._inner is not None:
            self._inner.free_request(request_id)

    def set_knob(self, name: str, value: KnobValue) -> None:
        if self._inner is not None:
            self._inner.set_knob(name, value)

    def execute(self, plan: StepPlan) -> list[int]:
        tokens = self._inner.execute(plan) if self._inner is not None else None
        asked = self._inner is not None and any(s.request.params.logprobs is not None for s in plan.scheduled)
        own = self._inner.logprobs if asked and self._inner is not None else []
        chosen: list[int] = []
        self._logprobs = []
        for index, entry in enumerate(s for s in plan.scheduled if s.samples):
            answer, at = self._answers[entry.request.request_id], entry.request.num_output_tokens
            if at < len(answer.tokens):
                chosen.append(answer.tokens[at])
                self._logprobs.append(answer.logprobs[at])
            elif tokens is not None:
                chosen.append(tokens[index])
                self._logprobs.append(own[index] if index < len(own) else None)
            else:
                raise LookupError(f"{entry.request.request_id}: only {at} tokens were recorded")
        return chosen


class _RecordedText(OutputText):
    """The recorded text of a request, piece by piece: what a detokenizer would say, without a tokenizer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._given = 0
        self.stopped_by: str | None = None

    def add(self, token_id: int) -> str:
        text = self._answer.texts[self._given]
        self._given += 1
        if self._given == len(self._answer.texts) and isinstance(self._answer.stop, str):
            self.stopped_by = self._answer.stop
        return text

    def flush(self) -> str:
        return self._answer.rest


class _Engine(Engine):
    """An engine that takes recorded requests under their recorded names."""

    clock: SkippingClock
    recorded_texts: dict[str, Answer] | None = None
    """Where texts come from when there is no tokenizer."""

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
        self._texts[arrived.request_id] = (_RecordedText(self.recorded_texts[arrived.request_id])
                                           if self.recorded_texts is not None else self._make_text(params))
        self._arrived.append(arrival_of(request, parent=arrived.parent))

    def take_refused(self, refused: Refused) -> None:
        self._refused.append(refused)

    def release(self) -> None:
        """Let the runner forget the requests that are still there."""
        for request_id in self.scheduler.requests:
            self._runner.free_request(request_id)

    @property
    def has_news(self) -> bool:
        return bool(self._arrived or self._refused or self._aborted or self._knob_changes)

    def _text_of(self, token_id: int) -> str:
        return super()._text_of(token_id) if self.recorded_texts is None else ""

    def _with_texts(self, logprobs: Logprobs | None) -> Logprobs | None:
        # Recorded log probabilities have their texts.
        if logprobs is None or logprobs.sampled.text or self.recorded_texts is not None:
            return logprobs
        return super()._with_texts(logprobs)


class Feed(Protocol):
    """Hands an engine what comes in."""

    all_requests: int

    def hand_over(self, engine: _Engine) -> bool:
        """Give the engine what is due before its next step; False when everything is over."""
        ...

    def step(self, engine: _Engine) -> StepEvents | None: ...


class StepFeed:
    """Everything before the same step as in the recording, and as many steps."""

    def __init__(self, workload: RecordedWorkload) -> None:
        self.all_requests = workload.num_requests
        self._inputs = {i.step: i for i in workload.inputs}
        self._steps = workload.num_steps
        self._next = 0
        self._idle = False

    def hand_over(self, engine: _Engine) -> bool:
        if self._next >= self._steps:
            return False
        inputs = self._inputs.get(self._next)
        self._next += 1
        self._idle = False
        if inputs is None:
            return True
        if not engine.has_work:
            engine.clock.skip_to(inputs.start_ns)
        now = engine.clock.now_ns()
        for change in inputs.knobs:
            engine.set_knob(change.name, change.new)
        for arrived in inputs.arrived:
            # It has waited for this step as long as it did then: its place within another clock is not known better.
            engine.take(arrived, max(0, now - max(0, inputs.start_ns - arrived.arrival_ns)))
        for refused in inputs.refused:
            engine.take_refused(refused)
        for request_id in inputs.aborted:
            engine.abort(request_id)
        # While an engine is paused it tells the news without scheduling, though there may be work. A new pool is told
        # of when it is made, and that is by a step.
        self._idle = inputs.idle and not any(c.name in ("num_blocks", "block_size") for c in inputs.knobs)
        return True

    def step(self, engine: _Engine) -> StepEvents | None:
        return engine.tell_news() if self._idle else engine.step()


class TimeFeed:
    """Everything when it happened on the run's clock. Turns of the knobs in ``fixed`` are left out."""

    def __init__(self, workload: RecordedWorkload, fixed: Sequence[str] = ()) -> None:
        self.all_requests = workload.num_requests
        due: list[tuple[int, Arrived | KnobChange | str]] = []
        for inputs in workload.inputs:
            due += [(inputs.start_ns, change) for change in inputs.knobs if change.name not in fixed]
            due += [(arrived.arrival_ns, arrived) for arrived in inputs.arrived]
            due += [(inputs.start_ns, request_id) for request_id in inputs.aborted]
        due.sort(key=lambda entry: entry[0])  # stable: what came at once stays in order
        self._due = due
        self._at = 0

    def hand_over(self, engine: _Engine) -> bool:
        if not engine.has_work and self._at < len(self._due):
            engine.clock.skip_to(self._due[self._at][0])
        now = engine.clock.now_ns()
        while self._at < len(self._due) and self._due[self._at][0] <= now:
            at_ns, what = self._due[self._at]
            self._at += 1
            if isinstance(what, Arrived):
                engine.take(what, at_ns)
            elif isinstance(what, KnobChange):
                with suppress(KnobError):  # there may be less memory than there was
                    engine.set_knob(what.name, what.new)
            else:
                engine.abort(what)
        return engine.has_work or self._at < len(self._due) or engine.has_news

    def step(self, engine: _Engine) -> StepEvents | None:
        return engine.step()


def run_engine(engine: _Engine, feed: Feed, put: Callable[[StepEvents], None], *,
               progress: Callable[[RerunProgress], None] | None = None,
               cancel: threading.Event | None = None) -> int:
    """Run until the feed is over, and hand every step to ``put``. Returns the number of steps."""
    steps = gone = 0
    told = 0.0
    while True:
        if cancel is not None and cancel.is_set():
            raise RerunCancelled
        if not feed.hand_over(engine):
            return steps
        events = feed.step(engine)
        if events is None:
            continue
        put(events)
        steps += 1
        gone += len(events.finished) + len(events.aborted) + len(events.refused)
        now = time.monotonic()
        if progress is not None and now - told > TELL_INTERVAL_S:
            told = now
            progress(RerunProgress(gone, feed.all_requests, steps, engine.clock.now_ns()))


class LoadedModel(Protocol):
    """What a run needs of a model; :func:`load_model` makes one, and several runs may use it after one another."""

    runner: ModelRunner
    tokenizer: Any
    machine: MachineInfo


@dataclass(slots=True)
class Model:
    runner: ModelRunner
    tokenizer: Any  # an engine.model.tokenizer.Tokenizer; None if no text is to be made
    machine: MachineInfo


def load_model(info: RunInfo, *, model: str | None = None, num_threads: int = 0,
               progress: Callable[[str, float | None], None] | None = None,
               cancel: threading.Event | None = None) -> Model:
    """Find and load the model of a recorded run, to be used in this thread. ``model`` is another place to take it from.

    Raises what :func:`engine.model.library.find_model` and :class:`engine.runner.Runner` raise, and
    :class:`RerunError` when it is another model than the recorded one.
    """
    from engine.model.library import find_model

    def tell(stage: str, fraction: float | None) -> None:
        if progress is not None:
            progress(stage, fraction)

    tell("finding the model", None)
    recorded = info.model
    spec = model or (recorded.source if recorded.source and Path(recorded.source).is_dir() else recorded.name)
    folder = find_model(spec, cancel=cancel, progress=lambda report: tell(report.stage, report.fraction))
    if cancel is not None and cancel.is_set():
        raise RerunCancelled
    tell("loading the model", None)

    import torch

    from engine.config import EngineConfig
    from engine.model.tokenizer import Tokenizer
    from engine.runner import Runner
    from engine.worker import processor_name

    on_gpu = info.machine.device not in ("", "cpu") and torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    # The pool is allocated by the engine, once its size is known.
    config = EngineConfig(model=str(folder), device=device, dtype=recorded.dtype or "bfloat16", seed=info.seed,
                          num_threads=num_threads,
                          scheduler=SchedulerConfig(num_blocks=8, max_model_len=info.max_model_len))
    runner = Runner(folder, config, progress=tell)
    if recorded.vocab_size and runner.model_info.vocab_size != recorded.vocab_size:
        raise RerunError(Notice("The recording was made with {recorded}, and {found} is another model. Name the "
                                "recorded one.", recorded=recorded.name, found=runner.model_info.name))
    machine = MachineInfo(
        device="cpu" if device == "cpu" else torch.cuda.get_device_name(), processor=processor_name(),
        cores=os.cpu_count() or 0, threads=runner.num_threads,
        system=f"{platform.system()} {platform.release()}", python=platform.python_version(),
        torch=str(torch.__version__))
    return Model(runner, Tokenizer.load(folder), machine)


def rerun(workload: RecordedWorkload, changes: Mapping[str, KnobValue], path: str | os.PathLike[str],
          model: LoadedModel, *, forced: bool = True, progress: Callable[[RerunProgress], None] | None = None,
          cancel: threading.Event | None = None) -> RerunResult:
    """Run ``workload`` with the knobs in ``changes`` set differently, for the whole run, and record it to ``path``.

    ``forced`` keeps the recorded tokens; otherwise the model's own are taken. The file appears when the run is over:
    a cancelled or failed one leaves nothing. Raises :class:`RerunError`, :class:`~engine.trace.knobs.KnobError` for a
    knob that cannot be so, and :class:`RerunCancelled`.
    """
    changes = {name: knob(name).check(value) for name, value in changes.items()}
    for name in changes:
        if name not in SCHEDULER_KNOBS:
            raise KnobError(f"{name} shapes a workload; a recorded workload is what it is")
    notes: list[str] = []
    by_step = workload.whole and not workload.differs(changes)
    if not by_step and workload.num_refused:
        notes.append(Notice("{count} requests were refused when the run was recorded. Their prompts are not in the "
                            "recording, so they were left out.", count=workload.num_refused))
    if not by_step and workload.num_unfinished:
        notes.append(Notice("{count} requests were not finished when the recording ended; here they are served to "
                            "their end.", count=workload.num_unfinished))
    if not workload.whole:
        notes.append(Notice("The recording begins in the middle of a run: the requests that were there already were "
                            "taken to arrive at its beginning."))
    knobs = {**{k.name: k.default for k in KNOBS.values()}, **workload.knobs, **changes}
    runner = RecordedRunner(workload, model.runner) if forced else model.runner
    engine = _make_engine(runner, model.tokenizer, knobs, workload.info)
    if forced and model.tokenizer is None:
        engine.recorded_texts = workload.answers
    feed: Feed = StepFeed(workload) if by_step else TimeFeed(workload, tuple(changes))
    info = describe_run(workload.info, model, engine)
    steps = record(engine, feed, info, Path(path), progress=progress, cancel=cancel)
    return RerunResult(Path(path), "step" if by_step else "time", steps, notes)


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """A built-in workload, to be run to its end: ``requests`` of a scenario's, with ``knobs`` besides its own."""

    scenario: str
    seed: int = 0
    requests: int = 40
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    model: str = ""
    dtype: str = "bfloat16"

    def info(self) -> RunInfo:
        """The run's header, as far as it is known before the model is: for :func:`load_model`."""
        return RunInfo(SCHEMA_VERSION, VERSION, "", 0, ModelInfo(self.model, dtype=self.dtype), MachineInfo("cpu"),
                       self.scenario, self.seed, 2048, dict(self.knobs))


class ScenarioFeed:
    """A scenario's requests as they come, and those that answers lead to."""

    def __init__(self, workload: Workload, requests: int) -> None:
        self.all_requests = requests
        self._workload = workload

    def hand_over(self, engine: _Engine) -> bool:
        arrival = self._workload.next_arrival_ns()
        if not engine.has_work and arrival is not None:
            engine.clock.skip_to(arrival)
        for new in self._workload.due(engine.clock.now_ns()):
            request_id = engine.add_request(
                new.prompt_token_ids, new.params, prompt_text=new.prompt_text, priority=new.priority, salt=new.salt,
                source=new.source, arrival_ns=new.arrival_ns)
            self._workload.on_admitted(new, request_id)
        # A rate of 0 brings nobody; then there is nothing to wait for.
        return engine.has_work or engine.has_news or self._workload.next_arrival_ns() is not None

    def step(self, engine: _Engine) -> StepEvents | None:
        events = engine.step()
        if events is not None:
            self._workload.observe(events)
        return events


def run_scenario(run: ScenarioRun, changes: Mapping[str, KnobValue], path: str | os.PathLike[str],
                 model: LoadedModel, *, progress: Callable[[RerunProgress], None] | None = None,
                 cancel: threading.Event | None = None) -> RerunResult:
    """Run a built-in workload headless, with the knobs in ``changes``, and record it. Raises as :func:`rerun`.

    The same seed and the same workload knobs give the same requests, at whatever speed they are served.
    """
    from engine.scenario import load_scenario
    from engine.workload import Workload

    scenario = load_scenario(run.scenario)
    changes = {name: knob(name).check(value) for name, value in {**run.knobs, **changes}.items()}
    knobs = {**{k.name: k.default for k in KNOBS.values()}, **scenario.knobs, **changes}
    wanted = run.info()
    engine = _make_engine(model.runner, model.tokenizer, knobs, wanted)
    requests = min(run.requests, scenario.arrivals.requests or run.requests)
    workload = Workload(scenario, model.tokenizer, run.seed, knobs, requests=requests,
                        max_model_len=engine.scheduler.config.max_model_len)
    info = describe_run(wanted, model, engine)
    steps = record(engine, ScenarioFeed(workload, requests), info, Path(path), progress=progress, cancel=cancel)
    return RerunResult(Path(path), "time", steps)


def decide_again(workload: RecordedWorkload) -> _Decisions:
    """The steps that the scheduler decides again from the recorded arrivals and tokens: nothing else runs.

    An iterable of :class:`StepEvents` whose times mean nothing. Raises :class:`RerunError` while iterating for a
    recording that begins in the middle of a run.
    """
    return _Decisions(workload)


class _Decisions:
    def __init__(self, workload: RecordedWorkload) -> None:
        self._workload = workload

    def __iter__(self) -> Any:
        workload = self._workload
        if not workload.whole:
            raise RerunError(Notice("The recording begins in the middle of a run: its decisions cannot be repeated."))
        runner = RecordedRunner(workload, None)
        engine = _make_engine(runner, None, workload.knobs, workload.info)
        engine.recorded_texts = workload.answers
        feed = StepFeed(workload)
        while feed.hand_over(engine):
            events = feed.step(engine)
            if events is not None:
                yield events


def _make_engine(runner: ModelRunner, tokenizer: Any, knobs: Mapping[str, KnobValue], info: RunInfo) -> _Engine:
    config = SchedulerConfig(max_model_len=info.max_model_len).with_knobs(
        {name: value for name, value in knobs.items() if name in SCHEDULER_KNOBS})
    return _Engine(runner, tokenizer, config, knobs, SkippingClock(), info.seed)


def describe_run(recorded: RunInfo, model: LoadedModel, engine: Engine) -> RunInfo:
    """The header of a run that repeats another one's workload."""
    described = model.runner.model_info
    return RunInfo(
        schema=SCHEMA_VERSION, version=VERSION, created=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_start_ns=engine.clock.wall_start_ns, model=described, machine=model.machine, scenario=recorded.scenario,
        seed=recorded.seed, max_model_len=engine.scheduler.config.max_model_len, knobs=dict(engine.knobs),
        eos_token_ids=sorted(model.runner.eos_token_ids))


def record(engine: _Engine, feed: Feed, info: RunInfo, path: Path, *,
           progress: Callable[[RerunProgress], None] | None = None, cancel: threading.Event | None = None) -> int:
    """Run the engine to the feed's end and record it to ``path``; returns the number of steps.

    What is unfinished is written beside ``path`` and taken away if the run does not come to its end, so that neither
    a file of that name nor the recording that is repeated suffers. Raises :class:`RerunError` for the disk.
    """
    unfinished = path.with_name(f"{path.name}.part")
    recorder = Recorder(unfinished, info)

    def put(events: StepEvents) -> None:
        if recorder.error is not None:
            raise RerunError(recorder.error)
        recorder.wait_for_room()
        recorder.put(events)

    try:
        if recorder.error is not None:
            raise RerunError(recorder.error)
        steps = run_engine(engine, feed, put, progress=progress, cancel=cancel)
        closed = recorder.close()
        if recorder.error is not None or not closed:
            raise RerunError(recorder.error or Notice("{path} could not be written in time.", path=path))
        try:
            os.replace(unfinished, path)
        except OSError as failure:
            raise RerunError(Notice("{path} cannot be written: {reason}.", path=path,
                                    reason=failure.strerror or str(failure))) from None
        return steps
    finally:
        recorder.close()
        with suppress(OSError):
            unfinished.unlink()
        # The runner may serve other runs after this one.
        engine.release()
