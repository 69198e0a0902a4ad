"""From a checked call to launches of the kernel in rotate.cu: numbers, and no GPU.

A launch names arrays by pointers and strides, so it runs on any memory that it can read: tests run
it on the CPU, from the same source.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from rope_xp._core.call import Call, CosSin, RotationSpec, Slots, get_interleaved
from rope_xp._core.memory import Memory, StridedLayout, alignment
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.kernels import decline_norm, decline_slots
from rope_xp._rotation import portable

from . import SlotLayout, lay_out_keys
from .cuda_plan import (
    COMPONENTS,
    COS_SIN,
    NARROW_COS_SIN,
    TABLE_LOOKUP,
    THREADS,
    WEIGHTS,
    CudaLaunch,
    join_launches,
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
    call = replace(call, out=outs)
    if len(call.angles) > 1 or call.arrays[0].dtype != call.arrays[-1].dtype:
        q, k = replace(call, slots=None).split(one_dtype=True)
        of_q = _launch_part(q, contiguous)
        of_k = _launch_part(replace(k, slots=call.slots), contiguous, only_k=True)
        joined = join_launches(*of_q, *of_k) if len(of_q) == len(of_k) == 1 else None
        return [*of_q, *of_k] if joined is None else [joined]
    return _launch_part(call, contiguous)


def _read_addresses(
    backend: Backend, arrays: Arrays, outs: Arrays, rows: Arrays, only_k: bool
) -> list[int]:
    """Return the pointers of arrays, results and rows, in the order of the kernel."""
    pointers = []
    for operands in (arrays, outs, rows):
        own = [_memory(backend, x).pointer for x in operands]
        is_k = only_k and operands is not rows
        pointers += [0, *own] if is_k else [*own, 0, 0][:2]
    return pointers


def _has_aligned_elements(memory: Memory) -> bool:
    return not any(n % memory.itemsize for n in (memory.pointer, *memory.strides))


def _has_contiguous_rows(memory: Memory) -> bool:
    return memory.shape[-1] <= 1 or memory.strides[-1] == memory.itemsize


def _memory(backend: Backend, x: Array) -> Memory:
    return backend.memory(x)  # type: ignore[return-value]  # decline_reason refuses None


def _locate_angles(
    call: Call, contiguous: Contiguous
) -> tuple[int, Arrays, tuple[Array | None, ...]]:
    """Return the source of angles, positions or cos and sin, and the digit tables."""
    angles = portable.for_kernel(call, call.angles[0], on_gpu=True)
    tables: tuple[Array | None, ...] = (None,) * 4
    if isinstance(angles, CosSin):
        x, (cos, sin) = call.arrays[0], portable.cos_sin(call, angles)
        source, arrays = COS_SIN, [cos, sin]
        if cos is not angles.cos and angles.cos.dtype == angles.sin.dtype == x.dtype:
            source, arrays = NARROW_COS_SIN, [angles.cos, angles.sin]
    else:
        source, arrays = TABLE_LOOKUP, [] if angles.whole is None else [angles.whole]
        low, middle, high, _, component = angles.tables
        tables = low, middle, high, component
        if arrays and angles.components == 1:  # an axis of one component, as good as none
            arrays = [arrays[0][0, ...]]
        elif arrays and angles.components:
            source = COMPONENTS
    for i, x in enumerate(arrays):
        memory = _memory(call.backend, x)
        contiguous_rows = source not in (COS_SIN, NARROW_COS_SIN) or _has_contiguous_rows(memory)
        if not (contiguous_rows and _has_aligned_elements(memory)):
            arrays[i] = contiguous(x)
    return source, tuple(arrays), tables


def _launch_part(call: Call, contiguous: Contiguous, *, only_k: bool = False) -> list[CudaLaunch]:
    """Return the launches of arrays of one dtype, which share their angles."""
    backend, spec, arrays, outs = call.backend, call.spec, call.arrays, call.out or ()
    source, angles, tables = _locate_angles(call, contiguous)
    pinned, n = angles, len(arrays)
    memories = [_memory(backend, x) for x in (*arrays, *outs)]
    angle_memories = [_memory(backend, x) for x in angles]
    in_place = tuple(memories[i].pointer == memories[n + i].pointer for i in range(n))
    if any(in_place) and _needs_more_blocks(spec, arrays[0].shape[-1], all(in_place)):
        arrays = tuple(contiguous(x) for x in arrays)
        pinned += arrays
        in_place = (False,) * n
        memories[:n] = [_memory(backend, x) for x in arrays]
    layouts, slots, slot_layout = _list_layouts(memories), call.slots, None
    if slots is not None:
        key, slot_layout = _lay_out_slots(call, slots, layouts[n - 1], layouts[-1])
        layouts = (*layouts[:-1], key)
        pinned += (slots.numbers,)
    weights = [_memory(backend, weight).pointer for weight in _list_weights(call)]
    steps = plan_steps(
        layouts,
        in_place,
        alignment(*weights, *(x.pointer for x in memories)),
        backend.dtype_name(arrays[0]),
        source,
        _list_layouts(angle_memories),
        alignment(*(x.pointer for x in angle_memories)),
        any(x.itemsize == 8 for x in angle_memories),
        spec,
        slot_layout,
        only_k,
    )
    pointers = _read_addresses(backend, arrays, outs, angles, only_k)
    tables += (slots and slots.numbers,)
    pointers += [0 if x is None else _memory(backend, x).pointer for x in tables]
    own = [0, *weights] if only_k and weights else [*weights, 0, 0][:2]
    return [_point(step, pointers, own, pinned) for step in steps]


def _point(step: CudaLaunch, pointers: list[int], weights: list[int], pinned: Arrays) -> CudaLaunch:
    """Return a launch whose offsets are pointers."""
    params = step.params.copy()
    params[: len(pointers)] += pointers
    params[WEIGHTS] += weights
    return step._replace(params=params, pinned=pinned)


def _needs_more_blocks(spec: RotationSpec, head_dim: int, all_in_place: bool) -> bool:
    """Return whether threads would overwrite what those of another block have not read."""
    # One block must have all threads of a head, which wait for each other there.
    interleaved_in, interleaved_out = get_interleaved(spec)
    copied = 0 if all_in_place else head_dim - spec.rotary_dim
    return interleaved_in != interleaved_out and spec.rotary_dim // 2 + copied > THREADS


def _lay_out_slots(
    call: Call, slots: Slots, k: StridedLayout, cache: StridedLayout
) -> tuple[StridedLayout, SlotLayout]:
    own = _list_layouts([_memory(call.backend, slots.numbers)])[0]
    dtype = call.backend.dtype_name(slots.numbers)
    return lay_out_keys(cache, k, own, dtype, call.spec, slots.of_sequences)


def _list_layouts(memories: list[Memory]) -> tuple[StridedLayout, ...]:
    return tuple([StridedLayout(memory.shape, memory.strides) for memory in memories])
