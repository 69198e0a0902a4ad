"""Launch plans of the kernel in rotate.cu: plain numbers, from shapes, strides and alignments."""

from collections.abc import Iterator
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.caches import cached
from rope_xp._core.call import RotationSpec, get_interleaved
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.memory import ACCESS, CollapsedDim, StridedLayout, alignment

from . import SlotLayout, collapse_operands

THREADS = 256
"""Of a block, at most; the kernel is compiled for that many."""
HEADS_A_THREAD = 4
"""Heads that share the angles of a thread. Not yet measured on a GPU."""
PROCESSORS, BLOCKS_A_PROCESSOR = 132, 8
"""Blocks have fewer tokens where an H200 would not get that many. Not yet measured."""
WARP = 32
MAX_GRID_Y = 65535
MAX_BLOCK_Z = 64

COS_SIN, TABLE_LOOKUP, COMPONENTS = range(3)
"""Sources of angles: tables of the call, one position a token, several."""

_NO_AXES = StridedLayout((), ())
"""Of what is absent."""
TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}

POINTERS = 11
"""q, k, their results; positions or cosines, sines; three digit tables, components, and slots."""
N_ARGUMENTS = POINTERS + 43
WEIGHTS = slice(N_ARGUMENTS - 10, N_ARGUMENTS - 8)


class CudaKey(NamedTuple):
    """Template arguments of a kernel."""

    dtype: str
    interleaved_in: bool
    interleaved_out: bool
    access: int
    """Bytes of a load or store."""
    source: int
    in_place: bool
    """Whether q or k are overwritten."""
    norm: bool = False

    @property
    def expression(self) -> str:
        """The kernel's name in C++."""
        numbers = (str(int(argument)) for argument in self[1:])
        return f"rotate<{TYPES[self.dtype]}, {', '.join(numbers)}>"


class CudaLaunch(NamedTuple):
    """One launch of a kernel."""

    key: CudaKey
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: np.ndarray
    """int64; ``Arguments`` of the kernel. A plan has offsets to add to pointers."""
    pinned: tuple[Any, ...] = ()
    """What the launch reads and writes, which must outlive it."""

    @property
    def argument(self) -> np.ndarray:
        """The kernel's one argument: an element, as cupy passes no more than one by value."""
        return self.params.view([("params", np.int64, self.params.shape)])


