"""The inner loops of the fused forward pass, written as vector instructions of the compiler's own language.

Numba turns array loops into machine code, but cannot be told to keep a tile of results in registers. These functions
can: each builds LLVM instructions on whole vectors and is inlined where :mod:`engine.model.fused_kernels` calls it.
They take addresses (integers), because that is what a packed weight or a block of the KV cache is to them.

**Exactness.** Every result is one chain of fused multiply-adds in a fixed order that depends neither on how many rows
a tile has nor on what the other rows hold. So a token's logits are the same bits whatever else is in the batch, in
whatever chunks its prompt came, and however large the blocks are.

**Storage.** bfloat16 values lie in pairs in 32-bit words: the low half belongs to one vector, the high half to another.
A shift and a mask turn one load into two vectors of float32, and all arithmetic is float32.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))

LANES = 16 if _WIDE else 8
"""float32 numbers in a vector. With 8, machines with 4 take two registers for each."""
PANEL = 2 * LANES
"""Output columns of a packed weight that lie together."""
GEMM_ROWS = 14 if _WIDE else 6
"""Most rows of a tile of a matrix product: as many as the registers hold."""
ATTENTION_ROWS = 12 if _WIDE else 6
"""The same for attention."""
SCORES = 16
"""Positions that :func:`score_tile` attends to at once: two half tiles."""
HALF = SCORES // 2
"""Positions in a half tile of keys. A block holds whole half tiles, so block sizes are multiples of this."""

_f32, _i8, _i32, _i64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)

Value = Any  # llvmlite has no types worth naming
Builder = Any


def _int(value: int) -> Value:
    return ir.Constant(_i64, value)


def _vector(element: Value, count: int = LANES) -> Value:
    return ir.VectorType(element, count)


def _floats(value: float, count: int = LANES) -> Value:
    return ir.Constant(_vector(_f32, count), [value] * count)


def _ints(value: int, count: int = LANES) -> Value:
    return ir.Constant(_vector(_i32, count), [value] * count)


def _pointer(b: Builder, address: Value, element: Value) -> Value:
    return b.inttoptr(address, element.as_pointer())


def _load(b: Builder, address: Value, element: Value) -> Value:
    return b.load(_pointer(b, address, element), align=4)


def _store(b: Builder, value: Value, address: Value) -> None:
    b.store(value, _pointer(b, address, value.type), align=4)


def _call(b: Builder, name: str, result: Value, *args: Value) -> Value:
    kind = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), args)


def _fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return _call(b, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)


def _splat(b: Builder, scalar: Value, count: int = LANES) -> Value:
    empty = ir.Constant(_vector(scalar.type, count), ir.Undefined)
    return b.shuffle_vector(b.insert_element(empty, scalar, ir.Constant(_i32, 0)), empty, _ints(0, count))


def _prefetch(b: Builder, address: Value) -> None:
    """Ask for a cache line in the second-level cache; any address will do, it is never read for real."""
    pointer = _pointer(b, address, _i8)
    read, level_2, data = (ir.Constant(_i32, n) for n in (0, 2, 1))
    _call(b, f"llvm.prefetch.{pointer.type.intrinsic_name}", ir.VoidType(), pointer, read, level_2, data)


def _unpack(b: Builder, pairs: Value) -> tuple[Value, Value]:
    """Two float32 vectors from a vector of bfloat16 pairs."""
    count = pairs.type.count
    low = b.shl(pairs, _ints(16, count))
    high = b.and_(pairs, _ints(0xFFFF0000, count))
    return b.bitcast(low, _vector(_f32, count)), b.bitcast(high, _vector(_f32, count))


def _exp(b: Builder, x: Value) -> Value:
    """e to the power of every element, to about one unit in the last place; exactly 0 below -87."""
    count = x.type.count
    tiny = b.fcmp_ordered("<", x, _floats(-87.0, count))
    x = b.select(b.fcmp_ordered(">", x, _floats(88.0, count)), _floats(88.0, count), x)
    x = b.select(tiny, _floats(-87.0, count), x)
    return b.select(tiny, _floats(0.0, count), _exp_within(b, x))


def _exp_within(b: Builder, x: Value) -> Value:
    """The same for numbers from -88 to 88; for others it is anything."""
    count, kind = x.type.count, x.type
    n = _call(b, f"llvm.rint.v{count}f32", kind, b.fmul(x, _floats(1.4426950408889634, count)))
    r = _fma(b, n, _floats(-0.693359375, count), x)  # ln 2 in two parts, the first of them exact in few bits
    r = _fma(b, n, _floats(2.12194440e-4, count), r)
    y = _floats(1.9875691500e-4, count)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        y = _fma(b, y, r, _floats(coefficient, count))
    y = b.fadd(_fma(b, b.fmul(y, r), r, r), _floats(1.0, count))
    power = b.shl(b.add(b.fptosi(n, _vector(_i32, count)), _ints(127, count)), _ints(23, count))
    return b.fmul(y, b.bitcast(power, kind))


def _combine(b: Builder, x: Value, join: Callable[[Value, Value], Value]) -> Value:
    """Fold a vector into one number, halves onto halves."""
    count = x.type.count
    while count > 1:
        count //= 2
        empty = ir.Constant(x.type, ir.Undefined)
        low = b.shuffle_vector(x, empty, ir.Constant(_vector(_i32, count), list(range(count))))
        high = b.shuffle_vector(x, empty, ir.Constant(_vector(_i32, count), list(range(count, 2 * count))))
        x = join(low, high)
    return b.extract_element(x, ir.Constant(_i32, 0))


def _loop(
    b: Builder, count: Value, start: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]]
) -> list[Value]:
    """Run ``body(i, carried)`` for i from 0 to ``count`` and return what it carries at the end."""
    before = b.block
    loop, end = b.append_basic_block("loop"), b.append_basic_block("end")
    b.cbranch(b.icmp_signed(">", count, _int(0)), loop, end)
    b.position_at_end(loop)
    i = b.phi(_i64)
    carried = [b.phi(value.type) for value in start]
    after = list(body(i, carried))
    last = b.block  # the body may have added blocks
    following = b.add(i, _int(1))
    i.add_incoming(_int(0), before)
    i.add_incoming(following, last)
    for phi, first, again in zip(carried, start, after, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(again, last)
    b.cbranch(b.icmp_signed("<", following, count), loop, end)
    b.position_at_end(end)
    results = []
    for first, again in zip(start, after, strict=True):
        phi = b.phi(first.type)
        phi.add_incoming(first, before)
        phi.add_incoming(again, last)
        results.append(phi)
    return results


def _switch(b: Builder, choice: Value, cases: Sequence[int], emit: Callable[[int], None]) -> None:
    """Emit one variant for each case; any other value does nothing."""
    done = b.append_basic_block("done")
    switch = b.switch(choice, done)
    for case in cases:
        block = b.append_basic_block(f"case{case}")
        switch.add_case(_int(case), block)
        b.position_at_end(block)
        emit(case)
        b.branch(done)
    b.position_at_end(done)


def _call_own(b: Builder, name: str, args: Sequence[Value], emit: Callable[[Builder, Sequence[Value]], None]) -> None:
    """Call a function of integers, which ``emit`` writes the first time. It is never inlined: it is large, and the
    optimiser would take long over every copy.
    """
    name = f"cutaway_{name}"
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(ir.VoidType(), [a.type for a in args]), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        body = ir.IRBuilder(function.append_basic_block("entry"))
        emit(body, function.args)
        body.ret_void()
    b.call(function, args)


def _procedure(count: int) -> Any:
    return types.void(*([types.intp] * count))


@intrinsic
def gemm_tile(  # type: ignore[no-untyped-def]
    typing, bf16, rows, x, x_stride, panel, depth, fetch, fetch_step, out, out_stride, bias, residual, residual_stride
):
    """``out = x @ panel + bias + residual`` for up to GEMM_ROWS rows and one panel of PANEL columns.

    ``x`` is float32 (rows, depth), ``panel`` (depth, PANEL) as packed; strides count bytes. ``residual`` may be
    ``out``; a stride of 0 adds the same row to all. At each step of the depth the cache line at ``fetch`` is fetched,
    and ``fetch`` moves on by ``fetch_step``.
    """

    def write(b: Builder, args: Sequence[Value]) -> None:
        bf16, rows, x, x_stride, panel, depth, fetch, fetch_step, out, out_stride = args[:10]
        bias, residual, residual_stride = args[10:]

        def emit(count: int, packed: bool) -> None:
            bytes_per_step = (4 if packed else 8) * LANES
            starts = [b.add(x, b.mul(x_stride, _int(r))) for r in range(count)]

            def step(k: Value, sums: list[Value]) -> list[Value]:
                at = b.add(panel, b.mul(k, _int(bytes_per_step)))
                for line in range(0, bytes_per_step, 64):
                    _prefetch(b, b.add(b.add(fetch, b.mul(k, fetch_step)), _int(line)))
                if packed:
                    low, high = _unpack(b, _load(b, at, _vector(_i32)))
                else:
                    low = _load(b, at, _vector(_f32))
                    high = _load(b, b.add(at, _int(4 * LANES)), _vector(_f32))
                column = b.mul(k, _int(4))
                result = []
                for r in range(count):
                    value = _splat(b, _load(b, b.add(starts[r], column), _f32))
                    result.append(_fma(b, value, low, sums[2 * r]))
                    result.append(_fma(b, value, high, sums[2 * r + 1]))
                return result

            sums = _loop(b, depth, [_floats(0.0)] * (2 * count), step)
            for r in range(count):
                for v in range(2):
                    column = _int(4 * LANES * v)
                    total = b.fadd(sums[2 * r + v], _load(b, b.add(bias, column), _vector(_f32)))
                    before = b.add(b.add(residual, b.mul(residual_stride, _int(r))), column)
                    total = b.fadd(total, _load(b, before, _vector(_f32)))
                    _store(b, total, b.add(b.add(out, b.mul(out_stride, _int(r))), column))

        with b.if_else(b.icmp_signed("!=", bf16, _int(0))) as (packed, plain):
            with packed:
                _switch(b, rows, range(1, GEMM_ROWS + 1), lambda count: emit(count, True))
            with plain:
                _switch(b, rows, range(1, GEMM_ROWS + 1), lambda count: emit(count, False))

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        _call_own(b, "gemm_tile", args, write)
        return context.get_dummy_value()

    return _procedure(13), codegen


@intrinsic
def score_tile(  # type: ignore[no-untyped-def]
    typing, bf16, rows, queries, query_stride, keys_a, keys_b, next_a, next_b, pairs, out, out_stride
):
    """Products of up to ATTENTION_ROWS queries with the keys of SCORES positions.

    ``queries`` is float32 (rows, 2 * pairs). ``keys_a`` and ``keys_b`` are two half tiles, each (pairs, HALF, 2) in
    bfloat16 or (2 * pairs, HALF) in float32; the half tiles ``next_a`` and ``next_b`` are fetched into the cache
    meanwhile. ``out`` is float32 (rows, SCORES). Strides count bytes.
    """

    def write(b: Builder, args: Sequence[Value]) -> None:
        bf16, rows, queries, query_stride, keys_a, keys_b, next_a, next_b, pairs, out, out_stride = args
        both = ir.Constant(_vector(_i32, SCORES), list(range(SCORES)))

        def emit(count: int, packed: bool) -> None:
            starts = [b.add(queries, b.mul(query_stride, _int(r))) for r in range(count)]
            element = _vector(_i32 if packed else _f32, HALF)

            def joined(offset: Value) -> Value:
                first = _load(b, b.add(keys_a, offset), element)
                return b.shuffle_vector(first, _load(b, b.add(keys_b, offset), element), both)

            # The first half of the steps fetches the one half tile, the second half the other.
            middle = b.ashr(pairs, _int(1))
            pair_bytes = (4 if packed else 8) * HALF
            other = b.sub(next_b, b.mul(middle, _int(2 * pair_bytes)))

            def step(pair: Value, sums: list[Value]) -> list[Value]:
                base = b.select(b.icmp_signed("<", pair, middle), next_a, other)
                for line in range(0, 2 * pair_bytes, 64):
                    _prefetch(b, b.add(b.add(base, b.mul(pair, _int(2 * pair_bytes))), _int(line)))
                if packed:
                    even, odd = _unpack(b, joined(b.mul(pair, _int(4 * HALF))))
                else:
                    offset = b.mul(pair, _int(8 * HALF))
                    even, odd = joined(offset), joined(b.add(offset, _int(4 * HALF)))
                column = b.mul(pair, _int(8))
                result = []
                for r in range(count):
                    at = b.add(starts[r], column)
                    first = _splat(b, _load(b, at, _f32), SCORES)
                    second = _splat(b, _load(b, b.add(at, _int(4)), _f32), SCORES)
                    result.append(_fma(b, first, even, sums[2 * r]))
                    result.append(_fma(b, second, odd, sums[2 * r + 1]))
                return result

            sums = _loop(b, pairs, [_floats(0.0, SCORES)] * (2 * count), step)
            for r in range(count):
                _store(b, b.fadd(sums[2 * r], sums[2 * r + 1]), b.add(out, b.mul(out_stride, _int(r))))

        with b.if_else(b.icmp_signed("!=", bf16, _int(0))) as (packed, plain):
            with packed:
                _switch(b, rows, range(1, ATTENTION_ROWS + 1), lambda count: emit(count, True))
            with plain:
                _switch(b, rows, range(1, ATTENTION_ROWS + 1), lambda count: emit(count, False))

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        _call_own(b, "score_tile", args, write)
        return context.get_dummy_value()

    return _procedure(11), codegen


@intrinsic
def value_tile(  # type: ignore[no-untyped-def]
    typing, bf16, rows, weights, weight_stride, values, following, value_stride, tokens, out, out_stride
):
    """``out += weights @ values`` for up to ATTENTION_ROWS rows and PANEL columns of the head.

    ``weights`` is float32 (rows, tokens), ``values`` (tokens, PANEL) as packed, ``out`` float32 (rows, PANEL). The
    values at ``following`` are fetched into the cache meanwhile. Strides count bytes.
    """

    def write(b: Builder, args: Sequence[Value]) -> None:
        bf16, rows, weights, weight_stride, values, following, value_stride, tokens, out, out_stride = args

        def emit(count: int, packed: bool) -> None:
            starts = [b.add(weights, b.mul(weight_stride, _int(r))) for r in range(count)]
            places = [
                b.add(b.add(out, b.mul(out_stride, _int(r))), _int(4 * LANES * v)) for r in range(count) for v in (0, 1)
            ]

            def step(token: Value, sums: list[Value]) -> list[Value]:
                offset = b.mul(token, value_stride)
                at = b.add(values, offset)
                for line in range(0, (4 if packed else 8) * LANES, 64):
                    _prefetch(b, b.add(b.add(following, offset), _int(line)))
                if packed:
                    low, high = _unpack(b, _load(b, at, _vector(_i32)))
                else:
                    low = _load(b, at, _vector(_f32))
                    high = _load(b, b.add(at, _int(4 * LANES)), _vector(_f32))
                column = b.mul(token, _int(4))
                result = []
                for r in range(count):
                    weight = _splat(b, _load(b, b.add(starts[r], column), _f32))
                    result.append(_fma(b, weight, low, sums[2 * r]))
                    result.append(_fma(b, weight, high, sums[2 * r + 1]))
                return result

            sums = _loop(b, tokens, [_load(b, place, _vector(_f32)) for place in places], step)
            for total, place in zip(sums, places, strict=True):
                _store(b, total, place)

        with b.if_else(b.icmp_signed("!=", bf16, _int(0))) as (packed, plain):
            with packed:
                _switch(b, rows, range(1, ATTENTION_ROWS + 1), lambda count: emit(count, True))
            with plain:
                _switch(b, rows, range(1, ATTENTION_ROWS + 1), lambda count: emit(count, False))

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        _call_own(b, "value_tile", args, write)
        return context.get_dummy_value()

    return _procedure(10), codegen


@intrinsic
def row_max(typing, row, vectors):  # type: ignore[no-untyped-def]
    """The largest of ``vectors * SCORES`` float32 numbers at ``row``."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        row, vectors = args

        def larger(x: Value, y: Value) -> Value:
            return b.select(b.fcmp_ordered(">", x, y), x, y)

        def step(i: Value, largest: list[Value]) -> list[Value]:
            return [larger(_load(b, b.add(row, b.mul(i, _int(4 * SCORES))), _vector(_f32, SCORES)), largest[0])]

        (largest,) = _loop(b, vectors, [_floats(float("-inf"), SCORES)], step)
        return _combine(b, largest, larger)

    return types.float32(types.intp, types.intp), codegen


