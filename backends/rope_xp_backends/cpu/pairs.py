"""Rotation of heads by vectors of pairs: the steps of :mod:`rope_xp._rotation.portable`.

Pairs of a row are a constant of a kernel, and its loops over them are unrolled: cos and sin of a
token stay in registers for all of its heads.
"""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any

from llvmlite import ir

from . import norm
from .elements import (
    STREAM_ALIGNMENT,
    compute_type,
    convert,
    deal,
    deals,
    exchange,
    load_angles,
    load_pairs,
    order_pairs,
    rotate,
    store_pairs,
)
from .language import (
    I64,
    WIDE_STEP,
    Int,
    copy,
    least,
    list_branches,
    load_params,
    loop,
    prefetch,
    unroll,
)
from .plan import OPERAND_FIELDS, KernelKey

_BLOCK = (
    *("params", "operand", "x", "y", "batch", "token", "tokens", "stream"),
    *("cos", "sin", "cos_token", "sin_token", "weight", "offsets", "eps", "weight_offset"),
)
LINE = 64
"""Bytes that are fetched at once."""
SKEW, UP_TO_LINE = 16, (4, 8)
"""numpy's large arrays begin so many bytes after a line, and vectors that cross lines take longer.
So rows in halves then begin with steps of so many pairs. To other layouts this is no gain."""


# void rotate_heads(x, y, cos, sin, ...) {
#     for (t = 0; t < tokens; t++) {            the loop over heads is outside where tokens of a
#         load cos[t] and sin[t];               head lie closer together than heads of a token
#         for (h = 0; h < heads; h++) {
#             if (x != y) copy what lies before and after the rotated slice;
#             rotate x[t][h] into y[t][h];
#         }
#     }
# }
def build_rotation(module: ir.Module, key: KernelKey) -> ir.Function:
    """Return the function that rotates all heads of q or of k in a block of tokens.

    ``operand`` is the address of the fields of either.
    """
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(_BLOCK))
    function = ir.Function(module, kind, "rotate_heads")
    function.linkage = "internal"
    b = ir.IRBuilder(function.append_basic_block())
    row, operand, x, y, batch, token, tokens, stream, cos, sin, cos_token, sin_token, *of_norm = (
        Int(b, v) for v in function.args
    )
    weight, offsets, eps, weight_offset = of_norm
    params = load_params(row)
    field = {name: operand.load_i64(i) for i, name in enumerate(OPERAND_FIELDS)}
    before, after = params["before"], params["after"]
    x, y = x + field["x_skip"], y + field["y_skip"]
    out_of_place = x.is_("!=", y)
    rest = before + after if key.norm is None or not key.norm.has_rest else before.like(0)
    copies_rest = b.and_(rest.is_(">", 0), out_of_place)
    x0 = x + batch * field["x_batch"] + token * field["x_token"] + before
    y0 = y + batch * field["y_batch"] + token * field["y_token"] + before
    offsets += field["offset_skip"] + batch * field["offset_batch"] + token * field["offset_token"]
    size = 2 * key.pairs * key.size
    strides = y0 | field["y_batch"] | field["y_token"] | field["y_head"] | key.pairs * key.size
    aligned = b.and_(stream.is_nonzero(), (strides % STREAM_ALIGNMENT).is_("==", 0))
    streams = b.and_(aligned, out_of_place)
    tokens_first = abs(field["x_head"]).is_("<=", abs(field["x_token"]))
    # The processor predicts what is read next, but for slices, as of a fused projection, which take
    # up to 1.7 times as long without prefetching. It helps long arrays too.
    adjacent = field["x_token"].is_("==", field["heads"] * field["x_head"])
    prefetches = b.or_(stream.is_nonzero(), b.not_(adjacent))
    weights = None if key.norm is None else norm.load_weights(weight, weight_offset, key, key.norm)
    inverse = params["negate_given"].is_nonzero()
    counts = {"token": tokens, "head": field["heads"]}

    def find_result(axis: str, n: Int) -> Int:
        step, scatters = n * field[f"y_{axis}"], key.scatters and axis == "token"
        return step + (offsets + n * field["offset_token"]).load_i64() if scatters else step

    def load_token(t: Int, start: tuple[int, ...]) -> list[Any]:
        return load_angles(cos + t * cos_token, sin + t * sin_token, inverse, key, start)

    # A branch on streams within the inner loop would make it half as fast.
    def rotate_rows(outer: str, inner: str, *, stream: bool, start: tuple[int, ...]) -> None:
        step, count = field[f"x_{inner}"], counts[inner]
        with loop(tokens.like(0), counts[outer]) as i:
            source, target = x0 + i * field[f"x_{outer}"], y0 + find_result(outer, i)
            angles = load_token(i, start) if outer == "token" else None
            for j, factor in _list_rows(key, count, source, step, eps):
                x_row, y_row = source + j * step, target + find_result(inner, j)
                with b.if_then(copies_rest):
                    copy(y_row - before, x_row - before, before)
                    copy(y_row + size, x_row + size, after)
                if outer == "token" and not stream:
                    with b.if_then(prefetches):
                        for line in range(0, size, LINE):
                            prefetch(x_row + field["x_token"] + line)
                if key.norm is not None:
                    norm.scale_rest(x_row, y_row, weights, factor, key, key.norm)
                of_row = angles or load_token(j, start)
                _rotate_row(x_row, y_row, of_row, key, weights, factor, stream=stream, start=start)

    for streamed in list_branches(b, streams):
        for is_first in list_branches(b, tokens_first):
            order = ("token", "head") if is_first else ("head", "token")
            is_usual = is_first and not streamed
            for start in _list_starts(x0, y0, field, key) if is_usual else [()]:
                rotate_rows(*order, stream=streamed, start=start)
    b.ret_void()
    return function


