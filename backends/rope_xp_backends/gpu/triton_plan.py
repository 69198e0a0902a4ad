"""Launch plans of the Triton kernel: plain numbers, from shapes, strides and alignments.

It imports no triton and reads no tensor.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from rope_xp._core.caches import cached
from rope_xp._core.call import RotationSpec, get_interleaved
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.memory import CollapsedDim, Ints, StridedLayout, alignment, span

from . import SlotLayout, collapse_operands

# The next six follow from the sizes of the hardware; none has been measured on a GPU yet.
THREADS = 128
"""Of a program."""
TILE_BYTES = 1 << 13
"""Of q or k in flight in one program: four accesses for each thread."""
TILE_HEADS = 8
"""Heads of a token in a tile, at most; they share its angles."""
TILE_HEADS_APART = 2
"""The same where the tokens of a head are contiguous; a tile then has more tokens."""
TILE_PAIRS = 1 << 10
"""Angles that a program holds, at most: eight for each thread."""
LARGEST_ROW = 1 << 13
"""Bytes of head_dim beyond which a tile no longer fits in registers."""
_INT32 = 1 << 31
_ABSENT = (None,) * 6
"""Numbers of k, or of slots, that a variant has no use for."""

AngleKind = Literal["implicit", "positions", "components", "tables"]


class KernelVariant(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    position_dtype: str
    table_dtype: str
    """Of digit tables, or of cos and sin."""
    angles: AngleKind
    q_heads: int
    k_heads: int
    """As q_heads where there are no k."""
    head_dim: int
    pairs: int
    offset: int
    interleaved_in: bool
    interleaved_out: bool
    inverse: bool
    both: bool
    """Whether there are k as well as q."""
    q_in_place: bool
    k_in_place: bool
    """As q_in_place where there are no k."""
    batched: bool
    """Whether rows have two axes, which takes a division for each."""
    int64_offsets: bool
    unit: int
    """Elements of q and k to which all their rows are aligned."""
    table_unit: int
    """The same of cos and sin."""
    tile_tokens: int
    tile_heads: int
    apart: bool
    """Whether k has tokens and angles of its own."""
    slot_dtype: str
    """Of the slots that k is written to, if it is not empty."""
    paged: bool
    """Whether slots are numbered through several pages."""
    normalized: int
    """Components of a norm, none if 0."""
    weight_dtype: str
    """Of its weights, if it is not empty."""
    weight_alignment: int
    wide: bool
    """Whether a row has a weight for each thread or more. The compiler would have each thread load
    one, and use that layout for all arithmetic, if weights had not the tile's shape."""


class AngleLayout(NamedTuple):
    """Layout of positions, without their components, or of cos and sin, without pairs."""

    kind: AngleKind
    shape: Ints
    strides: Ints
    dtype: str
    """Of positions."""
    table_dtype: str
    """Of digit tables, or of cos and sin."""
    alignment: int = 1
    """Of cos and sin, in bytes."""
    components: int = 1
    component_stride: int = 0


class TritonPlan(NamedTuple):
    """One launch: the kernel variant, how many programs, and the numeric arguments."""

    variant: KernelVariant
    grid: tuple[int, int, int]
    numbers: tuple[int | None, ...]
    """None for those that the variant has no use for."""


class _Operand(NamedTuple):
    """q or k: what the kernel takes for it alone."""

    lengths: Ints
    """Of batch and tokens, which may have been collapsed."""
    heads: int
    x: Ints
    """Strides along batch, tokens and heads."""
    out: Ints
    angles: Ints
    """Along batch, tokens and components."""
    slots: Ints
    """Along batch and tokens."""
    copies: bool

    @property
    def rows(self) -> int:
        return self.lengths[0] * self.lengths[1]