@intrinsic
def row_exp(typing, row, vectors, shift, scale):  # type: ignore[no-untyped-def]
    """Replace every x of ``vectors * SCORES`` numbers at ``row`` by ``exp((x - shift) * scale)``; return their sum."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        row, vectors, shift, scale = args
        shifts, scales = _splat(b, shift, SCORES), _splat(b, scale, SCORES)

        def step(i: Value, sums: list[Value]) -> list[Value]:
            at = b.add(row, b.mul(i, _int(4 * SCORES)))
            weight = _exp(b, b.fmul(b.fsub(_load(b, at, _vector(_f32, SCORES)), shifts), scales))
            _store(b, weight, at)
            return [b.fadd(sums[0], weight)]

        (sums,) = _loop(b, vectors, [_floats(0.0, SCORES)], step)
        return _combine(b, sums, b.fadd)

    return types.float32(types.intp, types.intp, types.float32, types.float32), codegen


@intrinsic
def gate_rows(typing, rows, tile, out, out_stride):  # type: ignore[no-untyped-def]
    """``out = silu(gate) * up`` for a tile (rows, PANEL) whose first half is the gate; ``out`` is (rows, LANES)."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        rows, tile, out, out_stride = args

        def step(r: Value, _: list[Value]) -> list[Value]:
            at = b.add(tile, b.mul(r, _int(4 * PANEL)))
            gate = _load(b, at, _vector(_f32))
            up = _load(b, b.add(at, _int(4 * LANES)), _vector(_f32))
            grown = b.fadd(_exp(b, b.fsub(_floats(0.0), gate)), _floats(1.0))
            _store(b, b.fmul(b.fdiv(gate, grown), up), b.add(out, b.mul(r, out_stride)))
            return []

        _loop(b, rows, [], step)
        return context.get_dummy_value()

    return _procedure(4), codegen