# if (all rows of x and y begin 16 bytes after a line) { ... } else { ... }
def _list_starts(
    x: Int, y: Int, field: dict[str, Int], key: KernelKey
) -> Iterator[tuple[int, ...]]:
    """Write both ways to begin rows, where there are two: yield the lengths of the first steps."""
    moves = key.interleaved_in or key.interleaved_out
    if key.dtype != "float32" or moves or key.norm is not None or key.pairs < LINE // key.size:
        yield ()
        return
    steps = [field[f"{name}_{axis}"] for name in "xy" for axis in ("token", "head")]
    apart = reduce(or_, steps, (x - SKEW) | (y - SKEW))
    for is_skewed in list_branches(x.builder, (apart % LINE).is_("==", 0)):
        yield UP_TO_LINE if is_skewed else ()


def _rotate_row(
    x: Int,
    y: Int,
    angles: list[Any],
    key: KernelKey,
    weights: norm.Row | None,
    factor: Any,
    *,
    stream: bool,
    start: tuple[int, ...] = (),
) -> None:
    """Rotate the row at address x into the row at y.

    Stores follow their loads, and memory keeps up. Where pairs move, and a row may be its own
    result, all of it is loaded first.
    """
    b, steps = x.builder, list(unroll(key.pairs, start))
    moves = key.interleaved_in != key.interleaved_out
    many = len(steps) if moves else 1 + deals(key)
    for first in range(0, len(steps), many):
        group = steps[first : first + many]
        loaded = [
            load_pairs(x, n, key.dtype, key, lanes, order_pairs(key, lanes)) for n, lanes in group
        ]
        loaded = exchange(b, loaded, deal, key)
        halves = [[convert(b, v, key.dtype, key) for v in pair] for pair in loaded]
        if weights is not None:
            pairs = zip(halves, weights.pairs[first : first + many], strict=True)
            halves = [[b.fmul(x1, w1), b.fmul(x2, w2)] for (x1, x2), (w1, w2) in pairs]
        rotated = rotate(b, halves, angles[first : first + many], factor, key)
        for (n, lanes), rounded in zip(group, rotated, strict=True):
            store_pairs(rounded, y, n, key, lanes, stream=stream and lanes == WIDE_STEP)


# for (first = 0; first < count; first += ROWS)
#     compute the factors of ROWS rows, then yield these rows;
def _list_rows(
    key: KernelKey, count: Int, source: Int, step: Int, eps: Int
) -> Iterator[tuple[Int, Any]]:
    """Write loops over rows: yield an index, and the factor of its row, None without a norm."""
    b, zero = count.builder, count.like(0)
    if key.norm is None:
        with loop(zero, count) as j:
            yield j, None
        return
    with b.goto_entry_block():
        factors = norm.allocate_factors(b, key)
    with loop(zero, count, norm.ROWS) as first:
        stop = least(first + norm.ROWS, count)
        with loop(first, stop) as j:
            x = source + j * step
            norm.store_factor(x, factors + (j - first) * key.width, eps, key, key.norm)
        with loop(first, stop) as j:
            yield j, (factors + (j - first) * key.width).load(compute_type(key), key.width)
