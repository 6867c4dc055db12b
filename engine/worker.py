"""The engine in a background thread: commands go in, one StepEvents a step comes out.

A command is put in a queue from any thread and acts between two steps. Events are published to an
:class:`EventHub`, from which every subscriber drains at its own pace: the engine never waits for one.

Importing this module imports no torch; the thread does when it starts, so that a window can be up before.
"""

from __future__ import annotations

import logging
import os
import platform
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.clock import RunClock
from engine.config import SCHEDULER_KNOBS, EngineConfig, SchedulerConfig
from engine.request import SamplingParams
from engine.trace.events import SCHEMA_VERSION, MachineInfo, RunInfo, StepEvents
from engine.trace.knobs import KnobError, KnobValue, default_knobs, knob
from engine.trace.source import Notice
from engine.version import VERSION

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.model.tokenizer import Tokenizer
    from engine.model_holder import HeldModel, ModelHolder
    from engine.runner import Runner
    from engine.scenario import Scenario
    from engine.workload import Workload

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.25
"""How long an engine with nothing to do sleeps at most; a command wakes it at once."""


@dataclass(frozen=True)
class RunSpec:
    """What to run. ``model`` as for :func:`engine.model.library.find_model`; ``scenario`` a name or a path, None for
    an engine that only serves what it is sent. ``knobs`` override the scenario's. ``watched`` leaves a core to the
    window, unless ``num_threads`` says how many to take. Without ``record_prompt_text`` recordings of the run hold only
    how long prompts are. ``gpu_memory_utilization`` sizes the pool on a GPU where ``knobs`` do not; None means
    :class:`EngineConfig`'s own, and then a scenario's ``num_blocks`` goes before it.
    """

    model: str | None = None
    scenario: str | None = None
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    seed: int = 0
    dtype: str = "bfloat16"
    device: str = "cpu"
    forward_path: str = "auto"
    num_threads: int = 0
    watched: bool = True
    max_model_len: int = 2048
    record_prompt_text: bool = True
    gpu_memory_utilization: float | None = None

    def choose_threads(self) -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.num_threads or max(1, cores - 1 if self.watched else cores)

    def all_knobs(self, scenario: Scenario | None) -> dict[str, KnobValue]:
        """Every knob's value at the start: its default, then the scenario's, then the ones asked for.

        Without those of a GPU, unless the run is on one or they are asked for.
        """
        chosen = {**(scenario.knobs if scenario else {}), **self.knobs}
        return {**default_knobs(self.device), **{n: knob(n).check(v) for n, v in chosen.items()}}

    def sizes_pool_by_memory(self, scenario: Scenario | None) -> bool:
        """Whether a GPU's memory says how many blocks there are, because nobody else does."""
        if self.device == "cpu" or "num_blocks" in self.knobs:
            return False
        return self.gpu_memory_utilization is not None or scenario is None or "num_blocks" not in scenario.knobs


class Subscription:
    """One listener's queue of events. ``drain`` may be called from any one thread."""

    def __init__(self) -> None:
        self._queue: deque[StepEvents] = deque()

    def drain(self, limit: int | None = None) -> list[StepEvents]:
        """Take what has been published since the last call, oldest first, at most ``limit`` steps of it."""
        count = len(self._queue) if limit is None else min(limit, len(self._queue))
        return [self._queue.popleft() for _ in range(count)]

    def __len__(self) -> int:
        return len(self._queue)


class EventHub:
    """Hands every step's events to every subscriber and sink. Nothing is ever dropped here."""

    def __init__(self) -> None:
        self._queues: tuple[deque[StepEvents], ...] = ()
        self._sinks: tuple[Callable[[StepEvents], None], ...] = ()

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self._queues += (subscription._queue,)
        return subscription

    def add_sink(self, sink: Callable[[StepEvents], None]) -> None:
        """``sink`` is called in the engine's thread and must return within microseconds: a recorder's ``put``."""
        self._sinks += (sink,)

    def remove_sink(self, sink: Callable[[StepEvents], None]) -> None:
        self._sinks = tuple(s for s in self._sinks if s != sink)

    def publish(self, events: StepEvents) -> None:
        for waiting in self._queues:
            waiting.append(events)
        for sink in self._sinks:
            sink(events)


class LoadingStopped(Exception):
    """Raised inside of loading to end it."""


