"""The rotation for CPUs, written for LLVM: angles, q and k in one pass over memory.

Each step is the portable path's, in the same order and without fused multiply-add, so results are
equal in every bit. Arrays may have any strides but along head_dim, which is contiguous.
"""

from collections.abc import Iterator

from llvmlite import ir

from rope_xp._core.call import DIGIT, DIGIT_BITS, LIMIT
from rope_xp._rotation.tables import TOP_DIGIT

from . import angles
from .language import I64, Int, choose, copy, least, loop
from .pairs import STREAM_ALIGNMENT, rotate_pairs
from .plan import FEW, FIELDS, OPERAND_FIELDS, KernelKey

NAME = "rotate"
ARGUMENTS = ("words", "q", "q_out", "k", "k_out", "a", "b", "stream", "start", "stop")
ALLOCATE, FREE = "rope_xp_allocate", "rope_xp_free"
"""Functions of the process, as malloc and free."""
MANY = 16
"""Pairs rotated at once: one vector of AVX-512, 2 of AVX2 or 4 of NEON to work in parallel. Of what
is left FEW go together, and the last ones one by one."""

_NO_MEMORY = 1
_BLOCK = ("words", "x", "y", "batch", "token", "tokens", "stream", "cos", "sin", "spare")


# int64_t rotate(params, q, q_out, k, k_out, a, b, stream, start, stop) {
#     for (row = start; row < stop; row += n) {
#         n = min(block, stop - row, length - row % length);
#         fill cos[n][pairs] and sin[n][pairs] from tables, or from a and b;
#         rotate_q(q, q_out, cos, sin, n), rotate_k(k, k_out, cos, sin, n);
#     }
#     return 0;
# }
def build_ir(key: KernelKey) -> ir.Module:
    """Return the code of a kernel.

    It is one function, ``rotate``, of integers that ARGUMENTS names. ``params`` is the address of
    what :mod:`rope_xp_backends.cpu.plan` tells, the next six are addresses of elements. ``stream``
    has results written past the caches. It rotates rows ``start`` to ``stop`` of the batch *
    tokens there are, and returns 0, or 1 where there is no
    memory to work with.
    """
    module = ir.Module(name="rope_xp")
    allocate = ir.Function(module, ir.FunctionType(I64, [I64]), ALLOCATE)
    free = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64]), FREE)
    operands = [_rotation(module, key, name) for name in "qk"]
    function = ir.Function(module, ir.FunctionType(I64, [I64] * len(ARGUMENTS)), NAME)
    b = ir.IRBuilder(function.append_basic_block())
    params, q, q_out, k, k_out, p, part, stream, start, stop = (Int(b, v) for v in function.args)
    p, part = p + _param(params, "a_skip"), part + _param(params, "b_skip")
    pairs, needs_select = _param(params, "pairs"), _param(params, "needs_select")
    # cos and sin of a block, those of one component by themselves, and a row that is held.
    most = _param(params, "block")
    size = pairs * most * key.width
    held = Int(b, b.call(allocate, [((needs_select + 1) * 2 * size + pairs * 2 * key.size).value]))
    with b.if_then(held.is_("==", 0), likely=False):
        b.ret(ir.Constant(I64, _NO_MEMORY))
    rows, own = (held, held + size), (held + size * 2, held + size * 3)
    spare = held + (needs_select + 1) * 2 * size
    length = _param(params, "length")

    def here(row: Int) -> Int:
        return least(most, stop - row, length - row % length)

    with loop(start, stop, here) as row:
        batch, token, tokens = row // length, row % length, here(row)
        place = batch, token, tokens
        with b.if_else(_param(params, "use_tables").is_("!=", 0)) as (use_tables, taken):
            with use_tables:
                _look_up(params, (p, part), (rows, own), place, key)
            with taken:
                _take(params, (p, part), rows, place, key)
        for name, rotation, x, y in (("q", operands[0], q, q_out), ("k", operands[1], k, k_out)):
            with b.if_then(_param(params, f"{name}_heads").is_(">", 0)):
                block = (params, x, y, *place, stream, *rows, spare)
                b.call(rotation, [each.value for each in block])
    b.call(free, [held.value])
    with b.if_then(stream.is_("!=", 0)):
        b.fence("seq_cst")  # what was streamed is seen by all threads from here on
    b.ret(ir.Constant(I64, 0))
    return module


def _param(params: Int, name: str) -> Int:
    return params.peek(FIELDS.index(name))


# --- angles --------------------------------------------------------------------------------------


