"""From a checked call to launches of the kernel in rotate.cu: numbers, and no GPU.

A launch names arrays by pointers and strides, so it runs on any memory that it can read: tests run
it on the CPU, from the same source.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rope_xp._core.call import AngleSource, Call, CosSin
from rope_xp._core.memory import Memory, StridedLayout, alignment
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import portable

from .cuda_plan import COMPONENTS, COS_SIN, TABLE_LOOKUP, THREADS, Job, Key, Step, plan


class Launch(NamedTuple):
    """One launch of a kernel."""

    key: Key
    grid: tuple[int, int]
    block: tuple[int, int, int]
    words: np.ndarray
    """int64; as ARGUMENTS it is the kernel's one argument."""
    holds: tuple[Array, ...]
    """Arrays that the launch reads beside q and k, which must outlive it."""


def decline_reason(call: Call) -> str | None:
    """Return why the kernel cannot read or write an array of a call, None if it can."""
    for x in call.arrays if call.out is None else call.arrays + call.out:
        memory = call.backend.memory(x)
        if memory is None:
            return f"{call.backend.name} does not tell where its arrays lie"
        if not _contiguous_rows(memory) and 0 not in memory.shape:
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


Again = Step
"""The launch of a call signature: to the first ``ADDRESSES`` words each call adds its own."""

ADDRESSES = 6
"""Of q, k and their results, and of positions, or of cosines and sines."""


def again(call: Call, outs: tuple[Array, ...], rows: tuple[Array, ...]) -> Again | None:
    """Return the launch of all calls like one that was run, with positions or tables ``rows``.

    None where there are several launches, or where arrays have to be copied for them.
    """
    # A view stands in for each copy, and is no array of the call.
    every_launch = launches(call, outs, lambda x: x[...])
    if len(every_launch) != 1:
        return None
    ((key, grid, block, words, holds),) = every_launch
    if len(holds) != len(rows) or any(a is not b for a, b in zip(holds, rows, strict=True)):
        return None
    words[:ADDRESSES] -= addresses(call.backend, call.arrays, outs, rows)
    return Again(key, grid, block, words)


def addresses(
    backend: Backend,
    arrays: tuple[Array, ...],
    outs: tuple[Array, ...],
    rows: tuple[Array, ...],
) -> list[int]:
    """Return the pointers of arrays, results and rows, in the order of the kernel."""
    pointers = []
    for operands in (arrays, outs, rows):
        pointers += [*(_memory(backend, x).pointer for x in operands), 0, 0][:2]
    return pointers


def _whole_elements(memory: Memory) -> bool:
    """Return whether a kernel can read elements at their addresses."""
    return not any(n % memory.itemsize for n in (memory.pointer, *memory.strides))


def _contiguous_rows(memory: Memory) -> bool:
    return memory.shape[-1] <= 1 or memory.strides[-1] == memory.itemsize


def _memory(backend: Backend, x: Array) -> Memory:
    return backend.memory(x)  # type: ignore[return-value]  # not None, or objection() has declined


class _Angles(NamedTuple):
    source: int
    arrays: tuple[Array, ...]
    """Positions, or cos and sin; none for implicit positions."""
    layouts: tuple[StridedLayout, ...]
    tables: tuple[int, ...]
    """Pointers of digit tables and components; 0 for those that are absent."""
    long_positions: bool
    alignment: int


def _angles(call: Call, source: AngleSource, contiguous: Callable[[Array], Array]) -> _Angles:
    backend = call.backend
    found = portable.for_kernel(call, source, parts=False, double=False)
    if isinstance(found, CosSin):
        kind, arrays, tables = COS_SIN, [found.cos, found.sin], (None,) * 4
    else:
        kind, arrays = TABLE_LOOKUP, [] if found.whole is None else [found.whole]
        digits = found.tables
        tables = (digits.low, digits.middle, digits.high, digits.component)
        if arrays and found.components == 1:  # an axis of one component, as good as none
            arrays = [arrays[0][0, ...]]
        elif arrays and found.components:
            kind = COMPONENTS
    for i, memory in enumerate([_memory(backend, x) for x in arrays]):
        if not _whole_elements(memory) or (kind == COS_SIN and not _contiguous_rows(memory)):
            arrays[i] = contiguous(arrays[i])
    memories = [_memory(backend, x) for x in arrays]
    return _Angles(
        kind,
        tuple(arrays),
        tuple(StridedLayout(memory.shape, memory.strides) for memory in memories),
        tuple(0 if x is None else _memory(backend, x).pointer for x in tables),
        any(memory.itemsize == 8 for memory in memories),
        alignment(*(memory.pointer for memory in memories)) if kind == COS_SIN else 0,
    )


def _launches(
    call: Call,
    arrays: tuple[Array, ...],
    outs: tuple[Array, ...],
    angles: _Angles,
    contiguous: Callable[[Array], Array],
) -> list[Launch]:
    backend, spec = call.backend, call.spec
    interleaved_in, interleaved_out = spec.interleaved
    holds, n = angles.arrays, len(arrays)
    memories = [_memory(backend, x) for x in (*arrays, *outs)]
    in_place = tuple(memories[i].pointer == memories[n + i].pointer for i in range(n))
    moves = interleaved_in != interleaved_out
    if moves and any(in_place) and not _fits_a_block(call, all(in_place)):
        arrays = tuple(contiguous(x) for x in arrays)
        holds += arrays
        in_place = (False,) * n
        memories[:n] = [_memory(backend, x) for x in arrays]
    job = Job(
        backend.dtype_name(arrays[0]),
        spec,
        in_place,
        angles.source,
        angles.long_positions,
        alignment(*(memory.pointer for memory in memories)),
        angles.alignment,
    )
    found = []
    for step in plan(
        job, tuple(StridedLayout(m.shape, m.strides) for m in memories), angles.layouts
    ):
        words = step.words.copy()
        words[:ADDRESSES] += addresses(backend, arrays, outs, angles.arrays)
        words[ADDRESSES : ADDRESSES + len(angles.tables)] += angles.tables
        found.append(Launch(step.key, step.grid, step.block, words, holds))
    return found


def _fits_a_block(call: Call, all_in_place: bool) -> bool:
    """Return whether one block has all threads of a head, which wait for each other there."""
    turned = call.spec.rotary_dim
    passing = 0 if all_in_place else call.arrays[0].shape[-1] - turned
    return turned // 2 + passing <= THREADS
