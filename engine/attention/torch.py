"""Attention in plain torch: the reference, and what runs where nothing faster does.

Keys and values are gathered from their blocks into one contiguous tensor and given to torch's own attention, each
request for itself: padded to the longest of them, bfloat16 would be rounded elsewhere, and a request's numbers would
depend on its company. Without a mask, where none is needed, they are what transformers gets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention import Batch, HeadNorms
from engine.model.config import ModelConfig
from engine.model.operations import rms_norm, rotate


@dataclass(slots=True)
class _Piece:
    """One request's part of a step: the tokens ``first`` to ``last`` of the batch.

    ``reads`` has for each window of the model the slots that they look at, and which of them each looks at: a mask
    (tokens, slots), or None where all do, or each up to its own in a prompt that is computed whole (``causal``).
    """

    first: int
    last: int
    causal: bool
    reads: dict[int, tuple[torch.Tensor, torch.Tensor | None]]


class TorchAttention:
    """Pool layout: for each layer keys and values, each (slots, kv heads, head size), slots of a block together."""

    name = "torch"

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: str) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._block_size = 0
        self._scale = config.attention_scale
        self._windows = sorted({config.window(layer) for layer in range(config.num_layers)})
        self._pieces: list[_Piece] = []

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the pool. Its memory is cleared."""
        self._keys, self._values = [], []
        shape = (num_blocks * block_size, self._config.num_kv_heads, self._config.head_size)
        for _ in range(self._config.num_layers):
            self._keys.append(torch.zeros(shape, dtype=self._dtype, device=self._device))
            self._values.append(torch.zeros(shape, dtype=self._dtype, device=self._device))
        self._block_size = block_size

    def begin(self, batch: Batch) -> None:
        """Work out once a step which slots each request reads, and the masks."""
        offsets = torch.arange(self._block_size, device=self._device)
        self._pieces = []
        for r, context in enumerate(batch.context_lens):
            first, last = batch.query_starts[r], batch.query_starts[r + 1]
            blocks = -(-context // self._block_size)
            slots = (batch.block_tables[r, :blocks, None] * self._block_size + offsets).flatten()[:context]
            queries = batch.positions[first:last, None]
            reads = {}
            for window in self._windows:
                # Those that not even the first token looks at are left out.
                start = max(0, context - (last - first) - window + 1) if window else 0
                mask = None
                if last - first > 1 and (last - first < context or 0 < window < context):
                    positions = torch.arange(start, context, device=self._device)
                    mask = positions <= queries
                    if window:
                        mask &= positions > queries - window
                reads[window] = slots[start:], mask
            self._pieces.append(_Piece(first, last, last - first > 1, reads))

    def write(
        self, layer: int, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, norms: HeadNorms | None,
        batch: Batch,
    ) -> torch.Tensor:  # fmt: skip
        """See :class:`engine.attention.AttentionBackend`."""
        kv_heads = self._config.num_kv_heads
        queries, keys, values = qkv.split((self._config.num_heads, kv_heads, kv_heads), dim=1)
        if norms is not None:
            queries = rms_norm(queries, norms.query, norms.eps)
            keys = rms_norm(keys, norms.key, norms.eps)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # the same for every head
        self._keys[layer][batch.slots] = rotate(keys, cos, sin)
        self._values[layer][batch.slots] = values
        return rotate(queries, cos, sin)

    def attend(self, layer: int, queries: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See :class:`engine.attention.AttentionBackend`."""
        all_keys, all_values = self._keys[layer], self._values[layer]
        output = torch.empty_like(queries)
        window = self._config.window(layer)
        for piece in self._pieces:
            slots, mask = piece.reads[window]
            query = queries[piece.first : piece.last].transpose(0, 1).unsqueeze(0)  # (1, heads, tokens, head size)
            key = all_keys[slots].transpose(0, 1).unsqueeze(0)
            value = all_values[slots].transpose(0, 1).unsqueeze(0)
            attended = scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=piece.causal and mask is None, scale=self._scale,
                enable_gqa=True,
            )  # fmt: skip
            output[piece.first : piece.last] = attended.squeeze(0).transpose(0, 1)
        return output
