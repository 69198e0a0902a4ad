"""How a rotation is cut into programs of a GPU: plain numbers, from shapes, strides and addresses.

Nothing here imports triton or reads a tensor, and a plan is made once for each kind of call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from rope_xp import _axes
from rope_xp._rotate import PAIR_AXIS
from rope_xp._typing import Layout

# The next four are choices from the sizes of the hardware; none has been measured on a GPU yet.
ACCESS = 16
"""Bytes that a thread reads or writes at once, at most."""
TILE_BYTES = 1 << 13
"""Of q or k in flight in one program: four accesses for each of 128 threads."""
TILE_HEADS = 8
"""Heads of a token side by side in a tile, at most. More heads take turns and share its angles."""
PROGRAMS_A_PROCESSOR = 8
"""Programs that keep a multiprocessor busy. Where tokens are fewer, heads are shared out too."""
LARGEST_ROW = 1 << 13
"""Bytes of head_dim beyond which a tile no longer fits in registers."""
_INT32 = 1 << 31
_TILE_ROWS = 256  # rows of few bytes: more would hold more angles than data

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
Kind = Literal["counted", "positions", "components", "tables"]
Ints = tuple[int, ...]


class Variant(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    position_dtype: str
    angles: Kind
    head_dim: int
    pairs: int
    offset: int
    read_pairs: bool
    write_pairs: bool
    inverse: bool
    both: bool
    """Whether there are k as well as q."""
    copies: bool
    """Whether components beside the rotated slice go to new memory."""
    barrier: bool
    """Whether rows are written over themselves in another layout."""
    wide: bool
    """Whether offsets need 64 bits."""
    unit: int
    """Elements of q and k by which all their rows are aligned."""
    table_unit: int
    """The same of cos and sin."""
    tile_tokens: int
    tile_heads: int


class Operand(NamedTuple):
    """Where an array and its result lie: shape and strides in elements."""

    shape: Ints
    strides: Ints
    out_strides: Ints
    in_place: bool
    alignment: int
    """A number that the addresses of both are multiples of, at most ACCESS, in bytes."""


class Angles(NamedTuple):
    """Where the angles lie: positions, without their components, or cos and sin, without pairs."""

    kind: Kind
    shape: Ints
    strides: Ints
    dtype: str
    """Of positions."""
    alignment: int
    components: int = 1
    """How many positions have."""
    component_stride: int = 0


class Plan(NamedTuple):
    """One launch: what to compile, how many programs, and all numbers that a kernel is given."""

    variant: Variant
    grid: tuple[int, int, int]
    numbers: Ints


# Every length of a sequence is another call; a plan has a few hundred bytes.
@lru_cache(maxsize=4096)
def plan(
    operands: tuple[Operand, ...],
    angles: Angles,
    dtype: str,
    axes: str,
    layout: Layout,
    offset: int,
    pairs: int,
    inverse: bool,
    processors: int,
) -> Plan | None:
    """Return how to rotate one array or two that share their angles.

    None where the batch axes are too many for one launch: they lie in memory such that no two
    strides lead to all rows.
    """
    where = _axes.parse(axes, len(axes), "x")
    order = (*where.batch, where.tokens)
    lengths = [operands[0].shape[i] for i in order]
    strides = [[steps[i] for i in order] for x in operands for steps in (x.strides, x.out_strides)]
    if angles.kind == "counted":
        strides.append([0] * len(where.batch) + [1])
    else:
        strides.append(_broadcast(angles.shape, angles.strides, len(order)))
    levels = _folded(lengths, strides)
    if len(levels) > 2:
        return None
    alone = (1, [0] * len(strides))
    (batches, batch_steps), (tokens, token_steps) = [alone, alone, *levels][-2:]

    heads, head_steps = [], []
    for x in operands:
        heads.append(1 if where.heads is None else x.shape[where.heads])
        single = where.heads is None or heads[-1] == 1
        steps = (x.strides, x.out_strides)
        head_steps.append([0 if single else s[where.heads or 0] for s in steps])
    head_dim, size = operands[0].shape[-1], SIZES[dtype]
    in_place = [x.in_place for x in operands]
    read, write = PAIR_AXIS[layout]
    if inverse:
        read, write = write, read
    copies = 2 * pairs < head_dim and not all(in_place)
    # What is copied beside a slice counts half, or the slice alone would be in narrow accesses.
    tile_tokens, tile_heads = _tile(heads, head_dim // 2 if copies else 2 * pairs, size)
    rows = batches * tokens

    # A stride is passed once for all axes that it leads along, in units.
    of_rows = [[*step] for step in zip(batch_steps, token_steps, strict=True)]
    of_arrays = [
        (*of_rows[2 * i + side], head_steps[i][side]) for i in range(len(heads)) for side in (0, 1)
    ]
    unit = _aligned(size, [x.alignment for x in operands], of_arrays)
    table_unit = 1
    if angles.kind == "tables":
        table_unit = _aligned(max(size, 4), [angles.alignment], [of_rows[-1]])
    spans = [
        _span((batches, tokens, n), steps) + head_dim
        for n, steps in zip([n for n in heads for _ in (0, 1)], of_arrays, strict=True)
    ]
    of_angles = (*of_rows[-1], angles.component_stride)
    spans += [_span((batches, tokens, angles.components), of_angles) + pairs, rows + tile_tokens]
    variant = Variant(
        dtype=dtype,
        position_dtype=angles.dtype,
        angles=angles.kind,
        head_dim=head_dim,
        pairs=pairs,
        offset=offset,
        read_pairs=read == -1,
        write_pairs=write == -1,
        inverse=inverse,
        both=len(operands) == 2,
        copies=copies,
        barrier=read != write and any(in_place),
        wide=max(spans) >= _INT32,
        unit=unit,
        table_unit=table_unit,
        tile_tokens=tile_tokens,
        tile_heads=tile_heads,
    )
    blocks, turns = -(-rows // tile_tokens), -(-max(heads) // tile_heads)
    shares = max(1, min(turns, -(-PROGRAMS_A_PROCESSOR * processors // max(blocks, 1)), 65535))
    numbers = [n // unit for steps in (of_arrays * 2)[:4] for n in steps]
    numbers += [n // table_unit for n in of_angles]
    return Plan(variant, (blocks, shares, 1), (rows, tokens, heads[0], heads[-1], *numbers))


def _broadcast(shape: Ints, strides: Ints, ndim: int) -> list[int]:
    """Return the strides of angles along all axes that they can have."""
    steps = [0 if n == 1 else step for n, step in zip(shape, strides, strict=True)]
    return [0] * (ndim - len(steps)) + steps


def _folded(lengths: Sequence[int], strides: list[list[int]]) -> list[tuple[int, list[int]]]:
    """Return (length, strides) of as few axes as lead to the same elements in the same order."""
    levels: list[tuple[int, list[int]]] = []
    for axis, length in enumerate(lengths):
        if length == 1:
            continue
        steps = [along[axis] for along in strides]
        if levels:
            before, outer = levels[-1]
            if all(a == b * length for a, b in zip(outer, steps, strict=True)):
                levels[-1] = (before * length, steps)
                continue
        levels.append((length, steps))
    return levels


def _tile(heads: Sequence[int], components: int, size: int) -> tuple[int, int]:
    """Return how many tokens and heads a tile has, whose lengths Triton wants as powers of two."""
    row = (1 << (components - 1).bit_length()) * size
    rows = min(max(TILE_BYTES // row, 1), _TILE_ROWS)
    side = min(TILE_HEADS, rows)
    # As many heads as leave a fifth of the lanes without work, at most.
    while side > 1 and 4 * sum(-(-n // side) * side for n in heads) > 5 * sum(heads):
        side //= 2
    return rows // side, side


def _aligned(size: int, alignments: Sequence[int], steps: Sequence[Sequence[int]]) -> int:
    """Return by how many elements, at most those of an access, all rows are aligned."""
    in_bytes = (abs(n) * size for some in steps for n in some)
    return max(math.gcd(ACCESS, *alignments, *in_bytes) // size, 1)


def _span(lengths: Sequence[int], steps: Sequence[int]) -> int:
    return sum((n - 1) * abs(step) for n, step in zip(lengths, steps, strict=True) if n > 1)
