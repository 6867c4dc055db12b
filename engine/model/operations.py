"""What lies between a decoder's matrix products, in plain torch: it runs on any device and is the reference.

:class:`Operations` names them; :mod:`engine.kernels.operations` does the same on a GPU, with fewer passes over memory.
A module is what implements the protocol.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import gelu, linear, silu


class Operations(Protocol):
    """See the functions of this module."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, /) -> torch.Tensor: ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, /
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def gated(self, gate_up: torch.Tensor, activation: str, /) -> torch.Tensor: ...

    def experts(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
        activation: str, /,
    ) -> torch.Tensor: ...  # fmt: skip


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale the last dimension to a root mean square of one, in float32, then by ``weight``.

    A weight that is float32 beside narrower inputs is applied before rounding (Gemma), else after it (all others).
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight.dtype == torch.float32:
        return (wide * weight).to(x.dtype)
    return wide.to(x.dtype) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x + residual``, normalised as by :func:`rms_norm`, and as it is."""
    total = residual + x
    return rms_norm(total, weight, eps), total


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn every pair ``(i, i + head size / 2)`` of the last dimension by its position's angle.

    Angles and products are rounded to the type of ``x``, as transformers does it.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """``activation(gate) * up``, "silu" or "gelu_tanh", of rows that hold the gate in one half, then up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (gelu(gate, approximate="tanh") if activation == "gelu_tanh" else silu(gate)) * up


def experts(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    activation: str,
) -> torch.Tensor:  # fmt: skip
    """The weighted sum of what the experts ``chosen``, int64 (T, experts per token), make of ``x`` (T, hidden).

    ``weights`` are (T, experts per token), ``gate_up`` (experts, 2 size, hidden), ``down`` (experts, hidden, size). The
    sum is taken over a token's experts as they are ranked, so that it does not depend on who else is in the batch, and
    rounded once.
    """
    parts = weights.new_empty((*weights.shape, x.shape[1]))  # (tokens, experts per token, hidden)
    for expert in chosen.unique().tolist():
        tokens, rank = (chosen == expert).nonzero(as_tuple=True)
        active = gated(linear(x[tokens], gate_up[expert]), activation)
        parts[tokens, rank] = linear(active, down[expert]) * weights[tokens, rank, None]
    return parts.sum(dim=1).to(x.dtype)
