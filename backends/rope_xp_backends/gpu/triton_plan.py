"""How a rotation is cut into programs of a GPU: plain numbers, from shapes, strides and addresses.

Nothing here imports triton or reads a tensor, and a plan is made once for each kind of call.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rope_xp._contract.caches import cached
from rope_xp._contract.call import RotationSpec
from rope_xp._contract.dtypes import FLOATS
from rope_xp._contract.memory import Ints, Rows, StridedLayout, alignment, span

from .layout import layout
from .occupancy import waves

# The next six are choices from the sizes of the hardware; none has been measured on a GPU yet.
THREADS = 128
"""Of a program."""
TILE_BYTES = 1 << 13
"""Of q or k in flight in one program: four accesses for each thread."""
TILE_HEADS = 8
"""Heads of a token side by side in a tile, at most; they share its angles."""
TILE_HEADS_APART = 2
"""The same where the tokens of a head lie side by side, of which a tile then has more."""
TILE_PAIRS = 1 << 10
"""Angles that a program holds, at most: eight for each thread."""
LARGEST_ROW = 1 << 13
"""Bytes of head_dim beyond which a tile no longer fits in registers."""
_INT32 = 1 << 31

Kind = Literal["counted", "positions", "components", "tables"]


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
    q_in_place: bool
    k_in_place: bool
    """As q_in_place where there are no k."""
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
    alignment: int = 1
    """Of cos and sin, in bytes."""
    components: int = 1
    """How many positions have."""
    component_stride: int = 0


class Plan(NamedTuple):
    """One launch: what to compile, how many programs, and all numbers that a kernel is given."""

    variant: Variant
    grid: tuple[int, int, int]
    numbers: Ints

    def waves(self, processors: int) -> float:
        """Return how often the programs fill a GPU."""
        return waves(self.grid[0], THREADS, processors)


# Every length of a sequence is another call; a plan has a few hundred bytes.
@cached(4096)
def plan(
    operands: tuple[Operand, ...], angles: Angles, dtype: str, turn: RotationSpec
) -> Plan | None:
    """Return how to rotate one array or two that share their angles.

    None where the batch axes are too many for one launch: they lie in memory such that no two
    strides lead to all rows.
    """
    ends = [StridedLayout(x.shape, x.strides) for x in operands]
    ends += [StridedLayout(x.shape, x.out_strides) for x in operands]
    in_place = [x.in_place for x in operands]
    of_rows = [] if angles.kind == "counted" else [StridedLayout(angles.shape, angles.strides)]
    lies = layout(turn, ends, of_rows, in_place)
    if len(lies.rows) > 2:
        return None
    alone = Rows(1, (0,) * (len(ends) + 1))
    lies = lies._replace(rows=[alone, alone, *lies.rows][-2:])
    batches, tokens = lies.rows
    # A stride is passed once for all axes that it leads along, in units.
    of_arrays = lies.steps()
    of_angles = (batches.steps[-1], tokens.steps[-1], angles.component_stride)
    heads, n = lies.heads, len(operands)
    head_dim, pairs, size = operands[0].shape[-1], turn.rotary_dim // 2, FLOATS[dtype]
    read, write = turn.side_by_side
    # What is copied beside a slice counts half, or the slice alone would be in narrow accesses.
    components = head_dim // 2 if lies.copies else 2 * pairs
    heads_first = 0 < abs(of_arrays[0][1]) < abs(of_arrays[0][2])
    side = TILE_HEADS_APART if heads_first else TILE_HEADS
    tile_tokens, tile_heads = _tile(heads, components, pairs, size, side)
    count = batches.length * tokens.length
    unit = _aligned(size, [x.alignment for x in operands], of_arrays)
    table_unit = 1
    if angles.kind == "tables":
        table_unit = _aligned(max(size, 4), [angles.alignment], [of_angles])
    lengths = (batches.length, tokens.length)
    spans = [span((*lengths, heads[i % n]), steps) + head_dim for i, steps in enumerate(of_arrays)]
    spans += [span((*lengths, angles.components), of_angles) + pairs, count + tile_tokens]
    variant = Variant(
        dtype=dtype,
        position_dtype=angles.dtype,
        angles=angles.kind,
        head_dim=head_dim,
        pairs=pairs,
        offset=turn.rotary_offset,
        read_pairs=read,
        write_pairs=write,
        inverse=turn.inverse,
        both=len(operands) == 2,
        q_in_place=in_place[0],
        k_in_place=in_place[-1],
        wide=max(spans) >= _INT32,
        unit=unit,
        table_unit=table_unit,
        tile_tokens=tile_tokens,
        tile_heads=tile_heads,
    )
    programs = -(-count // tile_tokens) * sum(-(-n // tile_heads) for n in heads)
    numbers = [step // unit for i in (0, n, n - 1, 2 * n - 1) for step in of_arrays[i]]
    numbers += [step // table_unit for step in of_angles]
    return Plan(variant, (programs, 1, 1), (count, tokens.length, heads[0], heads[-1], *numbers))


def _tile(
    heads: Sequence[int], components: int, pairs: int, size: int, most: int
) -> tuple[int, int]:
    """Return how many tokens and heads a tile has, whose lengths Triton wants as powers of two."""
    rows = max(TILE_BYTES // (_power_of_two(components) * size), 1)
    side = min(most, rows)
    # As many heads as leave a fifth of the lanes without work, at most.
    while side > 1 and 4 * sum(-(-n // side) * side for n in heads) > 5 * sum(heads):
        side //= 2
    return max(min(rows // side, TILE_PAIRS // _power_of_two(pairs)), 1), side


def _power_of_two(n: int) -> int:
    """Return the next one."""
    return 1 << (n - 1).bit_length()


def _aligned(size: int, alignments: Sequence[int], steps: Sequence[Sequence[int]]) -> int:
    """Return by how many elements, at most those of an access, all rows are aligned."""
    return max(alignment(*alignments, *(n * size for some in steps for n in some)) // size, 1)
