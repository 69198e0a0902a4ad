"""The rotation for CPUs, written for LLVM: angles, q and k in one pass over memory.

Each step is the portable path's, in the same order and without fused multiply-add, so results are
equal in every bit. Arrays may have any strides but along head_dim, which is contiguous.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from llvmlite import ir

from rope_xp._core.call import DIGIT, DIGIT_BITS, LIMIT
from rope_xp._rotation.tables import TOP_DIGIT

from .angles import CosSin, Vectors
from .language import (
    I32,
    I64,
    Int,
    broadcast,
    choose,
    least,
    list_branches,
    load_params,
    loop,
    unroll,
    vector_steps,
)
from .pairs import build_rotation
from .plan import (
    CHECK,
    FIELDS,
    NO_MEMORY,
    OPERAND_FIELDS,
    OUT_OF_RANGE,
    STREAM,
    TABLES,
    KernelKey,
)

NAME = "rotate"
ARGUMENTS = (
    *("params", "start", "stop", "mode", "tables", "q", "k", "q_out", "k_out", "a", "b"),
    *("q_weight", "k_weight", "offsets", "eps", "weight_offset"),
)
ALLOCATE, FREE = "rope_xp_allocate", "rope_xp_free"
"""Functions of the process, as malloc and free."""


class Block(NamedTuple):
    """Tokens of one batch entry, and addresses of scratch for their cos and sin."""

    key: KernelKey
    params: dict[str, Int]
    tables: Int
    """The address of those of digit tables, see :data:`.plan.TABLES`."""
    inputs: CosSin
    """Addresses of positions and their fractions, or of cos and sin."""
    batch: Int
    token: Int
    tokens: Int
    cos_sin: CosSin


# int64_t rotate(params, start, stop, mode, tables, q, k, q_out, k_out, a, b) {
#     if (mode & CHECK && any position is out of range) return OUT_OF_RANGE;
#     for (row = start; row < stop; row += n) {
#         n = min(block, stop - row, length - row % length);
#         fill cos[n][pairs] and sin[n][pairs] from tables, or from a and b;
#         rotate_heads(q, q_out, cos, sin, n), rotate_heads(k, k_out, cos, sin, n);
#     }
#     return 0;
# }
def build_ir(key: KernelKey) -> ir.Module:
    """Return the code of a kernel: one function of these integers.

    ``params`` is the address of the row of a plan, ``tables`` that of the addresses of digit
    tables, and q to b, and weights, are addresses of elements. Rows ``start`` to ``stop`` are batch
    * tokens. eps and the offset of weights are the bits of float64.
    """
    module = ir.Module(name="rope_xp")
    allocate = ir.Function(module, ir.FunctionType(I64, [I64]), ALLOCATE)
    free = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64]), FREE)
    rotate_heads = build_rotation(module, key)
    function = ir.Function(module, ir.FunctionType(I64, [I64] * len(ARGUMENTS)), NAME)
    builder = ir.IRBuilder(function.append_basic_block())
    plan, start, stop, mode, tables, q, k, q_out, k_out, a, b, *of_operands = (
        Int(builder, v) for v in function.args
    )
    q_weight, k_weight, offsets, *numbers = of_operands
    params = load_params(plan)
    no_offset = plan + 8 * FIELDS.index("q_offset_skip")  # the address of a 0
    offsets = choose(offsets.is_nonzero(), offsets, no_offset)
    inputs = a + params["a_skip"], b + params["b_skip"]
    stream = mode & STREAM
    with builder.if_then((mode & CHECK).is_nonzero()):
        outside = _find_out_of_range(params, inputs[0])
        with builder.if_then(outside, likely=False):
            builder.ret(ir.Constant(I64, OUT_OF_RANGE))
    # Scratch: cos and sin of a block, and those of one component.
    most, length, sets = params["block"], params["length"], params["needs_select"] + 1
    size = most * (key.pairs * key.width)
    scratch = Int(builder, builder.call(allocate, [(sets * 2 * size).value]))
    with builder.if_then(scratch.is_("==", 0), likely=False):
        builder.ret(ir.Constant(I64, NO_MEMORY))
    cos_sin, of_component = (scratch, scratch + size), (scratch + size * 2, scratch + size * 3)
    use_tables, step = params["use_tables"].is_nonzero(), start.like(key.pairs * key.width)
    copies = params["copies_given"].is_nonzero()
    in_scratch = builder.or_(use_tables, copies)
    steps = [choose(in_scratch, step, params[f"{name}_token"]) for name in "ab"]

    def count_tokens(row: Int) -> Int:
        return least(most, stop - row, length - row % length)

    with loop(start, stop, count_tokens) as row:
        place = row // length, row % length, count_tokens(row)
        block = Block(key, params, tables, inputs, *place, cos_sin)
        given = [
            address + block.batch * params[f"{name}_batch"] + block.token * params[f"{name}_token"]
            for name, address in zip("ab", inputs, strict=True)
        ]
        with builder.if_then(use_tables):
            _look_up(plan, block, of_component)
        with builder.if_then(copies):
            _copy_given(block, given)
        rows = [choose(in_scratch, *pair) for pair in zip(cos_sin, given, strict=True)]
        operands = ("q", q, q_out, q_weight, no_offset), ("k", k, k_out, k_weight, offsets)
        for name, x, y, *of_operand in operands:
            with builder.if_then(params[f"{name}_heads"].is_(">", 0)):
                operand = plan + 8 * FIELDS.index(f"{name}_{OPERAND_FIELDS[0]}")
                of_block = *place, stream, *rows, *steps
                arguments = [plan, operand, x, y, *of_block, *of_operand, *numbers]
                builder.call(rotate_heads, [argument.value for argument in arguments])
    builder.call(free, [scratch.value])
    with builder.if_then(stream.is_nonzero()):
        builder.fence("seq_cst")  # all threads see streamed results from here on
    builder.ret(ir.Constant(I64, 0))
    return module


# --- angles --------------------------------------------------------------------------------------


# for (c = 0; c < components; c++)
#     for (b = 0; b < rows / length; b++)
#         for (t = 0; t < length; t++)
#             if (|a[c][b][t]| >= LIMIT) found = |a[c][b][t]|;
# return found != 0;
def _find_out_of_range(params: dict[str, Int], positions: Int) -> Any:
    """Return whether any position of a call is, of all parts: then none of them writes."""
    builder, zero = positions.builder, positions.like(0)
    with builder.goto_entry_block():
        found = Int(builder, builder.ptrtoint(builder.alloca(I64), I64))
        found.store(zero.value, 8)
    steps = [params[f"a_{name}"] for name in ("segment", "batch", "token")]
    counts = params["components"], params["rows"] // params["length"], params["length"]
    with loop(zero, counts[0]) as c, loop(zero, counts[1]) as b, loop(zero, counts[2]) as t:
        address = positions + c * steps[0] + b * steps[1] + t * steps[2]
        distance = abs(address.load_i64())
        # The absolute value of -2**63 is itself, and no smaller number is out of range.
        outside = builder.icmp_unsigned(">=", distance.value, ir.Constant(I64, LIMIT))
        with builder.if_then(outside, likely=False):
            found.store(distance.value, 8)
    return found.load_i64().is_nonzero()


# for (i = 0; i < tokens; i++)
#     for (n = 0; n < pairs; n++)
#         cos[i][n] = a[i][n], sin[i][n] = b[i][n];
def _copy_given(block: Block, given: list[Int]) -> None:
    """Copy cos and sin whose rows are not contiguous, as columns of tables that hold each twice."""
    params, key = block.params, block.key
    for name, first, table in zip("ab", given, block.cos_sin, strict=True):
        with loop(first.like(0), block.tokens) as i, loop(i.like(0), i.like(key.pairs)) as n:
            v = Vectors(i.builder, key.double, 1)
            number = v.load(first + i * params[f"{name}_token"] + n * params[f"{name}_segment"])
            v.store(number, table + (i * key.pairs + n) * key.width)


# for (i = 0; i < segments; i++) {
#     (component, first, end) = params->segment[i];
#     look up cos and sin of pairs first to end by the positions of that component;
#     if (needs_select) keep them only for pairs that read the component;
# }
def _look_up(plan: Int, block: Block, scratch: CosSin) -> None:
    """Look up angles segment by segment, as rope_xp._rotation.angles.cos_sin does."""
    tables = {name: block.tables.load_i64(i) for i, name in enumerate(TABLES)}
    block, params = block._replace(params=block.params | tables), block.params
    needs_select = params["needs_select"].is_nonzero()
    cos, sin = (choose(needs_select, y, x) for x, y in zip(block.cos_sin, scratch, strict=True))
    with loop(cos.like(0), params["segments"]) as i:
        bounds = plan + (i * 3 + len(FIELDS)) * 8
        segment = bounds.load_i64(0), bounds.load_i64(1), bounds.load_i64(2)
        _look_up_segment(block._replace(cos_sin=(cos, sin)), *segment)
        with plan.builder.if_then(needs_select):
            _select_component(block, scratch, *segment)


# for (i = 0; i < tokens; i++) {
#     p = implicit_positions ? token + i : a[component][batch][token + i];
#     d0 = |p| & 2047, d1 = |p| >> 11 & 2047, d2 = |p| < 2**31 ? |p| >> 22 : nan_row;
#     for (n = first; n < end; n++)
#         cos[i][n] + I * sin[i][n] = low[d0][n] * middle[d1][n] * high[d2][n];
#     if ((p < 0) != inverse) negate sin[i][first..end];
#     if (has_fraction) advance cos[i][first..end] and sin[i][first..end] by b[...][token + i];
# }
def _look_up_segment(block: Block, c: Int, first: Int, end: Int) -> None:
    """Look up angles of frequencies that read one component. A digit of 0 changes nothing."""
    params, key, pairs = block.params, block.key, block.key.pairs
    b, frequencies = first.builder, params["frequencies"]
    implicit, has_fraction, inverse = (
        params[name].is_nonzero() for name in ("implicit_positions", "has_fraction", "inverse")
    )
    negate_lookup = b.and_(inverse, b.not_(has_fraction))  # else add_fraction negates
    size = pairs * 2 * key.width
    tables = [params[name] for name in ("low", "middle", "high")]
    positions, fractions = (
        address
        + block.batch * params[f"{name}_batch"]
        + block.token * params[f"{name}_token"]
        + c * params[f"{name}_segment"]
        for name, address in zip("ab", block.inputs, strict=True)
    )
    with loop(first.like(0), block.tokens) as i:
        address = choose(implicit, params["low"], positions + i * params["a_token"])  # readable
        position = choose(implicit, block.token + i, address.load_i64())
        count = abs(position)
        inside = b.and_(position.is_(">", -LIMIT), position.is_("<", LIMIT))
        digits = (
            count & (DIGIT - 1),
            count >> DIGIT_BITS & (DIGIT - 1),
            choose(inside, count >> 2 * DIGIT_BITS, count.like(TOP_DIGIT)),
        )
        rows = tuple([table + digit * size for table, digit in zip(tables, digits, strict=True)])
        cos, sin = (table + i * (pairs * key.width) for table in block.cos_sin)
        negative = b.xor(position < 0, negate_lookup)
        for is_high in list_branches(b, digits[2].is_nonzero()):
            steps: Iterator[tuple[Int | int, int]]
            steps = unroll(pairs) if key.whole else vector_steps(first, end)
            for n, lanes in steps:
                v = Vectors(b, key.double, lanes)
                angle, *others = ((v.load(row, n), v.load(row, n + pairs)) for row in rows)
                for other in others if is_high else others[:1]:
                    angle = v.compose(angle, other, less_1=key.double)
                v.store_angle(angle, (cos, sin), n, negative)
        with b.if_then(has_fraction):
            fraction = fractions + i * params["b_token"]
            for n, lanes in vector_steps(first, end):
                v = Vectors(b, key.double, lanes)
                part = broadcast(b, fraction.load(v.element, v.size), lanes)
                step = v.cosm1_sin(b.fmul(part, v.load(frequencies, n)))
                angle = v.compose((v.load(cos, n), v.load(sin, n)), step, less_1=True)
                v.store_angle(angle, (cos, sin), n, inverse)


# for (i = 0; i < tokens; i++)
#     for (n = first; n < end; n++)
#         if (components[n] == component) cos[i][n] = new_cos[i][n], sin[i][n] = new_sin[i][n];
def _select_component(block: Block, scratch: CosSin, c: Int, first: Int, end: Int) -> None:
    params, key, b = block.params, block.key, c.builder
    with loop(c.like(0), block.tokens) as i:
        skip = i * (key.pairs * key.width)
        rows, new_rows = ([table + skip for table in pair] for pair in (block.cos_sin, scratch))
        for n, lanes in vector_steps(first, end):
            v = Vectors(b, key.double, lanes)
            read = (params["component"] + n * 4).load(ir.VectorType(I32, lanes), 4)
            selected = b.icmp_signed("==", read, broadcast(b, b.trunc(c.value, I32), lanes))
            for row, new_row in zip(rows, new_rows, strict=True):
                v.store(b.select(selected, v.load(new_row, n), v.load(row, n)), row, n)