@dataclass(frozen=True)
class LoadProgress:
    """What loading is doing; ``fraction`` is None where nobody can tell."""

    stage: str = ""
    fraction: float | None = None


class EngineThread(threading.Thread):
    """Owns an :class:`Engine`. All public methods may be called from any thread and return at once.

    ``status`` is "loading", "running", "idle" (nothing to do just now), "paused", "finished" (the scenario is
    exhausted and everybody served; it still takes prompts), "failed" (see ``error``) or "stopped".
    ``notices`` collects things that the user should be told, such as why a knob was refused, and ``refused_knobs`` the
    names of those knobs. ``models`` hands the loaded model on, from the thread before and to the one after.
    """

    def __init__(self, spec: RunSpec, models: ModelHolder | None = None) -> None:
        super().__init__(name="engine", daemon=True)
        self.spec = spec
        self._models = models
        self._model: HeldModel | None = None  # ours until the thread ends
        self.hub = EventHub()
        self.clock = RunClock()
        self.status = "loading"
        self.error: str | None = None
        self.failure: Exception | None = None  # what ``error`` is the text of, for those who say it otherwise
        self.info: RunInfo | None = None
        self.progress = LoadProgress()
        self.notices: deque[str] = deque()
        self.refused_knobs: deque[str] = deque()
        self.loaded = threading.Event()  # set when loading has ended, either way
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._paused = False
        self._steps_to_run = 0  # while paused
        self._last_scheduled = False  # whether anything was in the step that was published last
        self._step_interval_s = 0.0
        self._next_step_at = 0.0
        self._engine: Engine
        self._tokenizer: Tokenizer
        self._workload: Workload | None = None

    # ---- commands ------------------------------------------------------------------------------------------------

    def submit(self, text: str, **params: Any) -> None:
        """Send a user's prompt (chat template applied). ``params`` are those of :class:`SamplingParams`.

        Ones that do not work are refused in the events, with the reason "bad_parameters".
        """
        self._commands.put(lambda: self._submit(text, params))

    def abort(self, request_id: str) -> None:
        self._commands.put(lambda: self._abort(request_id))

    def set_knob(self, name: str, value: KnobValue) -> None:
        """Turn a knob at the next step. Raises :class:`KnobError` at once for a bad name or a value out of range."""
        value = knob(name).check(value)
        self._commands.put(lambda: self._set_knob(name, value))

    def pause(self) -> None:
        self._commands.put(lambda: self._set_paused(True))

    def resume(self) -> None:
        self._commands.put(lambda: self._set_paused(False))

    def single_step(self, count: int = 1) -> None:
        """Run ``count`` steps and pause."""
        self._commands.put(lambda: self._single_step(count))

    def set_slow_motion(self, steps_per_s: float | None) -> None:
        """At most that many steps a second; None lifts the limit. The run's clock stands still in the gaps."""
        interval = 1.0 / steps_per_s if steps_per_s else 0.0
        self._commands.put(lambda: setattr(self, "_step_interval_s", interval))

    @property
    def ending(self) -> bool:
        """Whether the thread has been told to end."""
        return self._stopping.is_set()

    def stop(self, timeout: float | None = 5.0) -> bool:
        """End the thread after the current step and wait for it; True if it has ended."""
        self._stopping.set()
        self._commands.put(lambda: None)
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout)
        return not self.is_alive()

    # ---- the thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            if self._load():
                self._loop()
        except LoadingStopped:
            pass
        except Exception as failure:
            self._model = None  # nobody knows what state it is in
            if not self._stopping.is_set():
                log.exception("the engine failed")
                self.failure = failure
                self.error = str(failure) or type(failure).__name__
                self.status = "failed"
        finally:
            self._part_with_model()
            if self.status != "failed":
                self.status = "stopped"
            self.loaded.set()

    def _load(self) -> bool:
        """Find the model, load it and build the engine; False when stopped on the way."""
        from engine.model.library import find_model
        from engine.scenario import load_scenario
        from engine.workload import Workload

        scenario = load_scenario(self.spec.scenario) if self.spec.scenario else None
        knobs = self.spec.all_knobs(scenario)
        self.progress = LoadProgress("finding the model")
        folder = find_model(
            self.spec.model, cancel=self._stopping,
            progress=lambda report: setattr(self, "progress", LoadProgress(report.stage, report.fraction)))
        if self._stopping.is_set():
            return False
        self.progress = LoadProgress("loading the model")

        from engine.core import Engine

        config = self._configure(folder, knobs)
        self._model = model = self._get_model(folder, config)
        runner, self._tokenizer = model.runner, model.tokenizer
        if self.spec.sizes_pool_by_memory(scenario):
            knobs["num_blocks"] = runner.profile_num_blocks()
            config = self._configure(folder, knobs)
        self.clock = RunClock()
        self._engine = Engine(runner, self._tokenizer, config.scheduler, knobs, self.clock, self.spec.seed)
        self._engine.warm_up(self._report)
        if self._stopping.is_set():
            return False
        if scenario is not None:
            self._workload = Workload(scenario, self._tokenizer, self.spec.seed, knobs,
                                      max_model_len=self._engine.scheduler.config.max_model_len)
        self.info = self._describe(folder, runner, knobs)
        self.status = "running"
        self.loaded.set()
        return True

    def _configure(self, folder: Path, knobs: Mapping[str, KnobValue]) -> EngineConfig:
        scheduler = SchedulerConfig(max_model_len=self.spec.max_model_len).with_knobs(
            {n: v for n, v in knobs.items() if n in SCHEDULER_KNOBS})
        config = EngineConfig(model=str(folder), device=self.spec.device, dtype=self.spec.dtype, seed=self.spec.seed,
                              forward_path=self.spec.forward_path, num_threads=self.spec.choose_threads(),
                              scheduler=scheduler)
        share = self.spec.gpu_memory_utilization
        return config if share is None else replace(config, gpu_memory_utilization=share)

    def _get_model(self, folder: Path, config: EngineConfig) -> HeldModel:
        """The model of the thread before if it is the same one, else a new one. Raises :class:`LoadingStopped`."""
        from engine.model_holder import HeldModel, ModelKey

        key = ModelKey.of(folder, config)
        if self._models is not None:
            self._model = self._models.take(key, self)
        if self._stopping.is_set():
            raise LoadingStopped
        if self._model is not None:
            self._model.runner.configure(config, self._report)
            return self._model

        from engine.model.tokenizer import Tokenizer
        from engine.runner import Runner

        tokenizer = Tokenizer.load(folder)
        return HeldModel(key, Runner(folder, config, progress=self._report), tokenizer)

    def _part_with_model(self) -> None:
        """Nothing here uses the model from now on; whoever comes next may."""
        model, self._model = self._model, None
        self.__dict__.pop("_engine", None)  # else it would hold the runner, in which another thread may be
        if self._models is None:
            return
        try:
            if model is not None:
                model.runner.release()
        except Exception:
            log.exception("the model is not kept")
            model = None
        self._models.give_back(self, model)

    def _report(self, stage: str, fraction: float | None) -> None:
        """How loading goes. It ends here once the engine is to stop: nobody waits for the model any more."""
        if self._stopping.is_set():
            raise LoadingStopped
        self.progress = LoadProgress(stage, fraction)

    def _describe(self, folder: Path, runner: Runner, knobs: dict[str, KnobValue]) -> RunInfo:
        import torch

        machine = MachineInfo(
            device=self.spec.device if self.spec.device == "cpu" else torch.cuda.get_device_name(),
            processor=processor_name(), cores=os.cpu_count() or 0, threads=runner.num_threads,
            system=f"{platform.system()} {platform.release()}", python=platform.python_version(),
            torch=str(torch.__version__))  # a class of its own, which cannot be encoded
        return RunInfo(
            schema=SCHEMA_VERSION, version=VERSION, created=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_start_ns=self.clock.wall_start_ns, model=runner.model_info, machine=machine,
            scenario=self.spec.scenario or "", seed=self.spec.seed,
            max_model_len=self._engine.scheduler.config.max_model_len, knobs=knobs,
            eos_token_ids=sorted(runner.eos_token_ids), memory=runner.memory, path=runner.forward_path)

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                self._run_commands(0)
                if self._paused and not self._steps_to_run:
                    self._wait_paused()
                elif self._slow_motion_allows():
                    self._advance()
        finally:
            self._engine.flush(self._publish)  # nothing that was put off is lost, whatever ended the run

    def _advance(self) -> None:
        """Run one step, or wait for something to do."""
        self.clock.release()
        self._admit_arrivals()
        # Whoever steps, or slows the engine down, wants to see each step when it has happened.
        ran = self._engine.advance(self._publish, at_once=self._paused or self._step_interval_s > 0)
        if self._paused:
            self.clock.hold()
        if not ran:
            self._wait_idle()
        elif not self._paused:
            self.status = "running"
        elif self._last_scheduled:
            self._steps_to_run -= 1

    def _publish(self, events: StepEvents) -> None:
        """Hand a step's events out. With overlap this may be while the next step is under way."""
        self._last_scheduled = bool(events.scheduled)
        if self._workload is not None:
            self._workload.observe(events)
        self.hub.publish(events)

    def _run_commands(self, wait_s: float) -> bool:
        """Run every command that is queued, after waiting up to ``wait_s`` for the first; True if there was one."""
        try:
            command = self._commands.get(timeout=wait_s) if wait_s > 0 else self._commands.get_nowait()
        except queue.Empty:
            return False
        while True:
            command()
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return True

    def _wait_paused(self) -> None:
        self.clock.hold()
        self._engine.flush(self._publish)
        self.status = "paused"
        if self._run_commands(IDLE_WAIT_S) and self._paused and not self._steps_to_run:
            news = self._engine.tell_news()
            if news is not None:
                self._publish(news)

    def _wait_idle(self) -> None:
        self._steps_to_run = 0
        arrival = self._workload.next_arrival_ns() if self._workload is not None else None
        if not self._paused:
            exhausted = self._workload is not None and self._workload.exhausted
            self.status = "finished" if exhausted else "idle"
        wait_s = IDLE_WAIT_S if arrival is None else (arrival - self.clock.now_ns()) / 1e9
        self._run_commands(min(max(wait_s, 0.0), IDLE_WAIT_S))

    def _slow_motion_allows(self) -> bool:
        """True when it is time for the next step; otherwise wait a little, with the clock held, for a command."""
        now = time.perf_counter()
        if self._step_interval_s == 0.0 or now >= self._next_step_at:
            self._next_step_at = now + self._step_interval_s
            return True
        self.clock.hold()
        self._engine.flush(self._publish)
        self._run_commands(min(self._next_step_at - now, IDLE_WAIT_S))
        return False

    def _admit_arrivals(self) -> None:
        if self._workload is None:
            return
        for new in self._workload.due(self.clock.now_ns()):
            request_id = self._engine.add_request(
                new.prompt_token_ids, new.params, prompt_text=new.prompt_text, priority=new.priority, salt=new.salt,
                source=new.source, arrival_ns=new.arrival_ns)
            self._workload.on_admitted(new, request_id)

    # ---- what commands do ----------------------------------------------------------------------------------------

    def _submit(self, text: str, params: dict[str, Any]) -> None:
        shown = text.encode("utf-8", "replace").decode()  # half a surrogate pair could not be written down
        try:
            wanted = SamplingParams.parse(
                {"temperature": float(self._engine.knobs["temperature"]), "max_tokens": 128, **params})
        except ValueError as problem:
            self._engine.refuse("bad_parameters", problem.args[0], shown)
            return
        try:
            token_ids = self._tokenizer.chat([{"role": "user", "content": text}])
        except Exception as problem:  # that, or a template that does not work: no reason to stop the run
            self._engine.refuse("bad_prompt", Notice("The prompt cannot be turned into tokens: {reason}",
                                                     reason=str(problem)), shown)
            return
        self._engine.add_request(token_ids, wanted, prompt_text=text, source="user")

    def _abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def _set_knob(self, name: str, value: KnobValue) -> None:
        try:
            self._engine.set_knob(name, value)
        except KnobError as refusal:
            self.notices.append(refusal.args[0])
            self.refused_knobs.append(name)
            return
        if self._workload is not None and name not in SCHEDULER_KNOBS:
            self._workload.set_knob(name, value, self.clock.now_ns())

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        self._steps_to_run = 0
        if not paused:
            self._next_step_at = 0.0

    def _single_step(self, count: int) -> None:
        self._paused = True
        self._steps_to_run += count


def processor_name() -> str:
    """The processor's name as the system gives it, or its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
