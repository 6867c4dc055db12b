"""A built-in workload run to its end, without a window, and recorded."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.core import Tell
from engine.loaded_model import LoadedModel
from engine.recorded_engine import RecordedEngine
from engine.rerun import RerunProgress, RerunResult, describe_run, record
from engine.trace.events import SCHEMA_VERSION, MachineInfo, ModelInfo, RunInfo, StepEvents
from engine.trace.knobs import KnobValue, default_knobs, knob
from engine.version import VERSION

if TYPE_CHECKING:
    from engine.workload import Workload


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

    def hand_over(self, engine: RecordedEngine) -> bool:
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

    def step(self, engine: RecordedEngine, tell: Tell) -> None:
        def observed(events: StepEvents) -> None:
            self._workload.observe(events)
            tell(events)

        engine.advance(observed)


def run_scenario(run: ScenarioRun, changes: Mapping[str, KnobValue], path: str | os.PathLike[str],
                 model: LoadedModel, *, prompt_text: bool = True,
                 progress: Callable[[RerunProgress], None] | None = None,
                 cancel: threading.Event | None = None) -> RerunResult:
    """Run a built-in workload headless, with the knobs in ``changes``, and record it. Raises as :func:`rerun`.

    The same seed and the same workload knobs give the same requests, at whatever speed they are served.
    """
    from engine.scenario import load_scenario
    from engine.workload import Workload

    scenario = load_scenario(run.scenario)
    changes = {name: knob(name).check(value) for name, value in {**run.knobs, **changes}.items()}
    knobs = {**default_knobs(model.machine.device), **scenario.knobs, **changes}
    wanted = run.info()
    engine = RecordedEngine.of(model.runner, model.tokenizer, knobs, wanted)
    engine.warm_up()
    requests = min(run.requests, scenario.arrivals.requests or run.requests)
    workload = Workload(scenario, model.tokenizer, run.seed, knobs, requests=requests,
                        max_model_len=engine.scheduler.config.max_model_len)
    info = describe_run(wanted, model, engine)
    steps = record(engine, ScenarioFeed(workload, requests), info, Path(path), prompt_text=prompt_text,
                   progress=progress, cancel=cancel)
    return RerunResult(Path(path), "time", steps)
