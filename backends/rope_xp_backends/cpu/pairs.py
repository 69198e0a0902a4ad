"""Rotation of a few pairs in vectors: the steps of :mod:`rope_xp._rotation.pairs`.

LLVM vectorises plain loops too, but not where input and output may be the same memory, nor over
interleaved pairs.
"""

from typing import Any

from llvmlite import ir

from .language import DOUBLE, FLOAT, I32, Int, fill, prefetch, shuffle
from .plan import KernelKey

_ELEMENTS = {
    "float32": FLOAT,
    "float64": DOUBLE,
    "float16": ir.HalfType(),
    "bfloat16": ir.IntType(16),  # its bits: not every processor has instructions for it
}
"""LLVM's types of elements in memory."""
STREAM_ALIGNMENT = 16
"""Of addresses that can be streamed to, in bytes."""
_PREFETCH_LANES = 16
"""Fewer lanes mean short rows, which lie side by side in what is fetched anyway."""


# float widen(T v);                                          T is float16, bfloat16, float or double
def _widen(b: Any, v: Any, dtype: str, lanes: int) -> Any:
    if dtype == "float16":
        return b.fpext(v, ir.VectorType(FLOAT, lanes))
    if dtype == "bfloat16":
        bits = b.shl(b.zext(v, ir.VectorType(I32, lanes)), fill(I32, 16, lanes))
        return b.bitcast(bits, ir.VectorType(FLOAT, lanes))
    return v


# T narrow(float v);
def _narrow(b: Any, v: Any, dtype: str, lanes: int) -> Any:
    """Round to nearest, ties to even, once."""
    if dtype == "float16":
        return b.fptrunc(v, ir.VectorType(ir.HalfType(), lanes))
    if dtype == "bfloat16":
        bits, half = b.bitcast(v, ir.VectorType(I32, lanes)), fill(I32, 16, lanes)
        odd = b.and_(b.lshr(bits, half), fill(I32, 1, lanes))
        rounded = b.add(bits, b.add(odd, fill(I32, 0x7FFF, lanes)))
        # The bits of a NaN could carry over into the sign, or into those of infinity.
        quiet = b.or_(bits, fill(I32, 0x400000, lanes))
        number = b.fcmp_ordered("ord", v, v)
        upper = b.lshr(b.select(number, rounded, quiet), half)
        return b.trunc(upper, ir.VectorType(ir.IntType(16), lanes))
    return v


# for (i = first; i < first + lanes; i++) {
#     x1 = interleaved_in ? x[2*i] : x[i], x2 = interleaved_in ? x[2*i + 1] : x[i + pairs];
#     y1 = x1 * cos[i] - x2 * sin[i], y2 = x2 * cos[i] + x1 * sin[i];
#     y[interleaved_out ? 2*i : i] = y1, y[interleaved_out ? 2*i + 1 : i + pairs] = y2;
# }
def rotate_pairs(
    x: Int,
    y: Int,
    angles: tuple[Int, Int],
    pairs: Int,
    first: Int,
    ahead: Int,
    key: KernelKey,
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
    b, dtype, size = x.builder, key.dtype, key.size
    element, computed = _ELEMENTS[dtype], DOUBLE if key.double else FLOAT

    def halves(row: Int, interleaved: bool) -> tuple[Int, Int]:
        start = row + first * (2 * size if interleaved else size)
        return start, start + (x.like(lanes) if interleaved else pairs) * size

    sources, targets = halves(x, key.interleaved_in), halves(y, key.interleaved_out)
    x1, x2 = (source.load(ir.VectorType(element, lanes), size) for source in sources)
    if key.interleaved_in:
        even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
        x1, x2 = shuffle(b, x1, x2, even), shuffle(b, x1, x2, odd)
    if lanes >= _PREFETCH_LANES and not stream:
        for source in sources:
            prefetch(source + ahead)
    x1, x2 = _widen(b, x1, dtype, lanes), _widen(b, x2, dtype, lanes)
    rows = (row + first * key.width for row in angles)
    cos, sin = (row.load(ir.VectorType(computed, lanes), key.width) for row in rows)
    y1 = b.fsub(b.fmul(x1, cos), b.fmul(x2, sin))
    y2 = b.fadd(b.fmul(x2, cos), b.fmul(x1, sin))
    y1, y2 = _narrow(b, y1, dtype, lanes), _narrow(b, y2, dtype, lanes)
    if key.interleaved_out:
        order = [i // 2 + (i % 2) * lanes for i in range(2 * lanes)]
        y1, y2 = shuffle(b, y1, y2, order[:lanes]), shuffle(b, y1, y2, order[lanes:])
    for target, half in zip(targets, (y1, y2), strict=True):
        stored = target.store(half, STREAM_ALIGNMENT if stream else size)
        if stream:
            stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))