@cached(256)
def plan_steps(
    arrays: tuple[StridedLayout, ...],
    present: tuple[bool, bool],
    in_place: tuple[bool, ...],
    address_alignment: int,
    dtype: str,
    source: int,
    angles: tuple[StridedLayout, ...],
    angles_alignment: int,
    long_positions: bool,
    spec: RotationSpec,
    slots: SlotLayout | None = None,
) -> tuple[CudaLaunch, ...]:
    """Return the launches that rotate q and k, given as inputs and then results, or one of them.

    Angles are positions, (components, batch..., tokens) if there are several, or cos and sin;
    none for implicit positions. Alignments are those of pointers, in bytes. The result of k lies in
    the cache of ``slots``, if there are any. What is not ``present`` has the layout of the other.
    """
    size = FLOATS[dtype]
    # Components are the first axis of positions, pairs the last of cosines and sines.
    row_axes = slice(int(source == COMPONENTS), -1 if source == COS_SIN else None)
    of_angles = [StridedLayout(a.shape[row_axes], a.strides[row_axes]) for a in angles]
    implicit = _NO_AXES if angles else None
    of_slots = StridedLayout(slots.shape, slots.strides) if slots else _NO_AXES
    # In the order of the kernel.
    others = [*[*of_angles, _NO_AXES, _NO_AXES][:2], implicit, of_slots]
    layout = collapse_operands(spec, arrays, others, in_place)
    rows = sorted(layout.rows, key=lambda row: -row.length)
    heads = [n * is_there for n, is_there in zip(layout.heads, present, strict=True)]
    if sum(heads) == 0 or any(row.length == 0 for row in rows):
        return ()
    steps = (slots.page_step, slots.slot_step) if slots else (0, 0)
    pairs, head_dim = spec.rotary_dim // 2, arrays[0].shape[-1]
    before, rotated = spec.rotary_offset * size, spec.rotary_dim * size
    aligned = alignment(address_alignment, before, *steps, *chain(*layout.strides()))
    if layout.copies:
        aligned = alignment(aligned, head_dim * size)
    angles_aligned = alignment(angles_alignment, *(s for row in rows for s in row.steps[4:6]))
    access, pairs_a_thread = _choose_access(spec, source, size, pairs, aligned, angles_aligned)
    rotating = pairs // pairs_a_thread
    lanes = rotating + ((head_dim * size - rotated) // access if layout.copies else 0)
    no_axis = CollapsedDim(1, (0,) * 8)
    inner, outer, *rest = [*rows, no_axis, no_axis][: max(len(rows), 2)]
    # As the kernel: accesses of a head, of which a thread has four in flight.
    at_once = 4 // (2 * pairs_a_thread * size // access)
    # A norm adds up in steps that halve the threads of a head.
    threads = lanes if spec.norm is None else 1 << (lanes - 1).bit_length()
    grid, block = _choose_grid(threads, sum(heads), at_once, inner.length, outer.length)
    norm = spec.norm and (1 / spec.rotary_dim, spec.norm.eps, spec.norm.weight_offset)
    bits_of_norm = np.array(norm or (0.0,) * 3).view(np.int64)
    flags = any(in_place), norm is not None
    key = CudaKey(dtype, *get_interleaved(spec), access, source, *flags)
    launches = []
    for offsets in _list_offsets(rest):
        numbers = (
            *(outer.length, inner.length, *outer.steps, *inner.steps),
            *(heads[0], sum(heads), *layout.head_strides),
            *(angles[0].strides[0] if source == COMPONENTS else 0, offsets[6]),
            *(pairs, before, rotated, rotating, lanes, long_positions, spec.inverse),
        )
        pointers = *offsets[:6], *(0,) * (POINTERS - 7), offsets[7]
        pages = (slots.dtype == "int64", slots.page, slots.limit) if slots else (0, 0, 0)
        params = *pointers, *numbers, 0, 0, *bits_of_norm, *pages, *steps
        launches.append(CudaLaunch(key, (*grid, 1), block, np.array(params, np.int64)))
    return tuple(launches)


def _list_offsets(rows: list[CollapsedDim]) -> Iterator[list[int]]:
    """Yield the offsets of each launch, where more rows remain than a kernel has."""
    for index in product(*(range(row.length) for row in rows)):
        offsets = [0] * 8
        for i, row in zip(index, rows, strict=True):
            offsets = [a + i * b for a, b in zip(offsets, row.steps, strict=True)]
        yield offsets


def _choose_access(
    spec: RotationSpec, source: int, size: int, pairs: int, aligned: int, angles_aligned: int
) -> tuple[int, int]:
    """Return the bytes of a load or store, and the pairs of a thread."""
    both = all(get_interleaved(spec))
    access = ACCESS
    while True:
        count = access // size
        if both and count > 1:
            count //= 2
        # cos and sin are read by up to 16 bytes too; digit tables are as well aligned as rows.
        angles = min(count * max(size, 4), ACCESS) if source == COS_SIN else 1
        if access == size or not (aligned % access or pairs % count or angles_aligned % angles):
            return access, count
        access //= 2


def _choose_grid(
    lanes: int, heads: int, at_once: int, inner: int, outer: int
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Return a grid, and the block with the fewest idle lanes: preferably whole warps."""
    x = min(lanes, THREADS)
    blocks = [
        (x, y, z)
        for y in range(1, min(THREADS // x, heads) + 1)
        for z in range(1, min(THREADS // (x * y), MAX_BLOCK_Z, inner) + 1)
    ]

    def score(block: tuple[int, int, int]) -> tuple[float, float, float, int]:
        _, y, z = block
        warps, rounds = -(-x * y * z // WARP), -(-heads // (y * at_once))
        busy = x * y * z / (warps * WARP) * heads / (rounds * y * at_once)
        spread = min(-(-inner // z) * outer / PROCESSORS, BLOCKS_A_PROCESSOR)
        return busy, spread, -abs(heads / y - HEADS_A_THREAD), x * y * z

    block = max(blocks, key=score)
    return (-(-inner // block[2]), min(outer, MAX_GRID_Y)), block
