"""From a checked call to launches of the kernel in rotate.cu: numbers, and no GPU.

A launch names arrays by pointers and strides, so it runs on any memory that it can read: tests run
it on the CPU, from the same source.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from rope_xp._core.call import Call, CosSin, RotationSpec, get_interleaved
from rope_xp._core.memory import Memory, StridedLayout, alignment
from rope_xp._core.tables import DigitTables
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.kernels import decline_norm, decline_slots
from rope_xp._rotation import portable

from . import lay_out_keys
from .cuda_plan import (
    COMPONENTS,
    COS_SIN,
    POINTERS,
    TABLE_LOOKUP,
    THREADS,
    WEIGHTS,
    CudaLaunch,
    plan_steps,
)

Arrays: TypeAlias = tuple[Array, ...]
Contiguous: TypeAlias = Callable[[Array], Array]
"""Copies an array of the library to contiguous memory."""


def decline_reason(call: Call) -> str | None:
    """Return why the kernel cannot read or write an array of a call, None if it can."""
    norm, weights, (*_, head_dim) = call.spec.norm, _list_weights(call), call.arrays[0].shape
    for x in (*call.arrays, *(call.out or ()), *weights):
        memory = call.backend.memory(x)
        if memory is None:
            return f"{call.backend.name} does not tell where its arrays lie"
        if not _has_contiguous_rows(memory) and 0 not in memory.shape:
            return "the last axis of an array is not contiguous"
        if not _has_aligned_elements(memory):
            return "an array is not aligned to its elements"
    kinds = {(w.dtype, w.shape[-1]) for w in weights} or {(call.arrays[0].dtype, head_dim)}
    fits = kinds == {(call.arrays[0].dtype, call.spec.rotary_dim)} and head_dim <= THREADS
    if norm is not None and not fits:
        return f"its kernel normalizes what is rotated, of {THREADS} components, in one dtype"
    return decline_slots(call) or decline_norm(call) or _decline_pages(call)


def _decline_pages(call: Call) -> str | None:
    if call.slots is None or call.slots.of_sequences:
        return None
    pages, page = call.slots.cache.shape[:2]
    return "its kernel counts pages in 32 bits" if pages > 1 and pages * page >= 1 << 32 else None


def _list_weights(call: Call) -> list[Array]:
    return [weight for weight in call.weights if weight is not None]


def build_launches(call: Call, outs: Arrays, contiguous: Contiguous) -> list[CudaLaunch]:
    """Return the launches that run a call into ``outs``.

    Arrays and results must have a contiguous last axis and addresses aligned to their elements.
    """
    planned = [plan_part(part, contiguous) for part in split_call(replace(call, out=outs))]

    def point(x: Array) -> int:
        return _memory(call.backend, x).pointer

    return [launch for part in planned for launch in place(point, *part)]


def split_call(call: Call) -> tuple[Call, ...]:
    """Return q and k apart where a launch does not take both."""
    if len(call.angles) == 1 and call.arrays[0].dtype == call.arrays[-1].dtype:
        return (call,)
    q, k = replace(call, slots=None).split(one_dtype=True)
    return q, replace(k, slots=call.slots)


class Operands(NamedTuple):
    """The arrays that a launch reads and writes."""

    arrays: Arrays
    """q and k; a single array stands for both."""
    outs: Arrays
    angles: Arrays
    """Positions, if there are any, or cos and sin."""
    weights: Arrays
    slots: Array | None
    tables: tuple[Array | None, ...]
    """The digit tables, and the components of pairs; none of them where cos and sin are given."""


def place(
    point: Callable[[Array], int], steps: tuple[CudaLaunch, ...], operands: Operands
) -> list[CudaLaunch]:
    """Return planned launches with the addresses of arrays, which ``point`` returns."""
    arrays, outs, angles, weights, slots, tables = operands
    pair = *_pair(arrays), *_pair(outs)
    held = *pair, *[*angles, None, None][:2], *(tables or (None,) * 4), slots
    pointers = [0 if x is None else point(x) for x in held]
    of_weights = [point(x) for x in _pair(weights)] or [0, 0]
    launches = []
    for step in steps:
        params = step.params.copy()
        params[:POINTERS] += pointers
        params[WEIGHTS] += of_weights
        launches.append(step._replace(params=params, pinned=operands))
    return launches


def plan_part(call: Call, contiguous: Contiguous) -> tuple[tuple[CudaLaunch, ...], Operands]:
    """Return the launches of arrays of one dtype, which share their angles, without addresses.

    A single array stands for q and k, of which only one has heads: k if it goes to slots.
    """
    backend, spec, slots, slot_layout = call.backend, call.spec, call.slots, None
    source, angles, tables = _locate_angles(call, contiguous)
    arrays, outs = call.arrays, call.out or ()
    has_q = slots is None or len(arrays) > 1
    memories = [_memory(backend, x) for x in (*_pair(arrays), *_pair(outs))]
    angle_memories = [_memory(backend, x) for x in angles]
    in_place = tuple(memories[i].pointer == memories[i + 2].pointer for i in range(2))
    if any(in_place) and _needs_more_blocks(spec, arrays[0].shape[-1], all(in_place)):
        arrays, in_place = tuple(contiguous(x) for x in arrays), (False, False)
        memories[:2] = [_memory(backend, x) for x in _pair(arrays)]
    layouts = _list_layouts(memories)
    if slots is not None:
        own = _list_layouts([_memory(backend, slots.numbers)])[0]
        dtype, of_sequences = backend.dtype_name(slots.numbers), slots.of_sequences
        key, slot_layout = lay_out_keys(layouts[3], layouts[1], own, dtype, spec, of_sequences)
        layouts = (*layouts[:2], layouts[2] if has_q else key, key)
    weights = tuple(_list_weights(call))
    steps = plan_steps(
        layouts,
        (has_q, not has_q or len(arrays) > 1),
        in_place,
        alignment(*(_memory(backend, w).pointer for w in weights), *(x.pointer for x in memories)),
        backend.dtype_name(arrays[0]),
        source,
        _list_layouts(angle_memories),
        alignment(*(x.pointer for x in angle_memories)),
        any(x.itemsize == 8 for x in angle_memories),
        spec,
        slot_layout,
    )
    return steps, Operands(arrays, outs, angles, weights, slots and slots.numbers, tables)


def _pair(arrays: Sequence[Array]) -> Arrays:
    """Return what is q's and what is k's, nothing if there is nothing."""
    return (*arrays[:1], *arrays[-1:])


def _locate_angles(
    call: Call, contiguous: Contiguous
) -> tuple[int, Arrays, tuple[Array | None, ...]]:
    """Return the source of angles, positions or cos and sin, and the digit tables."""
    angles, arrays = call.angles[0], []
    tables: tuple[Array | None, ...] = ()
    if isinstance(angles, CosSin) or not portable.is_read_on_gpu(call, angles):
        source, arrays = COS_SIN, [*portable.cos_sin(call, angles)]
    else:
        source, arrays = TABLE_LOOKUP, [] if angles.whole is None else [angles.whole]
        tables = list_tables(angles.tables)
        if arrays and angles.components:
            source = COMPONENTS
    for i, x in enumerate(arrays):
        memory = _memory(call.backend, x)
        contiguous_rows = source != COS_SIN or _has_contiguous_rows(memory)
        if not (contiguous_rows and _has_aligned_elements(memory)):
            arrays[i] = contiguous(x)
    return source, tuple(arrays), tables


def list_tables(tables: DigitTables) -> tuple[Array | None, ...]:
    """Return what the kernel reads of digit tables."""
    return tables.low, tables.middle, tables.high, tables.component


def _has_aligned_elements(memory: Memory) -> bool:
    return not any(n % memory.itemsize for n in (memory.pointer, *memory.strides))


def _has_contiguous_rows(memory: Memory) -> bool:
    return memory.shape[-1] <= 1 or memory.strides[-1] == memory.itemsize


def _memory(backend: Backend, x: Array) -> Memory:
    return backend.memory(x)  # type: ignore[return-value]  # decline_reason refuses None


def _needs_more_blocks(spec: RotationSpec, head_dim: int, all_in_place: bool) -> bool:
    """Return whether threads would overwrite what those of another block have not read."""
    # One block must have all threads of a head, which wait for each other there.
    interleaved_in, interleaved_out = get_interleaved(spec)
    copied = 0 if all_in_place else head_dim - spec.rotary_dim
    return interleaved_in != interleaved_out and spec.rotary_dim // 2 + copied > THREADS


def _list_layouts(memories: list[Memory]) -> tuple[StridedLayout, ...]:
    return tuple([StridedLayout(memory.shape, memory.strides) for memory in memories])
