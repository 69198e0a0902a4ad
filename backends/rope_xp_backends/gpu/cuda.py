"""From a checked call to launches of the kernel in rotate.cu: numbers, and no GPU.

A launch says where arrays lie by pointers and strides, so it runs on whatever can read them: tests
run it on the CPU, through the same source.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rope_xp._contract.call import AngleSource, Call, CosSin
from rope_xp._contract.library import ArrayLibrary
from rope_xp._contract.memory import Memory, StridedLayout, alignment
from rope_xp._contract.typing import Array
from rope_xp._rotation import portable

from .cuda_plan import GIVEN, LOOKED_UP, POINTERS, SEVERAL, THREADS, Job, Key, plan


class Launch(NamedTuple):
    """One launch of a kernel."""

    key: Key
    grid: tuple[int, int]
    block: tuple[int, int, int]
    words: np.ndarray
    """int64; as ARGUMENTS it is the kernel's one argument."""
    holds: tuple[Array, ...]
    """Arrays made for the launch, which must outlive it."""


def objection(call: Call) -> str | None:
    """Return why the kernel cannot read or write an array of a call, None if it can."""
    for x in call.arrays if call.out is None else call.arrays + call.out:
        memory = call.backend.memory(x)
        if memory is None:
            return f"{call.backend.name} does not tell where its arrays lie"
        if memory.shape[-1] > 1 and memory.strides[-1] != memory.itemsize and 0 not in memory.shape:
            return "the last axis of an array is not contiguous"
        if not _whole_elements(memory):
            return "an array is not aligned to its elements"
    return None


def launches(
    call: Call, outs: tuple[Array, ...], contiguous: Callable[[Array], Array]
) -> list[Launch]:
    """Return the launches that run a call into ``outs``.

    ``contiguous`` copies an array of the library. Arrays and results must have a contiguous last
    axis and elements where their size divides the address.
    """
    return [
        launch
        for arrays, out, source in call.groups(outs, one_dtype=True)
        for launch in _launches(call, arrays, out, _angles(call, source, contiguous), contiguous)
    ]


class Again(NamedTuple):
    """The launch of a kind of call, but for where arrays, results and rows lie."""

    key: Key
    grid: tuple[int, int]
    block: tuple[int, int, int]
    words: np.ndarray
    """As those of Launch, with what is to be added to the first ``ADDRESSES``."""


ADDRESSES = 6
"""Of q, k and their results, and of positions, or of cosines and sines."""


def again(call: Call, outs: tuple[Array, ...], rows: tuple[Array, ...]) -> Again | None:
    """Return the launch of calls like one that was run, with rows of their own.

    None where there are several launches, or where arrays have to be copied for them.
    """
    copied = False

    def copy(x: Array) -> Array:
        nonlocal copied
        copied = True
        return x

    made = launches(call, outs, copy)
    if copied or len(made) != 1:
        return None
    ((key, grid, block, words, holds),) = made
    if len(holds) != len(rows) or any(a is not b for a, b in zip(holds, rows, strict=True)):
        return None
    moved = words.copy()
    moved[:ADDRESSES] -= addresses(call.backend, call.arrays, outs, rows)
    return Again(key, grid, block, moved)


def addresses(
    backend: ArrayLibrary,
    arrays: tuple[Array, ...],
    outs: tuple[Array, ...],
    rows: tuple[Array, ...],
) -> list[int]:
    """Return where the arrays, results and rows of a call lie, as a kernel has them."""
    found = []
    for each, most in ((arrays, 2), (outs, 2), (rows, 2)):
        found += [_memory(backend, x).pointer for x in each] + [0] * (most - len(each))
    return found


def _whole_elements(memory: Memory) -> bool:
    """Return whether elements lie at addresses that a kernel reads from."""
    return not any(n % memory.itemsize for n in (memory.pointer, *memory.strides))


def _memory(backend: ArrayLibrary, x: Array) -> Memory:
    return backend.memory(x)  # type: ignore[return-value]  # not None, or objection() has declined


