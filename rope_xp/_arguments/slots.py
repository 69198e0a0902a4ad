"""Slots of a cache: their keys are taken out, moved, and written back."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rope_xp._arguments import messages, parse
from rope_xp._arguments.out import check_out
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend


def move_slots(
    cache: Array, slots: Any, axes: str | None, out: Any, move: Callable[[Array], Array]
) -> Array:
    """Return the cache with moved keys in these slots, written to ``out`` if there is one."""
    backend, where, _ = parse.check_array(cache, axes)
    outs, axis = check_out(backend, (cache,), out), where.tokens
    slots = _check_slots(backend, cache, slots, cache.shape[axis])
    xp = backend.xp
    keys = xp.take(cache, slots, axis=axis)
    if backend.dtype_name(cache) == "float32" and backend.has_float64(cache):
        keys = xp.astype(keys, xp.float64)  # as rounding accumulates
    keys = xp.astype(move(keys), cache.dtype, copy=False)
    if outs is None:
        return backend.replace_slots(cache, axis, slots, keys)
    if out is not cache:
        backend.write(out, cache)
    backend.write_slots(out, axis, slots, keys)
    return out


def _check_slots(backend: Backend, cache: Array, slots: Any, length: int) -> Array:
    """Return the numbers of slots as an array on the device of the cache."""
    owner, slots = parse.read_operand(backend, "x", cache, "slots", slots)
    if owner.host and not slots.size:
        slots = slots.astype(np.int64)  # an empty list has no dtype of its own
    if owner.dtype_name(slots) not in INTEGERS or len(slots.shape) != 1:
        msg = (
            "slots must be integers with one axis, the same slots for all sequences; got "
            f"{messages.describe(owner, slots)}"
        )
        raise RopeError(msg)
    if not owner.host:
        return backend.integers(slots)
    if slots.size and not 0 <= slots.min() <= slots.max() < length:
        msg = f"slots must be below {length}, the tokens of x; got {slots.min()} to {slots.max()}"
        raise RopeError(msg)
    if len(np.unique(slots)) != slots.size:
        raise RopeError("slots holds the same slot twice; each may be written only once")
    dtype = np.int64 if backend.host else np.int32
    return backend.asarray(slots.astype(dtype), backend.device(cache))
