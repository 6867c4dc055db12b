"""The fast forward pass on the CPU: weights packed for :mod:`engine.model.fused_kernels`, and the threads that run it.

Python is entered once a step. On the way from token ids to logits nothing takes the interpreter lock, so a window that
draws meanwhile costs the engine only the core it draws on.

In bfloat16, weights and the KV cache are rounded, and nothing else: what goes from one operation to the next stays
float32. That costs no time, because a step waits for weights, and it is nearer to what the weights say than a program
that rounds every result. To round where transformers rounds would not bring its texts, which was tried: of fifty
continuations of 32 tokens 30 were then the same, and 26 are without. A sum taken in another order is now and then
rounded the other way, and a few layers later everything that can move has moved. Transformers' own order depends on
how many rows a batch has (it agrees with itself on 35 when there are two in place of one), and this path's must not,
because company, chunks and prefix hits never change a text. The plain decoder has transformers' bits, one request at a
time: ``--forward-path torch`` and ``tests/numbers/smollm2_bf16.py``.

Where it cannot run (another dtype, an odd shape, no Numba) :func:`why_not` says why, and the plain decoder serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.logit_rows import CompiledRows
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.kernel_cache import claim
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from engine.runner import StepInput

Progress = Callable[[str, float | None], None]


def why_not(config: ModelConfig, dtype: str, device: str) -> str:
    """Why this model cannot take the fused path on this machine, in a few words; "" if it can."""
    if device != "cpu":
        return "it is for the CPU"
    if dtype not in ("bfloat16", "float32"):
        return f"it computes bfloat16 and float32, not {dtype}"
    if sys.byteorder != "little":
        return "it needs a little-endian machine"
    try:
        kernels = load_kernels()
    except Exception as error:  # a missing or broken compiler must never keep the engine from starting
        return f"Numba cannot be used: {type(error).__name__}: {error}"
    if config.head_size % kernels.PANEL:
        return f"heads of {config.head_size} are no multiple of {kernels.PANEL}"
    return _foreign(config)


def _foreign(config: ModelConfig) -> str:
    """What the model has that a Llama has not; the kernels would leave it out."""
    if config.num_experts:
        return "a mixture of experts"
    if config.local_rope is not None or any(0 < window < config.max_position for window in config.windows):
        return "sliding windows"
    if config.post_norms or config.norm_offset or config.embedding_scale != 1.0:
        return "norms and embeddings of another kind"
    if config.activation != "silu":
        return f"the activation {config.activation}"
    return ""


_kernels: ModuleType | None = None
_kernels_lock = threading.Lock()


def load_kernels() -> ModuleType:
    """Import :mod:`engine.model.fused_kernels` so that its machine code is kept in the user's cache folder.

    Numba would keep it beside the source, which need not be writable, and would not notice a change of a file that
    the kernels import. So each version of the sources has a folder of its own.
    """
    global _kernels
    with _kernels_lock:
        if _kernels is None:
            import numba.core.config as numba_config

            before = numba_config.CACHE_DIR
            if not before:
                folder = _cache_folder()
                claim(folder)
                numba_config.CACHE_DIR = str(folder)
            try:
                import engine.sampler_kernels  # noqa: F401  # compiled code is kept where it is when this is imported
                from engine.model import fused_kernels
            finally:
                numba_config.CACHE_DIR = before
            _kernels = fused_kernels
        return _kernels


def load_sampler_kernels() -> ModuleType:
    """:mod:`engine.sampler_kernels`, with its machine code kept in the same place."""
    load_kernels()
    import engine.sampler_kernels

    return engine.sampler_kernels


def _cache_folder() -> Path:
    import llvmlite
    import numba
    import platformdirs

    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode())
    for name in ("fused_ir.py", "fused_kernels.py", "../sampler_ir.py", "../sampler_kernels.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return Path(platformdirs.user_cache_dir("cutaway", appauthor=False)) / "kernels" / digest.hexdigest()[:16]


def compile_kernels(progress: Progress | None = None) -> None:
    """Make sure that the kernels' machine code is in the cache folder: some 10 to 20 seconds, once a machine.

    The compiler is Python and would hold the interpreter lock all that time, so it runs in a child process. If that
    fails, the first step compiles here.
    """
    folder = _cache_folder()
    if (folder / _COMPLETE).exists():
        return
    from engine.model.child import module_command, run_child

    def tell() -> None:
        if progress is not None:
            progress("Compiling the forward pass (once on this machine)", None)  # raises when nobody wants it any more

    tell()
    with contextlib.suppress(OSError):
        run_child(module_command("engine.model.fused"), on_tick=tell)


_COMPLETE = "complete"


def _compile_here() -> None:
    """Load a model of no size, which compiles every kernel, and note that the cache is complete."""
    import torch

    from engine.model.weights import weight_shapes

    config = ModelConfig("LlamaForCausalLM", vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1,
                         num_heads=1, num_kv_heads=1, head_size=load_kernels().PANEL, max_position=16)
    weights = {name: torch.ones(shape) for name, shape in weight_shapes(config).items()}
    path = FusedPath(Decoder(config, weights, max_model_len=16), max_model_len=16, threads=1)
    path.allocate(num_blocks=2, block_size=16)
    (_cache_folder() / _COMPLETE).touch()


class FusedPath:
    """Logits of a step in one call. The decoder's own matrices are given up as they are packed.

    ``threads`` includes the caller's. One thread may use it at a time.
    """

    def __init__(
        self, decoder: Decoder, max_model_len: int, threads: int, progress: Progress | None = None
    ) -> None:
        import torch

        self._kernels, self._choices = load_kernels(), load_sampler_kernels()
        config = decoder.config
        self._bf16 = decoder.dtype == torch.bfloat16
        self.name = f"fused ({'bfloat16' if self._bf16 else 'float32'}, {threads} thread{'s' if threads > 1 else ''})"
        self._config = config
        self._max_model_len = max_model_len
        self._threads = threads
        self._eps = np.float32(config.rms_norm_eps)
        self._scale = np.float32(config.attention_scale)
        self._weights = self._pack(decoder, progress)
        self._sync = np.zeros(16, dtype=np.int64)
        self._yield = _yield_address()
        self._crew = _Crew(threads - 1)
        weakref.finalize(self, self._crew.close)
        self._buffers: Any = None
        self._tokens = self._samples = 0

    @property
    def packed(self) -> tuple[Any, _Arena]:
        """The weights that it has, and the memory in which the large ones lie."""
        return self._weights, self._arena

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the KV cache, all layers in one piece. Raises ValueError for a block size it cannot lay out."""
        kernels, config = self._kernels, self._config
        if block_size % kernels.HALF:
            raise ValueError(f"blocks of {block_size} tokens: the block size must be a multiple of {kernels.HALF}")
        elements = 2 * num_blocks * block_size * config.num_kv_heads * config.head_size * config.num_layers
        self._cache = None
        cache = np.zeros(elements * (2 if self._bf16 else 4), dtype=np.uint8)  # memory is taken when it is touched
        self._cache = (cache.ctypes.data, cache.view(np.uint16), cache.view(np.float32), cache)
        self._shape = kernels.Shape(
            bf16=int(self._bf16), num_layers=config.num_layers, hidden=config.hidden_size,
            inner=config.intermediate_size, heads=config.num_heads, kv_heads=config.num_kv_heads,
            head_size=config.head_size, vocab=config.vocab_size, qk_norm=int(config.qk_norm),
            num_blocks=num_blocks, block_size=block_size,
        )  # fmt: skip
        if self._buffers is None:
            self._load_machine_code()

    def _load_machine_code(self) -> None:
        """Run a step of nothing, and a choice among nothing: what is compiled is loaded now and not in a run."""
        from engine.runner import StepInput

        none = np.zeros(0, dtype=np.int64)
        self.forward(StepInput(none, none, np.zeros(1, dtype=np.int64), none, np.zeros((0, 1), dtype=np.int32), none))
        rows, one = self._rows(1), np.zeros(1, dtype=np.int64)
        rows.measure([0], [1])
        rows.add(one, one, np.zeros(1, dtype=np.float32))
        rows.choose([], [], np.zeros(0))
        rows.choose([0], [SamplingParams(temperature=1.0)], np.zeros(1))

    def forward(self, step: StepInput) -> torch.Tensor:
        """See :class:`engine.runner.ForwardPath`. The result is a view of a buffer."""
        import torch

        kernels = self._kernels
        samples = len(step.sample_rows)
        self._reserve(len(step.token_ids), max(1, samples), len(step.context_lens))
        address, as_u16, as_f32, _ = self._cache  # type: ignore[misc]
        arrays = kernels.Step(
            step.token_ids, step.positions, step.query_starts, step.context_lens,
            np.ascontiguousarray(step.block_tables), step.sample_rows,
        )  # fmt: skip
        self._crew.run(
            kernels.forward, self._sync, self._yield, self._shape, self._eps, self._scale, self._weights, arrays,
            self._buffers, address, as_u16, as_f32,
        )  # fmt: skip
        return torch.from_numpy(self._buffers.logits[:samples, : self._config.vocab_size])

    def rows(self, logits: torch.Tensor) -> CompiledRows:
        """See :class:`engine.runner.ForwardPath`."""
        return self._rows(logits.shape[0])

    def _rows(self, count: int) -> CompiledRows:
        buffers = self._buffers
        return CompiledRows(self._choices, buffers.logits[:count], self._config.vocab_size, self._scratch,
                            buffers.peaks[:count], buffers.best[:count])

    def _reserve(self, tokens: int, samples: int, requests: int) -> None:
        """Make the buffers large enough; they grow to the largest step seen and stay."""
        kernels, config = self._kernels, self._config
        if tokens <= self._tokens and samples <= self._samples:
            return
        self._tokens = tokens = max(tokens, min(2 * self._tokens, 8192), 16)
        self._samples = samples = max(samples, min(2 * self._samples, 256))
        group = config.num_heads // config.num_kv_heads
        # A piece of attention has rows of one key-value head, or all heads of one token.
        attention_rows = max(kernels.ATTENTION_ROWS, config.num_heads)
        scratch = (kernels.GEMM_ROWS * kernels.PANEL
                   + attention_rows * (2 * config.head_size + self._max_model_len + 4 * kernels.SCORES))

        def rows(count: int, width: int, multiple: int) -> np.ndarray:
            return np.zeros((count, -(-width // multiple) * multiple), dtype=np.float32)

        width = len(self._weights.head_bias)
        self._buffers = kernels.Buffers(
            hidden=rows(tokens, config.hidden_size, kernels.PANEL),
            normed=rows(max(tokens, samples), config.hidden_size, 1),
            qkv=rows(tokens, (config.num_heads + 2 * config.num_kv_heads) * config.head_size, kernels.PANEL),
            attended=rows(tokens, config.num_heads * config.head_size, 1),
            gated=rows(tokens, config.intermediate_size, kernels.LANES),
            logits=rows(samples, width, 1),
            peaks=rows(samples, -(-width // kernels.CHUNK), 1),
            best=np.zeros(samples, dtype=np.int64),
            # Every request has at most one piece a head that is not full, and at least one token.
            items=np.zeros(
                (config.num_kv_heads * (tokens * group // kernels.ATTENTION_ROWS + tokens), 4), dtype=np.int64),
            counters=np.zeros(config.num_layers + 1, dtype=np.int64),
            zeros=np.zeros(kernels.PANEL, dtype=np.float32),
            scratch=rows(self._threads, scratch, 16),
        )

    def _pack(self, decoder: Decoder, progress: Progress | None) -> Any:
        kernels, config = self._kernels, self._config
        lanes, panel = kernels.LANES, kernels.PANEL
        layers = decoder.layers
        addresses = np.zeros((len(layers), 4), dtype=np.int64)

        def packed_size(shape: tuple[int, ...], width: int) -> int:
            columns, depth = shape
            return -(-columns // width) * 2 * lanes * depth * decoder.dtype.itemsize

        first = layers[0]
        arena = self._arena = _Arena(
            len(layers) * (packed_size(first.qkv.shape, panel) + packed_size(first.output.shape, panel)
                           + packed_size((config.intermediate_size, config.hidden_size), lanes)
                           + packed_size(first.down.shape, panel))
            + packed_size(decoder.head.shape, panel)
        )  # fmt: skip

        def padded_bias(bias: torch.Tensor | None, width: int, gated: bool = False) -> np.ndarray:
            if gated:
                inner = -(-(width // 2) // lanes)
                out = np.zeros((inner, 2, lanes), dtype=np.float32)
                if bias is not None:
                    for half, part in enumerate(np.split(bias.float().numpy(), 2)):
                        flat = np.zeros(inner * lanes, dtype=np.float32)
                        flat[: len(part)] = part
                        out[:, half] = flat.reshape(inner, lanes)
                return out.reshape(-1)
            flat = np.zeros(-(-width // panel) * panel, dtype=np.float32)
            if bias is not None:
                flat[:width] = bias.float().numpy()
            return flat

        qkv_bias, output_bias, gate_up_bias, down_bias = [], [], [], []
        norms: dict[str, list[np.ndarray]] = {"input": [], "mlp": [], "query": [], "key": []}
        unused = np.zeros(config.head_size, dtype=np.float32)
        for index, layer in enumerate(layers):
            qkv_bias.append(padded_bias(layer.qkv_bias, layer.qkv.shape[0]))
            output_bias.append(padded_bias(layer.output_bias, config.hidden_size))
            gate_up_bias.append(padded_bias(layer.gate_up_bias, layer.gate_up.shape[0], gated=True))
            down_bias.append(padded_bias(layer.down_bias, config.hidden_size))
            norms["input"].append(layer.input_norm.float().numpy())
            norms["mlp"].append(layer.mlp_norm.float().numpy())
            norms["query"].append(unused if layer.query_norm is None else layer.query_norm.float().numpy())
            norms["key"].append(unused if layer.key_norm is None else layer.key_norm.float().numpy())
            addresses[index, 0] = self._pack_matrix(arena, layer.qkv)
            addresses[index, 1] = self._pack_matrix(arena, layer.output)
            addresses[index, 2] = self._pack_matrix(arena, *layer.gate_up.chunk(2))
            addresses[index, 3] = self._pack_matrix(arena, layer.down)
            # What is packed is not needed twice.
            layer.qkv = layer.output = layer.gate_up = layer.down = layer.input_norm.new_empty(0)
            if progress is not None:
                progress("Packing weights", (index + 1) / (len(layers) + 1))
        head = self._pack_matrix(arena, decoder.head)
        head_bias = padded_bias(None, config.vocab_size)
        head_bias[config.vocab_size :] = -np.inf  # columns that only fill the last panel are never chosen
        self._scratch = self._choices.make_scratch(len(head_bias))
        table = np.ascontiguousarray(_bits(decoder.embedding))
        return kernels.Weights(
            embedding_u16=table.view(np.uint16), embedding_f32=table.view(np.float32), matrices=addresses, head=head,
            input_norm=np.stack(norms["input"]), mlp_norm=np.stack(norms["mlp"]),
            final_norm=decoder.norm.float().numpy().copy(),
            query_norm=np.stack(norms["query"]), key_norm=np.stack(norms["key"]),
            qkv_bias=np.stack(qkv_bias), output_bias=np.stack(output_bias), gate_up_bias=np.stack(gate_up_bias),
            down_bias=np.stack(down_bias), head_bias=head_bias,
            cos=decoder.cos.numpy(), sin=decoder.sin.numpy(),
        )  # fmt: skip

    def _pack_matrix(self, arena: _Arena, matrix: torch.Tensor, gated: torch.Tensor | None = None) -> int:
        """Lay (columns, depth) out by panels of columns and return the address. See ``gemm_tile``.

        With ``gated`` the two matrices share panels: a vector of the first, then one of the second.
        """
        lanes = self._kernels.LANES
        columns, depth = matrix.shape
        bits = _bits(matrix)
        if gated is None:
            panels = -(-columns // (2 * lanes))
            halves = np.zeros((panels, 2, lanes, depth), dtype=bits.dtype)
            halves.reshape(-1, depth)[:columns] = bits
        else:
            panels = -(-columns // lanes)
            both = np.zeros((2, panels, lanes, depth), dtype=bits.dtype)
            both[0].reshape(-1, depth)[:columns] = bits
            both[1].reshape(-1, depth)[:columns] = _bits(gated)
            halves = both.transpose(1, 0, 2, 3)
        packed = arena.take((panels, depth, 2 * lanes), bits.dtype)
        if self._bf16:
            packed[:, :, 0::2] = halves[:, 0].transpose(0, 2, 1)
            packed[:, :, 1::2] = halves[:, 1].transpose(0, 2, 1)
        else:
            packed[:, :, :lanes] = halves[:, 0].transpose(0, 2, 1)
            packed[:, :, lanes:] = halves[:, 1].transpose(0, 2, 1)
        return packed.ctypes.data


class _Arena:
    """One piece of memory for all matrices, in the order in which a step reads them.

    What is fetched ahead of the last panel of one matrix is then the beginning of the next; and large pieces get
    large pages from the operating system.
    """

    def __init__(self, size: int) -> None:
        self._memory = np.empty(size, dtype=np.uint8)
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape)) * dtype.itemsize
        taken = self._memory[self._used : self._used + size].view(dtype).reshape(shape)
        self._used += size
        return taken


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's elements for NumPy, which has no bfloat16: its bits as uint16, or float32 as it is."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _yield_address() -> int:
    """The C function that lets another thread have this core."""
    if sys.platform == "win32":
        function = ctypes.windll.kernel32.SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class _Crew:
    """Threads that take part in a call. They sleep between calls and end with :meth:`close` or with the program.

    They wait for one another many times a call, so when the machine is busy and one of them is often without a core,
    all stand still and two are slower than one. That shows in its share of the processor; the caller then goes on
    alone for a while. What is computed does not depend on the number of threads.
    """

    WINDOW_S = 0.25  # how long shares are summed up before they are judged
    LEAST_SHARE = 0.75
    LONGEST_REST_S = 8.0

    def __init__(self, count: int) -> None:
        self._gates = [threading.Semaphore(0) for _ in range(count)]
        self._done = threading.Semaphore(0)
        self._closed = False
        self._work: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self._processor_s = [0.0] * count  # what each has had in this window
        self._wall_s = 0.0
        self._rest_s = self.WINDOW_S
        self._alone_until = 0.0
        for index in range(count):
            threading.Thread(target=self._serve, args=(index,), name=f"forward-{index + 1}", daemon=True).start()

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call ``function(thread, threads, *args)`` once in every thread, this one included, and wait for all."""
        start = time.perf_counter()
        if not self._gates or start < self._alone_until:
            function(0, 1, *args)
            return
        self._work = (function, (len(self._gates) + 1, *args))
        for gate in self._gates:
            gate.release()
        function(0, *self._work[1])
        for _ in self._gates:
            self._done.acquire()
        self._work = None  # or the threads would keep a whole model alive
        self._judge(time.perf_counter() - start)

    def _judge(self, wall_s: float) -> None:
        self._wall_s += wall_s
        if self._wall_s < self.WINDOW_S:
            return
        if min(self._processor_s) < self.LEAST_SHARE * self._wall_s:
            self._alone_until = time.perf_counter() + self._rest_s
            self._rest_s = min(2 * self._rest_s, self.LONGEST_REST_S)
        else:
            self._rest_s = self.WINDOW_S
        self._wall_s = 0.0
        self._processor_s = [0.0] * len(self._gates)

    def _serve(self, index: int) -> None:
        while True:
            self._gates[index].acquire()
            if self._closed:
                return
            assert self._work is not None
            function, args = self._work
            before = time.thread_time()
            function(index + 1, *args)
            del function, args
            self._processor_s[index] += time.thread_time() - before
            self._done.release()

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        for gate in self._gates:
            gate.release()


if __name__ == "__main__":
    # Under its own name, so that what is compiled is what the engine will look for.
    from engine.model import fused

    fused._compile_here()
