"""RMSNorm (Zhang and Sennrich, 2019), with the addition to the residual stream that comes before it, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_HIDDEN = 16384
"""The widest row: a program holds one in its registers."""


@triton.jit
def normalize(x, scale, weight, kind: tl.constexpr):
    """``x`` (float32) scaled and weighted, rounded to ``kind`` where the decoder's ``rms_norm`` rounds."""
    x = x * scale
    if weight.dtype == tl.float32:
        return (x * weight).to(kind)
    # Rounded twice: the product of two narrow numbers is exact in float32, so this is the product rounded once.
    return (x.to(kind).to(tl.float32) * weight.to(tl.float32)).to(kind)


@triton.jit(do_not_specialize=["eps"])
def rms_norm_kernel(output, total, x, residual, weight, hidden, eps, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, BLOCK)
    real = columns < hidden
    kind = output.dtype.element_ty
    values = tl.load(x + row + columns, mask=real, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + row + columns, mask=real, other=0.0).to(tl.float32)
        rounded = values.to(kind)
        tl.store(total + row + columns, rounded, mask=real)
        values = rounded.to(tl.float32)  # what is normalised is what later layers read
    scale = tl.rsqrt(tl.sum(values * values) / hidden + eps)
    weights = tl.load(weight + columns, mask=real, other=0.0)
    tl.store(output + row + columns, normalize(values, scale, weights, kind), mask=real)


def block_for(hidden: int) -> tuple[int, int]:
    """How wide the block for such rows is, and how many warps share it."""
    block = max(256, triton.next_power_of_2(hidden))
    return block, min(16, max(1, block // 512))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale each row of ``x`` (..., hidden) to a root mean square of one, then by ``weight`` (hidden)."""
    x = x.contiguous()
    output = torch.empty_like(x)
    _launch(output, output, x, x, weight, eps, has_residual=False)
    return output


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x + residual``, (..., hidden) each, normalised and as it is."""
    x, residual = x.contiguous(), residual.contiguous()
    output, total = torch.empty_like(x), torch.empty_like(x)
    _launch(output, total, x, residual, weight, eps, has_residual=True)
    return output, total


def _launch(output: torch.Tensor, total: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
            eps: float, has_residual: bool) -> None:  # fmt: skip
    hidden = x.shape[-1]
    if hidden > MAX_HIDDEN:
        raise ValueError(f"rows of {hidden} do not fit into one program, {MAX_HIDDEN} would")
    rows = x.numel() // hidden
    if rows:
        block, warps = block_for(hidden)
        rms_norm_kernel[(rows,)](output, total, x, residual, weight, hidden, eps, BLOCK=block,
                                 HAS_RESIDUAL=has_residual, num_warps=warps)  # fmt: skip