# for (i = 0; i < tokens; i++)
#     for (n = 0; n < pairs; n++)
#         cos[i][n] = a[batch][token + i][n], sin[i][n] = inverse ? -b[...][n] : b[...][n];
def _take(
    params: Int,
    given: tuple[Int, Int],
    rows: tuple[Int, Int],
    place: tuple[Int, ...],
    key: KernelKey,
) -> None:
    """Copy the cos and sin that were given, the sine with its sign."""
    batch, token, tokens = place
    pairs, inverse = _param(params, "pairs"), _param(params, "inverse").is_("!=", 0)
    for name, source, row in zip("ab", given, rows, strict=True):
        step, segment = _param(params, f"{name}_token"), _param(params, f"{name}_segment")
        first = source + batch * _param(params, f"{name}_batch") + token * step
        with loop(tokens.like(0), tokens) as i, loop(pairs.like(0), pairs) as n:
            target = row + (i * pairs + n) * key.width
            negative = inverse if name == "b" else None
            angles.copy_number(target, first + i * step + n * segment, negative, key.double)


# for (i = 0; i < segments; i++) {
#     (component, first, end) = params->segment[i];
#     look up cos and sin of pairs first to end by the positions of that component;
#     if (needs_select) keep them only for pairs that read the component;
# }
def _look_up(
    params: Int,
    positions: tuple[Int, Int],
    held: tuple[tuple[Int, Int], tuple[Int, Int]],
    place: tuple[Int, ...],
    key: KernelKey,
) -> None:
    """Look angles up stretch by stretch, as rope_xp._rotation.angles.cos_sin."""
    b = params.builder
    (rows, own), needs_select = held, _param(params, "needs_select").is_("!=", 0)
    to = tuple(choose(needs_select, y, x) for x, y in zip(rows, own, strict=True))
    with loop(params.like(0), _param(params, "segments")) as i:
        bounds = params + (i * 3 + len(FIELDS)) * 8
        segment = bounds.peek(0), bounds.peek(1), bounds.peek(2)
        _look_up_piece(params, positions, (to[0], to[1]), segment, place, key)
        with b.if_then(needs_select):
            _pick(params, rows, own, segment, place[2], key)


# for (i = 0; i < tokens; i++) {
#     p = implicit_positions ? token + i : a[component][batch][token + i];
#     d0 = |p| & 2047, d1 = |p| >> 11 & 2047, d2 = |p| < 2**31 ? |p| >> 22 : nan_row;
#     for (n = first; n < end; n++)
#         cos[i][n] + I * sin[i][n] = low[d0][n] * middle[d1][n] * high[d2][n];
#     if ((p < 0) != inverse) negate sin[i][first..end];
#     if (has_fraction) advance cos[i][first..end] and sin[i][first..end] by b[...][token + i];
# }
def _look_up_piece(
    params: Int,
    positions: tuple[Int, Int],
    rows: tuple[Int, Int],
    segment: tuple[Int, Int, Int],
    place: tuple[Int, ...],
    key: KernelKey,
) -> None:
    """Look up those of the frequencies that read one component; a digit of 0 changes nothing."""
    b, double = params.builder, key.double
    (batch, token, tokens), (c, first, end) = place, segment
    low, middle, high = (_param(params, name) for name in ("low", "middle", "high"))
    frequencies, pairs = _param(params, "frequencies"), _param(params, "pairs")
    implicit_positions, has_fraction = (
        _param(params, name).is_("!=", 0) for name in ("implicit_positions", "has_fraction")
    )
    inverse = _param(params, "inverse").is_("!=", 0)
    backwards = b.and_(
        inverse, b.not_(has_fraction)
    )  # else it is the fraction that is turned about
    size = pairs * 2 * key.width
    steps = [_param(params, f"{name}_token") for name in "ab"]
    p, part = (
        at
        + batch * _param(params, f"{name}_batch")
        + token * step
        + c * _param(params, f"{name}_segment")
        for at, name, step in zip(positions, "ab", steps, strict=True)
    )
    with loop(tokens.like(0), tokens) as i:
        position = choose(
            implicit_positions,
            token + i,
            choose(implicit_positions, params, p + i * steps[0]).peek(),
        )
        count = abs(position)
        inside = b.and_(position.is_(">", -LIMIT), position.is_("<", LIMIT))
        top = choose(inside, count >> 2 * DIGIT_BITS, count.like(TOP_DIGIT))
        tables = (
            low + (count & (DIGIT - 1)) * size,
            middle + (count >> DIGIT_BITS & (DIGIT - 1)) * size,
            high + top * size,
        )
        negative = b.xor(position < 0, backwards)
        skip = i * pairs * key.width
        row = rows[0] + skip, rows[1] + skip
        for n, lanes in _steps(first, end):
            v = angles.Vectors(b, double, lanes)
            angles.compose_digits(v, row, tables, pairs, n, negative)
        with b.if_then(has_fraction):
            fraction = part + i * steps[1]
            for n, lanes in _steps(first, end):
                v = angles.Vectors(b, double, lanes)
                angles.add_fraction(v, row, frequencies, fraction, n, inverse)


