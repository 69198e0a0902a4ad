"""Paths of jax: the portable path under ``jax.jit``, which inlines it inside another jit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rope_xp._core.call import (
    Call,
    CosSin,
    RotationSpec,
    TableLookup,
    get_interleaved,
)
from rope_xp._core.path import Path
from rope_xp._core.pytrees import PYTREE_CLASSES
from rope_xp._core.tables import DigitTables
from rope_xp._rotation import portable

# A call is a pytree: arrays are traced, the rest is static and part of jit's cache key. Table keys
# are dropped, so that ropes that differ in numbers alone share compiled functions.
_LOOKUP = ["device", "tokens", "position_range", "components"]
_DROPPED: Any = ["table_key", ("table_key",)]  # jax < 0.10 takes each item for a set of names
for kind, arrays, plain, dropped in (
    (Call, ["arrays", "angles", "out", "weights", "slots"], ["backend", "spec"], []),
    (TableLookup, ["tables", "whole", "part"], _LOOKUP, _DROPPED),
    (DigitTables, [*DigitTables.__match_args__], [], ["handle", ("handle",)]),
    (CosSin, ["cos", "sin"], [], []),
    *((kind, [*arrays], [*plain], []) for kind, arrays, plain in PYTREE_CLASSES),
):
    jax.tree_util.register_dataclass(kind, arrays, plain, dropped)


class Jit(Path):
    """The portable path, compiled."""

    name = "jit"
    normalizes = True

    def __init__(self, **options: Any) -> None:
        self._run: Callable[..., tuple[Any, ...]] = jax.jit(partial(portable.run, **options))

    def run(self, call: Call) -> tuple[Any, ...]:
        return self._run(call)


class JitGpu(Jit):
    """The same with rotate_for_gpu."""

    name = "jit-gpu"

    def __init__(self) -> None:
        super().__init__(rotate=rotate_for_gpu)

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline other devices. That of a trace is a guess, as numbers are the same."""
        device = call.backend.device(call.arrays[0])
        platform = jax.default_backend() if device is None else device.platform
        if forced or platform == "gpu":
            return None
        return f"it is written for GPUs; these arrays are on the {platform.upper()}"


def rotate_for_gpu(
    _xp: Any, x: jax.Array, cos: jax.Array, sin: jax.Array, spec: RotationSpec
) -> jax.Array:
    """Return the numbers of rope_xp._rotation.portable.rotate, as XLA compiles them best for GPUs.

    XLA reads a stack of pairs one element at a time, and several at once where each result selects
    its two inputs: on an H200 some 20 instead of 27 instructions an element of bfloat16, in
    accesses of 8 instead of 2 bytes (tests/backends/jax/test_gpu.py).
    """
    pairs, offset = cos.shape[-1], spec.rotary_offset
    rotary_dim = 2 * pairs
    read, write = (-1 if interleaved else -2 for interleaved in get_interleaved(spec))
    if spec.inverse:
        sin = -sin
    # The derivative of a split is a concatenation, that of slices a sum.
    sizes = (offset, rotary_dim, x.shape[-1] - offset - rotary_dim)
    before, y, after = lax.split(x, sizes, axis=x.ndim - 1)
    y = y.reshape(*x.shape[:-1], *((pairs, 2) if read == -1 else (2, pairs)))
    y, quarter = _with_quarter_turn(y, cos.dtype, read, write)
    y = y * jnp.expand_dims(cos, write) + quarter * jnp.expand_dims(sin, write)
    y = y.astype(x.dtype).reshape(*x.shape[:-1], rotary_dim)
    return y if rotary_dim == x.shape[-1] else jnp.concatenate([before, y, after], -1)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def _with_quarter_turn(
    y: jax.Array, dtype: Any, read: int, write: int
) -> tuple[jax.Array, jax.Array]:
    """Return pairs (x1, x2) and (-x2, x1), widened to dtype.

    ``read`` and ``write`` are axes of pairs. Signs in sin would differ within a pair, and take
    memory for the derivative, or a kernel.
    """
    x1, x2 = lax.split(y, (1, 1), axis=y.ndim + read)
    if read != write:
        x1, x2 = jnp.swapaxes(x1, -1, -2), jnp.swapaxes(x2, -1, -2)
    first = _sign(y.ndim, write, dtype) < 0
    # Select before the cast, or XLA reads them one by one.
    same, other = (jnp.where(first, a, b).astype(dtype) for a, b in ((x1, x2), (x2, x1)))
    return same, jnp.where(first, -other, other)


@_with_quarter_turn.defjvp
def _differentiate(
    dtype: Any, read: int, write: int, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Differentiate as a mirror image, whose transpose is one; that of a selection is a sum.

    The cast comes first, so that a gradient is summed before it is rounded. The sign is a factor,
    as a selection would save a bool for each number.
    """
    same = tangents[0].astype(dtype)
    quarter = lax.rev(same, (same.ndim + read,)) * _sign(same.ndim, read, dtype)
    if read != write:
        same, quarter = jnp.swapaxes(same, -1, -2), jnp.swapaxes(quarter, -1, -2)
    return _with_quarter_turn(*primals, dtype, read, write), (same, quarter)


def _sign(ndim: int, axis: int, dtype: Any) -> np.ndarray:
    """Return -1 and 1 along an axis, of length 1 along all others."""
    return np.expand_dims(np.array([-1, 1], dtype), [a for a in range(-ndim, 0) if a != axis])
