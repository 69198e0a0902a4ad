"""Pairs of a row in memory: loads, stores, and conversions to and from the dtype of arithmetic."""

from math import nan
from typing import Any

from llvmlite import ir

from rope_xp._core.dtypes import FLOATS

from .language import DOUBLE, FLOAT, I32, Int, broadcast, fill, shuffle
from .plan import KernelKey

ELEMENTS = {
    "float32": FLOAT,
    "float64": DOUBLE,
    "float16": ir.HalfType(),
    "bfloat16": ir.IntType(16),  # its bits: not every processor has instructions for it
}
"""LLVM's types of elements in memory."""
STREAM_ALIGNMENT = 16
"""Of addresses that can be streamed to, in bytes."""


def compute_type(key: KernelKey) -> ir.Type:
    """Return LLVM's type of the dtype of arithmetic."""
    return DOUBLE if key.double else FLOAT


# float convert(T v);                                        T is float16, bfloat16, float or double
def convert(b: Any, v: Any, dtype: str, key: KernelKey, lanes: int) -> Any:
    """Return a vector of a dtype in the dtype of arithmetic."""
    computed = ir.VectorType(compute_type(key), lanes)
    if dtype == "bfloat16":
        bits = b.shl(b.zext(v, ir.VectorType(I32, lanes)), fill(I32, 16, lanes))
        v = b.bitcast(bits, ir.VectorType(FLOAT, lanes))
    if v.type == computed:
        return v
    return b.fptrunc(v, computed) if dtype == "float64" else b.fpext(v, computed)


# T narrow(float v);                                        rounds once, to nearest, ties to even
def narrow(b: Any, v: Any, dtype: str, lanes: int) -> Any:
    """Return a vector of arithmetic rounded to a dtype."""
    if dtype == "float16":
        return b.fptrunc(v, ir.VectorType(ir.HalfType(), lanes))
    if dtype == "bfloat16":
        bits, half = b.bitcast(v, ir.VectorType(I32, lanes)), fill(I32, 16, lanes)
        odd = b.and_(b.lshr(bits, half), fill(I32, 1, lanes))
        # A NaN keeps its upper half, as its lower one is zero: see default_nan.
        upper = b.lshr(b.add(bits, b.add(odd, fill(I32, 0x7FFF, lanes))), half)
        return b.trunc(upper, ir.VectorType(ir.IntType(16), lanes))
    return v


# isnan(v) ? NAN : v
def default_nan(b: Any, v: Any) -> Any:
    """Return a vector whose NaNs have lower halves of zeros, which sums and products hand on."""
    return b.select(b.fcmp_ordered("ord", v, v), v, fill(v.type.element, nan, v.type.count))


# interleaved ? (row + 2 * first, row + 2 * first + lanes) : (row + first, row + first + pairs)
def locate_pairs(
    row: Int, first: Int, pairs: Int, size: int, interleaved: bool, lanes: int
) -> tuple[Int, Int]:
    """Return the two addresses of pairs ``first`` to ``first + lanes`` of a row."""
    start = row + first * (2 * size if interleaved else size)
    return start, start + (row.like(lanes) if interleaved else pairs) * size


# x1 = interleaved_in ? x[2*i] : x[i], x2 = interleaved_in ? x[2*i + 1] : x[i + pairs];
def load_pairs(
    row: Int, first: Int, pairs: Int, dtype: str, key: KernelKey, lanes: int
) -> tuple[Any, Any]:
    """Return the first and the second components of pairs in the dtype of arithmetic."""
    b, size = row.builder, FLOATS[dtype]
    addresses = locate_pairs(row, first, pairs, size, key.interleaved_in, lanes)
    x1, x2 = (a.load(ir.VectorType(ELEMENTS[dtype], lanes), size) for a in addresses)
    if key.interleaved_in:
        even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
        x1, x2 = shuffle(b, x1, x2, even), shuffle(b, x1, x2, odd)
    return convert(b, x1, dtype, key, lanes), convert(b, x2, dtype, key, lanes)


# for (i = first; i < first + lanes; i++) {
#     y1 = x1 * cos[i] - x2 * sin[i], y2 = x2 * cos[i] + x1 * sin[i];
#     y[interleaved_out ? 2*i : i] = y1, y[interleaved_out ? 2*i + 1 : i + pairs] = y2;
# }
def rotate_and_store(
    halves: tuple[Any, Any],
    y: Int,
    angles: tuple[Int, Int],
    first: Int,
    pairs: Int,
    key: KernelKey,
    lanes: int,
    factor: Any = None,
    *,
    stream: bool = False,
) -> None:
    """Rotate pairs, multiply them by a factor, and store them in the row at address y.

    ``angles`` are the addresses of the row's cosines and sines. ``stream`` writes past the caches,
    to multiples of 16.
    """
    (x1, x2), b = halves, y.builder
    cos, sin = ((row + first * key.width).load(x1.type, key.width) for row in angles)
    y1 = b.fsub(b.fmul(x1, cos), b.fmul(x2, sin))
    y2 = b.fadd(b.fmul(x2, cos), b.fmul(x1, sin))
    if factor is not None:
        factors = broadcast(b, factor, lanes)
        y1, y2 = b.fmul(y1, factors), b.fmul(y2, factors)
    y1, y2 = narrow(b, y1, key.dtype, lanes), narrow(b, y2, key.dtype, lanes)
    if key.interleaved_out:
        order = [i // 2 + (i % 2) * lanes for i in range(2 * lanes)]
        y1, y2 = shuffle(b, y1, y2, order[:lanes]), shuffle(b, y1, y2, order[lanes:])
    targets = locate_pairs(y, first, pairs, key.size, key.interleaved_out, lanes)
    for target, half in zip(targets, (y1, y2), strict=True):
        stored = target.store(half, STREAM_ALIGNMENT if stream else key.size)
        if stream:
            stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))
