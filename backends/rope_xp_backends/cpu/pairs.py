"""A few pairs, rotated in vectors: as :mod:`rope_xp._rotation.pairs`.

LLVM makes vectors of plain loops too, but not where input and output may be the same memory, nor of
pairs that lie side by side.
"""

from typing import Any

from llvmlite import ir

from .language import DOUBLE, FLOAT, I32, Int
from .plan import Form

ELEMENTS = {
    "float32": FLOAT,
    "float64": DOUBLE,
    "float16": ir.HalfType(),
    "bfloat16": ir.IntType(16),  # its bits: not every processor knows their arithmetic
}
"""LLVM's types of elements in memory."""
STREAM_ALIGNMENT = 16
"""Of addresses that can be streamed to, in bytes."""
TO_FETCH = 16
"""Fewer pairs at once are of short rows, which lie side by side in what is fetched anyway."""
_TO_READ_FROM_L2 = (0, 2, 1)  # llvm.prefetch: to read, locality 2 of 3, data


def _widen(builder: Any, v: Any, dtype: str, lanes: int) -> Any:
    if dtype == "float16":
        return builder.fpext(v, ir.VectorType(FLOAT, lanes))
    if dtype == "bfloat16":
        bits = builder.zext(v, ir.VectorType(I32, lanes))
        bits = builder.shl(bits, _splat(16, lanes))
        return builder.bitcast(bits, ir.VectorType(FLOAT, lanes))
    return v


def _narrow(builder: Any, v: Any, dtype: str, lanes: int) -> Any:
    """Round to nearest, ties to even, once."""
    if dtype == "float16":
        return builder.fptrunc(v, ir.VectorType(ir.HalfType(), lanes))
    if dtype == "bfloat16":
        bits = builder.bitcast(v, ir.VectorType(I32, lanes))
        odd = builder.and_(builder.lshr(bits, _splat(16, lanes)), _splat(1, lanes))
        rounded = builder.add(bits, builder.add(odd, _splat(0x7FFF, lanes)))
        # The bits of a NaN could carry over into the sign, or into those of infinity.
        quiet = builder.or_(bits, _splat(0x400000, lanes))
        number = builder.fcmp_ordered("ord", v, v)
        kept = builder.lshr(builder.select(number, rounded, quiet), _splat(16, lanes))
        return builder.trunc(kept, ir.VectorType(ir.IntType(16), lanes))
    return v


def _splat(value: int, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(I32, lanes), [value] * lanes)


def _shuffle(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))


def turn(
    x: Int,
    y: Int,
    angles: tuple[Int, Int],
    pairs: Int,
    first: Int,
    ahead: Int,
    form: Form,
    lanes: int,
    *,
    stream: bool = False,
) -> None:
    """Rotate pairs ``first`` to ``first + lanes`` of the row at address x into the row at y.

    ``angles`` are the addresses of the row's cosines and sines.

    ``ahead`` bytes further on lies what will be read soon: the same head of the next token. Where
    tokens are not adjacent, as in a slice of a fused projection, the processor does not guess that,
    and float32 takes 1.3 times, bfloat16 1.7 times as long.

    ``stream``: write past the caches, to addresses that are multiples of 16. Then nothing is
    fetched ahead, which would take a tenth longer.
    """
    b, dtype, size = x.builder, form.dtype, form.size
    element, computed = ELEMENTS[dtype], DOUBLE if form.wide else FLOAT

    def parts(row: Int, side_by_side: bool) -> tuple[Int, Int]:
        start = row + first * (2 * size if side_by_side else size)
        return start, start + (x.like(lanes) if side_by_side else pairs) * size

    def load(address: Int, kind: Any, align: int) -> Any:
        loaded = b.load(address.pointer(ir.VectorType(kind, lanes)))
        loaded.align = align
        return loaded

    def store(vector: Any, address: Int) -> None:
        stored = b.store(vector, address.pointer(ir.VectorType(element, lanes)))
        stored.align = STREAM_ALIGNMENT if stream else size
        if stream:
            stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))

    sources, targets = parts(x, form.read_pairs), parts(y, form.write_pairs)
    x1, x2 = (load(part, element, size) for part in sources)
    if form.read_pairs:
        even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
        x1, x2 = _shuffle(b, x1, x2, even), _shuffle(b, x1, x2, odd)
    if lanes >= TO_FETCH and not stream:
        for part in sources:
            _prefetch(part + ahead)
    x1, x2 = _widen(b, x1, dtype, lanes), _widen(b, x2, dtype, lanes)
    c, s = (load(table + first * form.width, computed, form.width) for table in angles)
    y1 = b.fsub(b.fmul(x1, c), b.fmul(x2, s))
    y2 = b.fadd(b.fmul(x2, c), b.fmul(x1, s))
    y1, y2 = _narrow(b, y1, dtype, lanes), _narrow(b, y2, dtype, lanes)
    if form.write_pairs:
        mixed = [i // 2 + (i % 2) * lanes for i in range(2 * lanes)]
        y1, y2 = _shuffle(b, y1, y2, mixed[:lanes]), _shuffle(b, y1, y2, mixed[lanes:])
    store(y1, targets[0])
    store(y2, targets[1])


def _prefetch(address: Int) -> None:
    b, byte = address.builder, ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    hint = b.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    where = address.pointer(ir.IntType(8))
    b.call(hint, [where, *(ir.Constant(I32, n) for n in _TO_READ_FROM_L2)])
