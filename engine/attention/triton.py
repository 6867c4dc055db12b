"""Attention with the kernels of :mod:`engine.kernels`: what runs on a GPU.

A step's requests are described to the kernels by one small tensor, made once for all layers.
"""

from __future__ import annotations

import torch

from engine.attention import Batch, HeadNorms
from engine.kernels.attention import Tile, attention, choose_tile, cut_tiles
from engine.kernels.cache import rotate_and_cache
from engine.kernels.split_attention import choose_splits, split_attention
from engine.model.config import ModelConfig

INTERPRETED_PROCESSORS = 8
"""For the interpreter, which has none."""


class TritonAttention:
    """Pool layout: for each layer keys and values, each (blocks, kv heads, block_size, head size)."""

    name = "triton"

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: str) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        self._group = config.num_heads // config.num_kv_heads
        self._processors = INTERPRETED_PROCESSORS
        if device == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._single = False
        self._tile: Tile = choose_tile(config.head_size, dtype, self._group, single=False)
        self._query_starts = self._context_lens = self._tile_requests = self._tile_tokens = torch.empty(0)
        self._longest = 0

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the pool; it is not cleared, since no kernel reads what was not written."""
        if block_size & (block_size - 1):
            raise ValueError(f"the kernels need a block size that is a power of two, not {block_size}")
        self._keys, self._values = [], []
        shape = (num_blocks, self._config.num_kv_heads, block_size, self._config.head_size)
        for _ in range(self._config.num_layers):
            self._keys.append(torch.empty(shape, dtype=self._dtype, device=self._device))
            self._values.append(torch.empty(shape, dtype=self._dtype, device=self._device))

    def begin(self, batch: Batch) -> None:
        """Cut the step into tiles and tell the device."""
        starts, contexts = batch.query_starts, batch.context_lens
        self._single = starts[-1] == len(contexts) == len(starts) - 1
        self._tile = choose_tile(self._config.head_size, self._dtype, self._group, self._single)
        requests, tokens = cut_tiles(starts, self._group, self._tile)
        parts = (starts, contexts, requests, tokens)
        on_host = torch.tensor([number for part in parts for number in part], dtype=torch.int32)
        self._query_starts, self._context_lens, self._tile_requests, self._tile_tokens = on_host.to(
            self._device, non_blocking=True).split([len(part) for part in parts])  # fmt: skip
        self._longest = max(contexts)

    def write(
        self, layer: int, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, norms: HeadNorms | None,
        batch: Batch,
    ) -> torch.Tensor:  # fmt: skip
        """See :class:`engine.attention.AttentionBackend`."""
        heads = self._config.num_heads
        if norms is None:
            return rotate_and_cache(qkv, cos, sin, batch.slots, self._keys[layer], self._values[layer], heads)
        return rotate_and_cache(qkv, cos, sin, batch.slots, self._keys[layer], self._values[layer], heads,
                                norms.query, norms.key, norms.eps)  # fmt: skip

    def attend(self, layer: int, queries: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See :class:`engine.attention.AttentionBackend`."""
        keys, values, window = self._keys[layer], self._values[layer], self._config.window(layer)
        scale = self._config.attention_scale
        splits = self._splits(window)
        if splits > 1:
            return split_attention(queries, keys, values, self._context_lens, batch.block_tables, splits=splits,
                                   tile=self._tile, scale=scale, window=window)  # fmt: skip
        return attention(queries, keys, values, self._tile_requests, self._tile_tokens, self._query_starts,
                         self._context_lens, batch.block_tables, tile=self._tile, scale=scale,
                         window=window)  # fmt: skip

    def _splits(self, window: int) -> int:
        """Into how many parts contexts are cut: only those of single tokens, whose heads fit into a small tile."""
        if not self._single or self._group > 16:
            return 1
        longest = min(self._longest, window) if window else self._longest
        return choose_splits(len(self._context_lens), self._config.num_kv_heads, longest, self._processors)
