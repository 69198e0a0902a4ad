"""The rotation as XLA compiles it best for GPUs: the same numbers as rope_xp._rotate.

There XLA reads a stack of pairs by one element at a time. Where each result selects the two that
it comes from, XLA reads and writes several at once: on an H200 some 18 instead of 27 instructions
an element of bfloat16, in accesses of 8 instead of 2 bytes (tests/test_jax_gpu.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rope_xp._rotate import PAIR_AXIS
from rope_xp._typing import Layout


def rotate(
    _xp: Any,
    x: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    layout: Layout,
    offset: int,
    inverse: bool,
) -> jax.Array:
    """Return x rotated, given what rope_xp._rotate.rotate is given."""
    pairs = cos.shape[-1]
    rotary_dim = 2 * pairs
    read, write = PAIR_AXIS[layout]
    if inverse:
        read, write = write, read
        sin = -sin
    # A split has a concatenation for its derivative, where slices would have sums.
    sizes = (offset, rotary_dim, x.shape[-1] - offset - rotary_dim)
    before, y, after = lax.split(x, sizes, axis=x.ndim - 1)
    y = y.reshape(*x.shape[:-1], *((pairs, 2) if read == -1 else (2, pairs)))
    y = _turned(y, cos, sin, read, write).reshape(*x.shape[:-1], rotary_dim)
    return y if rotary_dim == x.shape[-1] else jnp.concatenate([before, y, after], -1)


@partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _turned(y: jax.Array, cos: jax.Array, sin: jax.Array, read: int, write: int) -> jax.Array:
    """Return pairs rotated. They are read along one of the last two axes, written along one."""
    x1, x2 = lax.split(y, (1, 1), axis=y.ndim + read)
    if read != write:
        x1, x2 = jnp.swapaxes(x1, -1, -2), jnp.swapaxes(x2, -1, -2)
    shape = y.shape if read == write else (*y.shape[:-2], y.shape[-1], y.shape[-2])
    first = _first(shape, write)
    # Selected before they are widened, or XLA reads them one by one.
    own, other = jnp.where(first, x1, x2), jnp.where(first, x2, x1)
    return _sum(own, other, cos, sin, write)


@_turned.defjvp
def _turned_jvp(
    read: int, write: int, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Differentiate a mirror image, whose transpose is one; a selection has sums for its own."""
    turned = partial(_mirrored, read=read, write=write)
    return _turned(*primals, read, write), jax.jvp(turned, primals, tangents)[1]


def _mirrored(y: jax.Array, cos: jax.Array, sin: jax.Array, read: int, write: int) -> jax.Array:
    y = _sum(y, lax.rev(y, (y.ndim + read,)), cos, sin, read)
    return y if read == write else jnp.swapaxes(y, -1, -2)


def _sum(own: jax.Array, other: jax.Array, cos: jax.Array, sin: jax.Array, axis: int) -> jax.Array:
    """Return own * cos -+ other * sin: minus for the first along the axis of pairs."""
    cos, sin = jnp.expand_dims(cos, axis), jnp.expand_dims(sin, axis)
    signed = jnp.where(_first(own.shape, axis), -sin, sin)
    return (own.astype(cos.dtype) * cos + other.astype(cos.dtype) * signed).astype(own.dtype)


def _first(shape: tuple[int, ...], axis: int) -> jax.Array:
    first = np.array([True, False])
    return jnp.broadcast_to(first if axis == -1 else first[:, None], shape)
