"""Rotation of heads by vectors of pairs: the steps of :mod:`rope_xp._rotation.portable`.

LLVM vectorises no loops whose input and output may be the same memory, nor interleaved pairs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from llvmlite import ir

from . import norm
from .elements import STREAM_ALIGNMENT, compute_type, load_pairs, locate_pairs, rotate_and_store
from .language import (
    I64,
    MANY,
    Condition,
    Int,
    choose,
    copy,
    least,
    load_params,
    loop,
    prefetch,
    vector_steps,
)
from .plan import OPERAND_FIELDS, KernelKey

_BLOCK = (
    *("params", "operand", "x", "y", "batch", "token", "tokens", "stream", "cos", "sin", "spare"),
    *("weight", "eps", "weight_offset"),
)


# void rotate_heads(x, y, cos, sin, ...) {
#     for (t = 0; t < tokens; t++)              the loop over heads is outside where tokens of a
#         for (h = 0; h < heads; h++) {         head lie closer together than heads of a token
#             if (x != y) copy what lies before and behind the rotated slice;
#             for (n = 0; n < pairs; n += 16) rotate 16 pairs of x[t][h] into y[t][h];
#             for (; n < pairs; n += 8) rotate 8;
#             for (; n < pairs; n++) rotate 1;
#         }
# }
def build_rotation(module: ir.Module, key: KernelKey) -> ir.Function:
    """Return the function that rotates all heads of q or of k in a block of tokens.

    ``operand`` is the address of the fields of either.
    """
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(_BLOCK))
    function = ir.Function(module, kind, "rotate_heads")
    function.linkage = "internal"
    b = ir.IRBuilder(function.append_basic_block())
    row, operand, x, y, batch, token, tokens, stream, cos, sin, spare, *of_norm = (
        Int(b, v) for v in function.args
    )
    weight, eps, weight_offset = of_norm
    params = load_params(row)
    field = {name: operand.peek(i) for i, name in enumerate(OPERAND_FIELDS)}
    pairs, before, behind = (params[name] for name in ("pairs", "before", "behind"))
    x, y = x + field["x_skip"], y + field["y_skip"]
    apart = x.is_("!=", y)
    rest = before + behind if key.norm is None or not key.norm.has_rest else before.like(0)
    copies_rest = b.and_(rest.is_(">", 0), apart)
    x0 = x + batch * field["x_batch"] + token * field["x_token"] + before
    y0 = y + batch * field["y_batch"] + token * field["y_token"] + before
    size = pairs * 2 * key.size
    strides = y0 | field["y_batch"] | field["y_token"] | field["y_head"] | pairs * key.size
    aligned = b.and_(stream.is_nonzero(), (strides % STREAM_ALIGNMENT).is_("==", 0))
    streams = b.and_(aligned, apart)
    tokens_outside = abs(field["x_head"]).is_("<=", abs(field["x_token"]))
    outer = choose(tokens_outside, tokens, field["heads"])
    inner = choose(tokens_outside, field["heads"], tokens)
    weights = None if key.norm is None else norm.load_weights(weight, weight_offset, key, key.norm)
    far = field["x_token"]

    def locate(i: Int, j: Int) -> tuple[Int, Int, Int]:
        t, h = choose(tokens_outside, i, j), choose(tokens_outside, j, i)
        source = x0 + t * field["x_token"] + h * field["x_head"]
        return source, y0 + t * field["y_token"] + h * field["y_head"], t * pairs * key.width

    with loop(outer.like(0), outer) as i:
        for j, factor in _list_rows(
            key, inner, partial(locate, i), choose(streams, i.like(0), far), eps
        ):
            source, target, skip = locate(i, j)
            with b.if_then(copies_rest):
                copy(target - before, source - before, before)
                copy(target + size, source + size, behind)
            if key.norm is not None:
                norm.scale_rest(source, target, weights, factor, key, key.norm)
            if key.interleaved_in != key.interleaved_out:
                # In place, results overwrite components that are read later: copy the row first.
                with b.if_then(b.not_(apart)):
                    copy(spare, source, size)
                source = choose(apart, source, spare)
            place = source, target, (cos + skip, sin + skip), pairs, far, key
            _rotate_row(*place, streams, weights, factor)
    b.ret_void()
    return function


# for (first = 0; first < count; first += ROWS)
#     compute the factors of ROWS rows, then yield these rows;
def _list_rows(
    key: KernelKey, count: Int, locate: Callable[[Int], tuple[Int, ...]], ahead: Int, eps: Int
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
            factor = factors + (j - first) * key.width
            norm.store_factor(locate(j)[0], factor, ahead, eps, key, key.norm)
        with loop(first, stop) as j:
            yield j, (factors + (j - first) * key.width).load(compute_type(key), key.width)


def _rotate_row(
    x: Int,
    y: Int,
    angles: tuple[Int, Int],
    pairs: Int,
    ahead: Int,
    key: KernelKey,
    streams: Condition,
    weights: norm.Row | None,
    factor: Any,
) -> None:
    """Rotate the row at address x into the row at y.

    ``ahead`` is the distance in bytes to the same head of the next token, to prefetch it: where
    tokens are not adjacent, as in a slice of a fused projection, the processor does not predict it,
    and float32 takes 1.3 times, bfloat16 1.7 times as long. ``streams`` says whether results go
    past the caches; then prefetching would cost a tenth.
    """
    b, dtype = x.builder, key.dtype
    if key.norm is not None:
        steps = [(x.like(n), lanes) for n, lanes in norm.unroll(key.norm.pairs)]
        row = [load_pairs(x, n, pairs, dtype, key, lanes) for n, lanes in steps]
        if weights is not None:
            row = [(b.fmul(*v), b.fmul(*w)) for v, w in map(zip, row, weights.pairs)]
        for stream in _list_branches(b, streams):
            for (n, lanes), halves in zip(steps, row, strict=True):
                past = stream and lanes == MANY
                rotate_and_store(halves, y, angles, n, pairs, key, lanes, factor, stream=past)
        return
    for n, lanes in vector_steps(pairs.like(0), pairs):
        for stream in _list_branches(b, streams) if lanes == MANY else (False,):
            halves = load_pairs(x, n, pairs, dtype, key, lanes)
            if lanes == MANY and not stream:  # shorter rows lie side by side in what is fetched
                for address in locate_pairs(x, n, pairs, key.size, key.interleaved_in, lanes):
                    prefetch(address + ahead)
            rotate_and_store(halves, y, angles, n, pairs, key, lanes, stream=stream)


def _list_branches(b: Any, streams: Condition) -> Iterator[bool]:
    """Write both branches of a condition: yield whether results are streamed."""
    with b.if_else(streams) as (past_caches, through_caches):
        with past_caches:
            yield True
        with through_caches:
            yield False
