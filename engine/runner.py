"""The runner: from the scheduler's plan to tokens.

One mixed batch a step: the single tokens of decoding requests and the chunks of prefilling ones lie one after the
other, and one forward pass computes them all. The window shares an interpreter lock with this thread, so a step is a
little preparation in NumPy, one call for the forward pass, and one for sampling.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from engine.config import FORWARD_PATHS, EngineConfig
from engine.logit_rows import LogitRows, TorchRows
from engine.model.config import ModelConfig, UnsupportedModel
from engine.plan import StepPlan
from engine.sampler import Sampler
from engine.step_input import InputMaker, StepInput, slots_of
from engine.trace.events import Logprobs, MemoryInfo, ModelInfo
from engine.trace.knobs import KnobValue
from engine.trace.source import Notice

if TYPE_CHECKING:
    import torch

    from engine.attention import AttentionBackend
    from engine.gpu.device import Device, Mark
    from engine.gpu.memory import MemoryUse
    from engine.gpu.transfers import Transfers
    from engine.model.decoder import Decoder
    from engine.model.operations import Operations

Progress = Callable[[str, float | None], None]

_DTYPES = ("bfloat16", "float16", "float32")


class RunnerError(RuntimeError):
    """The configuration cannot be run on this machine. The message says why and what would do."""


class ForwardPath(Protocol):
    """A way to compute the logits. ``name`` says which, and why it was chosen over a faster one.

    A path that is :class:`Captures` as well is warmed up before it serves.
    """

    name: str

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the KV cache; what the old one held is lost."""

    def forward(self, step: StepInput) -> torch.Tensor:
        """Logits, float32 (S, vocabulary). They may lie in a buffer that the next call overwrites."""

    def rows(self, logits: torch.Tensor) -> LogitRows:
        """What ``forward`` has just returned, for a sampler."""


@runtime_checkable
class Captures(Protocol):
    """A forward path with CUDA graphs. ``last_mode`` says how the last step ran, for the trace."""

    last_mode: str

    def num_graphs(self) -> int:
        """How many :meth:`capture` makes in all."""

    def capture(self, progress: Progress | None = None) -> None:
        """Make the graphs that are missing."""

    def set_enforce_eager(self, enforce_eager: bool) -> None:
        """Whether to run without them."""

    def set_max_num_seqs(self, max_num_seqs: int) -> None:
        """For batches of up to how many requests :meth:`capture` makes them."""

    def prepare_ahead(self, step: StepInput) -> None:
        """Of a step that may come next, as the same object, all is known but its tokens and the blocks they begin."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step under way: what its preparation took, and the device's marks before and after its forward pass, and behind
    its sampling; none if it computes nothing."""

    prepare_ns: int
    marks: tuple[Mark, Mark, Mark] | None = None


