"""How the kernel in kernels/rotate.cu is launched: its key, its grid and its arguments, as numbers.

Everything here depends on shapes, strides and alignment, and on no pointer and no library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

THREADS = 256
"""Of a block, at most; the kernel is compiled for that many."""
HEADS_A_THREAD = 4
"""How many heads share what a thread found out of a token's angles. Not yet measured on a GPU."""
BLOCKS = 1024
"""Blocks of fewer tokens are made where there would not be that many. Not yet measured either."""
MAX_GRID_Y = 65535
MAX_BLOCK_Z = 64
MAX_COMPONENTS = 4
"""Of positions that the kernel looks up; more are looked up by the portable path."""

GIVEN, LOOKED_UP, SEVERAL = 0, 1, 2
"""Where a thread gets its angles: tables of the call, one position a token, several."""

TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}
_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

POINTERS = 6 + 3 * MAX_COMPONENTS
ARGUMENTS = np.dtype([("words", np.int64, (POINTERS + 32,))])
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
    together: bool
    """Whether all threads of a head read before any of them writes."""

    @property
    def expression(self) -> str:
        """How C++ spells it."""
        flags = (self.read_pairs, self.write_pairs, self.access, self.source, self.together)
        return f"rotate<{TYPES[self.dtype]}, {', '.join(str(int(flag)) for flag in flags)}>"


def every_key() -> Iterator[Key]:
    """Yield every key that a launch can have."""
    for (dtype, size), *pairs in product(_SIZES.items(), (True, False), (True, False)):
        read, write = pairs
        for access in (16, 8, 4, 2):
            if access >= size:
                for source in (GIVEN,) if dtype == "float64" else (GIVEN, LOOKED_UP, SEVERAL):
                    for together in (False,) if read == write else (False, True):
                        yield Key(dtype, read, write, access, source, together)


