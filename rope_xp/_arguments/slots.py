"""Slots of a cache: their keys are taken out, moved, and written back; or new keys are written."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rope_xp._arguments import checks, parse
from rope_xp._arguments.axes import parse_axes
from rope_xp._arguments.out import check_out
from rope_xp._core.call import Call, Slots
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import overlaps_itself
from rope_xp._core.typing import Array
from rope_xp._dispatch import choose, find, how
from rope_xp._dispatch.backend import Backend

FEW = 64
"""Slots that are compared with each other, as slots.cpp does."""
PADDING = -1
"""A slot whose key is not written."""


def move_slots(
    cache: Array, slots: Any, axes: str | None, out: Any, move: Callable[[Array], Array]
) -> Array:
    """Return the cache with moved keys in these slots, written to ``out`` if there is one."""
    backend = find.require_backend(cache, "x")
    axis = parse_axes(axes, len(cache.shape), "x").tokens
    if not (out is cache and _are_few(backend, cache, slots, axis)):
        backend, _, _ = parse.check_arrays((cache,), axes)
        _check_takes_slots(backend, cache, axis)
        slots, on_host = _check_slots(backend, cache, slots, cache.shape[axis])
        check_out(backend, (cache,), out, [("slots", None if on_host else slots)])
        slots = backend.asarray(slots, backend.device(cache)) if on_host else slots
    xp = backend.xp
    if backend.assigns_by_index and not backend.is_compiling():
        keys = cache[(*(slice(None),) * axis, slots)]
    else:
        keys = xp.take(cache, slots, axis=axis)
    if backend.dtype_name(cache) == "float32" and backend.has_float64(cache):
        keys = xp.astype(keys, xp.float64)  # as rounding accumulates
    keys = move(keys)
    if keys.dtype != cache.dtype and not (out is cache and backend.numpy_dtypes):
        keys = xp.astype(keys, cache.dtype)  # as an assignment of numpy does
    if out is None:
        return backend.replace_slots(cache, axis, slots, keys)
    if out is not cache:
        backend.write(out, cache)
    return backend.write_slots(out, axis, slots, keys)


def _are_few(backend: Backend, cache: Array, slots: Any, axis: int) -> bool:
    """Return whether a cache can be written to, in few slots that are right.

    To check slots as arrays takes longer than to move a key. False leaves that to later checks.
    """
    if not backend.assigns_by_index or backend.sharded_executor or backend.is_compiling():
        return False
    host = np.asarray(slots) if type(slots) is list else None
    if host is None and type(slots) in (np.ndarray, type(cache)):
        host = backend.host_view(slots)
    if host is None or host.ndim != 1 or not 0 < host.size <= FEW or host.dtype.kind not in "iu":
        return False
    numbers, memory = sorted({*host.tolist()}), backend.memory(cache)
    if len(numbers) < host.size or not 0 <= numbers[0] <= numbers[-1] < cache.shape[axis]:
        return False
    if memory is None or overlaps_itself(memory):
        return False
    return memory.writeable and backend.unwritable_reason(cache, cache) is None


def rotate_into_slots(
    build: Callable[[], Call], k: Array, slots: Any, cache_axes: str | None, out: Any
) -> tuple[Array, Array]:
    """Run the call that ``build`` returns, with k in slots of the cache ``out[1]``."""
    if slots is None:
        raise TypeError("cache_axes= names the axes of a cache, and needs slots= too")
    backend = find.require_backend(k, "k")
    _check_takes_slots(backend, k, -3)
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise RopeError(f"slots= needs out=(q, k_cache), the cache of these slots; got {type(out)}")
    q_out, view = choose.run(add_slots(build(), slots, cache_axes, out))
    cache = out[1]
    if backend.assigns_by_index:
        return q_out, cache
    order = _view_cache(backend, cache, cache_axes)[1]
    view = backend.xp.reshape(view, tuple([cache.shape[i] for i in order]))
    new = backend.xp.permute_dims(view, [*map(order.index, range(len(order)))])
    if backend.out_refusal is None:
        backend.write(cache, new)
    return q_out, new if backend.out_refusal else cache


def add_slots(call: Call, slots: Any, cache_axes: str | None, out: Any) -> Call:
    """Return a call whose keys go to slots of the cache ``out[1]``."""
    backend, (q, k), where, (q_out, cache) = call.backend, call.arrays, call.spec.axes, out
    rows = tuple([k.shape[i] for i in where.batch_tokens])
    head = (1 if where.heads is None else k.shape[where.heads], k.shape[-1])
    view, of_sequences = _check_cache(backend, k, cache, cache_axes, math.prod(rows[:-1]), head)
    _check_takes_slots(backend, k, where.tokens)
    _check_takes_slots(backend, view, 1 if view.shape[0] > 1 else 0)
    limit = view.shape[1] * (1 if of_sequences else view.shape[0])
    slots, on_host = _check_slots(backend, cache, slots, limit, rows, of_sequences=of_sequences)
    if backend.out_refusal is None:
        q_out = backend.xp.empty_like(q) if q_out is None else q_out
        inputs = [("slots", None if on_host else slots)]
        check_out(backend, (q, cache), (q_out, cache), inputs, call.weights, advise_in_place=False)
        reason = backend.unwritable_reason(cache, k)
        if reason is not None:
            raise RopeError(f"out[1]: {reason}")
    elif q_out is not None and q_out is not q:
        raise TypeError(f"out[0] must be None or q with slots=: {backend.out_refusal}")
    is_padded = not on_host or bool(slots.min(initial=0) < 0)
    slots = backend.asarray(slots, backend.device(cache)) if on_host else slots
    new_out = None if out[0] is None or backend.out_refusal else (q_out, view)
    return replace(call, slots=Slots(slots, view, of_sequences, is_padded), out=new_out)


how.builders["add_slots"] = add_slots


def _check_takes_slots(backend: Backend, x: Array, axis: int) -> None:
    """Check that slots along an axis, or tokens that go there, can be reached."""
    reason = backend.slots_refusal(x, axis)
    if not backend.runs_portable:
        reason = (
            f"needs the operations of the array API standard, which {backend.name} arrays do not "
            "have; rotate without slots=, and write the keys to the cache yourself"
        )
    elif backend.sharded_executor is not None:  # slots are those of a whole cache
        reason = (
            f"takes no {backend.name} arrays; pass the shards of this process instead, "
            "x.to_local() of each array, with the positions and slots of these shards"
        )
    if reason is not None:
        raise RopeError(f"slots= {reason}")


def _view_cache(
    backend: Backend, cache: Array, axes: str | None
) -> tuple[Array, tuple[int, ...], bool]:
    """Return a cache as :class:`Slots` has it, its axes in this order, and ``of_sequences``."""
    xp, order, of_sequences = backend.xp, tuple(range(len(cache.shape))), False
    if axes is not None:
        where = parse_axes(axes, len(order), "out[1]", "cache_axes")
        of_sequences = "p" not in axes and where.batch != ()
        heads = () if where.heads is None else (where.heads,)
        order = (*where.batch_tokens, *heads, order[-1])
        cache = xp.permute_dims(cache, order)
        cache = cache if heads else xp.expand_dims(cache, axis=-2)
    is_single = len(cache.shape) == 3
    return xp.expand_dims(cache, axis=0) if is_single else cache, order, of_sequences


def _check_cache(
    backend: Backend, k: Array, cache: Array, axes: str | None, batch: int, head: tuple[int, int]
) -> tuple[Array, bool]:
    """Check that a cache fits k, and return a view of it, and whether it is one of sequences."""
    owner, dtype = find.require_backend(cache, "out[1]"), backend.dtype_name(k)
    fits = checks.check_same_library_and_device(backend, "k", k, owner, "out[1]", cache)
    view, of_sequences, last = cache, False, str(head)[1:]
    expected = f"(slots, {last} or (pages, page, {last}"
    if axes is not None:
        lengths = {"p": "pages", "s": "slots", "h": head[0], "d": head[1]}
        shown = ", ".join(str(lengths.get(name, batch)) for name in axes)
        expected = f"({shown}), as cache_axes={axes!r}"
    if fits:
        view, _, of_sequences = _view_cache(backend, cache, axes)
    fits &= len(view.shape) == 4 and tuple(view.shape[-2:]) == head
    if not fits or owner.dtype_name(cache) != dtype or (of_sequences and view.shape[0] != batch):
        small = owner.dtype_name(cache).startswith(("float8", "int8", "uint8"))
        raise RopeError(
            f"out[1] is {checks.describe(owner, cache)}; slots= needs a key cache like k, of "
            f"{backend.name} and {dtype}: {expected}"
            + ". Caches of 8 bits are not supported: rotate k, and quantize it"
            * small
        )
    return view, of_sequences


def _check_slots(
    backend: Backend,
    cache: Array,
    slots: Any,
    length: int,
    shape: tuple[int, ...] | None = None,
    *,
    of_sequences: bool = False,
) -> tuple[Array, bool]:
    """Return slots, and whether they are in host memory, where they are checked."""
    name, axis = ("x", "tokens") if shape is None else ("out[1]", "slots")
    owner, slots = parse.read_operand(backend, name, cache, "slots", slots)
    if owner.host and not slots.size:
        slots = slots.astype(np.int64)  # an empty list has no dtype of its own
    fits, expected = len(slots.shape) == 1, "with one axis, the same slots for all sequences"
    if shape is not None:
        may_share = of_sequences or math.prod(shape[:-1]) == 1
        fits = tuple(slots.shape) in (shape, shape[-1:] if may_share else shape)
        expected = f"of shape {shape}, the batch and tokens of k"
    if owner.dtype_name(slots) not in INTEGERS or not fits:
        raise RopeError(f"slots must be integers {expected}; got {checks.describe(owner, slots)}")
    host = owner.host_view(slots)
    if host is None:
        return backend.integers(slots), False
    lowest = 0 if shape is None else PADDING
    if host.size and not lowest <= host.min() <= host.max() < length:
        padding = "" if shape is None else f", or {PADDING} for padding"
        got = f"the {axis} of {name}{padding}; got {host.min()} to {host.max()}"
        raise RopeError(f"slots must be >= 0 and below {length}, {got}")
    if host.size <= FEW:
        ordered = np.sort(host if of_sequences else host.reshape(-1), axis=-1)
        again = ordered[..., 1:] == ordered[..., :-1]
        if (again & (ordered[..., 1:] >= 0)).any():
            raise RopeError("slots holds the same slot twice; each may be written only once")
    return host.astype(np.int64 if backend.host else np.int32), True
