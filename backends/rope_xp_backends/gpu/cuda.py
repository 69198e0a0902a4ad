"""From a checked call to launches of the kernel in rotate.cu: numbers, and no GPU.

A launch names arrays by pointers and strides, so it runs on any memory that it can read: tests run
it on the CPU, from the same source.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from rope_xp._core.call import AngleSource, Call, CosSin, get_interleaved
from rope_xp._core.memory import Memory, StridedLayout, alignment
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import portable

from .cuda_plan import (
    COMPONENTS,
    COS_SIN,
    TABLE_LOOKUP,
    THREADS,
    CudaJob,
    CudaKey,
    CudaStep,
    plan_steps,
)

Contiguous: TypeAlias = Callable[[Array], Array]
"""Copies an array of the library to contiguous memory."""

ADDRESSES = 6
"""The first words of a launch: of q, k and their results, and of positions, or of cos and sin."""


class CudaLaunch(NamedTuple):
    """One launch of a kernel."""

    key: CudaKey
    grid: tuple[int, int]
    block: tuple[int, int, int]
    words: np.ndarray
    """int64; as ARGUMENTS it is the kernel's one argument."""
    pinned: tuple[Array, ...]
    """Arrays that the launch reads beside q and k, which must outlive it."""


def decline_reason(call: Call) -> str | None:
    """Return why the kernel cannot read or write an array of a call, None if it can."""
    for x in call.arrays if call.out is None else call.arrays + call.out:
        memory = call.backend.memory(x)
        if memory is None:
            return f"{call.backend.name} does not tell where its arrays lie"
        if not _has_contiguous_rows(memory) and 0 not in memory.shape:
            return "the last axis of an array is not contiguous"
        if not _has_aligned_elements(memory):
            return "an array is not aligned to its elements"
    return None


def build_launches(call: Call, outs: tuple[Array, ...], contiguous: Contiguous) -> list[CudaLaunch]:
    """Return the launches that run a call into ``outs``.

    Arrays and results must have a contiguous last axis and addresses aligned to their elements.
    """
    return [
        launch
        for arrays, out, source in call.groups(outs, one_dtype=True)
        for launch in _launch_group(
            call, arrays, out, _locate_angles(call, source, contiguous), contiguous
        )
    ]


def relocatable_launch(
    call: Call, outs: tuple[Array, ...], rows: tuple[Array, ...]
) -> CudaStep | None:
    """Return the launch of a call's signature, without the addresses of arrays and ``rows``.

    None where there are several launches, or where arrays have to be copied for them.
    """
    # A view stands in for each copy, and is no array of the call.
    launches = build_launches(call, outs, lambda x: x[...])
    if len(launches) != 1:
        return None
    ((key, grid, block, words, pinned),) = launches
    if len(pinned) != len(rows) or any(a is not b for a, b in zip(pinned, rows, strict=True)):
        return None
    words[:ADDRESSES] -= read_addresses(call.backend, call.arrays, outs, rows)
    return CudaStep(key, grid, block, words)


def read_addresses(
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


def _has_aligned_elements(memory: Memory) -> bool:
    return not any(n % memory.itemsize for n in (memory.pointer, *memory.strides))


def _has_contiguous_rows(memory: Memory) -> bool:
    return memory.shape[-1] <= 1 or memory.strides[-1] == memory.itemsize


def _memory(backend: Backend, x: Array) -> Memory:
    return backend.memory(x)  # type: ignore[return-value]  # decline_reason refuses None


class _AngleMemory(NamedTuple):
    source: int
    arrays: tuple[Array, ...]
    """Positions, or cos and sin; none for implicit positions."""
    layouts: tuple[StridedLayout, ...]
    tables: tuple[int, ...]
    """Pointers of digit tables and components; 0 for those that are absent."""
    long_positions: bool
    alignment: int


def _locate_angles(call: Call, source: AngleSource, contiguous: Contiguous) -> _AngleMemory:
    backend = call.backend
    angles = portable.for_kernel(call, source, parts=False, double=False)
    if isinstance(angles, CosSin):
        kind, arrays, tables = COS_SIN, [angles.cos, angles.sin], (None,) * 4
    else:
        kind, arrays = TABLE_LOOKUP, [] if angles.whole is None else [angles.whole]
        digits = angles.tables
        tables = (digits.low, digits.middle, digits.high, digits.component)
        if arrays and angles.components == 1:  # an axis of one component, as good as none
            arrays = [arrays[0][0, ...]]
        elif arrays and angles.components:
            kind = COMPONENTS
    for i, memory in enumerate([_memory(backend, x) for x in arrays]):
        contiguous_rows = kind != COS_SIN or _has_contiguous_rows(memory)
        if not (contiguous_rows and _has_aligned_elements(memory)):
            arrays[i] = contiguous(arrays[i])
    memories = [_memory(backend, x) for x in arrays]
    return _AngleMemory(
        kind,
        tuple(arrays),
        tuple(StridedLayout(memory.shape, memory.strides) for memory in memories),
        tuple(0 if x is None else _memory(backend, x).pointer for x in tables),
        any(memory.itemsize == 8 for memory in memories),
        alignment(*(memory.pointer for memory in memories)) if kind == COS_SIN else 0,
    )


def _launch_group(
    call: Call,
    arrays: tuple[Array, ...],
    outs: tuple[Array, ...],
    angles: _AngleMemory,
    contiguous: Contiguous,
) -> list[CudaLaunch]:
    backend, spec = call.backend, call.spec
    interleaved_in, interleaved_out = get_interleaved(spec)
    pinned, n = angles.arrays, len(arrays)
    memories = [_memory(backend, x) for x in (*arrays, *outs)]
    in_place = tuple(memories[i].pointer == memories[n + i].pointer for i in range(n))
    moves = interleaved_in != interleaved_out
    if moves and any(in_place) and not _fits_in_block(call, all(in_place)):
        arrays = tuple(contiguous(x) for x in arrays)
        pinned += arrays
        in_place = (False,) * n
        memories[:n] = [_memory(backend, x) for x in arrays]
    aligned = alignment(*(memory.pointer for memory in memories))
    dtype = backend.dtype_name(arrays[0])
    job = CudaJob(
        dtype, spec, in_place, angles.source, angles.long_positions, aligned, angles.alignment
    )
    layouts = tuple(StridedLayout(m.shape, m.strides) for m in memories)
    launches = []
    for step in plan_steps(job, layouts, angles.layouts):
        words = step.words.copy()
        words[:ADDRESSES] += read_addresses(backend, arrays, outs, angles.arrays)
        words[ADDRESSES : ADDRESSES + len(angles.tables)] += angles.tables
        launches.append(CudaLaunch(step.key, step.grid, step.block, words, pinned))
    return launches


def _fits_in_block(call: Call, all_in_place: bool) -> bool:
    """Return whether one block has all threads of a head, which wait for each other there."""
    rotary_dim = call.spec.rotary_dim
    copied = 0 if all_in_place else call.arrays[0].shape[-1] - rotary_dim
    return rotary_dim // 2 + copied <= THREADS