class Laid(NamedTuple):
    """How an array lies in memory, in bytes, but for where."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Turn(NamedTuple):
    """What is done to arrays of one dtype: all that a plan depends on but how they lie."""

    dtype: str
    rows: tuple[int, ...]
    """The axes of batch and, last, of tokens."""
    heads: int | None
    """The axis of heads."""
    read_pairs: bool
    write_pairs: bool
    rotary_dim: int
    offset: int
    inverse: bool
    in_place: tuple[bool, ...]
    source: int
    components: int
    long_positions: bool
    alignment: int
    """The pointers, or-ed, modulo 16: a power of two divides all of them if it divides this."""
    angles_alignment: int


class Step(NamedTuple):
    """A launch, but for pointers."""

    key: Key
    grid: tuple[int, int]
    block: tuple[int, int, int]
    words: np.ndarray
    """The arguments, with what is to be added to the pointers."""


class _Rows(NamedTuple):
    """An axis of tokens or batch."""

    length: int
    strides: tuple[int, ...]
    """Of q, k, their results, the angles, the sines; and how far a counted position goes on."""


@lru_cache(maxsize=256)
def plan(turn: Turn, arrays: tuple[Laid, ...], angles: tuple[Laid, ...]) -> tuple[Step, ...]:
    """Return the launches that turn one array or two, given as inputs and then results."""
    n = len(arrays) // 2
    size = _SIZES[turn.dtype]
    heads = [1 if turn.heads is None else x.shape[turn.heads] for x in arrays[:n]]
    head_strides = [0 if turn.heads is None else x.strides[turn.heads] for x in arrays]
    rows = _fold(_rows_of(turn, arrays, angles))
    if sum(heads) == 0 or any(row.length == 0 for row in rows):
        return ()
    pairs, head_dim = turn.rotary_dim // 2, arrays[0].shape[-1]
    before, turned = turn.offset * size, turn.rotary_dim * size
    passes = head_dim > turn.rotary_dim and not all(turn.in_place)
    aligned = turn.alignment | bits(s for row in rows for s in row.strides[:4]) | before
    if max(heads) > 1:
        aligned |= bits(head_strides)
    if passes:
        aligned |= head_dim * size
    angles_aligned = turn.angles_alignment | bits(s for row in rows for s in row.strides[4:6])
    access, each = _access(turn, size, pairs, aligned, angles_aligned)
    turning = pairs // each
    lanes = turning + ((head_dim * size - turned) // access if passes else 0)
    inner = rows[0] if rows else _Rows(1, (0,) * 7)
    outer = rows[1] if len(rows) > 1 else _Rows(1, (0,) * 7)
    grid, block = _grid(lanes, sum(heads), inner.length, outer.length)
    in_place = any(turn.in_place)
    together = in_place and turn.read_pairs != turn.write_pairs
    key = Key(turn.dtype, turn.read_pairs, turn.write_pairs, access, turn.source, together)
    if n == 1:
        head_strides = [head_strides[0], 0, head_strides[1], 0]
    each_head = [
        stride
        for i in (0, 1)
        for j in (i, i + 2)
        for stride in (outer.strides[j], inner.strides[j], head_strides[j])
    ]
    component = angles[0].strides[0] if turn.source == SEVERAL and angles else 0
    steps = []
    for index in product(*(range(row.length) for row in rows[2:])):
        moved = [0] * 7
        for at, row in zip(index, rows[2:], strict=True):
            moved = [a + at * b for a, b in zip(moved, row.strides, strict=True)]
        numbers = (
            *(outer.length, inner.length, heads[0], sum(heads)),
            *each_head,
            *(outer.strides[4], inner.strides[4], component),
            *(outer.strides[5], inner.strides[5]),
            *(moved[6], outer.strides[6], inner.strides[6]),
            *(pairs, before, turned, turning, lanes),
            *(turn.components, turn.long_positions, turn.inverse),
        )
        words = (*moved[:6], *(0,) * (POINTERS - 6), *numbers)
        steps.append(Step(key, grid, block, np.array(words, np.int64)))
    return tuple(steps)


def _access(
    turn: Turn, size: int, pairs: int, aligned: int, angles_aligned: int
) -> tuple[int, int]:
    """Return the bytes of a load or store, and how many pairs a thread has."""
    side_by_side = turn.read_pairs and turn.write_pairs
    access = 16
    while True:
        each = access // size
        if side_by_side and each > 1:
            each //= 2
        # Angles are read by up to 16 bytes as well; the digit tables are as well aligned as rows.
        angles = min(each * max(size, 4), 16) if turn.source == GIVEN else 1
        if access == size or not (aligned % access or pairs % each or angles_aligned % angles):
            return access, each
        access //= 2


def _grid(
    lanes: int, heads: int, inner: int, outer: int
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    x = min(lanes, THREADS)
    y = min(THREADS // x, -(-heads // HEADS_A_THREAD))
    z = max(1, min(THREADS // (x * y), MAX_BLOCK_Z, inner * outer // BLOCKS, inner))
    return (-(-inner // z), min(outer, MAX_GRID_Y)), (x, y, z)


def _rows_of(turn: Turn, arrays: tuple[Laid, ...], angles: tuple[Laid, ...]) -> list[_Rows]:
    ends = list(arrays)
    if len(ends) == 2:
        nothing = Laid(ends[0].shape, (0,) * len(ends[0].shape))
        ends = [ends[0], nothing, ends[1], nothing]
    # Angles have axes (batch..., tokens), those in front missing where they are all alike.
    lead, trail = int(turn.source == SEVERAL), int(turn.source == GIVEN)
    found = [(a.shape[lead : len(a.shape) - trail], a.strides[lead:]) for a in angles]
    rows = []
    for i, axis in enumerate(turn.rows):
        back = i - len(turn.rows)
        strides = [x.strides[axis] for x in ends]
        for shape, steps in found:
            there = -back <= len(shape) and shape[back] > 1
            strides.append(steps[len(shape) + back] if there else 0)
        strides += [0] * (6 - len(strides))
        strides.append(int(back == -1 and not angles))
        rows.append(_Rows(arrays[0].shape[axis], tuple(strides)))
    return rows


def _fold(rows: list[_Rows]) -> list[_Rows]:
    """Return as few axes as can hold all rows, the longest first."""
    rows = [row for row in rows if row.length != 1]
    folded = True
    while folded:
        folded = False
        for i, j in product(range(len(rows)), repeat=2):
            a, b = rows[i], rows[j]
            if i != j and all(x == y * b.length for x, y in zip(a.strides, b.strides, strict=True)):
                kept = [row for at, row in enumerate(rows) if at not in (i, j)]
                rows = [*kept, _Rows(a.length * b.length, b.strides)]
                folded = True
                break
    return sorted(rows, key=lambda row: -row.length)


def bits(numbers: Iterable[int]) -> int:
    """Return numbers or-ed: a power of two divides all of them if it divides this."""
    bits = 0
    for number in numbers:
        bits |= number
    return bits