# Every length of a sequence is another call; a plan has a few hundred bytes.
@cached(4096)
def plan_launch(
    arrays: tuple[StridedLayout, ...],
    in_place: tuple[bool, ...],
    address_alignment: int,
    angles: tuple[AngleLayout, ...],
    dtype: str,
    weight_dtype: str,
    weight_alignment: int,
    spec: RotationSpec,
    slots: SlotLayout | None = None,
) -> TritonPlan | None:
    """Return how to rotate one array or two, given as inputs and then results.

    They share their angles, or each has its own, of one kind and dtype. The result of k lies in the
    cache of ``slots``, if there are any. None where batch axes do not collapse: no two strides lead
    to all rows. Strides are in elements, and ``address_alignment`` is that of all arrays in bytes,
    at most ACCESS.
    """
    operands = _collapse(arrays, in_place, angles, spec, slots)
    if operands is None:
        return None
    q, k, first, apart = operands[0], operands[-1], angles[0], len(angles) > 1
    head_dim, pairs, size = arrays[0].shape[-1], spec.rotary_dim // 2, FLOATS[dtype]
    normalized, norm_numbers = 0, [None, None]
    if spec.norm is not None:
        normalized = spec.rotary_dim if spec.norm.over_slice else head_dim
        # As bits: the interpreter would round a float to float32.
        norm_numbers = np.array(spec.norm[:2], np.float64).view(np.int64).tolist()
    # Copied components beside a slice count half, or the slice would move in narrow accesses.
    moved = head_dim // 2 if q.copies or k.copies else 2 * pairs
    heads, heads_first = [x.heads for x in operands], 0 < abs(q.x[1]) < abs(q.x[2])
    most_heads = TILE_HEADS_APART if heads_first else TILE_HEADS
    tile_tokens, tile_heads = _choose_tile(heads, max(moved, normalized), pairs, size, most_heads)
    cache_steps = (slots.page_step, slots.slot_step) if slots else ()
    steps = (q.x, q.out, k.x, k.out)
    unit = _aligned_elements(size, address_alignment, [*steps, cache_steps])
    table_unit = 1
    if first.kind == "tables":
        aligned = alignment(*(x.alignment for x in angles))
        table_unit = _aligned_elements(FLOATS[first.table_dtype], aligned, [q.angles, k.angles])
    longest = _measure_longest(operands, slots, head_dim, pairs, first.components)
    variant = KernelVariant(
        *(dtype, first.dtype, first.table_dtype, first.kind, q.heads, k.heads),
        *(head_dim, pairs, spec.rotary_offset),
        *(*get_interleaved(spec), spec.inverse),
        both=len(operands) == 2,
        q_in_place=in_place[0],
        k_in_place=in_place[-1],
        batched=any(x.lengths[0] > 1 for x in operands),
        int64_offsets=longest + tile_tokens >= _INT32,
        unit=unit,
        table_unit=table_unit,
        tile_tokens=tile_tokens,
        tile_heads=tile_heads,
        apart=apart,
        slot_dtype=slots.dtype if slots else "",
        paged=slots is not None and slots.page_step != 0,
        normalized=normalized,
        weight_dtype=weight_dtype,
        weight_alignment=weight_alignment,
        wide=_next_power_of_two(pairs) << get_interleaved(spec)[0] >= THREADS,
    )
    programs = [-(-x.rows // tile_tokens) * -(-x.heads // tile_heads) for x in operands]
    own = [k.rows, k.lengths[1], programs[0], *_divide(k.angles, table_unit)]
    of_slots: Ints = ()
    if slots is not None:
        of_slots = *k.slots, slots.page, slots.limit, *_divide(cache_steps, unit)
    numbers = (
        *(q.rows, q.lengths[1]),
        *_divide(chain(*steps), unit),
        *_divide(q.angles, table_unit),
        *norm_numbers,
        *(own if apart else _ABSENT),
        *(of_slots or _ABSENT),
    )
    return TritonPlan(variant, (sum(programs), 1, 1), numbers)


def _divide(steps: Iterable[int], unit: int) -> list[int]:
    return [step // unit for step in steps]


def _measure_longest(
    operands: list[_Operand], slots: SlotLayout | None, head_dim: int, pairs: int, components: int
) -> int:
    """Return the largest offset, in elements, that the kernel computes."""
    spans = []
    for x in operands:
        spans += [span((*x.lengths, x.heads), steps) + head_dim for steps in (x.x, x.out)]
        spans += [span((*x.lengths, components), x.angles) + pairs, x.rows]
    if slots is not None:
        pages = slots.limit // max(slots.page, 1)
        spans[-3] += span((pages, slots.page), (slots.page_step, slots.slot_step))
    return max(spans)


def _collapse(
    arrays: tuple[StridedLayout, ...],
    in_place: tuple[bool, ...],
    angles: tuple[AngleLayout, ...],
    spec: RotationSpec,
    slots: SlotLayout | None,
) -> list[_Operand] | None:
    """Return q and k, with axes collapsed alone where angles are apart; None if too many remain."""
    n, operands = len(in_place), []
    m = n // len(angles)
    for i, own in enumerate(angles):
        part, is_last = slice(i, i + m), i == len(angles) - 1
        others = [None if own.kind == "implicit" else StridedLayout(own.shape, own.strides)]
        others += [StridedLayout(slots.shape, slots.strides)] if slots and is_last else []
        given = arrays[:n][part] + arrays[n:][part]
        layout = collapse_operands(spec, given, others, in_place[part])
        if len(layout.rows) > 2:
            return None
        no_axis = CollapsedDim(1, (0,) * (len(given) + len(others)))
        layout = layout._replace(rows=[no_axis, no_axis, *layout.rows][-2:])
        strides = layout.strides()
        lengths, steps = zip(*layout.rows, strict=True)
        along = tuple(zip(*steps, strict=True))
        for j, heads in enumerate(layout.heads):
            own_angles = *along[2 * m], own.component_stride
            of_slots = along[-1] if slots and is_last else ()
            operand = lengths, heads, strides[j], strides[m + j], own_angles, of_slots
            operands.append(_Operand(*operand, layout.copies))
    return operands


def _choose_tile(
    heads: Sequence[int], components: int, pairs: int, size: int, most_heads: int
) -> tuple[int, int]:
    """Return the tokens and heads of a tile, powers of two as Triton requires."""
    rows = max(TILE_BYTES // (_next_power_of_two(components) * size), 1)
    tile_heads = min(most_heads, rows)
    # As many heads as leave a fifth of the lanes idle, at most.
    while tile_heads > 1 and 4 * sum(-n % tile_heads for n in heads) > sum(heads):
        tile_heads //= 2
    tile_tokens = min(rows // tile_heads, TILE_PAIRS // _next_power_of_two(pairs))
    return max(tile_tokens, 1), tile_heads


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _aligned_elements(size: int, aligned: int, strides: Sequence[Ints]) -> int:
    """Return the elements, at most those of an access, to which all rows are aligned."""
    return max(alignment(aligned, *(n * size for n in chain(*strides))) // size, 1)
