"""A block of pairs, rotated in vectors that are spelled in LLVM's own types.

LLVM makes vectors of plain loops too, but not where input and output may be the same memory, nor of
pairs that lie side by side, nor of 16-bit floats, which numba does not know.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Of the elements in memory and of the arithmetic. numba has names for neither 16-bit float, so
# arrays of them come as their bits.
ELEMENTS: dict[str, tuple[Any, Any, Any, Any]] = {
    "float32": (types.float32, ir.FloatType(), types.float32, ir.FloatType()),
    "float64": (types.float64, ir.DoubleType(), types.float64, ir.DoubleType()),
    "float16": (types.uint16, ir.HalfType(), types.float32, ir.FloatType()),
    "bfloat16": (types.uint16, ir.IntType(16), types.float32, ir.FloatType()),
}
DTYPES = tuple(ELEMENTS)
STREAM_ALIGNMENT = 16
"""Of addresses that can be streamed to, in bytes."""
TO_FETCH = 16
"""Fewer pairs at once are of short rows, which lie side by side in what is fetched anyway."""
_TO_READ_FROM_L2 = (0, 2, 1)  # llvm.prefetch: to read, locality 2 of 3, data
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _widen(builder: Any, v: Any, dtype: str, lanes: int) -> Any:
    if dtype == "float16":
        return builder.fpext(v, ir.VectorType(ir.FloatType(), lanes))
    if dtype == "bfloat16":
        bits = builder.zext(v, ir.VectorType(_I32, lanes))
        bits = builder.shl(bits, _splat(16, lanes))
        return builder.bitcast(bits, ir.VectorType(ir.FloatType(), lanes))
    return v


def _narrow(builder: Any, v: Any, dtype: str, lanes: int) -> Any:
    """Round to nearest, ties to even, once."""
    if dtype == "float16":
        return builder.fptrunc(v, ir.VectorType(ir.HalfType(), lanes))
    if dtype == "bfloat16":
        bits = builder.bitcast(v, ir.VectorType(_I32, lanes))
        odd = builder.and_(builder.lshr(bits, _splat(16, lanes)), _splat(1, lanes))
        rounded = builder.add(bits, builder.add(odd, _splat(0x7FFF, lanes)))
        # The bits of a NaN could carry over into the sign, or into those of infinity.
        quiet = builder.or_(bits, _splat(0x400000, lanes))
        number = builder.fcmp_ordered("ord", v, v)
        kept = builder.lshr(builder.select(number, rounded, quiet), _splat(16, lanes))
        return builder.trunc(kept, ir.VectorType(ir.IntType(16), lanes))
    return v


def _splat(value: int, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(_I32, lanes), [value] * lanes)


def _shuffle(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(order)), order))


@intrinsic(prefer_literal=True)
def turn(
    typing, x, y, cos, sin, pairs, first, ahead, dtype, read_pairs, write_pairs, lanes, stream
):
    """Rotate pairs ``first`` to ``first + lanes`` of the row at address x into the row at y.

    ``ahead`` bytes further on lies what will be read soon: the same head of the next token. Where
    tokens are not adjacent, as in a slice of a fused projection, the processor does not guess that,
    and float32 takes 1.3 times, bfloat16 1.7 times as long.

    ``stream``: write past the caches, to addresses that are multiples of 16. Then nothing is
    fetched ahead, which would take a tenth longer.
    """
    name = DTYPES[dtype.literal_value]
    reads, writes = bool(read_pairs.literal_value), bool(write_pairs.literal_value)
    n, past_caches = lanes.literal_value, bool(stream.literal_value)
    _, element, _, computed = ELEMENTS[name]
    size = {"float64": 8, "float32": 4}.get(name, 2)
    width = 8 if name == "float64" else 4

    def codegen(context, builder, signature, args):
        x, y, cos, sin, pairs, first, ahead = args[:7]

        def at(start: Any, count: Any, scale: int) -> Any:
            return builder.add(start, builder.mul(count, ir.Constant(_I64, scale)))

        def prefetch(address: Any) -> None:
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
            hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
            where = builder.inttoptr(builder.add(address, ahead), byte)
            builder.call(hint, [where, *(ir.Constant(_I32, n) for n in _TO_READ_FROM_L2)])

        def load(address: Any, kind: Any, align: int) -> Any:
            loaded = builder.load(builder.inttoptr(address, ir.VectorType(kind, n).as_pointer()))
            loaded.align = align
            return loaded

        def store(vector: Any, address: Any) -> None:
            kind = ir.VectorType(element, n).as_pointer()
            stored = builder.store(vector, builder.inttoptr(address, kind))
            stored.align = STREAM_ALIGNMENT if past_caches else size
            if past_caches:
                one = builder.module.add_metadata([ir.Constant(_I32, 1)])
                stored.set_metadata("nontemporal", one)

        vector = ir.Constant(_I64, n)
        if reads:
            start = at(x, first, 2 * size)
            parts = [start, at(start, vector, size)]
            a, b = (load(part, element, size) for part in parts)
            x1 = _shuffle(builder, a, b, list(range(0, 2 * n, 2)))
            x2 = _shuffle(builder, a, b, list(range(1, 2 * n, 2)))
        else:
            start = at(x, first, size)
            parts = [start, at(start, pairs, size)]
            x1, x2 = (load(part, element, size) for part in parts)
        if n >= TO_FETCH and not past_caches:
            for part in parts:
                prefetch(part)
        x1, x2 = _widen(builder, x1, name, n), _widen(builder, x2, name, n)
        c, s = (load(at(table, first, width), computed, width) for table in (cos, sin))
        y1 = builder.fsub(builder.fmul(x1, c), builder.fmul(x2, s))
        y2 = builder.fadd(builder.fmul(x2, c), builder.fmul(x1, s))
        y1, y2 = _narrow(builder, y1, name, n), _narrow(builder, y2, name, n)
        if writes:
            mixed = [i // 2 + (i % 2) * n for i in range(2 * n)]
            start = at(y, first, 2 * size)
            store(_shuffle(builder, y1, y2, mixed[:n]), start)
            store(_shuffle(builder, y1, y2, mixed[n:]), at(start, vector, size))
        else:
            start = at(y, first, size)
            store(y1, start)
            store(y2, at(start, pairs, size))
        return context.get_dummy_value()

    integers = [types.int64] * 7
    return types.void(*integers, dtype, read_pairs, write_pairs, lanes, stream), codegen


@intrinsic
def copy(typing, y, x, count):
    """Copy ``count`` bytes from address x to address y."""

    def codegen(context, builder, signature, args):
        to, start = (builder.inttoptr(a, cgutils.voidptr_t) for a in args[:2])
        cgutils.raw_memcpy(builder, to, start, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def peek(typing, address, index):
    """Return one of the 64-bit integers at an address."""

    def codegen(context, builder, signature, args):
        at = builder.add(args[0], builder.mul(args[1], ir.Constant(_I64, 8)))
        return builder.load(builder.inttoptr(at, _I64.as_pointer()))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def settle(typing):
    """Have what was streamed seen by all threads from here on."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen
