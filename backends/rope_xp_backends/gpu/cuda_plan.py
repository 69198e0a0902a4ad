"""How the kernel in rotate.cu is launched: its key, its grid and its arguments, as numbers.

Everything here depends on shapes, strides and alignment, and on no pointer and no library.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from rope_xp._contract.caches import cached
from rope_xp._contract.call import RotationSpec
from rope_xp._contract.dtypes import FLOATS
from rope_xp._contract.memory import ACCESS, Ints, Rows, StridedLayout, alignment

from .layout import Layout, layout
from .occupancy import waves

THREADS = 256
"""Of a block, at most; the kernel is compiled for that many."""
HEADS_A_THREAD = 4
"""How many heads share what a thread found out of a token's angles. Not yet measured on a GPU."""
PROCESSORS, BLOCKS_A_PROCESSOR = 132, 8
"""Blocks of fewer tokens are made where an H200 would not have that many. Not yet measured."""
WARP = 32
MAX_GRID_Y = 65535
MAX_BLOCK_Z = 64

GIVEN, LOOKED_UP, SEVERAL = 0, 1, 2
"""Where a thread gets its angles: tables of the call, one position a token, several."""

TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}

POINTERS = 10
"""q, k, their results; positions or cosines, sines; three digit tables, and components."""
ARGUMENTS = np.dtype([("words", np.int64, (POINTERS + 31,))])
"""``Arguments`` of the kernel. One array element, as cupy passes no more than one by value."""


class Key(NamedTuple):
    """Of a compiled kernel."""

    dtype: str
    read_pairs: bool
    """Whether pairs lie side by side where they are read; else half apart."""
    write_pairs: bool
    access: int
    """Bytes of a load or store."""
    source: int
    in_place: bool
    """Whether q or k are written over."""

    @property
    def expression(self) -> str:
        """How C++ spells it."""
        flags = (self.read_pairs, self.write_pairs, self.access, self.source, self.in_place)
        return f"rotate<{TYPES[self.dtype]}, {', '.join(str(int(flag)) for flag in flags)}>"


def every_key() -> Iterator[Key]:
    """Yield every key that a launch can have."""
    for (dtype, size), *pairs in product(FLOATS.items(), (True, False), (True, False)):
        read, write = pairs
        for access in (16, 8, 4, 2):
            if access >= size:
                for source in (GIVEN,) if dtype == "float64" else (GIVEN, LOOKED_UP, SEVERAL):
                    for in_place in (False, True):
                        yield Key(dtype, read, write, access, source, in_place)


class Job(NamedTuple):
    """All that a plan depends on but how arrays of one dtype lie."""

    dtype: str
    turn: RotationSpec
    in_place: tuple[bool, ...]
    source: int
    long_positions: bool
    alignment: int
    """Of the pointers of q, k and their results, in bytes."""
    angles_alignment: int


class Step(NamedTuple):
    """A launch, but for pointers."""

    key: Key
    grid: tuple[int, int]
    block: tuple[int, int, int]
    words: np.ndarray
    """The arguments, with what is to be added to the pointers."""

    def waves(self, processors: int) -> float:
        """Return how often the blocks fill a GPU."""
        return waves(math.prod(self.grid), math.prod(self.block), processors)


@cached(256)
def plan(
    job: Job, arrays: tuple[StridedLayout, ...], angles: tuple[StridedLayout, ...]
) -> tuple[Step, ...]:
    """Return the launches that turn one array or two, given as inputs and then results.

    Angles are positions, (components, batch..., tokens) if there are several, or cos and sin;
    none where positions are counted.
    """
    turn, size = job.turn, FLOATS[job.dtype]
    # Positions have their components in front, cosines and sines their pairs behind.
    own = slice(int(job.source == SEVERAL), -1 if job.source == GIVEN else None)
    of_rows = [StridedLayout(a.shape[own], a.strides[own]) for a in angles]
    lies = layout(turn, arrays, of_rows, job.in_place)
    found, heads = _rows(lies, counted=not angles), lies.heads
    if sum(heads) == 0 or any(row.length == 0 for row in found):
        return ()
    pairs, head_dim = turn.rotary_dim // 2, arrays[0].shape[-1]
    before, turned = turn.rotary_offset * size, turn.rotary_dim * size
    aligned = alignment(job.alignment, before, *(s for steps in lies.steps() for s in steps))
    if lies.copies:
        aligned = alignment(aligned, head_dim * size)
    angles_aligned = alignment(job.angles_alignment, *(s for r in found for s in r.steps[4:6]))
    read, write = turn.side_by_side
    access, each = _access(job, size, pairs, aligned, angles_aligned)
    turning = pairs // each
    lanes = turning + ((head_dim * size - turned) // access if lies.copies else 0)
    alone = Rows(1, (0,) * 7)
    inner, outer, *rest = [*found, alone, alone][: max(len(found), 2)]
    # As the kernel: accesses of a head, of which a thread has four in flight.
    at_once = 4 // (2 * each * size // access)
    grid, block = _grid(lanes, sum(heads), at_once, inner.length, outer.length)
    key = Key(job.dtype, read, write, access, job.source, any(job.in_place))
    head_strides = _of_both(lies.head_steps)
    each_head = [
        stride
        for i in (0, 1)
        for j in (i, i + 2)
        for stride in (outer.steps[j], inner.steps[j], head_strides[j])
    ]
    component = angles[0].strides[0] if job.source == SEVERAL else 0
    steps = []
    for index in product(*(range(row.length) for row in rest)):
        moved = [0] * 7
        for at, row in zip(index, rest, strict=True):
            moved = [a + at * b for a, b in zip(moved, row.steps, strict=True)]
        numbers = (
            *(outer.length, inner.length, heads[0], sum(heads)),
            *each_head,
            *(outer.steps[4], inner.steps[4], component),
            *(outer.steps[5], inner.steps[5]),
            *(moved[6], outer.steps[6], inner.steps[6]),
            *(pairs, before, turned, turning, lanes),
            *(job.long_positions, turn.inverse),
        )
        words = (*moved[:6], *(0,) * (POINTERS - 6), *numbers)
        steps.append(Step(key, grid, block, np.array(words, np.int64)))
    return tuple(steps)


def _rows(lies: Layout, *, counted: bool) -> list[Rows]:
    """Return the axes that lead to all rows, the longest first.

    Their steps are those of q, k, their results, the angles, the sines; and how far a counted
    position goes on.
    """
    found, n = [], len(lies.head_steps)
    for length, steps in lies.rows:
        of_angles = (0, 0, steps[n]) if counted else (*(*steps[n:], 0)[:2], 0)
        found.append(Rows(length, (*_of_both(steps[:n]), *of_angles)))
    return sorted(found, key=lambda row: -row.length)


def _of_both(steps: Ints) -> Ints:
    """Return steps of q, k and their results, where there may be no k."""
    return steps if len(steps) == 4 else (steps[0], 0, steps[1], 0)


def _access(job: Job, size: int, pairs: int, aligned: int, angles_aligned: int) -> tuple[int, int]:
    """Return the bytes of a load or store, and how many pairs a thread has."""
    both = all(job.turn.side_by_side)
    access = ACCESS
    while True:
        each = access // size
        if both and each > 1:
            each //= 2
        # Angles are read by up to 16 bytes as well; the digit tables are as well aligned as rows.
        angles = min(each * max(size, 4), ACCESS) if job.source == GIVEN else 1
        if access == size or not (aligned % access or pairs % each or angles_aligned % angles):
            return access, each
        access //= 2


def _grid(
    lanes: int, heads: int, at_once: int, inner: int, outer: int
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Return a grid, and a block of which as few lanes as possible idle: best of whole warps."""
    x = min(lanes, THREADS)
    blocks = [
        (x, y, z)
        for y in range(1, min(THREADS // x, heads) + 1)
        for z in range(1, min(THREADS // (x * y), MAX_BLOCK_Z, inner) + 1)
    ]

    def worth(block: tuple[int, int, int]) -> tuple[float, float, float, int]:
        _, y, z = block
        warps, turns = -(-x * y * z // WARP), -(-heads // (y * at_once))
        busy = x * y * z / (warps * WARP) * heads / (turns * y * at_once)
        spread = min(-(-inner // z) * outer / PROCESSORS, BLOCKS_A_PROCESSOR)
        return busy, spread, -abs(heads / y - HEADS_A_THREAD), x * y * z

    block = max(blocks, key=worth)
    return (-(-inner // block[2]), min(outer, MAX_GRID_Y)), block
