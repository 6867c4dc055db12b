"""The forward pass on a GPU, which only queues work: the host never waits for it.

    every request has one token and samples:  fixed inputs -> CUDA graph of the next larger size -> fixed logits
    any other step:                           packed inputs -> kernel by kernel -> logits of its own

A decode step is the same work, padded in the same way, whether it is played from a graph or not, so a graph changes
nothing but the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.attention.triton import Cut, TritonAttention, TritonBatch
from engine.gpu.device import Device
from engine.gpu.graphs import DecodeGraphs, DecodeShape, Progress, capture_sizes, padded_size
from engine.gpu.inputs import DecodeInputs, MixedInputs
from engine.gpu.transfers import Transfers
from engine.kernels.attention import cut_tiles
from engine.kernels.rows import TritonRows
from engine.model.decoder import Decoder
from engine.step_input import slots_of
from engine.trace.knobs import knob

if TYPE_CHECKING:
    from engine.logit_rows import LogitRows
    from engine.runner import StepInput


class TritonPath:
    """See :class:`engine.runner.ForwardPath`. On the host device the kernels run in Triton's interpreter.

    ``last_mode`` says how the last step ran: "eager", "graph N" (a graph of size N) or "capture N" (one that was
    captured first). Graphs are made by :meth:`capture` for batches of up to ``max_num_seqs`` requests; if more come,
    because the knob was turned, each new size is captured when it comes the second time.
    """

    def __init__(self, decoder: Decoder, device: Device, max_model_len: int, max_num_seqs: int) -> None:
        self.name = f"triton ({device.name})"
        self.last_mode = ""
        self._decoder = decoder
        self._device = device
        self._attention = TritonAttention(decoder.config, decoder.dtype, device)
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._block_size = 0
        self._enforce_eager = False
        self._graphs = DecodeGraphs(device, self._run_decode)
        self._mixed = MixedInputs(device)
        self._transfers = Transfers(device)
        # Room for as many requests as the knob can ask for: what graphs read and write never moves because of it.
        most = padded_size(max(max_num_seqs, int(knob("max_num_seqs").maximum)))
        self._logits = torch.zeros((most, decoder.config.vocab_size), dtype=torch.float32, device=device.name)
        numbers = torch.arange(most + 1, dtype=torch.int32, device=device.name)
        self._numbers, self._zeros = numbers, torch.zeros_like(numbers)
        self._rows = torch.arange(most, dtype=torch.int64, device=device.name)
        self._inputs: DecodeInputs
        self._batches: dict[DecodeShape, TritonBatch] = {}

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the KV cache; what the old one held is lost, and so are the graphs."""
        self._graphs.clear()
        self._batches.clear()
        self._attention.allocate(num_blocks, block_size)
        self._block_size = block_size
        max_blocks = -(-self._max_model_len // block_size)
        self._inputs = DecodeInputs(self._device, len(self._rows), max_blocks, block_size)

    # ---- how decode steps run ------------------------------------------------------------------------------------

    def set_enforce_eager(self, enforce_eager: bool) -> None:
        """Whether decode steps run without graphs; those that there are stay, for when it is turned back."""
        self._enforce_eager = enforce_eager

    def set_max_num_seqs(self, max_num_seqs: int) -> None:
        """For batches of up to how many requests :meth:`capture` makes graphs."""
        self._max_num_seqs = max_num_seqs

    @property
    def captured(self) -> list[DecodeShape]:
        """What there are graphs for."""
        return self._graphs.captured

    def capture(self, progress: Progress | None = None) -> None:
        """Make the graphs that are missing for batches of up to ``max_num_seqs`` requests.

        Without graphs it runs what they would hold once, so that it is compiled.
        """
        shapes = self._shapes()
        with torch.inference_mode():
            self._inputs.fill(None, shapes[-1].size)
            if not self._enforce_eager:
                self._graphs.capture(shapes, progress)
                return
            for shape in shapes[:2]:
                self._graphs.run_eagerly(shape)

    def num_graphs(self) -> int:
        """How many :meth:`capture` makes in all."""
        return 0 if self._enforce_eager else len(self._shapes())

    def _shapes(self) -> list[DecodeShape]:
        """Ascending. Where cutting contexts pays off at all, there is a graph with it and one without."""
        shapes = []
        for size in capture_sizes(self._max_num_seqs):
            shapes.append(DecodeShape(size, split=False))
            if self._attention.splits(size, self._max_model_len) > 1:
                shapes.append(DecodeShape(size, split=True))
        return shapes

    # ---- a step --------------------------------------------------------------------------------------------------

    def forward(self, step: StepInput) -> torch.Tensor:
        """See :class:`engine.runner.ForwardPath`. The logits of a decode step lie where the next one puts its own."""
        with torch.inference_mode():
            if len(step.token_ids) == len(step.context_lens) == len(step.sample_rows):
                return self._decode(step)
            self.last_mode = "eager"
            return self._decoder.forward(self._pack(step), self._attention)

    def prepare_ahead(self, step: StepInput) -> None:
        """Write what is known of a decode step that may come next to where it will be sent from."""
        self._inputs.fill_ahead(step)

    def rows(self, logits: torch.Tensor) -> LogitRows:
        """See :class:`engine.runner.ForwardPath`."""
        return TritonRows(logits, self._transfers)

    def _decode(self, step: StepInput) -> torch.Tensor:
        count = len(step.context_lens)
        size = padded_size(count)
        shape = DecodeShape(size, self._attention.splits(size, int(step.context_lens.max())) > 1)
        self._inputs.fill(step, size)
        if self._enforce_eager:
            self._graphs.run_eagerly(shape)
            self.last_mode = "eager"
        else:
            self.last_mode = self._graphs.play(shape)
        return self._logits[:count]

    def _run_decode(self, shape: DecodeShape) -> None:
        """Queue a decode step; what a graph is made of. It knows nothing of the step but its shape."""
        batch = self._batches.get(shape)
        if batch is None:
            batch = self._batches[shape] = self._decode_batch(shape)
        self._decoder.forward(batch, self._attention, self._logits[: shape.size])

    def _decode_batch(self, shape: DecodeShape) -> TritonBatch:
        size, inputs = shape.size, self._inputs
        return TritonBatch(
            token_ids=inputs.token_ids[:size], positions=inputs.positions[:size], slots=inputs.slots[:size],
            block_tables=inputs.block_tables[:size], sample_rows=self._rows[:size],
            starts=self._numbers[: size + 1], contexts=inputs.context_lens[:size],
            tile_requests=self._numbers[:size], tile_tokens=self._zeros[:size],
            tile=self._attention.tile(single=True), single=True, longest=self._max_model_len if shape.split else 1,
        )  # fmt: skip

    def _pack(self, step: StepInput) -> TritonBatch:
        starts, contexts = step.query_starts.astype(np.int32), step.context_lens.astype(np.int32)
        alone = np.diff(starts) == 1
        single = bool(alone.all())
        cut = np.flatnonzero(alone if not single and self._worth_cutting(contexts[alone]) else np.zeros_like(alone))
        tile = self._attention.tile(single)
        (token_ids, positions, slots, sample_rows, device_starts, device_contexts, tile_requests, tile_tokens, tables,
         cut_rows, cut_contexts, cut_tables) = self._mixed.send(
            step.token_ids, step.positions, slots_of(step, self._block_size), step.sample_rows, starts, contexts,
            *cut_tiles(starts, self._attention.group, tile, left_out=cut), step.block_tables,
            step.query_starts[cut], contexts[cut], step.block_tables[cut])  # fmt: skip
        return TritonBatch(
            token_ids=token_ids, positions=positions, slots=slots, block_tables=tables, sample_rows=sample_rows,
            starts=device_starts, contexts=device_contexts, tile_requests=tile_requests, tile_tokens=tile_tokens,
            tile=tile, single=single, longest=int(contexts.max()),
            cut=Cut(cut_rows, cut_contexts, cut_tables, int(contexts[cut].max())) if len(cut) else None,
        )  # fmt: skip

    def _worth_cutting(self, contexts: np.ndarray) -> bool:
        """Whether single tokens with these contexts, beside prompts, are better attended to in parts."""
        return len(contexts) > 0 and self._attention.splits(len(contexts), int(contexts.max())) > 1
