"""The gate of the feed-forward: an activation of one half of a row, multiplied with the other half."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
ACTIVATIONS = ("silu", "gelu_tanh")


@triton.jit
def gated_kernel(output, gate_up, size, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """One program a piece of a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < size
    gate = tl.load(gate_up + row * 2 * size + columns, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + columns, mask=real, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        active = gate * tl.sigmoid(gate)
    else:
        # tanh(x) is 2 sigmoid(2 x) - 1, so (1 + tanh(x)) / 2 is sigmoid(2 x): Hendrycks and Gimpel, 2016.
        active = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    kind = output.dtype.element_ty
    # Rounded in between, as the decoder's plain operations do.
    tl.store(output + row * size + columns, (active.to(kind).to(tl.float32) * up).to(kind), mask=real)


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """``activation(gate) * up`` of rows (..., 2 size) that hold the gate, then up: (..., size)."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"the activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    output = torch.empty((*gate_up.shape[:-1], size), dtype=gate_up.dtype, device=gate_up.device)
    rows = output.numel() // size
    if rows:
        gated_kernel[(rows, triton.cdiv(size, BLOCK))](output, gate_up, size, ACTIVATION=activation, BLOCK=BLOCK,
                                                       num_warps=4)  # fmt: skip
    return output