class _Angles(NamedTuple):
    kind: int
    laid: tuple[StridedLayout, ...]
    """Of positions, or of cos and sin; empty where positions are counted."""
    pointers: tuple[int, ...]
    """As many as the kernel has, but those of q and k."""
    long_positions: bool
    alignment: int
    holds: tuple[Array, ...]


def _angles(call: Call, source: AngleSource, contiguous: Callable[[Array], Array]) -> _Angles:
    backend = call.backend
    found = portable.for_kernel(call, source, parts=False, wide=False)
    if isinstance(found, CosSin):
        tables = [_readable(backend, x, contiguous, rows=True) for x in (found.cos, found.sin)]
        laid = tuple(StridedLayout(memory.shape, memory.strides) for _, memory in tables)
        both = tuple(memory.pointer for _, memory in tables)
        pointers = (*both, *(0,) * (POINTERS - 6))
        holds = tuple(x for x, _ in tables)
        return _Angles(GIVEN, laid, pointers, False, alignment(*both), holds)
    low, middle, high, _, component = found.tables
    addresses = (low, middle, high, component)
    pointers = tuple(0 if x is None else _memory(backend, x).pointer for x in addresses)
    whole = found.whole
    if whole is None:
        return _Angles(LOOKED_UP, (), (0, 0, *pointers), False, 0, ())
    if found.components == 1:  # an axis of one component, as good as none
        whole = whole[0, ...]
    whole, memory = _readable(backend, whole, contiguous)
    kind = SEVERAL if found.components > 1 else LOOKED_UP
    laid = (StridedLayout(memory.shape, memory.strides),)
    pointers = (memory.pointer, 0, *pointers)
    return _Angles(kind, laid, pointers, memory.itemsize == 8, 0, (whole,))


def _readable(
    backend: ArrayLibrary, x: Array, contiguous: Callable[[Array], Array], *, rows: bool = False
) -> tuple[Array, Memory]:
    """Return an array, or a copy that a kernel can read, and its memory; with ``rows`` row by row.

    A kernel reads whole elements, and neighbours in a row.
    """
    memory = _memory(backend, x)
    apart = rows and memory.shape[-1] > 1 and memory.strides[-1] != memory.itemsize
    if _whole_elements(memory) and not apart:
        return x, memory
    copy = contiguous(x)
    return copy, _memory(backend, copy)


def _launches(
    call: Call,
    arrays: tuple[Array, ...],
    outs: tuple[Array, ...],
    angles: _Angles,
    contiguous: Callable[[Array], Array],
) -> list[Launch]:
    backend, turn = call.backend, call.turn
    read, write = turn.side_by_side
    memories = [_memory(backend, x) for x in (*arrays, *outs)]
    n = len(arrays)
    in_place = tuple(memories[i].pointer == memories[n + i].pointer for i in range(n))
    holds = angles.holds
    if read != write and any(in_place) and not _fits_a_block(call, all(in_place)):
        arrays = tuple(contiguous(x) for x in arrays)
        holds += arrays
        in_place = (False,) * n
        memories[:n] = [_memory(backend, x) for x in arrays]
    pointers = [m.pointer for m in memories]
    job = Job(
        backend.dtype_name(arrays[0]),
        turn,
        in_place,
        angles.kind,
        angles.long_positions,
        alignment(*pointers),
        angles.alignment,
    )
    ends = pointers if n == 2 else [pointers[0], 0, pointers[1], 0]
    base = np.array((*ends, *angles.pointers), np.int64)
    made = []
    for step in plan(job, tuple(StridedLayout(m.shape, m.strides) for m in memories), angles.laid):
        words = step.words.copy()
        words[:POINTERS] += base
        made.append(Launch(step.key, step.grid, step.block, words, holds))
    return made


def _fits_a_block(call: Call, all_in_place: bool) -> bool:
    """Return whether all threads of a head are in one block, where they can wait for another."""
    turned = call.turn.rotary_dim
    passing = 0 if all_in_place else call.arrays[0].shape[-1] - turned
    return turned // 2 + passing <= THREADS
