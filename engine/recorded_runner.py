"""A runner that does the work of another and yields the recorded tokens instead of what came out."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core import ModelRunner, Progress
from engine.plan import StepPlan
from engine.recorded_workload import RecordedWorkload
from engine.trace.events import Logprobs
from engine.trace.knobs import KnobValue


class RecordedRunner:
    """Stands where ``inner`` would. Beyond what was recorded of a request, ``inner``'s own tokens are taken."""

    def __init__(self, workload: RecordedWorkload, inner: ModelRunner) -> None:
        self._inner = inner
        self._answers = workload.answers
        self._logprobs: list[Logprobs | None] = []
        self._plan = StepPlan()
        self.model_info = inner.model_info
        self.eos_token_ids = set(inner.eos_token_ids)
        self.max_model_len = inner.max_model_len
        self.num_threads = inner.num_threads

    @property
    def phase_ns(self) -> dict[str, int]:
        return self._inner.phase_ns

    @phase_ns.setter
    def phase_ns(self, value: dict[str, int]) -> None:
        raise AttributeError("phase_ns")

    @property
    def logprobs(self) -> Sequence[Logprobs | None]:
        return self._logprobs

    @property
    def step_mode(self) -> str:
        return self._inner.step_mode

    def warm_up(self, progress: Progress | None = None) -> None:
        self._inner.warm_up(progress)

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        self._inner.allocate_cache(num_blocks, block_size)

    def available_cache_bytes(self) -> int:
        return self._inner.available_cache_bytes()

    def free_request(self, request_id: str) -> None:
        self._inner.free_request(request_id)

    def set_knob(self, name: str, value: KnobValue) -> None:
        self._inner.set_knob(name, value)

    def execute(self, plan: StepPlan) -> list[int]:
        self.launch(plan)
        return self.collect()

    def launch(self, plan: StepPlan) -> None:
        self._inner.launch(plan)
        self._plan = plan

    def collect(self) -> list[int]:
        tokens, plan = self._inner.collect(), self._plan
        asked = any(s.request.params.logprobs is not None for s in plan.scheduled)
        own = self._inner.logprobs if asked else []
        chosen: list[int] = []
        self._logprobs = []
        for index, entry in enumerate(s for s in plan.scheduled if s.samples):
            answer, at = self._answers[entry.request.request_id], entry.request.num_output_tokens
            if at < len(answer.tokens):
                chosen.append(answer.tokens[at])
                self._logprobs.append(answer.logprobs[at])
            else:
                chosen.append(tokens[index])
                self._logprobs.append(own[index] if index < len(own) else None)
        return chosen
