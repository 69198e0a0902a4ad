"""Two references: the rotation in float64, and the float32 formula in common use.

They share no code with rope_xp. A float64 angle is off by at most ``position * frequency *
2**-52``: 2.3e-9 at position 10**7 and frequency 1, where rounding a cosine to float32 costs up to
3e-8. At 2**31 it is off by 4.8e-7, and mpmath has to take the place of this reference.
"""

import importlib
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._bench.targets import Target
from rope_xp._core.typing import Array, Layout, Namespace

_EVEN_ODD = (slice(0, None, 2), slice(1, None, 2))


def turns(positions: ArrayLike, frequencies: ArrayLike) -> NDArray[np.complex128]:
    """Return cos a + i sin a of the angles a = position * frequency, (*positions.shape, r/2).

    Positions are in tokens, frequencies (r/2,) in radians per token.
    """
    angles = np.multiply.outer(
        np.asarray(positions, dtype=np.float64), np.asarray(frequencies, dtype=np.float64)
    )
    return np.cos(angles) + 1j * np.sin(angles)


def rotate_exact(
    x: ArrayLike, positions: ArrayLike, frequencies: ArrayLike, layout: Layout
) -> NDArray[np.float64]:
    """Rotate in float64: a pair is a complex number, and turning it is one product.

    Shapes are those of :func:`turns`; x is (batch, tokens, heads, head_dim). Components after the
    first r pass through.
    """
    x = np.asarray(x, dtype=np.float64)
    unit = turns(positions, frequencies)
    pairs = unit.shape[-1]
    halves = (slice(0, pairs), slice(pairs, 2 * pairs))
    read = halves if layout == "half" else _EVEN_ODD
    write = _EVEN_ODD if layout == "interleaved" else halves
    y = x.copy()
    source, target = x[..., : 2 * pairs], y[..., : 2 * pairs]
    rotated = (source[..., read[0]] + 1j * source[..., read[1]]) * unit[..., None, :]
    target[..., write[0]], target[..., write[1]] = rotated.real, rotated.imag
    return y


def usual_cos_sin(xp: Namespace, positions: Array, dim: int, base: float) -> tuple[Array, Array]:
    """Return cos and sin as model libraries compute them: float32 position times frequency."""
    # Both are (*positions.shape, dim), each angle twice, once for either half.
    device = getattr(positions, "device", None)  # None for a tracer of jax
    exponents = xp.arange(0, dim, 2, dtype=xp.float32, device=device) / dim
    inverse_frequencies = 1.0 / base**exponents
    angles = xp.astype(positions, xp.float32)[..., None] * inverse_frequencies
    angles = xp.concat([angles, angles], axis=-1)
    return xp.cos(angles), xp.sin(angles)


def usual_apply_tables(xp: Namespace, x: Array, cos: Array, sin: Array) -> Array:
    """Rotate x by what :func:`usual_cos_sin` returned, in the dtype of x."""
    cos = xp.astype(cos, x.dtype)[..., None, :]
    sin = xp.astype(sin, x.dtype)[..., None, :]
    middle = x.shape[-1] // 2
    partner = xp.concat([-x[..., middle:], x[..., :middle]], axis=-1)
    return x * cos + partner * sin


def usual_formula(target: Target, base: float) -> Callable[..., tuple[Array, ...]]:
    """Return that formula, from (q, k, positions) to rotated q and k; in jax it is jitted."""
    xp = target.backend.xp

    def rotate(q: Array, k: Array, positions: Array) -> tuple[Array, ...]:
        cos, sin = usual_cos_sin(xp, positions, q.shape[-1], base)
        return tuple(usual_apply_tables(xp, x, cos, sin) for x in (q, k))

    return importlib.import_module("jax").jit(rotate) if target.library == "jax" else rotate
