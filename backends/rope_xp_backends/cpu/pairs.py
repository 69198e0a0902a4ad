"""Rotation of heads by vectors of pairs: the steps of :mod:`rope_xp._rotation.portable`.

LLVM vectorises no loops whose input and output may be the same memory, nor interleaved pairs.
"""

from typing import Any

from llvmlite import ir

from .language import (
    DOUBLE,
    FLOAT,
    I32,
    I64,
    MANY,
    Int,
    choose,
    copy,
    fill,
    load_params,
    loop,
    prefetch,
    shuffle,
    vector_steps,
)
from .plan import OPERAND_FIELDS, KernelKey

_ELEMENTS = {
    "float32": FLOAT,
    "float64": DOUBLE,
    "float16": ir.HalfType(),
    "bfloat16": ir.IntType(16),  # its bits: not every processor has instructions for it
}
"""LLVM's types of elements in memory."""
STREAM_ALIGNMENT = 16
"""Of addresses that can be streamed to, in bytes."""
_BLOCK = ("params", "x", "y", "batch", "token", "tokens", "stream", "cos", "sin", "spare")


# void rotate_q(x, y, cos, sin, ...) {
#     for (t = 0; t < tokens; t++)              the loop over heads is outside where tokens of a
#         for (h = 0; h < heads; h++) {         head lie closer together than heads of a token
#             if (x != y) copy what lies before and behind the rotated slice;
#             for (n = 0; n < pairs; n += 16) rotate 16 pairs of x[t][h] into y[t][h];
#             for (; n < pairs; n += 8) rotate 8;
#             for (; n < pairs; n++) rotate 1;
#         }
# }
def build_rotation(module: ir.Module, key: KernelKey, operand: str) -> ir.Function:
    """Return the function that rotates all heads of q or of k in a block of tokens."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(_BLOCK))
    function = ir.Function(module, kind, f"rotate_{operand}")
    function.linkage = "internal"
    function.attributes.add("noinline")  # which would only take longer to compile
    b = ir.IRBuilder(function.append_basic_block())
    row, x, y, batch, token, tokens, stream, cos, sin, spare = (Int(b, v) for v in function.args)
    params = load_params(row)
    field = {name: params[f"{operand}_{name}"] for name in OPERAND_FIELDS}
    pairs, before, behind = (params[name] for name in ("pairs", "before", "behind"))
    x, y = x + field["x_skip"], y + field["y_skip"]
    apart = x.is_("!=", y)
    copies_rest = b.and_((before + behind).is_(">", 0), apart)
    x0 = x + batch * field["x_batch"] + token * field["x_token"] + before
    y0 = y + batch * field["y_batch"] + token * field["y_token"] + before
    size = pairs * 2 * key.size
    strides = y0 | field["y_batch"] | field["y_token"] | field["y_head"] | pairs * key.size
    aligned = b.and_(stream.is_nonzero(), (strides % STREAM_ALIGNMENT).is_("==", 0))
    streams = b.and_(aligned, apart)
    tokens_outside = abs(field["x_head"]).is_("<=", abs(field["x_token"]))
    outer = choose(tokens_outside, tokens, field["heads"])
    inner = choose(tokens_outside, field["heads"], tokens)
    with loop(outer.like(0), outer) as i, loop(inner.like(0), inner) as j:
        t, h = choose(tokens_outside, i, j), choose(tokens_outside, j, i)
        source = x0 + t * field["x_token"] + h * field["x_head"]
        target = y0 + t * field["y_token"] + h * field["y_head"]
        skip = t * pairs * key.width
        with b.if_then(copies_rest):
            copy(target - before, source - before, before)
            copy(target + size, source + size, behind)
        if key.interleaved_in != key.interleaved_out:
            # In place, results overwrite components that are read later: copy the row first.
            with b.if_then(b.not_(apart)):
                copy(spare, source, size)
            source = choose(apart, source, spare)
        for n, lanes in vector_steps(pairs.like(0), pairs):
            angle, ahead = (cos + skip, sin + skip), field["x_token"]
            arguments = source, target, angle, pairs, n, ahead, key, lanes
            if lanes < MANY:
                rotate_pairs(*arguments)
                continue
            with b.if_else(streams) as (past_caches, through_caches):
                with past_caches:
                    rotate_pairs(*arguments, stream=True)
                with through_caches:
                    rotate_pairs(*arguments)
    b.ret_void()
    return function


# float widen(T v);                                          T is float16, bfloat16, float or double
def _widen(b: Any, v: Any, dtype: str, lanes: int) -> Any:
    if dtype == "float16":
        return b.fpext(v, ir.VectorType(FLOAT, lanes))
    if dtype == "bfloat16":
        bits = b.shl(b.zext(v, ir.VectorType(I32, lanes)), fill(I32, 16, lanes))
        return b.bitcast(bits, ir.VectorType(FLOAT, lanes))
    return v


# T narrow(float v);                                        rounds once, to nearest, ties to even
def _narrow(b: Any, v: Any, dtype: str, lanes: int) -> Any:
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

    ``angles`` are the addresses of the row's cosines and sines. ``ahead`` is the distance in bytes
    to the same head of the next token, to prefetch it: where tokens are not adjacent, as in a slice
    of a fused projection, the processor does not predict it, and float32 takes 1.3 times, bfloat16
    1.7 times as long. ``stream`` writes past the caches, to multiples of 16, and does not prefetch,
    which would cost a tenth.
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
    if lanes == MANY and not stream:  # shorter rows lie side by side in what is fetched anyway
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
