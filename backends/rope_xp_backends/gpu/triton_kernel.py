"""The rotation for GPUs, compiled by Triton: angles, q and k in one launch, from positions.

Each step is the portable path's, in the same order and without fused multiply-add. The digit
tables stay in the cache of the device; no cos or sin of the sequence is ever made. A program turns
one tile, of a few tokens in a few heads of q or of k, and asks for it before it asks for positions
and angles. All that is read of a row, head_dim components of one head of one token, lies in one
tile, so that a row may be written over itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import driver

from rope_xp._contract.call import DIGIT, DIGIT_BITS, LIMIT
from rope_xp._contract.dtypes import FLOATS
from rope_xp._contract.memory import ACCESS
from rope_xp._rotation.tables import TOP_DIGIT

from .triton_plan import THREADS, Variant

_LIMIT = tl.constexpr(LIMIT)
_BITS = tl.constexpr(DIGIT_BITS)
_MASK = tl.constexpr(DIGIT - 1)
_TOP = tl.constexpr(TOP_DIGIT)


@triton.jit
def rotate(
    q,
    q_out,
    k,
    k_out,
    table,
    table_2,
    table_3,
    positions,
    components,
    rows,
    tokens,
    q_heads,
    k_heads,
    q_batch,
    q_token,
    q_head,
    q_out_batch,
    q_out_token,
    q_out_head,
    k_batch,
    k_token,
    k_head,
    k_out_batch,
    k_out_token,
    k_out_head,
    angle_batch,
    angle_token,
    angle_component,
    head_dim: tl.constexpr,
    pairs: tl.constexpr,
    offset: tl.constexpr,
    read_pairs: tl.constexpr,
    write_pairs: tl.constexpr,
    inverse: tl.constexpr,
    angles: tl.constexpr,
    both: tl.constexpr,
    q_in_place: tl.constexpr,
    k_in_place: tl.constexpr,
    wide: tl.constexpr,
    unit: tl.constexpr,
    table_unit: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_heads: tl.constexpr,
):
    """Rotate tile_tokens of the rows = batch * tokens, in tile_heads heads of q or of k.

    Programs count the tiles of heads first: those of q, then those of k, then those of other rows.
    Strides are in units of unit or table_unit elements, so that the compiler sees how they align.
    table, table_2 and table_3 are the digit tables, or cos, sin and nothing where angles is
    "tables"; positions are nothing then, and where they are counted. components say which
    component of positions a pair reads, where there are several.
    """
    x, out, heads, x_batch, x_token, x_head = q, q_out, q_heads, q_batch, q_token, q_head
    out_batch, out_token, out_head = q_out_batch, q_out_token, q_out_head
    of_q = tl.cdiv(q_heads, tile_heads)
    groups = of_q + tl.cdiv(k_heads, tile_heads) if both else of_q
    tile, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    in_k = group >= of_q
    if both:  # noqa: SIM102  # it is a constant, and in_k is none
        if in_k:
            x, out, heads, x_batch, x_token, x_head = k, k_out, k_heads, k_batch, k_token, k_head
            out_batch, out_token, out_head = k_out_batch, k_out_token, k_out_head
            group -= of_q
    if wide:
        tile = tile.to(tl.int64)
    row = tile * tile_tokens + tl.arange(0, tile_tokens)
    alive = row < rows
    batch, token = row // tokens, row % tokens
    head = group * tile_heads + tl.arange(0, tile_heads)
    mask = (alive[:, None] & (head < heads)[None, :])[:, :, None]
    start = (batch * x_batch + token * x_token)[:, None] + head[None, :] * x_head
    x += (start * unit)[:, :, None]
    start = (batch * out_batch + token * out_token)[:, None] + head[None, :] * out_head
    out += (start * unit)[:, :, None]

    # What lies beside the slice is copied, but not where it lies already.
    copies: tl.constexpr = 2 * pairs < head_dim and not (q_in_place and k_in_place)
    hint: tl.constexpr = "" if q_in_place or k_in_place else "evict_first"
    if copies:
        c = tl.arange(0, triton.next_power_of_2(head_dim))
        beside = mask & ((c < offset) | ((c >= offset + 2 * pairs) & (c < head_dim)))
        if q_in_place:
            beside &= in_k
        if k_in_place:
            beside &= ~in_k
        passing = tl.load(x + c, mask=beside, eviction_policy=hint)
    x1, x2 = _read(x + offset, mask, pairs, read_pairs, hint)
    # Assemblers would move these loads behind those of angles, which wait for positions. And in
    # place, threads may write where others read from.
    tl.debug_barrier()

    cos, sin = _angles(
        *(table, table_2, table_3, positions, components, angle_component, alive[:, None]),
        *((batch * angle_batch + token * angle_token)[:, None], pairs, angles, table_unit),
    )
    if inverse:
        sin = _negative(sin)
    cos, sin = cos[:, None, :], sin[:, None, :]
    x1, x2 = x1.to(cos.dtype), x2.to(cos.dtype)
    y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    if copies:
        tl.store(out + c, passing, mask=beside)
    _write(out + offset, y1, y2, mask, pairs, write_pairs)


@triton.jit
def _angles(
    table,
    table_2,
    table_3,
    positions,
    components,
    angle_component,
    alive,
    at,
    pairs: tl.constexpr,
    angles: tl.constexpr,
    table_unit: tl.constexpr,
):
    if angles == "tables":
        cos = _angle_row(table, at * table_unit, alive, pairs, 1.0)
        sin = _angle_row(table_2, at * table_unit, alive, pairs, 0.0)
    else:
        position = at.to(tl.int64)
        if angles == "positions":
            position = tl.load(positions + at, mask=alive, other=0).to(tl.int64)
        if angles == "components":
            pair = tl.arange(0, triton.next_power_of_2(pairs))
            component = tl.load(components + pair, mask=pair < pairs, other=0)
            own = positions + at + component[None, :] * angle_component
            position = tl.load(own, mask=alive, other=0).to(tl.int64)
        cos, sin = _look_up(position, table, table_2, table_3, alive, pairs)
    return cos, sin


@triton.jit
def _negative(x):
    # Triton takes -x for 0 - x, which has no sign where x is 0.
    return x * -1.0


@triton.jit
def _look_up(position, low, middle, high, alive, pairs: tl.constexpr):
    """As rope_xp._rotation.angles.cos_sin. A digit of 0 changes nothing, and reads nothing."""
    outside = (position <= -_LIMIT) | (position >= _LIMIT)
    size = tl.abs(tl.where(outside, 0, position)).to(tl.int32)
    digit = size & _MASK
    cos = _angle_row(low, digit * (2 * pairs), alive, pairs, 1.0)
    sin = _angle_row(low + pairs, digit * (2 * pairs), alive, pairs, 0.0)
    digit = (size >> _BITS) & _MASK
    cos, sin = _compose(cos, sin, middle, digit, alive, pairs)
    digit = tl.where(outside, _TOP, size >> (2 * _BITS))
    cos, sin = _compose(cos, sin, high, digit, alive, pairs)
    return cos, tl.where(position < 0, _negative(sin), sin)


@triton.jit
def _compose(cos, sin, table, digit, alive, pairs: tl.constexpr):
    c = _angle_row(table, digit * (2 * pairs), alive & (digit > 0), pairs, 1.0)
    s = _angle_row(table + pairs, digit * (2 * pairs), alive & (digit > 0), pairs, 0.0)
    return cos * c - sin * s, sin * c + cos * s


@triton.jit
def _angle_row(table, start, alive, pairs: tl.constexpr, other: tl.constexpr):
    pair = tl.arange(0, triton.next_power_of_2(pairs))
    mask = alive & (pair < pairs)[None, :]
    return tl.load(table + start + pair[None, :], mask=mask, other=other)


@triton.jit
def _read(source, mask, pairs: tl.constexpr, side_by_side: tl.constexpr, hint: tl.constexpr):
    if side_by_side:
        # Two floats at a time would be 4 bytes an access. Neighbours part in registers.
        i = tl.arange(0, 2 * triton.next_power_of_2(pairs))
        x = tl.load(source + i, mask=mask & (i < 2 * pairs), eviction_policy=hint)
        x1, x2 = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
    else:
        i = tl.arange(0, triton.next_power_of_2(pairs))
        x1 = tl.load(source + i, mask=mask & (i < pairs), eviction_policy=hint)
        x2 = tl.load(source + pairs + i, mask=mask & (i < pairs), eviction_policy=hint)
    return x1, x2


@triton.jit
def _write(target, y1, y2, mask, pairs: tl.constexpr, side_by_side: tl.constexpr):
    kind: tl.constexpr = target.dtype.element_ty
    if side_by_side:
        i = tl.arange(0, 2 * triton.next_power_of_2(pairs))
        y = tl.join(y1.to(kind), y2.to(kind))
        y = tl.reshape(y, (y.shape[0], y.shape[1], 2 * y.shape[2]))
        tl.store(target + i, y, mask=mask & (i < 2 * pairs))
    else:
        i = tl.arange(0, triton.next_power_of_2(pairs))
        tl.store(target + i, y1.to(kind), mask=mask & (i < pairs))
        tl.store(target + pairs + i, y2.to(kind), mask=mask & (i < pairs))


# --- compiling -----------------------------------------------------------------------------------

_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_ARRAYS = ("q", "q_out", "k", "k_out")
_TABLES = ("table", "table_2", "table_3")


def constants(variant: Variant) -> dict[str, Any]:
    """Return the arguments of a kernel that are compiled into it."""
    return {k: v for k, v in variant._asdict().items() if k in rotate.arg_names}


def source(variant: Variant) -> ASTSource:
    """Return what Triton compiles: types, what addresses are multiples of, and constants."""
    wide_tables = variant.dtype == "float64"
    positions = "*i32" if variant.position_dtype == "int32" else "*i64"
    types = {"tokens": "i32", "q_heads": "i32", "k_heads": "i32", "positions": positions}
    types |= {"components": "*i32"}
    types |= dict.fromkeys(_ARRAYS, f"*{_TYPES[variant.dtype]}")
    types |= dict.fromkeys(_TABLES, "*fp64" if wide_tables else "*fp32")
    # Digit tables begin where memory of torch's begins, at a multiple of 256 bytes or more.
    of_tables = variant.table_unit * (8 if wide_tables else 4)
    multiples = dict.fromkeys(_ARRAYS, variant.unit * FLOATS[variant.dtype])
    multiples |= dict.fromkeys(_TABLES, of_tables if variant.angles == "tables" else ACCESS)
    fixed = constants(variant)
    types |= dict.fromkeys(fixed, "constexpr")
    names, number = rotate.arg_names, "i64" if variant.wide else "i32"
    return ASTSource(
        fn=rotate,
        signature={name: types.get(name, number) for name in names},
        constexprs=fixed,
        attrs={(names.index(n),): [["tt.divisibility", m]] for n, m in multiples.items()},
    )


def compiled(variant: Variant, target: GPUTarget) -> CompiledKernel:
    """Return a kernel compiled for a GPU, without fused multiply-add: the bits are numpy's."""
    options = {"num_warps": THREADS // target.warp_size, "enable_fp_fusion": False}
    return triton.compile(source(variant), target=target, options=options)


Launch = Callable[[tuple[int, int, int], Sequence[Any], Sequence[int]], None]
"""``launch(grid, tensors, numbers)``, on the current stream of the current device."""


def loaded(variant: Variant) -> Launch:
    """Return what launches a kernel on the current device, compiled and loaded there."""
    fixed = constants(variant)
    if not isinstance(rotate, triton.JITFunction):

        def interpret(grid, tensors, numbers):
            rotate[grid](*tensors, *numbers, **fixed)

        return interpret

    kernel = compiled(variant, driver.active.get_current_target())
    _ = kernel.run  # asking for it loads the kernel
    values = tuple(fixed.values())

    def launch(grid, tensors, numbers):
        # Addresses: of each tensor the launcher would ask the driver where it lies.
        kernel[grid](*[t.data_ptr() for t in tensors], *numbers, *values)

    return launch
