"""A scenario played headless: the real workload, scheduler and pool, with step times from a formula and no model.

Every decision in it is the engine's own; only how long a forward pass takes, and which tokens come out, is made up.
That is enough to see whether a scenario shows what it says, and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.clock import RunClock
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.core import AtOnce, Engine
from engine.model.tokenizer import Tokenizer
from engine.plan import StepPlan
from engine.scenario import Scenario
from engine.trace.events import ModelInfo, StepEvents
from engine.trace.knobs import KNOBS, KnobValue
from engine.workload import Workload


class SimulatedClock(RunClock):
    """Run time that moves only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0

    def now_ns(self) -> int:
        return self.now


@dataclass
class SimulatedRunner(AtOnce):
    """Takes as long as a two-core CPU takes for SmolLM2-135M, on the slow side, and answers from a fixed text.

    A step costs ``step_ms`` (reading the weights) and ``token_ms`` for each token. An answer ends by itself after 20
    to 99 tokens, unless the request ignores that.
    """

    clock: SimulatedClock
    answer: Sequence[int]
    eos: int
    step_ms: float = 30.0
    token_ms: float = 0.6
    model_info: ModelInfo = field(default_factory=lambda: ModelInfo("simulated", bytes_per_token=1))
    max_model_len: int = 2048
    num_threads: int = 1
    phase_ns: dict[str, int] = field(default_factory=lambda: {"prepare": 0, "forward": 0, "sample": 0})

    @property
    def eos_token_ids(self) -> set[int]:
        return {self.eos}

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        pass

    def available_cache_bytes(self) -> int:
        return 1 << 34

    def set_knob(self, name: str, value: KnobValue) -> None:
        pass

    def free_request(self, request_id: str) -> None:
        pass

    def execute(self, plan: StepPlan) -> list[int]:
        self.clock.now += int((self.step_ms + self.token_ms * plan.num_tokens) * 1e6)
        return [self._next(s.request.params.seed, s.request.num_output_tokens) for s in plan.scheduled if s.samples]

    def _next(self, seed: int, place: int) -> int:
        return self.eos if place == 20 + seed % 80 else self.answer[(seed + place) % len(self.answer)]


@dataclass
class Played:
    """What happened."""

    steps: list[StepEvents]
    workload: Workload
    engine: Engine

    def before(self, seconds: float) -> list[StepEvents]:
        return [s for s in self.steps if s.end_ns <= seconds * 1e9]


def play(scenario: Scenario, tokenizer: Tokenizer, seconds: float, *, seed: int = 0,
         knobs: Mapping[str, KnobValue] | None = None, turned: Sequence[tuple[float, str, KnobValue]] = (),
         step_ms: float = 30.0, token_ms: float = 0.6) -> Played:
    """Run for so many seconds of run time. ``turned`` holds (second, knob, value), in order."""
    clock = SimulatedClock()
    start = {k.name: k.default for k in KNOBS.values()} | scenario.knobs | dict(knobs or {})
    config = SchedulerConfig().with_knobs({name: start[name] for name in SCHEDULER_KNOBS})
    story = tokenizer.encode("The answer depends on what you want to know. Take the simplest case first, look at it "
                             "closely, and change one thing at a time; then you will see which part matters.")
    runner = SimulatedRunner(clock, story, min(tokenizer.eos_token_ids), step_ms, token_ms)
    engine = Engine(runner, tokenizer, config, start, clock)
    workload = Workload(scenario, tokenizer, seed, start)
    waiting_turns = list(turned)
    steps: list[StepEvents] = []
    while clock.now < seconds * 1e9 and not (workload.exhausted and not engine.has_work):
        while waiting_turns and waiting_turns[0][0] * 1e9 <= clock.now:
            _, name, value = waiting_turns.pop(0)
            engine.set_knob(name, value)
            workload.set_knob(name, value, clock.now)
        for new in workload.due(clock.now):
            workload.on_admitted(new, engine.add_request(
                new.prompt_token_ids, new.params, prompt_text=new.prompt_text, priority=new.priority, salt=new.salt,
                source=new.source, arrival_ns=new.arrival_ns))
        events = engine.step()
        if events is None:
            arrival = workload.next_arrival_ns()
            clock.now = max(clock.now + 1_000_000, min(arrival or clock.now + 50_000_000, clock.now + 50_000_000))
            continue
        workload.observe(events)
        steps.append(events)
    return Played(steps, workload, engine)
