"""Launches of the CUDA kernel for calls like earlier ones, whose arrays have other addresses."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple, TypeAlias

from rope_xp._core.caches import BoundedCache
from rope_xp._core.call import Call, TableLookup
from rope_xp._core.memory import ACCESS, Memory
from rope_xp._core.tables import DigitTables
from rope_xp._core.typing import Array
from rope_xp._dispatch import heads
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import portable

from . import cuda
from .calls import UserCall, find_launch, give_results, keep_launch, read_call, run_slowly
from .cuda_plan import CudaLaunch

Arrays: TypeAlias = tuple[Array, ...]

CALLS = BoundedCache(f"{__name__}.CALLS", 512)


class Library(NamedTuple):
    """What a library does for a call on its current device."""

    backend: Backend
    allocate: Callable[[Array], Array]
    """Returns memory for a result."""
    point: Callable[[Array], int]
    """Returns the address of an array."""
    launch: Callable[[list[CudaLaunch]], None]


def rotate(
    library: Library, head: tuple[Any, ...], rest: tuple[Any, ...], angles: Any, inputs: Arrays
) -> Any:
    """Launch as for an earlier call, or run the slow path and keep its launches.

    ``head`` is what calls have before q, ``rest`` all that follows. ``inputs`` are arrays of
    ``angles``. None leaves a call to the slow path.
    """
    user_call = read_call(head, rest, inputs)
    key = user_call and _sign(library.backend, user_call)
    if user_call is None or key is None:
        return None
    try:
        kept = find_launch(CALLS, key)
    except TypeError:  # an option without a hash, for which the slow path raises
        return None
    if kept is not None:
        return give_results(_launch(library, *kept, user_call), rest)
    call, path, results = run_slowly(head, rest, angles)
    if path is not None and path.name == "cuda":
        _keep(key, call, user_call, results)
    return give_results(results, rest)


def _sign(backend: Backend, user_call: UserCall) -> Hashable | None:
    """Return the key of a call, None where the slow path has to look."""
    arrays = user_call.arrays
    outs = user_call.out or (None,) * len(arrays)
    in_place = tuple(map(is_, arrays, outs))
    own = [y for y, same in zip(outs, in_place, strict=True) if not (same or y is None)]
    key = [*user_call.options, in_place, len(own)]
    kind, device, memories = type(arrays[0]), backend.device(arrays[0]), []
    for x in (*own, *arrays, *user_call.others):
        memory = backend.memory(x) if type(x) is kind and backend.device(x) == device else None
        if memory is None:
            return None
        key += x.dtype, memory.shape, memory.strides, memory.pointer % ACCESS
        memories.append(memory)
    written = [*range(len(own)), *[len(own) + i for i, same in enumerate(in_place) if same]]
    return None if written and _may_overlap(memories, written) else (*key, device)


def _may_overlap(memories: list[Memory], written: list[int]) -> bool:
    """Return whether some that are written lie within the bounds of others."""
    ranges = [memory.measure() for memory in memories]
    return any(
        i != j and start < ranges[j][1] and ranges[j][0] < end
        for i, (start, end) in enumerate(ranges)
        for j in written
    )


def _launch(
    library: Library,
    steps: tuple[CudaLaunch, ...],
    tables: DigitTables | None,
    user_call: UserCall,
) -> Arrays:
    arrays, weights, angles, out, slots, _ = user_call
    given = out or (None,) * len(arrays)
    outs = [library.allocate(x) if y is None else y for x, y in zip(arrays, given, strict=True)]
    digits = cuda.list_tables(tables) if tables else ()
    operands = cuda.Operands(arrays, tuple(outs), angles, weights, slots, digits)
    library.launch(cuda.place(library.point, steps, operands))
    return operands.outs


def _keep(key: Hashable, call: Call, user_call: UserCall, results: Arrays) -> None:
    """Keep the launches of a call that has run, if they read what its user gave."""
    first = call.angles[0]
    if len(cuda.split_call(call)) > 1 or heads.differ_by_head(call):
        return
    if isinstance(first, TableLookup) and not portable.is_read_on_gpu(call, first):
        return  # nor are its cos and sin computed once more
    copied: list[Array] = []

    def note_copy(x: Array) -> Array:
        copied.append(x)
        return x

    steps, planned = cuda.plan_part(replace(call, out=results), note_copy)
    read = *planned.arrays, *planned.weights, *planned.angles, planned.slots
    given = *user_call.arrays, *user_call.weights, *user_call.angle_inputs, user_call.slots
    memories = [[x if x is None else call.backend.memory(x) for x in xs] for xs in (read, given)]
    if memories[0] == memories[1] and not copied:
        keep_launch(CALLS, key, steps, first)
