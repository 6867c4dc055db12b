"""What can be turned: every knob's range, default, vLLM flag, and whether it acts while the engine runs.

This table is the single source for the knob panel, for ``--set KNOB=VALUE`` and for the engine's own checks.
It imports neither torch nor Qt, so that a replay can show knob values too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KnobValue = int | float | bool | str
KnobGroup = Literal["scheduler", "kv_cache", "device", "workload", "sampling"]


class KnobError(ValueError):
    """A knob that does not exist, or a value that it does not take. The message says what it does take."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob. ``minimum`` and ``maximum`` are inclusive; ``scale`` says how a slider should travel;
    "square" may start at 0 and still gives the small values room."""

    name: str
    group: KnobGroup
    kind: Literal["int", "float", "bool", "choice"]
    default: KnobValue
    minimum: float = 0
    maximum: float = 1
    unit: str = ""
    choices: tuple[str, ...] = ()
    scale: Literal["linear", "log2", "square"] = "linear"
    vllm_flag: str = ""
    zero_means_off: bool = False
    power_of_two: bool = False

    def parse(self, text: str) -> KnobValue:
        """Turn what a user typed into a checked value."""
        try:
            if self.kind == "bool":
                if text.lower() not in _TRUTH:
                    raise ValueError
                return self.check(_TRUTH[text.lower()])
            if self.kind == "int":
                return self.check(int(text))
            if self.kind == "float":
                return self.check(float(text))
        except KnobError:
            raise
        except ValueError:
            raise KnobError(f"{self.name}: {text!r} is not {self.describe_range()}") from None
        return self.check(text)

    def check(self, value: KnobValue) -> KnobValue:
        """Return ``value`` in the knob's own type, or raise :class:`KnobError` saying what is allowed."""
        refused = KnobError(f"{self.name}: {value!r} is not {self.describe_range()}")
        if self.kind == "choice":
            if value not in self.choices:
                raise refused
            return value
        if self.kind == "bool":
            if not isinstance(value, bool):
                raise refused
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise refused
        if self.kind == "int":
            if value != int(value):
                raise refused
            value = int(value)
        else:
            value = float(value)
        if not self.minimum <= value <= self.maximum:
            raise refused
        if self.power_of_two and int(value) & (int(value) - 1):
            raise refused
        return value

    def describe_range(self) -> str:
        """The values taken, in words, for error messages."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "bool":
            return "true or false"
        low, high = (f"{int(b):,}" if b == int(b) else f"{b:g}" for b in (self.minimum, self.maximum))
        noun = "a power of two" if self.power_of_two else ("a whole number" if self.kind == "int" else "a number")
        return f"{noun} from {low} to {high}"


_TRUTH = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}

KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("max_num_batched_tokens", "scheduler", "int", 512, 16, 8192, "tokens", scale="log2",
             vllm_flag="--max-num-batched-tokens"),
        Knob("max_num_seqs", "scheduler", "int", 16, 1, 256, "requests", scale="log2", vllm_flag="--max-num-seqs"),
        Knob("long_prefill_token_threshold", "scheduler", "int", 0, 0, 4096, "tokens", scale="square",
             zero_means_off=True, vllm_flag="--long-prefill-token-threshold"),
        Knob("enable_chunked_prefill", "scheduler", "bool", True, vllm_flag="--enable-chunked-prefill"),
        Knob("policy", "scheduler", "choice", "fcfs", choices=("fcfs", "priority"), vllm_flag="--scheduling-policy"),
        Knob("reserve_full_input", "scheduler", "bool", True, vllm_flag="--scheduler-reserve-full-isl"),
        Knob("watermark", "scheduler", "float", 0.0, 0.0, 0.5, "of the pool", vllm_flag="--watermark"),
        Knob("num_blocks", "kv_cache", "int", 1024, 8, 65536, "blocks", scale="log2",
             vllm_flag="--num-gpu-blocks-override"),
        Knob("block_size", "kv_cache", "int", 16, 8, 256, "tokens", scale="log2", power_of_two=True,
             vllm_flag="--block-size"),
        Knob("enable_prefix_caching", "kv_cache", "bool", True, vllm_flag="--enable-prefix-caching"),
        Knob("enforce_eager", "device", "bool", False, vllm_flag="--enforce-eager"),
        Knob("overlap", "device", "bool", False, vllm_flag="--async-scheduling"),
        Knob("arrival_rate", "workload", "float", 2.0, 0.0, 50.0, "requests/s", scale="square"),
        Knob("common_prefix", "workload", "float", 0.5, 0.0, 1.0, "of requests"),
        Knob("prompt_tokens_min", "workload", "int", 20, 1, 4096, "tokens", scale="log2"),
        Knob("prompt_tokens_max", "workload", "int", 200, 1, 4096, "tokens", scale="log2"),
        Knob("output_tokens_min", "workload", "int", 32, 1, 2048, "tokens", scale="log2"),
        Knob("output_tokens_max", "workload", "int", 96, 1, 2048, "tokens", scale="log2"),
        Knob("temperature", "sampling", "float", 0.0, 0.0, 2.0),
    )
}


def knob(name: str) -> Knob:
    """Look a knob up by its name; an unknown one is refused with the names that exist."""
    try:
        return KNOBS[name]
    except KeyError:
        raise KnobError(f"there is no knob {name!r}; the knobs are {', '.join(KNOBS)}") from None


def default_knobs(device: str) -> dict[str, KnobValue]:
    """Every knob's default. ``device`` is "cpu", or anything else for a GPU: only there are there those of a GPU."""
    return {k.name: k.default for k in KNOBS.values() if k.group != "device" or device not in ("", "cpu")}