@intrinsic
def atomic_add(typing, address, value):  # type: ignore[no-untyped-def]
    """Add to the integer at ``address`` as one indivisible act; returns what it was before."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        return b.atomic_rmw("add", _pointer(b, args[0], _i64), args[1], "seq_cst")

    return types.intp(types.intp, types.intp), codegen


@intrinsic
def atomic_load(typing, address):  # type: ignore[no-untyped-def]
    """Read the integer at ``address``; what its writer wrote before is visible afterwards."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        return b.load_atomic(_pointer(b, args[0], _i64), "acquire", 8)

    return types.intp(types.intp), codegen


@intrinsic
def atomic_store(typing, address, value):  # type: ignore[no-untyped-def]
    """Write the integer at ``address``; what was written before is visible to whoever reads it."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        b.store_atomic(args[1], _pointer(b, args[0], _i64), "release", 8)
        return context.get_dummy_value()

    return _procedure(2), codegen


@intrinsic
def relax(typing):  # type: ignore[no-untyped-def]
    """Tell the core that this thread is only waiting for another."""
    intel = platform.machine().lower() in ("x86_64", "amd64")

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        if intel:
            _call(b, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call(typing, function):  # type: ignore[no-untyped-def]
    """Call the C function without arguments at the address ``function``; its result is dropped."""

    def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
        b.call(b.inttoptr(args[0], ir.FunctionType(_i32, []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.intp), codegen
