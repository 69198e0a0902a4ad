"""Pairs of a row in memory: loads, stores, and conversions to and from the dtype of arithmetic."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import nan
from typing import Any

from llvmlite import ir

from rope_xp._core.dtypes import FLOATS

from .language import DOUBLE, FLOAT, I32, WIDE_STEP, Int, broadcast, fill, shuffle, unroll
from .plan import KernelKey


class _BFloat16(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's type, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"


_BFLOAT16 = _BFloat16()
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
def convert(b: Any, v: Any, dtype: str, key: KernelKey) -> Any:
    """Return a vector of a dtype in the dtype of arithmetic, as it is if it has that already."""
    lanes = v.type.count
    computed = ir.VectorType(compute_type(key), lanes)
    if dtype == "bfloat16" and v.type.element != FLOAT:
        bits = b.shl(b.zext(v, ir.VectorType(I32, lanes)), fill(I32, 16, lanes))
        v = b.bitcast(bits, ir.VectorType(FLOAT, lanes))
    if v.type == computed:
        return v
    return b.fptrunc(v, computed) if dtype == "float64" else b.fpext(v, computed)


# T narrow(float v);                                        rounds once, to nearest, ties to even
def narrow(b: Any, v: Any, dtype: str) -> Any:
    """Return a vector of arithmetic rounded to a dtype."""
    lanes = v.type.count
    if dtype == "float16":
        return b.fptrunc(v, ir.VectorType(ir.HalfType(), lanes))
    if dtype == "bfloat16":
        bits, half = b.bitcast(v, ir.VectorType(I32, lanes)), fill(I32, 16, lanes)
        odd = b.and_(b.lshr(bits, half), fill(I32, 1, lanes))
        # A NaN keeps its upper half, as its lower one is zero: see canonicalize_nan.
        upper = b.lshr(b.add(bits, b.add(odd, fill(I32, 0x7FFF, lanes))), half)
        return b.trunc(upper, ir.VectorType(ir.IntType(16), lanes))
    return v


# isnan(v) ? NAN : v
def canonicalize_nan(b: Any, v: Any) -> Any:
    """Return a vector whose NaNs have lower halves of zeros, which sums and products hand on."""
    return b.select(b.fcmp_ordered("ord", v, v), v, fill(v.type.element, nan, v.type.count))


# interleaved ? (row + 2 * first, row + 2 * first + lanes) : (row + first, row + first + pairs)
def locate_pairs(
    row: Int, first: int, key: KernelKey, size: int, interleaved: bool, lanes: int
) -> tuple[Int, Int]:
    """Return the two addresses of pairs ``first`` to ``first + lanes`` of a row."""
    start = row + first * (2 * size if interleaved else size)
    return start, start + (lanes if interleaved else key.pairs) * size


# x1 = interleaved_in ? x[2*i] : x[i], x2 = interleaved_in ? x[2*i + 1] : x[i + pairs];
def load_pairs(
    row: Int, first: int, dtype: str, key: KernelKey, lanes: int, pairs: Sequence[int] = ()
) -> tuple[Any, Any]:
    """Return the first and the second components of pairs, of their dtype.

    Given an order of ``pairs``, they are in it, and in the dtype of arithmetic.
    """
    b, size = row.builder, FLOATS[dtype]
    addresses = locate_pairs(row, first, key, size, key.interleaved_in, lanes)
    x1, x2 = (a.load(ir.VectorType(ELEMENTS[dtype], lanes), size) for a in addresses)
    if pairs:
        x1, x2 = convert(b, x1, dtype, key), convert(b, x2, dtype, key)
    return deal(b, x1, x2, pairs) if key.interleaved_in else (x1, x2)


def order_pairs(key: KernelKey, lanes: int) -> list[int]:
    """Return the pair in each lane while a row is rotated, if neighbours stay neighbours.

    Lanes move in one step within 16 bytes, so pairs are dealt there. bfloat16 is widened as it is
    dealt, which takes no step.
    """
    group = 16 // key.width
    if not (key.interleaved_in and key.interleaved_out) or key.dtype == "bfloat16":
        return []
    if lanes % group:
        return list(range(lanes))
    starts = [
        first + part for first in range(0, lanes // 2, group // 2) for part in (0, lanes // 2)
    ]
    return [start + i for start in starts for i in range(group // 2)]


# even = (v, w)[0::2], odd = (v, w)[1::2];
def deal(b: Any, v: Any, w: Any, pairs: Sequence[int] = ()) -> tuple[Any, Any]:
    """Return the lanes of two vectors with even numbers, and those with odd ones."""
    pairs = pairs or range(v.type.count)
    even, odd = (shuffle(b, v, w, [2 * pair + i for pair in pairs]) for i in (0, 1))
    return even, odd


# (v, w) = (even[0], odd[0], even[1], odd[1], ...);
def merge(b: Any, even: Any, odd: Any, pairs: Sequence[int] = ()) -> tuple[Any, Any]:
    """Return two vectors from their lanes with even and with odd numbers."""
    lanes = even.type.count
    pairs = pairs or range(lanes)
    order = [pairs.index(pair) + i * lanes for pair in range(lanes) for i in (0, 1)]
    return shuffle(b, even, odd, order[:lanes]), shuffle(b, even, odd, order[lanes:])


def deals(key: KernelKey) -> bool:
    """Return whether each two vectors of a kernel become one of even and one of odd lanes.

    Of two neighbours of 16 bits a mask widens one, and a shift the other: no number moves to
    another lane. Where an instruction rounds to bfloat16, its results would have to move back.
    """
    natural = key.interleaved_in or key.interleaved_out or key.rounds_bfloat16
    return key.dtype == "bfloat16" and not natural


def exchange(b: Any, steps: list[Any], swap: Callable[..., Any], key: KernelKey) -> list[Any]:
    """Return steps of pairs where ``swap``, deal or merge, exchanged the lanes of each two."""
    wide = sum(v.type.count == WIDE_STEP for v, _ in steps) // 2 * 2 if deals(key) else 0
    exchanged: list[Any] = []
    for two in zip(steps[:wide:2], steps[1:wide:2], strict=True):
        exchanged += zip(*(swap(b, *same) for same in zip(*two, strict=True)), strict=True)
    return exchanged + steps[wide:]


# sin = inverse ? -sin : sin;
def load_angles(
    cos: Int, sin: Int, inverse: Any, key: KernelKey, start: tuple[int, ...] = ()
) -> list[tuple[Any, Any]]:
    """Return the cosines and sines of a row, or for an inverse rotation cosines and -sines."""
    b, vectors = cos.builder, []
    for n, lanes in unroll(key.pairs, start):
        kind = ir.VectorType(compute_type(key), lanes)
        c, s = ((row + n * key.width).load(kind, key.width) for row in (cos, sin))
        if key.dtype == "bfloat16":  # see narrow
            c, s = canonicalize_nan(b, c), canonicalize_nan(b, s)
        if order := order_pairs(key, lanes):
            c, s = shuffle(b, c, c, order), shuffle(b, s, s, order)
        vectors.append((c, b.select(inverse, b.fneg(s), s)))
    return exchange(b, vectors, deal, key)


# y1 = (x1 * cos - x2 * sin) * factor, y2 = (x2 * cos + x1 * sin) * factor;
def rotate(
    b: Any, halves: list[Any], angles: list[Any], factor: Any, key: KernelKey
) -> list[tuple[Any, Any]]:
    """Return pairs rotated, multiplied by a factor if there is one, and rounded."""
    rotated: list[Any] = []
    for (x1, x2), (cos, sin) in zip(halves, angles, strict=True):
        y1 = b.fsub(b.fmul(x1, cos), b.fmul(x2, sin))
        y2 = b.fadd(b.fmul(x2, cos), b.fmul(x1, sin))
        if factor is not None:
            y1, y2 = (b.fmul(y, broadcast(b, factor, y.type.count)) for y in (y1, y2))
        order = order_pairs(key, y1.type.count)
        rotated += merge(b, y1, y2, order) if order else (y1, y2)
    rounded = narrow_row(b, rotated, key)
    return exchange(b, list(zip(rounded[::2], rounded[1::2], strict=True)), merge, key)


# for (v in row) w = vcvtneps2bf16(v); or narrow(v) if any number of the row is subnormal
def narrow_row(b: Any, row: list[Any], key: KernelKey) -> list[Any]:
    """Return vectors of arithmetic rounded to the dtype of a kernel.

    The instruction that rounds to bfloat16 takes subnormal numbers for zeros.
    """
    many = [v for v in row if v.type.count == WIDE_STEP]
    if not (key.dtype == "bfloat16" and key.rounds_bfloat16 and many):
        return [narrow(b, v, key.dtype) for v in row]
    bits, subnormal = ir.IntType(WIDE_STEP), ir.Constant(I32, 0x20)
    kind = ir.FunctionType(ir.VectorType(ir.IntType(1), WIDE_STEP), [many[0].type, I32])
    name = "llvm.x86.avx512.fpclass.ps.512"
    classify = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    found = reduce(b.or_, [b.call(classify, [v, subnormal]) for v in many])
    is_exact = b.icmp_unsigned("!=", b.bitcast(found, bits), ir.Constant(bits, 0))
    with b.if_else(is_exact, likely=False) as (by_shifts, by_instruction):
        with by_shifts:
            exact, first = [narrow(b, v, key.dtype) for v in many], b.block
        with by_instruction:
            rounded = [b.fptrunc(v, ir.VectorType(_BFLOAT16, WIDE_STEP)) for v in many]
            rounded, second = [b.bitcast(v, exact[0].type) for v in rounded], b.block
    results = []
    for pair in zip(exact, rounded, strict=True):
        results.append(b.phi(exact[0].type))
        for v, block in zip(pair, (first, second), strict=True):
            results[-1].add_incoming(v, block)
    return results + [narrow(b, v, key.dtype) for v in row[len(many) :]]


# y[interleaved_out ? 2*i : i] = y1, y[interleaved_out ? 2*i + 1 : i + pairs] = y2;
def store_pairs(
    halves: tuple[Any, Any], y: Int, first: int, key: KernelKey, lanes: int, *, stream: bool
) -> None:
    """Store rounded pairs ``first`` to ``first + lanes`` in the row at address y.

    ``stream`` writes past the caches, to multiples of 16.
    """
    b = y.builder
    is_merged = not key.interleaved_out or order_pairs(key, lanes)
    stores = halves if is_merged else merge(b, *halves)
    targets = locate_pairs(y, first, key, key.size, key.interleaved_out, lanes)
    for target, half in zip(targets, stores, strict=True):
        stored = target.store(half, STREAM_ALIGNMENT if stream else key.size)
        if stream:
            stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))
