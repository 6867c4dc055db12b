"""Attention over the paged KV cache: one interface, a backend for each kind of device.

A backend owns the memory of the pool, because how a block lies in memory is what makes its kernels fast. The decoder
tells it, layer by layer, to write the new keys and values into their slots and to attend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

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
    * ``block_tables``, int32[R, most blocks of any request], padded with the null block;
    * ``sample_rows``, int64[S]: the tokens from whose hidden states a next token is sampled.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_starts: list[int]
    context_lens: list[int]
    block_tables: torch.Tensor
    sample_rows: torch.Tensor


class HeadNorms(NamedTuple):
    """RMSNorm of every head's query and key: their weights, (head size) each."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


class AttentionBackend(Protocol):
    """What the decoder needs of a backend. ``allocate`` comes first, and again whenever the pool is rebuilt."""

    name: str

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Reserve the pool, for all layers; what the old one held is lost."""

    def begin(self, batch: Batch) -> None:
        """Prepare what all layers of one step share."""

    def write(
        self, layer: int, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, norms: HeadNorms | None,
        batch: Batch,
    ) -> torch.Tensor:  # fmt: skip
        """Turn queries and keys to their positions, put keys and values into the batch's slots, return the queries.

        ``qkv`` is (T, heads + 2 kv heads, head size): queries, keys, values. ``cos`` and ``sin`` are float32 (T, head
        size / 2). ``norms`` come before. The queries are (T, heads, head size).
        """

    def attend(self, layer: int, queries: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Attend causally to what has been written; ``queries`` and the result are (T, heads, head size)."""


def why_not_triton(config: ModelConfig) -> str:
    """Why the kernels cannot run the model; "" if they can. Imports Triton."""
    try:
        from engine.kernels.attention import HEAD_SIZES, MAX_GROUP
        from engine.kernels.experts import MAX_EXPERTS
        from engine.kernels.norm import MAX_HIDDEN
    except ImportError as error:
        return f"Triton cannot be used: {error}"
    if config.head_size not in HEAD_SIZES:
        return f"heads of {config.head_size}, the kernels know {', '.join(map(str, HEAD_SIZES))}"
    if config.num_heads // config.num_kv_heads > MAX_GROUP:
        return f"more than {MAX_GROUP} query heads for one key-value head"
    if config.hidden_size > MAX_HIDDEN:
        return f"a hidden size of {config.hidden_size}, above {MAX_HIDDEN}"
    if config.num_experts > MAX_EXPERTS:
        return f"{config.num_experts} experts, more than {MAX_EXPERTS}"
    return ""
