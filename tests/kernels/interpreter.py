"""What Triton's interpreter gets wrong of bfloat16, put right: it multiplies the bits, and rounds towards zero.

A GPU widens the factors, which is exact, and rounds to the nearest, half to even.
"""

from __future__ import annotations

from typing import Any


def teach_bfloat16() -> None:
    """Call it before the first kernel runs."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    plain_dot, plain_convert = builder.create_dot, interpreter._convert_float

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain_dot(self, widened(a), widened(b), *rest)

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source != tl.float32 or target != tl.bfloat16:
            return plain_convert(values, source, target, rounding)
        bits = np.ascontiguousarray(values).view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)

    builder.create_dot = create_dot
    interpreter._convert_float = convert
