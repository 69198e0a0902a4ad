"""Slots of a cache: the keys that rerotate moves are taken out, and written back."""

from typing import Any, NamedTuple

import numpy as np

from rope_xp._arguments import messages, parse
from rope_xp._arguments.out import check_out
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend


class Slots(NamedTuple):
    """Keys taken out of some slots of a cache."""

    backend: Backend
    cache: Array
    rows: Array
    axis: int
    keys: Array
    """In float64 for a cache of float32, where there is one, as rounding accumulates."""
    out: Array | None


def take_slots(cache: Array, slots: Any, axes: str | None, out: Any) -> Slots:
    """Check the arguments of rerotate that concern slots; return the keys in them."""
    backend, where, _ = parse.check_array(cache, axes)
    outs = check_out(backend, ("x",), (cache,), out)
    rows = _check_slots(backend, cache, slots, cache.shape[where.tokens])
    xp = backend.xp
    keys = xp.take(cache, rows, axis=where.tokens)
    if backend.dtype_name(cache) == "float32" and backend.has_float64(cache):
        keys = xp.astype(keys, xp.float64)
    return Slots(backend, cache, rows, where.tokens, keys, None if outs is None else outs[0])


def write_slots(slots: Slots, moved: Array) -> Array:
    """Return the cache with moved keys in these slots, written to ``out`` if there is one."""
    backend, cache, rows, axis, _, out = slots
    moved = backend.xp.astype(moved, cache.dtype, copy=False)
    if out is None:
        return backend.replace_slots(cache, axis, rows, moved)
    if out is not cache:
        backend.write(out, cache)
    backend.write_slots(out, axis, rows, moved)
    return out


def _check_slots(backend: Backend, cache: Array, rows: Any, slots: int) -> Array:
    """Return the numbers of slots as an array on the device of the cache."""
    owner, device = parse.find_owner(rows), backend.device(cache)
    if backend.is_compiling() and (owner is None or owner.host):
        rows, owner = backend.asarray_in_trace(rows, device), backend
    elif owner is None:
        rows = np.asarray(rows, None if len(rows) else np.int64)
        owner = find.require_backend(rows, "slots")
    if owner.dtype_name(rows) not in INTEGERS or len(rows.shape) != 1:
        msg = (
            "slots must be integers along one axis, the slots of all sequences; got "
            f"{messages.describe(owner, rows)}"
        )
        raise RopeError(msg)
    messages.check_beside(backend, "x", cache, owner, "slots", rows)
    if not owner.host:
        return backend.integers(rows)
    if rows.size and not 0 <= rows.min() <= rows.max() < slots:
        msg = f"slots must lie within the {slots} of x; got {rows.min()} to {rows.max()}"
        raise RopeError(msg)
    if len(np.unique(rows)) != rows.size:
        raise RopeError("slots names a slot twice, which would be written twice; name each once")
    return backend.asarray(rows.astype(np.int64 if backend.host else np.int32), device)
