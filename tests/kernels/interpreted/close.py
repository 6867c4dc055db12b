"""How near a kernel must come to its float32 reference."""

from __future__ import annotations

import torch

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """float32: every element within 1e-5 of the largest; narrower types: within 1e-2 by norm."""
    assert found.shape == expected.shape
    assert bool(found.isfinite().all()), "it depends on memory that nobody wrote"
    error, size = found.double() - expected.double(), expected.double()
    if found.dtype == torch.float32:
        assert float(error.abs().max()) <= 1e-5 * max(1e-30, float(size.abs().max()))
    else:
        assert float(error.norm()) <= 1e-2 * float(size.norm())


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
