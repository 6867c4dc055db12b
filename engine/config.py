"""Configuration of the scheduler and of the engine, in vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal

from engine.trace.knobs import KNOBS, KnobValue, knob

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Everything that the scheduler and the block pool decide by. Field names are vLLM's.

    ``num_blocks`` counts the null block (block 0), which is never handed out.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 16
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: Policy = "fcfs"
    enable_prefix_caching: bool = True
    reserve_full_input: bool = True
    watermark: float = 0.0
    block_size: int = 16
    num_blocks: int = 1024
    max_model_len: int = 2048

    def with_knobs(self, changes: Mapping[str, KnobValue]) -> SchedulerConfig:
        """A copy with the knobs in ``changes`` turned; raises :class:`KnobError` for a bad name or value."""
        return replace(self, **{name: knob(name).check(value) for name, value in changes.items()})  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, KnobValue]:
        return asdict(self)


SCHEDULER_KNOBS = tuple(f.name for f in fields(SchedulerConfig) if f.name in KNOBS)
"""The knobs that belong to the scheduler and the block pool; all of them act at the next step."""


RUNNER_KNOBS = ("enforce_eager", "overlap")
"""The knobs of how a step runs on a GPU: with CUDA graphs or without, overlapped with the next one's preparation or
not. A runner is told of them; on a CPU they do nothing."""


def rerun_knobs(device: str) -> tuple[str, ...]:
    """The knobs that a recorded workload can be run again with on ``device``, "cpu" or the name of a GPU."""
    return SCHEDULER_KNOBS if device in ("", "cpu") else SCHEDULER_KNOBS + RUNNER_KNOBS


FORWARD_PATHS = ("auto", "torch", "triton")
"""Ways to compute the logits: the fastest that works; plain torch, which rounds where transformers does; the kernels of
a GPU, which also run in Triton's interpreter, slowly."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is built from.

    ``device`` is ``"cpu"`` or ``"cuda"``; ``dtype`` is ``"bfloat16"``, ``"float16"`` or ``"float32"``.
    ``num_threads`` is how many cores the forward pass may take; 0 chooses (a watched engine leaves the window one).
    ``gpu_memory_utilization`` is the share of a GPU's memory that weights, activations and KV blocks take together
    where nobody says how many blocks there are to be. ``forward_path`` is one of :data:`FORWARD_PATHS`.
    """

    model: str = ""
    device: str = "cpu"
    dtype: str = "bfloat16"
    forward_path: str = "auto"
    seed: int = 0
    num_threads: int = 0
    gpu_memory_utilization: float = 0.9
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
