"""Attention over the paged KV cache: one interface, a backend for each kind of device.

A backend owns the memory of the pool, because how a block lies in memory is what makes its kernels fast. The decoder
tells it, layer by layer, to write the new keys and values into their slots and to attend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from engine.model.config import ModelConfig


@dataclass(slots=True)
class Batch:
    """The tensors of one step: the tokens of all scheduled requests, one after the other.

    With ``T`` tokens of ``R`` requests:

    * ``token_ids`` and ``positions``, int64[T]; ``slots``, int64[T], where each token's keys and values go
      (``block * block_size + offset``);
    * ``query_starts``, R + 1 ints: request ``r`` has the tokens ``query_starts[r]`` to ``query_starts[r + 1]``;
    * ``context_lens``, R ints: tokens of each request whose keys and values are there once this step has written its;
    * ``block_tables``, int64[R, most blocks of any request], padded with the null block;
    * ``sample_rows``, int64[S]: the tokens from whose hidden states a next token is sampled.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_starts: list[int]
    context_lens: list[int]
    block_tables: torch.Tensor
    sample_rows: torch.Tensor


class AttentionBackend(Protocol):
    """What the decoder needs of a backend. ``allocate`` comes first, and again whenever the pool is rebuilt."""

    name: str

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the pool, for all layers; what the old one held is lost."""

    def begin(self, batch: Batch) -> None:
        """Prepare what all layers of one step share."""

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """Write ``keys`` and ``values`` (T, kv heads, head size) to the batch's slots, then attend causally.

        ``queries`` is (T, heads, head size), and so is the result.
        """


def make_backend(config: ModelConfig, dtype: torch.dtype, device: str) -> AttentionBackend:
    """The backend for ``device``."""
    from engine.attention.torch import TorchAttention

    return TorchAttention(config, dtype, device)
