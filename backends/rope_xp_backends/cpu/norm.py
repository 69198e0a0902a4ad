"""RMSNorm of rows that a kernel rotates: the steps of :mod:`rope_xp._rotation.norm`.

Lengths are constants of a kernel, and loops are unrolled: so weights stay in registers.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from llvmlite import ir

from rope_xp._core.dtypes import FLOATS
from rope_xp._rotation.norm import LANES

from .elements import (
    ELEMENTS,
    canonicalize_nan,
    compute_type,
    convert,
    deal,
    exchange,
    load_pairs,
    narrow,
    order_pairs,
)
from .language import DOUBLE, FLOAT, I32, I64, Int, broadcast, fill, shuffle, unroll
from .plan import KernelKey, NormKey

ROWS = 4
"""Rows whose factors are computed before they are rotated. A square root and a quotient take longer
than a row, and a processor works on several rows at once; but more rows leave its first cache."""


class Row(NamedTuple):
    """Normalized components of a row, as vectors in the dtype of arithmetic."""

    pairs: list[tuple[Any, Any]]
    """First and second components."""
    before: list[Any]
    """Components before the rotated slice."""
    after: list[Any]


def load_row(row: Int, dtype: str, key: KernelKey, norm: NormKey, *, in_order: bool = True) -> Row:
    """Load the components of the row whose rotated slice is at an address.

    Pairs are ``in_order``, as sums need them, or as they are rotated.
    """
    b, size = row.builder, FLOATS[dtype]

    def load(start: int, count: int) -> Iterator[Any]:
        for n, lanes in unroll(count):
            v = (row + (start + n) * size).load(ir.VectorType(ELEMENTS[dtype], lanes), size)
            yield convert(b, v, dtype, key)

    loaded = [
        load_pairs(row, n, dtype, key, lanes, () if in_order else order_pairs(key, lanes))
        for n, lanes in unroll(key.pairs)
    ]
    pairs = [(convert(b, x1, dtype, key), convert(b, x2, dtype, key)) for x1, x2 in loaded]
    after = load(2 * key.pairs, norm.after)
    return Row(pairs, list(load(-norm.before, norm.before)), list(after))


def load_weights(weight: Int, offset: Int, key: KernelKey, norm: NormKey) -> Row | None:
    """Load weights and add their offset, the bits of a float64."""
    if not norm.weight:
        return None

    def add_offset(vectors: Iterable[Any]) -> list[Any]:
        sums = [b.fadd(v, broadcast(b, addend, v.type.count)) for v in vectors]
        return [canonicalize_nan(b, v) for v in sums]

    b, first = weight.builder, weight + norm.before * FLOATS[norm.weight]
    addend = b.bitcast(offset.value, DOUBLE)
    addend = addend if key.double else b.fptrunc(addend, FLOAT)
    pairs, before, after = load_row(first, norm.weight, key, norm, in_order=False)
    pairs = exchange(b, [(*add_offset(halves),) for halves in pairs], deal, key)
    return Row(pairs, add_offset(before), add_offset(after))


def allocate_factors(b: Any, key: KernelKey) -> Int:
    """Return the address of memory for the factors of ROWS rows."""
    kind = ir.ArrayType(compute_type(key), ROWS)
    return Int(b, b.ptrtoint(b.alloca(kind), I64))


# *factor = (float)(1 / sqrt((double)sum(x * x) / count + eps));
def store_factor(x: Int, factor: Int, eps: Int, key: KernelKey, norm: NormKey) -> None:
    """Store the factor of the row at address x. ``eps`` holds the bits of a float64."""
    b, row = x.builder, load_row(x, key.dtype, key, norm)
    length = 2 * key.pairs + norm.before + norm.after
    parts = [*zip(*row.pairs, strict=True), row.before, row.after]
    total, *others = [_sum_in_lanes(b, part) for part in parts if part]
    for other in others:
        total = b.fadd(total, other)
    width = LANES
    while width > 1:
        width //= 2
        lower, upper = (shuffle(b, total, total, [*range(i, i + width)]) for i in (0, width))
        total = b.fadd(lower, upper)
    total = b.extract_element(total, ir.Constant(I32, 0))
    mean = b.fmul(total if key.double else b.fpext(total, DOUBLE), _double(1.0 / length))
    sqrt = b.module.declare_intrinsic("llvm.sqrt", [DOUBLE])
    quotient = b.fdiv(_double(1.0), b.call(sqrt, [b.fadd(mean, b.bitcast(eps.value, DOUBLE))]))
    factor.store(quotient if key.double else b.fptrunc(quotient, FLOAT), key.width)


# for (n beside the slice) y[n] = x[n] * w[n] * factor;
def scale_rest(
    x: Int, y: Int, weights: Row | None, factor: Any, key: KernelKey, norm: NormKey
) -> None:
    """Normalize the components before and after the rotated slice."""
    b, row = x.builder, load_row(x, key.dtype, key, norm)
    for part, start in ((1, -norm.before), (2, 2 * key.pairs)):
        n = start
        for i, v in enumerate(row[part]):
            lanes, product = v.type.count, v if weights is None else b.fmul(v, weights[part][i])
            scaled = b.fmul(product, broadcast(b, factor, lanes))
            (y + n * key.size).store(narrow(b, scaled, key.dtype), key.size)
            n += lanes


def _sum_in_lanes(b: Any, vectors: Iterable[Any]) -> Any:
    """Return sums of squares, of component n in lane n % LANES."""
    total, n = None, 0
    for vector in vectors:
        v, lanes = b.fmul(vector, vector), vector.type.count
        if lanes < LANES:
            zeros, first = fill(v.type.element, 0.0, lanes), n % LANES
            order = [i - first if first <= i < first + lanes else lanes for i in range(LANES)]
            v = shuffle(b, v, zeros, order)
        total, n = v if total is None else b.fadd(total, v), n + lanes
    return total


def _double(value: float) -> ir.Constant:
    return ir.Constant(DOUBLE, value)
