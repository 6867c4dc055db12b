"""Attention with the kernels of :mod:`engine.kernels`: what runs on a GPU.

A step comes as a :class:`TritonBatch`, in which everything that the kernels read is on the device already. So a decode
step whose tensors stay where they are can be captured as a CUDA graph: nothing is decided by looking at the requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine.attention import Batch, HeadNorms
from engine.gpu.device import Device
from engine.kernels.attention import Tile, attention, choose_tile
from engine.kernels.cache import rotate_and_cache
from engine.kernels.split_attention import choose_splits, split_attention
from engine.model.config import ModelConfig

MAX_SPLIT_GROUP = 16
"""So many query heads with one key-value head fit into the tile of a split."""


@dataclass(slots=True)
class Cut:
    """Requests of a mixed batch that have one token each, and contexts so long that these are cut into parts.

    ``rows``, int64[n], are their tokens; ``contexts``, int32[n], and ``block_tables``, int32 (n, blocks), their own.
    """

    rows: torch.Tensor
    contexts: torch.Tensor
    block_tables: torch.Tensor
    longest: int


@dataclass(slots=True)
class TritonBatch(Batch):
    """A step on the device. ``starts``, int32[R + 1], and ``contexts``, int32[R], are the base's ``query_starts`` and
    ``context_lens``, which are empty here.

    The tiles are those of :func:`engine.kernels.attention.cut_tiles`. ``single``: every request has one token.
    ``longest`` is how long contexts are taken to be when it is decided into how many parts they are cut. Those of
    a mixed batch that are ``cut`` have no tiles.
    """

    query_starts: list[int] = field(default_factory=list, kw_only=True)
    context_lens: list[int] = field(default_factory=list, kw_only=True)
    starts: torch.Tensor = field(kw_only=True)
    contexts: torch.Tensor = field(kw_only=True)
    tile_requests: torch.Tensor = field(kw_only=True)
    tile_tokens: torch.Tensor = field(kw_only=True)
    tile: Tile = field(kw_only=True)
    single: bool = field(kw_only=True)
    longest: int = field(kw_only=True)
    cut: Cut | None = field(default=None, kw_only=True)


class TritonAttention:
    """Pool layout: for each layer keys and values, each (blocks, kv heads, block_size, head size)."""

    name = "triton"

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: Device) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        self.group = config.num_heads // config.num_kv_heads
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the pool; it is not cleared, since no kernel reads what was not written."""
        if block_size & (block_size - 1):
            raise ValueError(f"the kernels need a block size that is a power of two, not {block_size}")
        self._keys, self._values = [], []
        self._device.release()  # what the old one took may lie in pieces of other sizes
        config = self._config
        shape = (2, config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_size)
        pool = torch.empty(shape, dtype=self._dtype, device=self._device.name)  # in one piece: nothing is lost between
        self._keys, self._values = list(pool[0]), list(pool[1])

    def tile(self, single: bool) -> Tile:
        """How a batch is cut in which every request has a single token, or any other."""
        return choose_tile(self._config.head_size, self._dtype, self.group, single)

    def splits(self, requests: int, longest: int, window: int = 0) -> int:
        """Into how many parts contexts of up to ``longest`` tokens are cut, if every request has a single token."""
        if self.group > MAX_SPLIT_GROUP:
            return 1
        longest = min(longest, window) if window else longest
        return choose_splits(requests, self._config.num_kv_heads, longest, self._device.processors)

    def begin(self, batch: Batch) -> None:
        """Nothing is left to prepare."""

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
        """See :class:`engine.attention.AttentionBackend`; ``batch`` is a :class:`TritonBatch`."""
        assert isinstance(batch, TritonBatch)
        keys, values, window = self._keys[layer], self._values[layer], self._config.window(layer)
        scale = self._config.attention_scale
        splits = self.splits(len(batch.contexts), batch.longest, window) if batch.single else 1
        if splits > 1:
            return split_attention(queries, keys, values, batch.contexts, batch.block_tables, splits=splits,
                                   tile=batch.tile, scale=scale, window=window)  # fmt: skip
        output = attention(queries, keys, values, batch.tile_requests, batch.tile_tokens, batch.starts, batch.contexts,
                           batch.block_tables, tile=batch.tile, scale=scale, window=window)  # fmt: skip
        cut = batch.cut
        if cut is not None:
            output[cut.rows] = split_attention(
                queries[cut.rows], keys, values, cut.contexts, cut.block_tables,
                splits=self.splits(len(cut.rows), cut.longest, window), tile=self.tile(single=True), scale=scale,
                window=window,
            )  # fmt: skip
        return output
