"""RMSNorm of a row in the pass that rotates it: the steps of :mod:`rope_xp._rotation.norm`.

The row stays in registers, so lengths are constants and loops are unrolled. A rotation by loops
would read the row twice, and convert it twice.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from rope_xp._core.dtypes import FLOATS
from rope_xp._rotation.norm import LANES

from .elements import ELEMENTS, convert, load_pairs, locate_pairs, narrow, rotate_and_store
from .language import (
    DOUBLE,
    FLOAT,
    I32,
    I64,
    MANY,
    Condition,
    Int,
    broadcast,
    fill,
    prefetch,
    shuffle,
)
from .plan import FEW, KernelKey, NormKey

ROWS = 4
"""Rows whose factors are computed before they are rotated: a square root and a quotient take
longer than a row, and a processor works on a few rows at once."""


class Row(NamedTuple):
    """Normalized components of a row, as vectors in the dtype of arithmetic."""

    pairs: list[tuple[Any, Any]]
    """First and second components."""
    rest: tuple[list[Any], list[Any]]
    """Components before and behind the rotated slice."""


def load_row(row: Int, dtype: str, key: KernelKey, norm: NormKey) -> Row:
    """Load the components of the row whose rotated slice is at an address."""
    b, size = row.builder, FLOATS[dtype]

    def load(n: Int, lanes: int) -> Any:
        v = (row + n * size).load(ir.VectorType(ELEMENTS[dtype], lanes), size)
        return convert(b, v, dtype, key, lanes)

    before, behind = ([load(n, lanes) for n, lanes in steps] for steps in _rest_steps(row, norm))
    arguments = row.like(norm.pairs), dtype, key
    pairs = [load_pairs(row, row.like(n), *arguments, lanes) for n, lanes in _steps(norm.pairs)]
    return Row(pairs, (before, behind))


def load_weights(weight: Int, key: KernelKey, norm: NormKey) -> Row | None:
    """Load weights and add their offset."""
    if not norm.weight:
        return None

    def add_offset(v: Any) -> Any:
        return weight.builder.fadd(v, fill(v.type.element, norm.offset, v.type.count))

    first = weight + norm.before * FLOATS[norm.weight]
    return _map(add_offset, load_row(first, norm.weight, key, norm))


def _map(function: Callable[..., Any], *rows: Row) -> Row:
    """Return a row of the results of a function on vectors of rows."""
    columns = zip(*(row.pairs for row in rows), strict=True)
    pairs = [
        (function(*firsts), function(*seconds)) for firsts, seconds in (zip(*c) for c in columns)
    ]
    before, behind = (list(map(function, *parts)) for parts in zip(*(row.rest for row in rows)))
    return Row(pairs, (before, behind))


def allocate_factors(b: Any, key: KernelKey) -> Int:
    """Return the address of memory for the factors of ROWS rows."""
    kind = ir.ArrayType(DOUBLE if key.double else FLOAT, ROWS)
    return Int(b, b.ptrtoint(b.alloca(kind), I64))


# *factor = 1 / sqrt(sum(x * x) / count + eps);
def store_factor(x: Int, factor: Int, ahead: Int, key: KernelKey, norm: NormKey) -> None:
    """Store the factor of the row at address x, and prefetch another one."""
    for n, lanes in _steps(norm.pairs):
        if lanes == MANY:
            place = x, x.like(n), x.like(norm.pairs)
            for address in locate_pairs(*place, key.size, key.interleaved_in, lanes):
                prefetch(address + ahead)
    factor.store(_compute_factor(x.builder, load_row(x, key.dtype, key, norm), norm), key.width)


# for (n = 0; n < pairs; n++) y[n] = rotate(x[n] * w[n], cos[n], sin[n]) * f;
# for (n beside the slice) y[n] = x[n] * w[n] * f;
def rotate_row(
    x: Int,
    y: Int,
    angles: tuple[Int, Int],
    weights: Row | None,
    factor: Int,
    key: KernelKey,
    norm: NormKey,
    streams: Condition,
) -> None:
    """Rotate the row at address x into the row at y, multiplied by weights and its factor."""
    b, pairs, size = x.builder, x.like(norm.pairs), key.size
    row = load_row(x, key.dtype, key, norm)
    row = row if weights is None else _map(b.fmul, row, weights)
    scale = factor.load(DOUBLE if key.double else FLOAT, key.width)
    for steps, vectors in zip(_rest_steps(x, norm), row.rest, strict=True):
        for (n, lanes), v in zip(steps, vectors, strict=True):
            scaled = b.fmul(v, broadcast(b, scale, lanes))
            (y + n * size).store(narrow(b, scaled, key.dtype, lanes), size)
    with b.if_else(streams) as branches:
        for branch, stream in zip(branches, (True, False), strict=True):
            with branch:
                for (n, lanes), halves in zip(_steps(norm.pairs), row.pairs, strict=True):
                    arguments = halves, y, angles, x.like(n), pairs, key, lanes
                    streamed, f = stream and lanes == MANY, broadcast(b, scale, lanes)
                    rotate_and_store(*arguments, stream=streamed, factor=f)


def _compute_factor(b: Any, row: Row, norm: NormKey) -> Any:
    """Return 1 / sqrt(mean(x**2) + eps)."""
    parts = [_sum_in_lanes(b, part) for part in (*zip(*row.pairs, strict=True), *row.rest) if part]
    total, *others = parts
    for part in others:
        total = b.fadd(total, part)
    width = LANES
    while width > 1:
        width //= 2
        lower, upper = (shuffle(b, total, total, [*range(i, i + width)]) for i in (0, width))
        total = b.fadd(lower, upper)
    total = b.extract_element(total, ir.Constant(I32, 0))
    mean = b.fmul(
        total, ir.Constant(total.type, 1.0 / (2 * norm.pairs + norm.before + norm.behind))
    )
    mean = b.fadd(mean, ir.Constant(total.type, norm.eps))
    return b.fdiv(ir.Constant(total.type, 1.0), _sqrt(b, mean))


def _sum_in_lanes(b: Any, vectors: Sequence[Any]) -> Any:
    total, n = None, 0
    for vector in vectors:
        v, lanes = b.fmul(vector, vector), vector.type.count
        if lanes < LANES:
            zeros, first = fill(v.type.element, 0.0, lanes), n % LANES
            order = [i - first if first <= i < first + lanes else lanes for i in range(LANES)]
            v = shuffle(b, v, zeros, order)
        total, n = v if total is None else b.fadd(total, v), n + lanes
    return total


def _rest_steps(x: Int, norm: NormKey) -> list[list[tuple[Int, int]]]:
    """Return the steps of the components before and behind the slice, counted from its start."""
    parts = (-norm.before, norm.before), (2 * norm.pairs, norm.behind)
    return [[(x.like(start + n), lanes) for n, lanes in _steps(count)] for start, count in parts]


def _steps(count: int) -> Iterator[tuple[int, int]]:
    """Yield the first component and the number of components of vectors, as vector_steps does."""
    n = 0
    for lanes in (MANY, FEW, 1):
        while count - n >= lanes:
            yield n, lanes
            n += lanes


def _sqrt(b: Any, x: Any) -> Any:
    name = f"llvm.sqrt.{'f64' if x.type == ir.DoubleType() else 'f32'}"
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(x.type, [x.type]), name)
    return b.call(function, [x])
