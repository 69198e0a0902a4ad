"""The Triton kernel for GPUs: angles, q and k in one launch, from positions.

Each step is the portable path's, in the same order and without fused multiply-add. The digit
tables stay in the cache of the device; no cos or sin of the sequence is ever stored. A program
rotates a tile, of a few tokens in a few heads of q or of k, and loads it before positions and
angles. A tile has whole rows, head_dim components of one head of one token, so that a row may be
overwritten with its own rotation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import driver

from rope_xp._core.call import DIGIT, DIGIT_BITS, LIMIT
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.memory import ACCESS
from rope_xp._rotation.tables import TOP_DIGIT

from .capture import relaxed_capture
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
    interleaved_in: tl.constexpr,
    interleaved_out: tl.constexpr,
    inverse: tl.constexpr,
    angles: tl.constexpr,
    both: tl.constexpr,
    q_in_place: tl.constexpr,
    k_in_place: tl.constexpr,
    batched: tl.constexpr,
    int64_offsets: tl.constexpr,
    unit: tl.constexpr,
    table_unit: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_heads: tl.constexpr,
    tiles: tl.constexpr,
    barrier: tl.constexpr,
    evict_first: tl.constexpr,
):
    """Rotate tiles * tile_tokens of the rows = batch * tokens, in tile_heads heads of q or of k.

    Programs enumerate groups of heads first: those of q, then those of k, then the next rows.
    Strides are in units of unit or table_unit elements, so that the compiler sees the alignment.
    table, table_2 and table_3 are the digit tables; where angles is "tables" they are cos, sin and
    unused, as positions then are, and where these are counted. components holds the component of
    positions that each pair reads, where there are several.
    """
    x, out, heads, x_batch, x_token, x_head = q, q_out, q_heads, q_batch, q_token, q_head
    out_batch, out_token, out_head = q_out_batch, q_out_token, q_out_head
    # Components beside the slice are copied, but not onto themselves.
    copied_heads = q_heads * (0 if q_in_place else 1)
    q_groups = tl.cdiv(q_heads, tile_heads)
    groups = q_groups + tl.cdiv(k_heads, tile_heads) if both else q_groups
    program, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    if both:  # noqa: SIM102  # it is a constant, and the condition below is none
        if group >= q_groups:
            x, out, heads, x_batch, x_token, x_head = k, k_out, k_heads, k_batch, k_token, k_head
            out_batch, out_token, out_head = k_out_batch, k_out_token, k_out_head
            copied_heads = k_heads * (0 if k_in_place else 1)
            group -= q_groups
    if int64_offsets:
        program = program.to(tl.int64)
    head = group * tile_heads + tl.arange(0, tile_heads)
    copies: tl.constexpr = 2 * pairs < head_dim and not (q_in_place and k_in_place)
    hint: tl.constexpr = "evict_first" if evict_first else ""

    for i in tl.range(0, tiles, num_stages=2):
        row = (program * tiles + i) * tile_tokens + tl.arange(0, tile_tokens)
        alive = row < rows
        batch, token = tl.zeros_like(row), row
        if batched:
            batch, token = row // tokens, row % tokens
        mask = (alive[:, None] & (head < heads)[None, :])[:, :, None]
        start = (batch * x_batch + token * x_token)[:, None] + head[None, :] * x_head
        source = x + (start * unit)[:, :, None]
        start = (batch * out_batch + token * out_token)[:, None] + head[None, :] * out_head
        target = out + (start * unit)[:, :, None]

        if copies:
            c = tl.arange(0, triton.next_power_of_2(head_dim))
            beside = mask & ((c < offset) | ((c >= offset + 2 * pairs) & (c < head_dim)))
            if q_in_place or k_in_place:
                beside &= (head < copied_heads)[None, :, None]
            passing = tl.load(source + c, mask=beside, eviction_policy=hint)
        x1, x2 = _read(source + offset, mask, pairs, interleaved_in, hint)
        if barrier:
            # Assemblers would move these loads behind those of angles, which wait for positions.
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
            tl.store(target + c, passing, mask=beside)
        _write(target + offset, y1, y2, mask, pairs, interleaved_out)


@triton.jit
def _angles(
    table,
    table_2,
    table_3,
    positions,
    components,
    angle_component,
    alive,
    start,
    pairs: tl.constexpr,
    angles: tl.constexpr,
    table_unit: tl.constexpr,
):
    if angles == "tables":
        cos = _angle_row(table, start * table_unit, alive, pairs, 1.0)
        sin = _angle_row(table_2, start * table_unit, alive, pairs, 0.0)
    else:
        position = start.to(tl.int64)
        if angles == "positions":
            position = tl.load(positions + start, mask=alive, other=0).to(tl.int64)
        if angles == "components":
            pair = tl.arange(0, triton.next_power_of_2(pairs))
            component = tl.load(components + pair, mask=pair < pairs, other=0)
            pointers = positions + start + component[None, :] * angle_component
            position = tl.load(pointers, mask=alive, other=0).to(tl.int64)
        cos, sin = _look_up(position, table, table_2, table_3, alive, pairs)
    return cos, sin


@triton.jit
def _negative(x):
    # Triton computes -x as 0 - x, which loses the sign of zero.
    return x * -1.0


@triton.jit
def _look_up(position, low, middle, high, alive, pairs: tl.constexpr):
    """Compute what rope_xp._rotation.angles.cos_sin does. A digit of 0 loads nothing."""
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
def _read(source, mask, pairs: tl.constexpr, interleaved: tl.constexpr, hint: tl.constexpr):
    if interleaved:
        # Pairs are split in registers, as loads of every second element would be narrow.
        i = tl.arange(0, 2 * triton.next_power_of_2(pairs))
        x = tl.load(source + i, mask=mask & (i < 2 * pairs), eviction_policy=hint)
        x1, x2 = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
    else:
        i = tl.arange(0, triton.next_power_of_2(pairs))
        x1 = tl.load(source + i, mask=mask & (i < pairs), eviction_policy=hint)
        x2 = tl.load(source + pairs + i, mask=mask & (i < pairs), eviction_policy=hint)
    return x1, x2


@triton.jit
def _write(target, y1, y2, mask, pairs: tl.constexpr, interleaved: tl.constexpr):
    kind: tl.constexpr = target.dtype.element_ty
    if interleaved:
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
    """Return the compile-time arguments of a kernel."""
    return {k: v for k, v in variant._asdict().items() if k in rotate.arg_names}


def source(variant: Variant) -> ASTSource:
    """Return what Triton compiles: types, alignments of pointers, and constants."""
    float64 = variant.dtype == "float64"
    positions = "*i32" if variant.position_dtype == "int32" else "*i64"
    types = {"tokens": "i32", "q_heads": "i32", "k_heads": "i32", "positions": positions}
    types |= {"components": "*i32"}
    types |= dict.fromkeys(_ARRAYS, f"*{_TYPES[variant.dtype]}")
    types |= dict.fromkeys(_TABLES, "*fp64" if float64 else "*fp32")
    # torch allocates digit tables at multiples of 256 bytes or more.
    table_alignment = variant.table_unit * (8 if float64 else 4)
    alignments = dict.fromkeys(_ARRAYS, variant.unit * FLOATS[variant.dtype])
    alignments |= dict.fromkeys(_TABLES, table_alignment if variant.angles == "tables" else ACCESS)
    fixed = constants(variant)
    types |= dict.fromkeys(fixed, "constexpr")
    names, number = rotate.arg_names, "i64" if variant.int64_offsets else "i32"
    return ASTSource(
        fn=rotate,
        signature={name: types.get(name, number) for name in names},
        constexprs=fixed,
        attrs={(names.index(n),): [["tt.divisibility", m]] for n, m in alignments.items()},
    )


def compile_kernel(variant: Variant, target: GPUTarget) -> CompiledKernel:
    """Compile a kernel for a GPU, without fused multiply-add: the bits are numpy's."""
    options = {"num_warps": THREADS // target.warp_size, "enable_fp_fusion": False}
    return triton.compile(source(variant), target=target, options=options)


Launch = Callable[[tuple[int, int, int], Sequence[Any], Sequence[int]], None]
"""``launch(grid, tensors, numbers)``, on the current stream of the current device."""


def load_kernel(variant: Variant) -> Launch:
    """Compile and load a kernel on the current device, and return what launches it."""
    fixed = constants(variant)
    if not isinstance(rotate, triton.JITFunction):

        def interpret(grid, tensors, numbers):
            rotate[grid](*tensors, *numbers, **fixed)

        return interpret

    kernel = compile_kernel(variant, driver.active.get_current_target())
    with relaxed_capture():
        _ = kernel.run  # this attribute loads the kernel when it is first read
    values = tuple(fixed.values())

    def launch(grid, tensors, numbers):
        # Given tensors, the launcher would query the driver for each address.
        kernel[grid](*[t.data_ptr() for t in tensors], *numbers, *values)

    return launch
