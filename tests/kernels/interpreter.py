"""What Triton's interpreter gets wrong, put right.

bfloat16: it multiplies the bits, and rounds towards zero. A GPU widens the factors, which is exact, and rounds to the
nearest, half to even. Triton 3.6 and NumPy 2.4: bounds of loops are arrays of one element, which NumPy no longer takes
for numbers. And every call of a device function looks through all of Triton's language for what to replace, which the
call of the kernel has done already and which takes a third of the time.
"""

from __future__ import annotations

from typing import Any


def mend_interpreter() -> None:
    """Call it before the first kernel runs."""
    teach_bfloat16()
    _let_arrays_be_bounds()
    _replace_once()


def teach_bfloat16() -> None:
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


def _let_arrays_be_bounds() -> None:
    from triton.runtime import interpreter

    plain = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch


def _replace_once() -> None:
    from triton.runtime import interpreter

    modules: set[int] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self.fn.__globals__) not in modules:
            modules.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
