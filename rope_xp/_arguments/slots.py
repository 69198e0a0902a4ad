"""Slots of a cache: their keys are taken out, moved, and written back; or new keys are written."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rope_xp._arguments import checks, parse
from rope_xp._arguments.axes import parse_axes
from rope_xp._arguments.out import check_out
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.memory import overlaps_itself
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
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
        _check_takes_slots(backend)
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
    keys = xp.astype(move(keys), cache.dtype, copy=False)
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
    numbers, memory = host.tolist(), backend.memory(cache)
    if not 0 <= min(numbers) <= max(numbers) < cache.shape[axis]:
        return False
    if len({*numbers}) < len(numbers) or memory is None or overlaps_itself(memory):
        return False
    return memory.writeable and backend.unwritable_reason(cache, cache) is None


def rotate_into_slots(
    q: Array,
    k: Array,
    slots: Any,
    axes: str | None,
    cache_axes: str | None,
    out: Any,
    rotate: Callable[..., tuple[Array, Array]],
) -> tuple[Array, Array]:
    """Return q rotated by ``rotate(out=...)``, and the key cache ``out[1]`` with k in slots."""
    backend, where, _ = parse.check_arrays((q, k), axes, has_k_positions=True)
    _check_takes_slots(backend)
    if slots is None:
        raise TypeError("cache_axes= names the axes of a cache, and needs slots= too")
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise RopeError(f"slots= needs out=(q, k_cache), the cache of these slots; got {type(out)}")
    xp, (q_out, cache), tokens = backend.xp, out, where.batch_tokens
    # Batch and tokens first, as in a cache.
    order = (*tokens, *(i for i in range(len(k.shape)) if i not in tokens))
    shape = tuple([k.shape[i] for i in order])
    rows, head = shape[: len(tokens)], (math.prod(shape[len(tokens) : -1]), shape[-1])
    batch = math.prod(rows[:-1])
    view, cache_order, is_batched = _view_cache(backend, k, cache, cache_axes, batch, head)
    limit = view.shape[1] if is_batched else math.prod(view.shape[:-2])
    slots, on_host = _check_slots(backend, cache, slots, limit, rows, is_batched=is_batched)
    if backend.out_refusal is None:
        q_out = xp.empty_like(q) if q_out is None else q_out
        inputs = [("slots", None if on_host else slots)]
        check_out(backend, (q, cache), (q_out, cache), inputs, advise_in_place=False)
    elif q_out is not None and q_out is not q:
        raise TypeError(f"out[0] must be None or q with slots=: {backend.out_refusal}")
    outs = None if backend.out_refusal else (q_out, xp.empty_like(k))
    if out[0] is None and backend.is_compiling() and not backend.unwritable_reason(cache, k):
        outs = None  # more paths take calls without out=
    q_out, keys = rotate(out=outs)
    keys = xp.reshape(xp.permute_dims(keys, order), (math.prod(rows), *head))
    view = _write_keys(backend, view, slots, on_host, keys)
    if backend.assigns_by_index:
        return q_out, cache
    view = xp.reshape(view, tuple([cache.shape[i] for i in cache_order]))
    new = xp.permute_dims(view, [*map(cache_order.index, range(len(cache_order)))])
    if backend.out_refusal is None:
        backend.write(cache, new)
    return q_out, new if backend.out_refusal else cache


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


def _view_cache(
    backend: Backend, k: Array, cache: Array, axes: str | None, batch: int, head: tuple[int, int]
) -> tuple[Array, tuple[int, ...], bool]:
    """Return a cache as (..., slots, heads, head_dim), its axes in this order, and a flag.

    The flag says that it has an axis of sequences, each with slots of its own. Else slots are
    numbered through all pages. Check that it has the library, device, dtype and heads of k.
    """
    owner, dtype, xp = find.require_backend(cache, "out[1]"), backend.dtype_name(k), backend.xp
    fits = checks.check_same_library_and_device(backend, "k", k, owner, "out[1]", cache)
    view, order, is_batched, last = cache, tuple(range(len(cache.shape))), False, str(head)[1:]
    expected = f"(slots, {last} or (pages, page, {last}"
    if axes is not None and fits:
        where = parse_axes(axes, len(order), "out[1]", "cache_axes")
        is_batched = "p" not in axes and where.batch != ()
        heads = () if where.heads is None else (where.heads,)
        order = (*where.batch_tokens, *heads, order[-1])
        view = xp.permute_dims(cache, order)
        view = view if heads else xp.expand_dims(view, axis=-2)
        lengths = {"p": "pages", "s": "slots", "h": head[0], "d": head[1]}
        shown = ", ".join(str(lengths.get(name, batch)) for name in axes)
        expected = f"({shown}), as cache_axes={axes!r}"
    shape = tuple(view.shape)
    fits = fits and len(shape) in (3, 4) and shape[-2:] == head
    if not fits or owner.dtype_name(cache) != dtype or (is_batched and shape[0] != batch):
        raise RopeError(
            f"out[1] is {checks.describe(owner, cache)}; slots= needs a key cache like k, of "
            f"{backend.name} and {dtype}: {expected}"
        )
    return view, order, is_batched


def _write_keys(backend: Backend, cache: Array, slots: Array, on_host: bool, keys: Array) -> Array:
    """Return a cache (..., slots, heads, head_dim), or a new one, with n keys in n slots."""
    is_padded = not on_host or slots.min(initial=0) < 0
    slots = backend.asarray(slots, backend.device(cache)) if on_host else slots
    if not backend.assigns_by_index:
        flat = backend.xp.reshape(cache, (math.prod(cache.shape[:-2]), *keys.shape[1:]))
        return backend.replace_slots(flat, 0, slots, keys)
    if is_padded and keys.shape[0]:
        slots, keys = _fill_padding(backend, cache, slots, keys)
    page = cache.shape[1]
    cache[slots if len(cache.shape) == 3 else (slots // page, slots % page)] = keys
    return cache


def _fill_padding(backend: Backend, cache: Array, slots: Array, keys: Array) -> tuple[Array, Array]:
    """Repeat the highest slot and its key for negative ones, or slot 0 of the cache if all are."""
    xp, index = backend.xp, backend.arange(slots.shape[0], backend.device(slots))
    index = xp.where(slots < 0, xp.argmax(slots), index)  # of fixed shape: nothing waits
    slots, keys = xp.take(slots, index, axis=0), xp.take(keys, index, axis=0)
    keys = xp.where(slots[:, None, None] < 0, cache[(0,) * (len(cache.shape) - 2)], keys)
    return xp.where(slots < 0, xp.zeros_like(slots), slots), keys


def _check_slots(
    backend: Backend,
    cache: Array,
    slots: Any,
    length: int,
    shape: tuple[int, ...] | None = None,
    *,
    is_batched: bool = False,
) -> tuple[Array, bool]:
    """Return slots with one axis, and whether they are in host memory, where they are checked.

    Those of a batched cache, with ``length`` slots a sequence, are numbered through all sequences.
    """
    name, axis = ("x", "tokens") if shape is None else ("out[1]", "slots")
    owner, slots = parse.read_operand(backend, name, cache, "slots", slots)
    if owner.host and not slots.size:
        slots = slots.astype(np.int64)  # an empty list has no dtype of its own
    fits, expected = len(slots.shape) == 1, "with one axis, the same slots for all sequences"
    batch = () if shape is None else shape[:-1]
    if shape is not None:
        may_share = is_batched or math.prod(batch) == 1
        fits = tuple(slots.shape) in (shape, shape[-1:] if may_share else shape)
        expected = f"of shape {shape}, the batch and tokens of k"
    if owner.dtype_name(slots) not in INTEGERS or not fits:
        raise RopeError(f"slots must be integers {expected}; got {checks.describe(owner, slots)}")
    host, xp = owner.host_view(slots), backend.xp
    if host is None:
        slots = backend.integers(slots)
    else:
        lowest = 0 if shape is None else PADDING
        if host.size and not lowest <= host.min() <= host.max() < length:
            padding = "" if shape is None else f", or {PADDING} for padding"
            got = f"the {axis} of {name}{padding}; got {host.min()} to {host.max()}"
            raise RopeError(f"slots must be >= 0 and below {length}, {got}")
        if host.size <= FEW:
            ordered = np.sort(host if is_batched else host.reshape(-1), axis=-1)
            again = ordered[..., 1:] == ordered[..., :-1]
            if (again & (ordered[..., 1:] >= 0)).any():
                raise RopeError("slots holds the same slot twice; each may be written only once")
        slots, xp = host.astype(np.int64), np
    if is_batched:
        count, device = math.prod(batch), backend.device(cache)
        slots = xp.broadcast_to(slots, shape)
        starts = np.arange(count) if xp is np else backend.arange(count, device)
        through = slots + xp.reshape(starts, (*batch, 1)) * length
        # One beyond its sequence is beyond the cache, and not in the next sequence.
        through = xp.where(slots < length, through, xp.full_like(through, count * length))
        slots = xp.where(slots < 0, slots, through)
    slots = xp.reshape(slots, (-1,))
    if host is not None and not backend.host:
        slots = slots.astype(np.int32)
    return slots, host is not None
