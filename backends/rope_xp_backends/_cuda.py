"""From a checked call to launches of the kernel in kernels/rotate.cu: numbers, and no GPU.

A launch says where arrays lie by pointers and strides, so it runs on whatever can read them: tests
run it on the CPU, through the same source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import numpy as np

from rope_xp import _portable
from rope_xp._contract import Angles, Backend, Call, Lookup, Memory
from rope_xp._rotate import PAIR_AXIS
from rope_xp._typing import Array

from ._cuda_plan import (
    GIVEN,
    LOOKED_UP,
    MAX_COMPONENTS,
    POINTERS,
    SEVERAL,
    THREADS,
    Key,
    Laid,
    Turn,
    bits,
    plan,
)


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
        if (memory.pointer | bits(memory.strides)) % memory.itemsize:
            return "an array is not aligned to its elements"
    return None


def launches(
    call: Call, outs: tuple[Array, ...], contiguous: Callable[[Array], Array]
) -> list[Launch]:
    """Return the launches that run a call into ``outs``.

    ``contiguous`` copies an array of the library. Arrays and results must have a contiguous last
    axis and elements where their size divides the address.
    """
    sources = [_source_of(call, angles, contiguous) for angles in call.angles]
    names = [call.backend.dtype_name(x) for x in call.arrays]
    if len(sources) == 1 and names[0] == names[-1]:
        return _launches(call, names[0], call.arrays, outs, sources[0], contiguous)
    made: list[Launch] = []
    for i, (name, x, out) in enumerate(zip(names, call.arrays, outs, strict=True)):
        source = sources[min(i, len(sources) - 1)]
        made += _launches(call, name, (x,), (out,), source, contiguous)
    return made


# --- angles --------------------------------------------------------------------------------------


class _Source(NamedTuple):
    kind: int
    laid: tuple[Laid, ...]
    """Of positions, or of cos and sin; empty where positions are counted."""
    pointers: tuple[int, ...]
    """As many as the kernel has, but those of q and k."""
    components: int
    long_positions: bool
    alignment: int
    holds: tuple[Array, ...]


def _source_of(call: Call, angles: Angles, contiguous: Callable[[Array], Array]) -> _Source:
    memory = _memory(call.backend)
    if _looked_up(angles):
        tables = [memory(table).pointer for part in angles.tables for table in part[:3]]
        tables += [0] * (POINTERS - 6 - len(tables))
        kind = LOOKED_UP if len(angles.tables) == 1 else SEVERAL
        if angles.whole is None:
            return _Source(kind, (), (0, 0, *tables), len(angles.tables), False, 0, ())
        whole = _whole_elements(angles.whole, memory, contiguous)
        positions = memory(whole)
        if angles.components == 1:  # an axis of one component, as good as none
            positions = positions._replace(shape=positions.shape[1:], strides=positions.strides[1:])
        laid = (Laid(positions.shape, positions.strides),)
        long_positions = positions.itemsize == 8
        pointers = (positions.pointer, 0, *tables)
        return _Source(kind, laid, pointers, len(angles.tables), long_positions, 0, (whole,))
    both = []
    for made in _portable.cos_sin(call, angles):
        table = _whole_elements(made, memory, contiguous)
        strided = table.shape[-1] > 1 and memory(table).strides[-1] != memory(table).itemsize
        both.append(contiguous(table) if strided else table)
    memories = [memory(table) for table in both]
    pointers = (*(m.pointer for m in memories), *(0,) * (POINTERS - 6))
    laid_both = tuple(Laid(m.shape, m.strides) for m in memories)
    alignment = bits([m.pointer for m in memories])
    return _Source(GIVEN, laid_both, pointers, 0, False, alignment, tuple(both))


def _whole_elements(
    x: Array, memory: Callable[[Array], Memory], contiguous: Callable[[Array], Array]
) -> Array:
    """Return x, or a copy where its elements lie at addresses that no kernel reads from."""
    found = memory(x)
    return contiguous(x) if (found.pointer | bits(found.strides)) % found.itemsize else x


def _looked_up(angles: Angles) -> TypeGuard[Lookup]:
    """Return whether the kernel can look these angles up; else they are computed beforehand."""
    return (
        isinstance(angles, Lookup)
        and not angles.wide
        and angles.part is None
        and len(angles.tables) <= MAX_COMPONENTS
    )


def _memory(backend: Backend) -> Callable[[Array], Memory]:
    return backend.memory  # type: ignore[return-value]  # not None, or objection() has declined


# --- launches ------------------------------------------------------------------------------------


def _launches(
    call: Call,
    dtype: str,
    arrays: tuple[Array, ...],
    outs: tuple[Array, ...],
    source: _Source,
    contiguous: Callable[[Array], Array],
) -> list[Launch]:
    memory = _memory(call.backend)
    read, write = (axis == -1 for axis in PAIR_AXIS[call.layout])
    if call.inverse:
        read, write = write, read
    memories = [memory(x) for x in (*arrays, *outs)]
    n = len(arrays)
    in_place = tuple(memories[i].pointer == memories[n + i].pointer for i in range(n))
    holds = source.holds
    if read != write and any(in_place) and not _fits_a_block(call, all(in_place)):
        arrays = tuple(contiguous(x) for x in arrays)
        holds += arrays
        in_place = (False,) * n
        memories[:n] = [memory(x) for x in arrays]
    turn = Turn(
        dtype,
        (*call.axes.batch, call.axes.tokens),
        call.axes.heads,
        read,
        write,
        call.rotary_dim,
        call.rotary_offset,
        call.inverse,
        in_place,
        source.kind,
        source.components,
        source.long_positions,
        bits([m.pointer for m in memories]) & 15,
        source.alignment & 15,
    )
    pointers = [m.pointer for m in memories]
    ends = pointers if n == 2 else [pointers[0], 0, pointers[1], 0]
    base = np.array((*ends, *source.pointers), np.int64)
    made = []
    for step in plan(turn, tuple(Laid(m.shape, m.strides) for m in memories), source.laid):
        words = step.words.copy()
        words[:POINTERS] += base
        made.append(Launch(step.key, step.grid, step.block, words, holds))
    return made


def _fits_a_block(call: Call, all_in_place: bool) -> bool:
    """Return whether all threads of a head are in one block, where they can wait for another."""
    passing = 0 if all_in_place else call.arrays[0].shape[-1] - call.rotary_dim
    return call.rotary_dim // 2 + passing <= THREADS
