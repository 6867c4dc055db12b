"""The kernels of a decoder layer in plain torch, with the arguments of the real ones: quick enough for long runs.

They decide nothing on the host either, so they can be captured.
"""

from __future__ import annotations

import pytest
import torch

from engine.kernels.attention import Tile
from engine.model import operations
from engine.model.operations import rms_norm, rotate


def use_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """For :mod:`engine.attention.triton`."""
    for kernel in (rotate_and_cache, attention, split_attention):
        monkeypatch.setattr(f"engine.attention.triton.{kernel.__name__}", kernel)


class PlainOperations:
    """Those of the decoder, which does not look at the experts that were chosen: all of them compute every token."""

    rms_norm = staticmethod(operations.rms_norm)
    add_rms_norm = staticmethod(operations.add_rms_norm)
    gated = staticmethod(operations.gated)

    @staticmethod
    def experts(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor,
                down: torch.Tensor, activation: str) -> torch.Tensor:  # fmt: skip
        made = operations.gated(torch.einsum("th,enh->etn", x, gate_up), activation)
        parts = torch.einsum("eti,ehi->teh", made, down)
        parts = parts.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[1]))
        return (parts * weights[:, :, None]).sum(dim=1)


def rotate_and_cache(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, slots: torch.Tensor, cached_keys: torch.Tensor,
    cached_values: torch.Tensor, heads: int, query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None, eps: float = 1e-6,
) -> torch.Tensor:  # fmt: skip
    kv_heads, block_size = cached_keys.shape[1], cached_keys.shape[2]
    queries, keys, values = qkv.split((heads, kv_heads, kv_heads), dim=1)
    if query_norm is not None and key_norm is not None:
        queries, keys = rms_norm(queries, query_norm, eps), rms_norm(keys, key_norm, eps)
    cos, sin = cos[:, None], sin[:, None]
    blocks = slots.clamp(min=0) // block_size  # what has no slot goes to the null block, which nobody reads
    for cache, new in ((cached_keys, rotate(keys, cos, sin)), (cached_values, values)):
        cache[blocks, :, slots % block_size] = new
    return rotate(queries, cos, sin)


def attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile_requests: torch.Tensor,
    tile_tokens: torch.Tensor, query_starts: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, *,
    tile: Tile, scale: float, window: int = 0,
) -> torch.Tensor:  # fmt: skip
    numbers = torch.arange(len(queries))
    requests = torch.searchsorted(query_starts, numbers.int(), right=True) - 1
    from_end = query_starts[requests + 1] - numbers
    return _attend(queries, keys, values, requests, context_lens[requests] - from_end, context_lens, block_tables,
                   scale, window)


def split_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context_lens: torch.Tensor,
    block_tables: torch.Tensor, *, splits: int, tile: Tile, scale: float, window: int = 0,
) -> torch.Tensor:  # fmt: skip
    assert splits >= 1
    return _attend(queries, keys, values, torch.arange(len(queries)), context_lens - 1, context_lens, block_tables,
                   scale, window)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, requests: torch.Tensor, positions: torch.Tensor,
    context_lens: torch.Tensor, block_tables: torch.Tensor, scale: float, window: int,
) -> torch.Tensor:  # fmt: skip
    """What lies beyond a context is not looked at: neither the blocks in a table nor what is in them."""
    block_size = keys.shape[2]
    there = torch.arange(block_tables.shape[1]) * block_size < context_lens[:, None]
    tables = torch.where(there, block_tables, 0).long()[requests]
    columns = torch.arange(tables.shape[1] * block_size)
    seen = (columns < context_lens[requests][:, None]) & (columns <= positions[:, None])
    if window:
        seen &= columns > positions[:, None] - window

    def gather(cache: torch.Tensor) -> torch.Tensor:
        found = cache[tables].transpose(2, 3).flatten(1, 2).float()  # (tokens, positions, kv heads, head size)
        found = torch.where(seen[:, :, None, None], found, 0.0)
        return found.repeat_interleave(queries.shape[1] // keys.shape[1], dim=2)

    scores = torch.einsum("thd,tkhd->thk", queries.float(), gather(keys)) * scale
    weights = torch.where(seen[:, None], scores, float("-inf")).softmax(-1).nan_to_num()
    return torch.einsum("thk,tkhd->thd", weights, gather(values)).to(queries.dtype)
