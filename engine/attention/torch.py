"""Attention in plain torch: the reference, and what runs where nothing faster does.

Keys and values are gathered from their blocks into one contiguous tensor and given to torch's own attention. Requests
that compute a single token are attended together; every longer chunk for itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention import Batch, HeadNorms
from engine.model.config import ModelConfig
from engine.model.operations import rms_norm, rotate


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
        self._single: dict[int, torch.Tensor] = {}  # masks by window
        self._single_rows = torch.empty(0, dtype=torch.int64)
        self._single_slots = torch.empty(0, dtype=torch.int64)
        self._chunks: list[tuple[int, int, torch.Tensor, dict[int, torch.Tensor]]] = []

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the pool. Blocks are cleared, so that a padded read meets zeros and never NaN."""
        self._keys, self._values = [], []
        shape = (num_blocks * block_size, self._config.num_kv_heads, self._config.head_size)
        for _ in range(self._config.num_layers):
            self._keys.append(torch.zeros(shape, dtype=self._dtype, device=self._device))
            self._values.append(torch.zeros(shape, dtype=self._dtype, device=self._device))
        self._block_size = block_size

    def begin(self, batch: Batch) -> None:
        """Work out once a step which slots each request reads, and the masks."""
        offsets = torch.arange(self._block_size, device=self._device)
        starts = batch.query_starts
        singles = [r for r in range(len(batch.context_lens)) if starts[r + 1] - starts[r] == 1]
        self._single, self._chunks = {}, []
        if singles:
            longest = max(batch.context_lens[r] for r in singles)
            blocks = -(-longest // self._block_size)
            tables = batch.block_tables[singles, :blocks]
            self._single_slots = (tables[:, :, None] * self._block_size + offsets).flatten(1)[:, :longest]
            lengths = torch.tensor([batch.context_lens[r] for r in singles], device=self._device)
            positions = torch.arange(longest, device=self._device)
            for window, mask in self._masks(positions, lengths[:, None] - 1):
                self._single[window] = mask[:, None, None, :]
            self._single_rows = torch.tensor([starts[r] for r in singles], device=self._device)
        for r, context in enumerate(batch.context_lens):
            first, last = starts[r], starts[r + 1]
            if last - first > 1:
                blocks = -(-context // self._block_size)
                slots = (batch.block_tables[r, :blocks, None] * self._block_size + offsets).flatten()[:context]
                positions = torch.arange(context, device=self._device)
                masks = dict(self._masks(positions, batch.positions[first:last, None]))
                self._chunks.append((first, last, slots, masks))

    def _masks(self, positions: torch.Tensor, queries: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """For each window of the model, which of ``positions`` the tokens at the positions ``queries`` look at."""
        past = positions <= queries
        for window in self._windows:
            yield window, past & (positions > queries - window) if window else past

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
        window, scale = self._config.window(layer), self._scale
        if self._single:
            query = queries[self._single_rows].unsqueeze(2)  # (requests, heads, 1, head size)
            key = all_keys[self._single_slots].transpose(1, 2)
            value = all_values[self._single_slots].transpose(1, 2)
            attended = scaled_dot_product_attention(
                query, key, value, attn_mask=self._single[window], scale=scale, enable_gqa=True
            )
            output[self._single_rows] = attended.squeeze(2)
        for first, last, slots, masks in self._chunks:
            query = queries[first:last].transpose(0, 1).unsqueeze(0)  # (1, heads, tokens, head size)
            key = all_keys[slots].transpose(0, 1).unsqueeze(0)
            value = all_values[slots].transpose(0, 1).unsqueeze(0)
            attended = scaled_dot_product_attention(
                query, key, value, attn_mask=masks[window], scale=scale, enable_gqa=True
            )
            output[first:last] = attended.squeeze(0).transpose(0, 1)
        return output