# for (i = 0; i < tokens; i++)
#     for (n = first; n < end; n++)
#         if (components[n] == component) cos[i][n] = own_cos[i][n], sin[i][n] = own_sin[i][n];
def _pick(
    params: Int,
    rows: tuple[Int, Int],
    own: tuple[Int, Int],
    segment: tuple[Int, Int, Int],
    tokens: Int,
    key: KernelKey,
) -> None:
    """Keep the angles of one component for the frequencies that read it."""
    c, first, end = segment
    component, pairs = _param(params, "component"), _param(params, "pairs")
    with loop(tokens.like(0), tokens) as i:
        skip = i * pairs * key.width
        row, other = ((each[0] + skip, each[1] + skip) for each in (rows, own))
        for n, lanes in _steps(first, end):
            v = angles.Vectors(params.builder, key.double, lanes)
            angles.select_component(v, row, other, component, c, n)


# --- rotation ------------------------------------------------------------------------------------


# void rotate_q(x, y, cos, sin, ...) {
#     for (t = 0; t < tokens; t++)              the loop over heads is outside where tokens of a
#         for (h = 0; h < heads; h++) {         head lie closer together than heads of a token
#             if (x != y) copy what lies before and behind the rotated slice;
#             for (n = 0; n < pairs; n += 16) rotate 16 pairs of x[t][h] into y[t][h];
#             for (; n < pairs; n += 8) rotate 8;
#             for (; n < pairs; n++) rotate 1;
#         }
# }
def _rotation(module: ir.Module, key: KernelKey, end: str) -> ir.Function:
    """Write the function that rotates all heads of q or of k in a block of tokens."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(_BLOCK))
    function = ir.Function(module, kind, f"rotate_{end}")
    function.linkage = "internal"
    function.attributes.add("noinline")  # it would only take longer to compile
    b = ir.IRBuilder(function.append_basic_block())
    params, x, y, batch, token, tokens, stream, cos, sin, spare = (Int(b, v) for v in function.args)
    of = {name: _param(params, f"{end}_{name}") for name in OPERAND_FIELDS}
    pairs, before, behind = (_param(params, name) for name in ("pairs", "before", "behind"))
    x, y = x + of["x_skip"], y + of["y_skip"]
    apart = x.is_("!=", y)
    passes = b.and_((before + behind).is_(">", 0), apart)
    x0 = x + batch * of["x_batch"] + token * of["x_token"] + before
    y0 = y + batch * of["y_batch"] + token * of["y_token"] + before
    row = pairs * 2 * key.size
    strides = y0 | of["y_batch"] | of["y_token"] | of["y_head"] | pairs * key.size
    fits = b.and_(stream.is_("!=", 0), (strides % STREAM_ALIGNMENT).is_("==", 0))
    streams = b.and_(fits, apart)
    # In the order of memory: tokens outside where heads lie closer together than they.
    outside = abs(of["x_head"]).is_("<=", abs(of["x_token"]))
    outer, inner = (
        choose(outside, *each) for each in ((tokens, of["heads"]), (of["heads"], tokens))
    )
    with loop(outer.like(0), outer) as i, loop(inner.like(0), inner) as j:
        t, h = choose(outside, i, j), choose(outside, j, i)
        source = x0 + t * of["x_token"] + h * of["x_head"]
        target = y0 + t * of["y_token"] + h * of["y_head"]
        skip = t * pairs * key.width
        table = cos + skip, sin + skip
        with b.if_then(passes):
            copy(target - before, source - before, before)
            copy(target + row, source + row, behind)
        if key.interleaved_in != key.interleaved_out:
            # In place, results lie elsewhere than what they come from: hold the row till then.
            with b.if_then(b.not_(apart)):
                copy(spare, source, row)
            source = choose(apart, source, spare)
        for n, lanes in _steps(pairs.like(0), pairs):
            what = source, target, table, pairs, n, of["x_token"], key, lanes
            if lanes < MANY:
                rotate_pairs(*what)
                continue
            with b.if_else(streams) as (past, through):
                with past:
                    rotate_pairs(*what, stream=True)
                with through:
                    rotate_pairs(*what)
    b.ret_void()
    return function


# for (n = first; n + 16 <= end; n += 16) { ... }
# for (; n + 8 <= end; n += 8) { ... }
# for (; n < end; n++) { ... }
def _steps(first: Int, end: Int) -> Iterator[tuple[Int, int]]:
    """Write loops over pairs: yield in each the first one of a step, and how many go together."""
    many, few = (end - (end - first) % lanes for lanes in (MANY, FEW))
    for start, stop, lanes in ((first, many, MANY), (many, few, FEW), (few, end, 1)):
        with loop(start, stop, lanes) as n:
            yield n, lanes
