"""Slots of a cache: their keys are taken out, moved, and written back; or new keys are written."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rope_xp._arguments import checks, parse
from rope_xp._arguments.out import check_out
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import get_span, have_overlap
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend


def move_slots(
    cache: Array, slots: Any, axes: str | None, out: Any, move: Callable[[Array], Array]
) -> Array:
    """Return the cache with moved keys in these slots, written to ``out`` if there is one."""
    backend, where, _ = parse.check_array(cache, axes)
    axis = where.tokens
    _check_takes_slots(backend)
    slots, on_host = _check_slots(backend, cache, slots, cache.shape[axis])
    outs = check_out(backend, (cache,), out, [("slots", None if on_host else slots)])
    slots = backend.asarray(slots, backend.device(cache)) if on_host else slots
    xp = backend.xp
    keys = xp.take(cache, slots, axis=axis)
    if backend.dtype_name(cache) == "float32" and backend.has_float64(cache):
        keys = xp.astype(keys, xp.float64)  # as rounding accumulates
    keys = xp.astype(move(keys), cache.dtype, copy=False)
    if outs is None:
        return backend.replace_slots(cache, axis, slots, keys)
    if out is not cache:
        backend.write(out, cache)
    return backend.write_slots(out, axis, slots, keys)


def rotate_into_slots(
    q: Array, k: Array, slots: Any, axes: str | None, out: Any, rotate: Any, **options: Any
) -> tuple[Array, Array]:
    """Return q, and the key cache ``out[1]`` with k in slots, as ``RoPE.apply`` rotates them."""
    backend, where, *_ = parse.check_pair(q, k, axes, has_k_positions=True)
    _check_takes_slots(backend)
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise RopeError(f"slots= needs out=(q, k_cache), the cache of these slots; got {type(out)}")
    xp, (q_out, cache), tokens = backend.xp, out, where.batch_tokens
    # Batch and tokens first, as in a cache.
    order = (*tokens, *(i for i in range(len(k.shape)) if i not in tokens))
    shape = tuple([k.shape[i] for i in order])
    rows, head = shape[: len(tokens)], (math.prod(shape[len(tokens) : -1]), shape[-1])
    _check_cache(backend, k, cache, head)
    flat = (math.prod(cache.shape[:-2]), *head)
    slots, on_host = _check_slots(backend, cache, slots, flat[0], rows)
    if backend.out_refusal is None:
        q_out = xp.empty_like(q) if q_out is None else q_out
        inputs = [("slots", None if on_host else slots)]
        check_out(backend, (q, cache), (q_out, cache), inputs, advise_in_place=False)
    elif q_out is not None and q_out is not q:
        raise TypeError(f"out[0] must be None or q with slots=: {backend.out_refusal}")
    if on_host and slots.size and (np.diff(slots) == 1).all() and _is_flat(backend, cache):
        keys = xp.reshape(xp.reshape(cache, flat)[slots[0] : slots[-1] + 1], shape)
        keys = xp.permute_dims(keys, [*map(order.index, range(len(order)))])
        if not have_overlap(*(get_span(backend.memory(x)) for x in (k, keys))):
            return rotate(q, k, axes=axes, out=(q_out, keys), **options)[0], cache
    outs = None if backend.out_refusal else (q_out, xp.empty_like(k))
    if out[0] is None and backend.is_compiling() and not backend.unwritable_reason(cache, k):
        outs = None  # more paths take calls without out=
    q_out, keys = rotate(q, k, axes=axes, out=outs, **options)
    keys = xp.reshape(xp.permute_dims(keys, order), (math.prod(rows), *head))
    return q_out, _write_keys(backend, cache, slots, on_host, keys)


def _check_takes_slots(backend: Backend) -> None:
    """Reject arrays without operations, or in shards: slots are those of a whole cache."""
    if not backend.runs_portable:
        raise RopeError(
            f"slots= needs the operations of the array API standard, which {backend.name} arrays "
            "do not have; rotate without slots=, and write the keys to the cache yourself"
        )
    if backend.sharded_executor is not None:
        raise RopeError(
            f"slots= takes no {backend.name} arrays; pass the shards of this process instead, "
            "x.to_local() of each array, with the positions and slots of these shards"
        )


def _check_cache(backend: Backend, k: Array, cache: Array, head: tuple[int, int]) -> None:
    """Check that a cache has the library, device and dtype of k, and its heads and head_dim."""
    owner, dtype = find.require_backend(cache, "out[1]"), backend.dtype_name(k)
    fits = checks.check_same_library_and_device(backend, "k", k, owner, "out[1]", cache)
    fits = fits and len(cache.shape) in (3, 4) and tuple(cache.shape[-2:]) == head
    if not fits or owner.dtype_name(cache) != dtype:
        last = str(head)[1:]
        raise RopeError(
            f"out[1] is {checks.describe(owner, cache)}; slots= needs a key cache like k, of "
            f"{backend.name} and {dtype}: (slots, {last} or (pages, page, {last}"
        )


def _write_keys(backend: Backend, cache: Array, slots: Array, on_host: bool, keys: Array) -> Array:
    """Return the cache with keys (n, heads, head_dim) in n slots, a new one where it must be."""
    slots = backend.asarray(slots, backend.device(cache)) if on_host else slots
    if backend.assigns_by_index:
        if not on_host and keys.shape[0]:
            slots, keys = _fill_padding(backend, cache, slots, keys)
        page = cache.shape[1]
        cache[slots if len(cache.shape) == 3 else (slots // page, slots % page)] = keys
        return cache
    flat = backend.xp.reshape(cache, (math.prod(cache.shape[:-2]), *keys.shape[1:]))
    new = backend.xp.reshape(backend.replace_slots(flat, 0, slots, keys), cache.shape)
    if backend.out_refusal is None:
        backend.write(cache, new)
    return new if backend.out_refusal else cache


def _is_flat(backend: Backend, cache: Array) -> bool:
    """Return whether a cache surely has a view of three axes."""
    m = backend.memory(cache) if backend.assigns_by_index else None
    return m is not None and (len(m.shape) == 3 or m.strides[0] == m.shape[1] * m.strides[1])


def _fill_padding(backend: Backend, cache: Array, slots: Array, keys: Array) -> tuple[Array, Array]:
    """Repeat the highest slot and its key for negative ones, or slot 0 of the cache if all are."""
    xp, index = backend.xp, backend.arange(slots.shape[0], backend.device(slots))
    index = xp.where(slots < 0, xp.argmax(slots), index)  # of fixed shape: nothing waits
    slots, keys = xp.take(slots, index, axis=0), xp.take(keys, index, axis=0)
    keys = xp.where(slots[:, None, None] < 0, cache[(0,) * (len(cache.shape) - 2)], keys)
    return xp.where(slots < 0, xp.zeros_like(slots), slots), keys


def _check_slots(
    backend: Backend, cache: Array, slots: Any, length: int, shape: tuple[int, ...] | None = None
) -> tuple[Array, bool]:
    """Return slots with one axis, and whether they are in host memory, where they are checked."""
    name, axis = ("x", "tokens") if shape is None else ("out[1]", "slots")
    owner, slots = parse.read_operand(backend, name, cache, "slots", slots)
    if owner.host and not slots.size:
        slots = slots.astype(np.int64)  # an empty list has no dtype of its own
    fits, expected = len(slots.shape) == 1, "with one axis, the same slots for all sequences"
    if shape is not None:
        fits = tuple(slots.shape) in (shape, shape[-1:] if math.prod(shape[:-1]) == 1 else shape)
        expected = f"of shape {shape}, the batch and tokens of k"
    if owner.dtype_name(slots) not in INTEGERS or not fits:
        raise RopeError(f"slots must be integers {expected}; got {checks.describe(owner, slots)}")
    host = owner.host_view(slots)
    if host is None:
        return backend.xp.reshape(backend.integers(slots), (-1,)), False
    if host.size and not 0 <= host.min() <= host.max() < length:
        shown = f"{host.min()} to {host.max()}"
        raise RopeError(f"slots must be >= 0 and below {length}, the {axis} of {name}; got {shown}")
    if len(np.unique(host)) != host.size:
        raise RopeError("slots holds the same slot twice; each may be written only once")
    return host.reshape(-1).astype(np.int64 if backend.host else np.int32), True