class Runner:
    """Loads a model and executes plans with it. Use it from one thread at a time.

    ``model_dir`` is a Hugging Face folder. Raises :class:`~engine.model.config.UnsupportedModel` for a folder that
    cannot be run and :class:`RunnerError` for a device, dtype or forward path that this machine does not have.
    ``progress`` is told what is going on and how far it has come, from 0 to 1 (None: unknown).

    The KV cache comes with :meth:`allocate_cache`, or at the first step with the size that the configuration says.
    ``memory_use`` is what :meth:`profile_num_blocks` found.
    """

    def __init__(self, model_dir: Path, config: EngineConfig, *, progress: Progress | None = None) -> None:
        import torch

        from engine.gpu.device import make_device
        from engine.model.decoder import Decoder
        from engine.model.footprint import weight_bytes
        from engine.model.weights import load_weights

        if config.dtype not in _DTYPES:
            raise RunnerError(Notice("The dtype {dtype} is not one of {known}.", dtype=config.dtype,
                                     known=", ".join(_DTYPES)))
        if config.device not in ("cpu", "cuda"):
            raise RunnerError(Notice("The device {device} is not one of {known}.", device=config.device,
                                     known="cpu, cuda"))
        if config.device == "cuda" and not torch.cuda.is_available():
            raise RunnerError(Notice("The device cuda was asked for, but this machine has no usable NVIDIA GPU; use "
                                     "cpu."))
        self.num_threads = config.num_threads if config.num_threads > 0 else default_num_threads(watched=False)
        self._thread = 0
        self._claim_thread()
        self._config = config
        self._progress = progress
        self._device = make_device(config.device)
        self._memory_before = self._device.memory()
        self.model_config = ModelConfig.load(model_dir)
        self.max_model_len = min(self.model_config.max_position, config.scheduler.max_model_len)
        self.eos_token_ids: set[int] = set(self.model_config.eos_token_ids)
        dtype = getattr(torch, config.dtype)
        weights = load_weights(model_dir, self.model_config, dtype, config.device, progress)
        path, why = self._choose_path(config)
        self.decoder = Decoder(self.model_config, weights, self.max_model_len, _operations(path))
        self.model_info = self._describe(model_dir, config.dtype, dtype.itemsize)
        self._forward_path = self._make_path(path, why, config, progress)
        self._captures = self._forward_path if isinstance(self._forward_path, Captures) else None
        self._weight_bytes = weight_bytes(self.decoder, getattr(self._forward_path, "packed", ()))
        self._sampler = Sampler(self.eos_token_ids)
        self.phase_ns: dict[str, int] = {"prepare": 0, "forward": 0, "sample": 0}
        self.memory_use: MemoryUse | None = None
        self._block_size = 0  # until there is a KV cache
        self._cache_bytes = 0
        self._warm = False
        self._inputs = InputMaker()
        self._launched: _Launched | None = None
        self._overlap = False

    @property
    def logprobs(self) -> Sequence[Logprobs | None]:
        """Of the tokens of the last :meth:`execute`, without texts; empty if no request asked for any."""
        return self._sampler.logprobs

    @property
    def forward_path(self) -> str:
        """Which forward pass runs, and why, for people."""
        return self._forward_path.name

    @property
    def step_mode(self) -> str:
        """How the last step ran: "eager", "graph N" (a CUDA graph for N requests), "capture N" (made on the way).

        "" on the CPU's own paths.
        """
        return self._captures.last_mode if self._captures is not None else ""

    @property
    def memory(self) -> MemoryInfo:
        """Where memory went, as far as it is known."""
        use = self.memory_use
        if use is None:
            return MemoryInfo(self._weight_bytes, self._cache_bytes)
        return MemoryInfo(use.weights, self._cache_bytes, use.total, self._config.gpu_memory_utilization,
                          use.activations, use.graphs, use.other)

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        """Reserve the KV cache anew: ``num_blocks`` blocks, the null block among them. The old content is lost."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache of {num_blocks} blocks of {block_size} tokens is none")
        self._claim_thread()
        self._cache_bytes = 0
        self._forward_path.allocate(num_blocks, block_size)
        self._cache_bytes = num_blocks * block_size * self.model_info.bytes_per_token
        self._block_size = block_size
        self._inputs.clear(block_size, self.max_model_len)
        if self._warm:  # the graphs went with the old cache
            self.warm_up(self._progress)

    def profile_num_blocks(self) -> int:
        """How many blocks fit into the GPU memory that ``gpu_memory_utilization`` allows, beside a full step.

        Runs such a step, for which a KV cache that was allocated is given up; see ``memory_use`` for what it took. On a
        CPU the answer is what the configuration says. Raises :class:`RunnerError` if there is no room for a cache.
        """
        scheduler = self._config.scheduler
        if self._config.device != "cuda":
            return scheduler.num_blocks
        from engine.gpu.memory import NoRoom, blocks_that_fit, profile
        from engine.gpu.warm_up import decode_step, full_step

        size = scheduler.block_size
        self._warm = False  # graphs would be captured for a cache that goes again
        self.allocate_cache(1, size)
        full = full_step(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, self.max_model_len, size)
        decode = decode_step(scheduler.max_num_seqs, size)
        num_graphs = self._captures.num_graphs() if self._captures is not None else 0
        try:
            self.memory_use = profile(
                self._device, self._memory_before, self._config.gpu_memory_utilization, num_graphs,
                lambda: self._run_made_up(full), lambda: self._run_made_up(decode))
            return blocks_that_fit(self.memory_use, size * self.model_info.bytes_per_token)
        except NoRoom as problem:
            raise RunnerError(problem.args[0]) from None

    def release(self) -> None:
        """Forget the engine that was served: its requests, its KV cache, whoever was told of progress.

        The model stays loaded, for another engine and, if need be, another thread: see :meth:`configure`.
        """
        self._device.synchronize()  # a step may be under way that nobody waits for any more
        if self._block_size:
            self._forward_path.allocate(1, self._block_size)
        self._inputs, self._launched = InputMaker(), None
        self._sampler = Sampler(self.eos_token_ids)
        self.phase_ns = {"prepare": 0, "forward": 0, "sample": 0}
        self.memory_use = None
        self._progress = None
        self._block_size = self._cache_bytes = 0
        self._thread = 0  # a thread to come may have this one's number

    def configure(self, config: EngineConfig, progress: Progress | None = None) -> None:
        """Be, after :meth:`release`, as if loaded with ``config``, which may differ in the scheduler's part only.

        Raises ValueError if it differs in more than that.
        """
        if replace(config, scheduler=self._config.scheduler, seed=self._config.seed) != self._config:
            raise ValueError(f"loaded with {self._config}, which cannot serve {config}")
        if config.scheduler.max_model_len != self._config.scheduler.max_model_len:
            raise ValueError(f"loaded for max_model_len {self._config.scheduler.max_model_len}")
        self._config, self._progress = config, progress
        if self._captures is not None:
            self._captures.set_max_num_seqs(config.scheduler.max_num_seqs)

    def available_cache_bytes(self) -> int:
        """Bytes that a KV cache in place of the present one may take."""
        if self._config.device == "cuda":
            from engine.gpu.memory import cache_room

            return cache_room(self._device, self._cache_bytes, self.memory_use)
        import psutil

        available: int = psutil.virtual_memory().available
        return available * 6 // 10

    def warm_up(self, progress: Progress | None = None) -> None:
        """Compile and load what a step launches and capture the CUDA graphs, once the KV cache is there.

        From then on they are captured anew whenever the cache is. On a CPU's own paths there is nothing to do. Raises
        :class:`RunnerError` if a full step does not fit into a GPU's memory.
        """
        if self._captures is None:
            return
        from engine.gpu.memory import NoRoom, step_must_fit
        from engine.gpu.warm_up import full_step, warm_up_steps

        self._claim_thread()
        self._reserve_cache()
        if not self._warm:
            steps, scheduler = warm_up_steps(self._block_size), self._config.scheduler
            if self._config.device != "cpu":  # some kernels, the matrix products' among them, only large steps launch
                steps.append(full_step(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, self.max_model_len,
                                       self._block_size))
            for done, plan in enumerate(steps):
                if progress is not None:
                    progress("Compiling kernels", done / len(steps))
                try:
                    with step_must_fit():
                        self._run_made_up(plan)
                except NoRoom as problem:
                    raise RunnerError(problem.args[0]) from None
        self._warm = True
        self._captures.capture(progress)

    def _run_made_up(self, plan: StepPlan) -> None:
        """Execute a plan of :mod:`engine.gpu.warm_up`."""
        self.execute(plan)
        for entry in plan.scheduled:
            self.free_request(entry.request.request_id)

    def _reserve_cache(self) -> None:
        """Have a KV cache, if nobody asked for one."""
        if not self._block_size:
            self.allocate_cache(self._config.scheduler.num_blocks, self._config.scheduler.block_size)

    def set_knob(self, name: str, value: KnobValue) -> None:
        """Turn one of :data:`~engine.config.RUNNER_KNOBS`; on a forward path that has no use for it nothing happens."""
        if name == "overlap":
            self._overlap = bool(value)
            self._inputs.forget_ahead()
        elif name == "enforce_eager" and self._captures is not None:
            self._captures.set_enforce_eager(bool(value))

    def free_request(self, request_id: str) -> None:
        """Forget a request that left; one that was never seen is fine."""
        self._inputs.free(request_id)
        self._sampler.forget(request_id)

    def execute(self, plan: StepPlan) -> list[int]:
        """Compute one step: the new tokens of the scheduled requests that sample, in plan order."""
        self.launch(plan)
        return self.collect()

    def launch(self, plan: StepPlan) -> None:
        """Begin a step; :meth:`collect` must follow. On a GPU this only queues work, of sampling too.

        A CPU has the tokens when this returns; what they are nobody is told before :meth:`collect`.
        """
        self._claim_thread()
        start = time.perf_counter_ns()
        if not plan.computed:
            self._launched = _Launched(0)
            return
        step = self._prepare(plan)
        prepared = time.perf_counter_ns() - start
        begun = self._device.mark()
        logits = self._forward_path.forward(step)
        forwarded = self._device.mark()
        sampled = [entry.request for entry in plan.scheduled if entry.samples]
        self._sampler.begin(self._forward_path.rows(logits), sampled)
        self._launched = _Launched(prepared, (begun, forwarded, self._device.mark()))

    def collect(self) -> list[int]:
        """Wait for the tokens of the step that was launched, as :meth:`execute` returns them.

        With the knob ``overlap`` the input of the step that most likely comes next is prepared before the wait.

        Then ``phase_ns`` says what the step took. On a CPU all of it is the host's time, that of preparing ahead too.
        On a GPU ``forward`` and ``sample`` are the device's, from mark to mark in its queue, gaps while it waited for
        the host included; ``prepare`` is what the host did before. What it does while the device works (preparing
        ahead, the output of the step before) is in none of them: no nanosecond is counted twice.
        """
        launched, self._launched = self._launched, None
        if launched is None:
            raise RuntimeError("no step was launched")
        self.phase_ns = {"prepare": launched.prepare_ns, "forward": 0, "sample": 0}
        if not launched.marks:
            return []
        start = time.perf_counter_ns()
        if self._overlap:
            guess = self._inputs.prepare_ahead()
            if guess is not None and self._captures is not None:
                self._captures.prepare_ahead(guess)
        ahead = time.perf_counter_ns()
        tokens = self._sampler.finish()
        begun, forwarded, chosen = launched.marks
        self.phase_ns["forward"] = begun.ns_until(forwarded)
        self.phase_ns["sample"] = forwarded.ns_until(chosen)
        if self._config.device == "cpu":  # nothing ran beside the host
            self.phase_ns["prepare"] += ahead - start
            self.phase_ns["sample"] += time.perf_counter_ns() - ahead
        return tokens

    def _prepare(self, plan: StepPlan) -> StepInput:
        self._reserve_cache()
        return self._inputs.make(plan)

    def _claim_thread(self) -> None:
        """Torch keeps the number of threads, and whether gradients are recorded, for each thread by itself."""
        import torch

        current = threading.get_ident()
        if current != self._thread:
            torch.set_num_threads(self.num_threads)
            torch.set_grad_enabled(False)
            self._thread = current

    def _choose_path(self, config: EngineConfig) -> tuple[str, str]:
        """Which path it will be, "fused", "triton" or "torch", and why not a faster one."""
        from engine.attention import why_not_triton
        from engine.model.fused import why_not

        path = config.forward_path
        if path not in FORWARD_PATHS:
            raise RunnerError(f"the forward path {path!r} is not one of {', '.join(FORWARD_PATHS)}")
        if path == "torch":
            return path, "asked for"
        if path == "triton" or config.device == "cuda":
            reason = why_not_triton(self.model_config)
            if path == "auto":
                return ("torch", reason) if reason else ("triton", "")
            if config.device != "cuda" and not reason and os.environ.get("TRITON_INTERPRET") != "1":
                reason = "kernels need a GPU"
            if reason:
                raise RunnerError(f"the forward path triton cannot run here: {reason}")
            return path, ""
        reason = why_not(self.model_config, config.dtype, config.device)
        return ("torch", reason) if reason else ("fused", "")

    def _make_path(self, path: str, why: str, config: EngineConfig, progress: Progress | None) -> ForwardPath:
        if path == "fused":
            from engine.model.fused import FusedPath, compile_kernels

            compile_kernels(progress)
            return FusedPath(self.decoder, self.max_model_len, self.num_threads, progress)
        if path == "triton":
            from engine.gpu.path import TritonPath

            return TritonPath(self.decoder, self._device, self.max_model_len, config.scheduler.max_num_seqs)
        from engine.attention.torch import TorchAttention

        backend = TorchAttention(self.model_config, self.decoder.dtype, config.device)
        kind = "with kernels" if config.device == "cuda" else "fused"
        return TorchPath(self.decoder, backend, self._device, f"torch ({config.device}); not {kind}: {why}")

    def _describe(self, model_dir: Path, dtype: str, itemsize: int) -> ModelInfo:
        shape = self.model_config
        return ModelInfo(
            name=model_dir.name,
            source=str(model_dir),
            architecture=shape.architecture,
            num_parameters=shape.num_parameters,
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            vocab_size=shape.vocab_size,
            dtype=dtype,
            bytes_per_token=shape.bytes_per_token(itemsize),
        )


class TorchPath:
    """The decoder with an attention backend: works everywhere, crosses the interpreter lock often."""

    def __init__(self, decoder: Decoder, attention: AttentionBackend, device: Device, name: str) -> None:
        self.name = name
        self._decoder = decoder
        self._attention = attention
        self._device = device.name
        self._block_size = 0
        self._transfers: Transfers | None = None
        if device.name != "cpu":
            from engine.gpu.transfers import Transfers

            self._transfers = Transfers(device)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._attention.allocate(num_blocks, block_size)
        self._block_size = block_size

    def rows(self, logits: torch.Tensor) -> LogitRows:
        return TorchRows(logits, self._transfers)

    def forward(self, step: StepInput) -> torch.Tensor:
        import torch

        from engine.attention import Batch

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(self._device)

        batch = Batch(
            token_ids=tensor(step.token_ids),
            positions=tensor(step.positions),
            slots=tensor(slots_of(step, self._block_size)),
            query_starts=step.query_starts.tolist(),
            context_lens=step.context_lens.tolist(),
            block_tables=torch.from_numpy(np.ascontiguousarray(step.block_tables)).to(self._device),
            sample_rows=tensor(step.sample_rows),
        )
        with torch.inference_mode():
            return self._decoder.forward(batch, self._attention)


def _operations(path: str) -> Operations:
    """The decoder's operations on a path."""
    if path == "triton":
        from engine.kernels import operations as kernels

        return kernels
    from engine.model import operations as plain

    return plain


def default_num_threads(watched: bool) -> int:
    """Threads for the forward pass: one a physical core; a watched engine leaves the window one."""
    import psutil

    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return max(1, cores - 1 if watched else cores)


__all__ = ["ForwardPath", "Runner", "RunnerError", "StepInput", "UnsupportedModel", "default_num_threads"]
