"""Rotation of heads by vectors of pairs: the steps of :mod:`rope_xp._rotation.portable`.

LLVM vectorises no loops whose input and output may be the same memory, nor interleaved pairs.
"""

from llvmlite import ir

from . import norm
from .elements import STREAM_ALIGNMENT, load_pairs, locate_pairs, rotate_and_store
from .language import I64, MANY, Int, choose, copy, least, load_params, loop, prefetch, vector_steps
from .plan import OPERAND_FIELDS, KernelKey

_BLOCK = ("params", "x", "y", "batch", "token", "tokens", "stream", "cos", "sin", "spare", "weight")


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
    row, x, y, batch, token, tokens, stream, cos, sin, spare, weight = (
        Int(b, v) for v in function.args
    )
    params = load_params(row)
    field = {name: params[f"{operand}_{name}"] for name in OPERAND_FIELDS}
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
    if key.norm is not None:
        weights, factors = norm.load_weights(weight, key, key.norm), norm.allocate_factors(b, key)
    outer = choose(tokens_outside, tokens, field["heads"])
    inner = choose(tokens_outside, field["heads"], tokens)

    def locate(i: Int, j: Int) -> tuple[Int, Int, Int]:
        """Return the addresses of a row, and the offset of its angles."""
        t, h = choose(tokens_outside, i, j), choose(tokens_outside, j, i)
        source = x0 + t * field["x_token"] + h * field["x_head"]
        target = y0 + t * field["y_token"] + h * field["y_head"]
        return source, target, t * pairs * key.width

    def rotate_row(source: Int, target: Int, skip: Int, factor: Int | None = None) -> None:
        with b.if_then(copies_rest):
            copy(target - before, source - before, before)
            copy(target + size, source + size, behind)
        angles = cos + skip, sin + skip
        if key.norm is not None:
            norm.rotate_row(source, target, angles, weights, factor, key, key.norm, streams)
            return
        if key.interleaved_in != key.interleaved_out:
            # In place, results overwrite components that are read later: copy the row first.
            with b.if_then(b.not_(apart)):
                copy(spare, source, size)
            source = choose(apart, source, spare)
        for n, lanes in vector_steps(pairs.like(0), pairs):
            arguments = source, target, angles, pairs, n, field["x_token"], key, lanes
            if lanes < MANY:
                rotate_pairs(*arguments)
                continue
            with b.if_else(streams) as (past_caches, through_caches):
                with past_caches:
                    rotate_pairs(*arguments, stream=True)
                with through_caches:
                    rotate_pairs(*arguments)

    with loop(outer.like(0), outer) as i:
        if key.norm is None:
            with loop(inner.like(0), inner) as j:
                rotate_row(*locate(i, j))
        else:
            with loop(inner.like(0), inner, norm.ROWS) as first:
                stop = least(first + norm.ROWS, inner)
                with loop(first, stop) as j:
                    factor = factors + (j - first) * key.width
                    norm.store_factor(locate(i, j)[0], factor, choose(streams, stop.like(0), field["x_token"]), key, key.norm)
                with loop(first, stop) as j:
                    rotate_row(*locate(i, j), factors + (j - first) * key.width)
    b.ret_void()
    return function


# for (i = first; i < first + lanes; i++) rotate x[i] into y[i];
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

    ``ahead`` is the distance in bytes to the same head of the next token, to prefetch it: where
    tokens are not adjacent, as in a slice of a fused projection, the processor does not predict it,
    and float32 takes 1.3 times, bfloat16 1.7 times as long. Where results are streamed, to prefetch
    would cost a tenth.
    """
    halves = load_pairs(x, first, pairs, key.dtype, key, lanes)
    if lanes == MANY and not stream:  # shorter rows lie side by side in what is fetched anyway
        for source in locate_pairs(x, first, pairs, key.size, key.interleaved_in, lanes):
            prefetch(source + ahead)
    rotate_and_store(halves, y, angles, first, pairs, key, lanes, stream=stream)
