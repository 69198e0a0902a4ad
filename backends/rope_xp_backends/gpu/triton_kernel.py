"""The Triton kernel for GPUs: angles, q and k in one launch, from positions.

Each step is the portable path's, in the same order and without fused multiply-add. The digit
tables stay in the device's cache; no cos or sin of the sequence is stored. A program rotates a
tile, some tokens in some heads of q or of k, and loads it before positions and angles. A tile has
whole rows (head_dim components of one head of one token), so that a row may be overwritten with its
own rotation. A norm multiplies rows by weights, and what is stored by a factor of its row.
"""

import triton
import triton.language as tl

from rope_xp._core.call import DIGIT, DIGIT_BITS, LIMIT
from rope_xp._rotation.tables import TOP_DIGIT

_LIMIT = tl.constexpr(LIMIT)
_BITS = tl.constexpr(DIGIT_BITS)
_MASK = tl.constexpr(DIGIT - 1)
_TOP = tl.constexpr(TOP_DIGIT)


@triton.jit
def rotate(  # noqa: C901, PLR0912, PLR0915  # most branches are constants of a variant
    q_weight, k_weight, q, q_out, k, k_out, table, table_2, table_3, positions, components,
    k_table, k_table_2, k_positions, slots,
    rows, tokens,
    q_batch, q_token, q_head, q_out_batch, q_out_token, q_out_head,
    k_batch, k_token, k_head, k_out_batch, k_out_token, k_out_head,
    angle_batch, angle_token, angle_component, eps, weight_offset,
    k_rows, k_tokens, q_programs, k_angle_batch, k_angle_token, k_angle_component,
    slot_batch, slot_token, page, limit, page_step, slot_step,
    q_heads: tl.constexpr, k_heads: tl.constexpr,
    head_dim: tl.constexpr, pairs: tl.constexpr, offset: tl.constexpr,
    interleaved_in: tl.constexpr, interleaved_out: tl.constexpr, inverse: tl.constexpr,
    angles: tl.constexpr, both: tl.constexpr, q_in_place: tl.constexpr, k_in_place: tl.constexpr,
    batched: tl.constexpr, int64_offsets: tl.constexpr,
    unit: tl.constexpr, table_unit: tl.constexpr,
    tile_tokens: tl.constexpr, tile_heads: tl.constexpr,
    apart: tl.constexpr, paged: tl.constexpr, normalized: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Rotate tile_tokens of the rows = batch * tokens, in tile_heads heads of q or of k.

    Programs enumerate groups of heads first: those of q, then those of k, then the next rows.
    Strides are in units of unit or table_unit elements, so that the compiler sees the alignment.
    table, table_2 and table_3 are the digit tables. If angles is "tables", table and table_2 are
    cos and sin, table_3 and positions unused; so are positions if angles is "implicit".
    components holds the position component that each pair reads, if angles is "components".
    eps and weight_offset are the bits of float64.
    If apart, k has tokens and angles of its own, and its programs follow the q_programs of q.
    With slots, k_out is a cache, in which a slot that is below zero, or not below limit, is left.
    """
    x, out, heads, x_batch, x_token, x_head = q, q_out, q_heads, q_batch, q_token, q_head
    out_batch, out_token, out_head, weight = q_out_batch, q_out_token, q_out_head, q_weight
    # Components beside the slice are copied, but not onto themselves.
    copied_heads = q_heads * (0 if q_in_place else 1)
    q_groups: tl.constexpr = triton.cdiv(q_heads, tile_heads)
    k_groups: tl.constexpr = triton.cdiv(k_heads, tile_heads)
    groups: tl.constexpr = q_groups + k_groups if both and not apart else q_groups
    program = tl.program_id(0)
    of_k = program >= (q_programs if apart else 0)
    # By a constant: by an argument takes 35 instructions more before x is asked for.
    group, row_tile = program % groups, program // groups
    if apart:  # noqa: SIM102  # it is a constant, and the condition below is none
        if of_k:
            program -= q_programs
            group, row_tile = program % k_groups, program // k_groups
            rows, tokens = k_rows, k_tokens
            angle_batch, angle_token = k_angle_batch, k_angle_token
            if angles == "tables":
                table, table_2 = k_table, k_table_2
            else:
                positions, angle_component = k_positions, k_angle_component
    if both and not apart:
        of_k = group >= q_groups
        group -= of_k.to(tl.int32) * q_groups
    if both:  # noqa: SIM102  # as above
        if of_k:
            x, out, heads, x_batch, x_token, x_head = k, k_out, k_heads, k_batch, k_token, k_head
            out_batch, out_token, out_head, weight = k_out_batch, k_out_token, k_out_head, k_weight
            copied_heads = k_heads * (0 if k_in_place else 1)
    if int64_offsets:
        row_tile = row_tile.to(tl.int64)
    head = group * tile_heads + tl.arange(0, tile_heads)
    scales: tl.constexpr = 2 * pairs < normalized
    copies: tl.constexpr = scales or (2 * pairs < head_dim and not (q_in_place and k_in_place))
    fill: tl.constexpr = 0.0 if normalized else None
    # What is read once leaves the L2 cache to the tables.
    hint: tl.constexpr = "" if q_in_place or k_in_place else "evict_first"

    row = row_tile * tile_tokens + tl.arange(0, tile_tokens)
    alive = row < rows
    batch, token = tl.zeros_like(row), row
    if batched:
        batch, token = row // tokens, row % tokens
    mask = (alive[:, None] & (head < heads)[None, :])[:, :, None]
    start = (batch * x_batch + token * x_token)[:, None] + head[None, :] * x_head
    source = x + (start * unit)[:, :, None]
    if copies:
        c = tl.arange(0, triton.next_power_of_2(head_dim))
        beside = mask & ((c < offset) | ((c >= offset + 2 * pairs) & (c < head_dim)))
        if (q_in_place or k_in_place) and not scales:
            beside &= (head < copied_heads)[None, :, None]
        passing = tl.load(source + c, mask=beside, other=fill, eviction_policy=hint)
    x1, x2 = _load_pairs(source + offset, mask, hint, fill, pairs, interleaved_in)
    # Assemblers would move these loads behind those of angles, which wait for positions. And in
    # place, threads may write where others read from.
    tl.debug_barrier()

    cos, sin = _load_angles(
        *(table, table_2, table_3, positions, components, angle_component, alive[:, None]),
        *((batch * angle_batch + token * angle_token)[:, None], pairs, angles, table_unit),
    )
    row_start, target_mask = batch * out_batch + token * out_token, mask
    if slots is not None:
        slot = tl.load(slots + batch * slot_batch + token * slot_token, mask=alive & of_k, other=0)
        target_mask &= (slot >= 0)[:, None, None]
        target_mask &= ((slot < limit) | (not of_k))[:, None, None]
        slot = slot.to(row_start.dtype)
        if paged:
            row_start += (slot // page) * page_step + (slot % page) * slot_step
        else:
            row_start += slot * slot_step
    start = row_start[:, None] + head[None, :] * out_head
    target = out + (start * unit)[:, :, None]
    if q_weight is not None:
        shape: tl.constexpr = (tile_tokens, tile_heads, 1) if wide else (1, 1, 1)
        pointers = weight + (offset if scales else 0) + tl.zeros(shape, tl.int32)
        w1, w2 = _load_pairs(pointers, True, "", fill, pairs, interleaved_in)
        if scales:
            w = tl.load(weight + c, mask=c < head_dim, other=fill)
    if inverse:
        sin = _negate(sin)
    cos, sin = cos[:, None, :], sin[:, None, :]
    x1, x2 = x1.to(cos.dtype), x2.to(cos.dtype)
    if normalized:
        squares = tl.sum(x1 * x1 + x2 * x2, 2, keep_dims=True)
        if scales:
            passing = passing.to(cos.dtype)
            squares += tl.sum(passing * passing, 2, keep_dims=True)
        # Within 2 ulp on GPUs, as torch.rsqrt. What is exact takes 180 instructions more.
        factor = tl.rsqrt(squares * (1.0 / normalized) + _read_float(eps, cos.dtype))
        if q_weight is not None:
            addend = _read_float(weight_offset, cos.dtype)
            x1 *= w1.to(cos.dtype) + addend
            x2 *= w2.to(cos.dtype) + addend
            if scales:
                passing *= w.to(cos.dtype) + addend
    y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    if normalized:
        y1, y2 = y1 * factor, y2 * factor
        if scales:
            passing = (passing * factor).to(target.dtype.element_ty)
    if copies:
        tl.store(target + c, passing, mask=beside & target_mask)
    _store_pairs(target + offset, y1, y2, target_mask, pairs, interleaved_out)


@triton.jit
def _load_angles(
    table, table_2, table_3, positions, components, angle_component, alive, start,
    pairs: tl.constexpr, angles: tl.constexpr, table_unit: tl.constexpr,
):  # fmt: skip
    if angles == "tables":
        cos = _load_row(table, start * table_unit, alive, pairs, None)
        sin = _load_row(table_2, start * table_unit, alive, pairs, None)
        if cos.dtype.primitive_bitwidth < 32:
            cos, sin = cos.to(tl.float32), sin.to(tl.float32)
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
def _read_float(bits, kind: tl.constexpr):
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(kind)


@triton.jit
def _negate(x):
    # Triton computes -x as 0 - x, which loses the sign of zero.
    return x * -1.0


@triton.jit
def _look_up(position, low, middle, high, alive, pairs: tl.constexpr):
    """Compute what rope_xp._rotation.angles.cos_sin does. A digit of 0 loads nothing."""
    outside = (position <= -_LIMIT) | (position >= _LIMIT)
    size = tl.abs(tl.where(outside, 0, position)).to(tl.int32)
    digit = size & _MASK
    cos = _load_row(low, digit * (2 * pairs), alive, pairs, 1.0)
    sin = _load_row(low + pairs, digit * (2 * pairs), alive, pairs, 0.0)
    digit = (size >> _BITS) & _MASK
    cos, sin = _compose(cos, sin, middle, digit, alive, pairs)
    digit = tl.where(outside, _TOP, size >> (2 * _BITS))
    cos, sin = _compose(cos, sin, high, digit, alive, pairs)
    return cos, tl.where(position < 0, _negate(sin), sin)


@triton.jit
def _compose(cos, sin, table, digit, alive, pairs: tl.constexpr):
    c = _load_row(table, digit * (2 * pairs), alive & (digit > 0), pairs, 1.0)
    s = _load_row(table + pairs, digit * (2 * pairs), alive & (digit > 0), pairs, 0.0)
    return cos * c - sin * s, sin * c + cos * s


@triton.jit
def _load_row(table, start, alive, pairs: tl.constexpr, other: tl.constexpr):
    pair = tl.arange(0, triton.next_power_of_2(pairs))
    mask = alive & (pair < pairs)[None, :]
    return tl.load(table + start + pair[None, :], mask=mask, other=other)


@triton.jit
def _load_pairs(source, mask, hint, fill, pairs: tl.constexpr, interleaved: tl.constexpr):
    if interleaved:
        # Pairs are split in registers, as loads of every second element would be narrow.
        i = tl.arange(0, 2 * triton.next_power_of_2(pairs))
        x = tl.load(source + i, mask=mask & (i < 2 * pairs), other=fill, eviction_policy=hint)
        x1, x2 = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // 2, 2)))
    else:
        i = tl.arange(0, triton.next_power_of_2(pairs))
        mask &= i < pairs
        x1 = tl.load(source + i, mask=mask, other=fill, eviction_policy=hint)
        x2 = tl.load(source + pairs + i, mask=mask, other=fill, eviction_policy=hint)
    return x1, x2


@triton.jit
def _store_pairs(target, y1, y2, mask, pairs: tl.constexpr, interleaved: tl.constexpr):
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
