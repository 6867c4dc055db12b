"""The inner loops of :mod:`engine.sampler_kernels` as vector instructions; see :mod:`engine.model.fused_ir`.

Addresses are integers, a vector is SCORES float32 numbers, a chunk four vectors. All sums are taken in an order that
depends on nothing but how many numbers there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from engine.model.fused_ir import (
    SCORES,
    Builder,
    Value,
    _call,
    _combine,
    _exp_within,
    _f32,
    _floats,
    _i64,
    _int,
    _load,
    _loop,
    _splat,
    _store,
    _vector,
)

CHUNK = 4 * SCORES
_f64 = ir.DoubleType()


def _halves(b: Builder, x: Value) -> list[Value]:
    """The two halves of a vector of float32 as float64."""
    empty = ir.Constant(x.type, ir.Undefined)
    half = SCORES // 2
    lanes = [ir.Constant(ir.VectorType(ir.IntType(32), half), [start + i for i in range(half)]) for start in (0, half)]
    return [b.fpext(b.shuffle_vector(x, empty, mask), ir.VectorType(_f64, half)) for mask in lanes]


def _zeros() -> Value:
    return ir.Constant(ir.VectorType(_f64, SCORES // 2), [0.0] * (SCORES // 2))


def _weigh(b: Builder, row: Value, weights: Value, offset: Value, numbers: Sequence[Value]) -> Value:
    """One vector's weights, which are stored: 0 for a logit below the bound, which weighs at least e^-88."""
    shifts, scales, bounds = numbers
    x = _load(b, b.add(row, offset), _vector(_f32, SCORES))
    weight = _exp_within(b, b.fmul(b.fsub(x, shifts), scales))
    weight = b.select(b.fcmp_ordered(">=", x, bounds), weight, _floats(0.0, SCORES))
    _store(b, weight, b.add(weights, offset))
    return weight


@intrinsic
def exp_chunks(typing, row, weights, sums, listed, count, shift, scale, bound):  # type: ignore[no-untyped-def]
    """``exp((x - shift) * scale)``, or 0 where x is below ``bound``, of chunks of ``row`` to the same of ``weights``.

    ``listed`` are the ``count`` chunks, as int64. Each chunk's sum goes as float64 to its place in ``sums``.
    """

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        row, weights, sums, listed, count, *numbers = args
        numbers = [_splat(b, number, SCORES) for number in numbers]

        def step(i: Value, _: list[Value]) -> list[Value]:
            chunk = _load(b, b.add(listed, b.mul(i, _int(8))), _i64)
            start = b.mul(chunk, _int(4 * CHUNK))
            total = None
            for v in range(4):
                low, high = _halves(b, _weigh(b, row, weights, b.add(start, _int(4 * SCORES * v)), numbers))
                both = b.fadd(low, high)
                total = both if total is None else b.fadd(total, both)
            _store(b, _combine(b, total, b.fadd), b.add(sums, b.mul(chunk, _int(8))))
            return []

        _loop(b, count, [], step)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, *[types.float32] * 3), codegen


@intrinsic
def exp_vectors(typing, row, weights, vectors, shift, scale, bound):  # type: ignore[no-untyped-def]
    """The same for so many vectors; returns their sum."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        row, weights, vectors, *numbers = args
        numbers = [_splat(b, number, SCORES) for number in numbers]

        def step(i: Value, sums: list[Value]) -> list[Value]:
            halves = _halves(b, _weigh(b, row, weights, b.mul(i, _int(4 * SCORES)), numbers))
            return [b.fadd(before, half) for before, half in zip(sums, halves, strict=True)]

        low, high = _loop(b, vectors, [_zeros(), _zeros()], step)
        return _combine(b, b.fadd(low, high), b.fadd)

    return types.float64(*[types.intp] * 3, *[types.float32] * 3), codegen


@intrinsic
def sum_from(typing, numbers, vectors, bound):  # type: ignore[no-untyped-def]
    """The sum, in float64, of those of ``vectors`` vectors of numbers that are at least ``bound``."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        numbers, vectors, bound = args
        bounds = _splat(b, bound, SCORES)

        def step(i: Value, sums: list[Value]) -> list[Value]:
            x = _load(b, b.add(numbers, b.mul(i, _int(4 * SCORES))), _vector(_f32, SCORES))
            x = b.select(b.fcmp_ordered(">=", x, bounds), x, _floats(0.0, SCORES))
            return [b.fadd(before, half) for before, half in zip(sums, _halves(b, x), strict=True)]

        low, high = _loop(b, vectors, [_zeros(), _zeros()], step)
        return _combine(b, b.fadd(low, high), b.fadd)

    return types.float64(types.intp, types.intp, types.float32), codegen


@intrinsic
def sum_chunks(typing, numbers, listed, count, bound):  # type: ignore[no-untyped-def]
    """The same of the ``count`` chunks of numbers that are ``listed``, as int64."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        numbers, listed, count, bound = args
        bounds = _splat(b, bound, SCORES)

        def step(i: Value, sums: list[Value]) -> list[Value]:
            sums = list(sums)
            start = b.mul(_load(b, b.add(listed, b.mul(i, _int(8))), _i64), _int(4 * CHUNK))
            for v in range(4):
                x = _load(b, b.add(b.add(numbers, start), _int(4 * SCORES * v)), _vector(_f32, SCORES))
                x = b.select(b.fcmp_ordered(">=", x, bounds), x, _floats(0.0, SCORES))
                pair = 2 * (v % 2)  # two pairs of sums, so that an addition need not wait for the one before
                for half, value in enumerate(_halves(b, x)):
                    sums[pair + half] = b.fadd(sums[pair + half], value)
            return sums

        parts = _loop(b, count, [_zeros()] * 4, step)
        return _combine(b, b.fadd(b.fadd(parts[0], parts[1]), b.fadd(parts[2], parts[3])), b.fadd)

    return types.float64(types.intp, types.intp, types.intp, types.float32), codegen


@intrinsic
def count_from(typing, numbers, vectors, bound):  # type: ignore[no-untyped-def]
    """How many of ``vectors`` vectors of numbers are at least ``bound``."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        numbers, vectors, bound = args
        bounds = _splat(b, bound, SCORES)
        counts = _vector(ir.IntType(32), SCORES)

        def step(i: Value, found: list[Value]) -> list[Value]:
            x = _load(b, b.add(numbers, b.mul(i, _int(4 * SCORES))), _vector(_f32, SCORES))
            return [b.sub(found[0], b.sext(b.fcmp_ordered(">=", x, bounds), counts))]

        (found,) = _loop(b, vectors, [ir.Constant(counts, [0] * SCORES)], step)
        return b.sext(_combine(b, found, b.add), _i64)

    return types.int64(types.intp, types.intp, types.float32), codegen


@intrinsic
def lanes_within(typing, numbers, low, high):  # type: ignore[no-untyped-def]
    """Of the vector at ``numbers``, those from ``low`` to below ``high``: a bit for each, the first number's lowest."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        x = _load(b, args[0], _vector(_f32, SCORES))
        low, high = (_splat(b, number, SCORES) for number in args[1:])
        inside = b.and_(b.fcmp_ordered(">=", x, low), b.fcmp_ordered("<", x, high))
        return b.zext(b.bitcast(inside, ir.IntType(SCORES)), _i64)

    return types.int64(types.intp, types.float32, types.float32), codegen


@intrinsic
def lowest_bit(typing, bits):  # type: ignore[no-untyped-def]
    """The place of the lowest bit that is set, of at least one."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        return _call(b, "llvm.cttz.i64", _i64, args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen
