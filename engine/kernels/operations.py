"""The operations of :mod:`engine.model.operations`, as kernels."""

from engine.kernels.activation import gated
from engine.kernels.experts import experts
from engine.kernels.norm import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "experts", "gated", "rms_norm"]
