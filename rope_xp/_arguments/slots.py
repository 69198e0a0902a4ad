"""Keys in slots: the rows of a cache that are moved, and how they are put back."""

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
    """Some rows of a cache, on their way."""

    backend: Backend
    cache: Array
    rows: Array
    axis: int
    keys: Array
    """The rows, in float64 where they are of float32 and there is one: moves add up."""
    out: Array | None


def pick(cache: Array, rows: Any, axes: str | None, out: Any) -> Slots:
    """Return the rows of a cache, checked with all that has to do with them."""
    backend, where, _ = parse.check_array(cache, axes)
    if out is not None:
        (out,) = check_out(backend, ("x",), (cache,), out)
    slots = cache.shape[where.tokens]
    rows = _rows(backend, cache, rows, slots)
    xp = backend.xp
    keys = xp.take(cache, rows, axis=where.tokens)
    if backend.dtype_name(cache) == "float32" and backend.has_float64(cache):
        keys = xp.astype(keys, xp.float64)
    return Slots(backend, cache, rows, where.tokens, keys, out)


def put(slots: Slots, moved: Array) -> Array:
    """Return the cache with other rows, written to ``out`` if it is given."""
    backend, cache, rows, axis, _, out = slots
    moved = backend.xp.astype(moved, cache.dtype, copy=False)
    if out is None:
        return backend.replace_slots(cache, axis, rows, moved)
    if out is not cache:
        backend.write(out, cache)
    backend.write_slots(out, axis, rows, moved)
    return out


def _rows(backend: Backend, cache: Array, rows: Any, slots: int) -> Array:
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
    if owner is backend or owner is backend.compatible_backend:
        messages.check_same_device(backend, "x", cache, "slots", rows)
    elif not owner.host:
        raise messages.different_libraries("x", backend, "slots", owner)
    if not owner.host:
        return backend.integers(rows)
    if rows.size and not 0 <= rows.min() <= rows.max() < slots:
        msg = f"slots must lie within the {slots} of x; got {rows.min()} to {rows.max()}"
        raise RopeError(msg)
    if len(np.unique(rows)) != rows.size:
        raise RopeError("slots names a slot twice, which would be written twice; name each once")
    return backend.asarray(rows.astype(np.int64 if backend.host else np.int32), device)
