"""Launch plans of the Triton kernel: plain numbers, from shapes, strides and alignments.

It imports no triton and reads no tensor.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from rope_xp._core.caches import cached
from rope_xp._core.call import RotationSpec, get_interleaved
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.memory import ACCESS, CollapsedDim, Ints, StridedLayout, alignment, span

from . import collapse_operands

# The next nine follow from the sizes of the hardware; none has been measured on a GPU yet.
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
TILES = 1
"""Tiles of a program. Triton prefetches the next tile of two or more, unless BARRIER is 1."""
BARRIER = 1
"""1: q and k are loaded before positions and tables. 0: the assembler orders these loads."""
EVICT_FIRST = 1
"""1: q and k leave the L2 cache to the tables, unless they are overwritten."""
LARGEST_ROW = 1 << 13
"""Bytes of head_dim beyond which a tile no longer fits in registers."""
_INT32 = 1 << 31

AngleKind = Literal["implicit", "positions", "components", "tables"]


class NormVariant(NamedTuple):
    """RMSNorm of so many components, none if 0; by weights of a dtype, if it is not empty."""

    normalized: int = 0
    weight_dtype: str = ""
    weight_alignment: int = ACCESS


class KernelVariant(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    position_dtype: str
    angles: AngleKind
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
    tiles: int
    barrier: bool
    evict_first: bool
    norm: NormVariant


class AngleLayout(NamedTuple):
    """Layout of positions, without their components, or of cos and sin, without pairs."""

    kind: AngleKind
    shape: Ints
    strides: Ints
    dtype: str
    """Of positions."""
    alignment: int = 1
    """Of cos and sin, in bytes."""
    components: int = 1
    component_stride: int = 0


class TritonPlan(NamedTuple):
    """One launch: the kernel variant, how many programs, and the numeric arguments."""

    variant: KernelVariant
    grid: tuple[int, int, int]
    numbers: Ints


# Every length of a sequence is another call; a plan has a few hundred bytes.
@cached(4096)
def plan_launch(
    arrays: tuple[StridedLayout, ...],
    in_place: tuple[bool, ...],
    address_alignment: int,
    angles: AngleLayout,
    dtype: str,
    weight_dtype: str,
    weight_alignment: int,
    spec: RotationSpec,
) -> TritonPlan | None:
    """Return how to rotate one array or two that share their angles, as inputs and then results.

    None where batch axes do not collapse: no two strides lead to all rows. Strides are in elements,
    and ``address_alignment`` is that of all arrays in bytes, at most ACCESS.
    """
    implicit = angles.kind == "implicit"
    angle_layouts = [] if implicit else [StridedLayout(angles.shape, angles.strides)]
    layout = collapse_operands(spec, arrays, angle_layouts, in_place)
    if len(layout.rows) > 2:
        return None
    no_axis = CollapsedDim(1, (0,) * (len(arrays) + 1))
    layout = layout._replace(rows=[no_axis, no_axis, *layout.rows][-2:])
    batches, tokens = layout.rows
    strides = layout.strides()
    angle_strides = (batches.steps[-1], tokens.steps[-1], angles.component_stride)
    heads, n = layout.heads, len(in_place)
    head_dim, pairs, size = arrays[0].shape[-1], spec.rotary_dim // 2, FLOATS[dtype]
    norm, numbers_of_norm = NormVariant(), []
    if spec.norm is not None:
        normalized = spec.rotary_dim if spec.norm.over_slice else head_dim
        norm = NormVariant(normalized, weight_dtype, weight_alignment)
        # As bits: the interpreter would round a float to float32.
        numbers_of_norm = np.array(spec.norm[:2], np.float64).view(np.int64).tolist()
    # Copied components beside a slice count half, or the slice would move in narrow accesses.
    components = max(head_dim // 2 if layout.copies else 2 * pairs, norm.normalized)
    heads_first = 0 < abs(strides[0][1]) < abs(strides[0][2])
    most_heads = TILE_HEADS_APART if heads_first else TILE_HEADS
    tile_tokens, tile_heads = _choose_tile(heads, components, pairs, size, most_heads)
    count, tokens_of_program = batches.length * tokens.length, tile_tokens * TILES
    unit = _aligned_elements(size, address_alignment, strides)
    table_unit = 1
    if angles.kind == "tables":
        table_unit = _aligned_elements(max(size, 4), angles.alignment, [angle_strides])
    lengths = (batches.length, tokens.length)
    spans = [span((*lengths, heads[i % n]), s) + head_dim for i, s in enumerate(strides)]
    spans += [span((*lengths, angles.components), angle_strides) + pairs, count + tokens_of_program]
    variant = KernelVariant(
        *(dtype, angles.dtype, angles.kind, head_dim, pairs, spec.rotary_offset),
        *(*get_interleaved(spec), spec.inverse),
        both=n == 2,
        q_in_place=in_place[0],
        k_in_place=in_place[-1],
        batched=batches.length > 1,
        int64_offsets=max(spans) >= _INT32,
        unit=unit,
        table_unit=table_unit,
        tile_tokens=tile_tokens,
        tile_heads=tile_heads,
        tiles=TILES,
        # In place, threads may write where others read from.
        barrier=bool(BARRIER) or any(in_place),
        evict_first=bool(EVICT_FIRST) and not any(in_place),
        norm=norm,
    )
    programs = -(-count // tokens_of_program) * sum(-(-n // tile_heads) for n in heads)
    numbers = [count, tokens.length, heads[0], heads[-1]]
    numbers += [step // unit for i in (0, n, n - 1, 2 * n - 1) for step in strides[i]]
    numbers += [step // table_unit for step in angle_strides] + numbers_of_norm
    return TritonPlan(variant, (programs, 1, 1), tuple(numbers))


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
