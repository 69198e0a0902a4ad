"""Angles as they come out where a step to them is rounded, simulated in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rope_xp.testing._box import Floats

Round = Callable[[Floats], Floats]

# A float32 product of float32 frequencies: half a unit each, and a few of the power before it.
PRODUCT = 1e-6
_TOLD = 1000.0
# A few fall on the other side of a tie.
_MOST = 0.9


def rounded(x: Floats, bits: int) -> Floats:
    """Return x rounded to nearest, with so many bits after the leading one.

    Examples
    --------
    >>> rounded(np.array([257.0, 1.0]), 7).tolist()
    [256.0, 1.0]
    """
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))


def _cut(x: Floats, bits: int) -> Floats:
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))


def _away(x: Floats, bits: int) -> Floats:
    mantissa, exponent = np.frexp(x)
    halved = np.floor(np.ldexp(np.abs(mantissa), bits + 1) + 0.5)
    return np.asarray(np.ldexp(np.copysign(halved, x), exponent - bits - 1))


def _float16(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float64)


def _float32(x: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32).astype(np.float64)


NARROW: dict[str, Round] = {
    "bfloat16": partial(rounded, bits=7),
    "float16": _float16,
    "TF32": partial(rounded, bits=10),
}
# Tensor cores are given numbers rounded half away from zero, or cut, or rounded half to even.
_TF32: tuple[Round, ...] = (partial(_away, bits=10), partial(_cut, bits=10), NARROW["TF32"])


def ways(
    positions: Floats, frequencies: Floats, factor: float
) -> Iterator[tuple[str, NDArray[np.complex128]]]:
    """Yield what is rounded, in words, and cos + i sin as they come out then, (tokens, pairs).

    Simplest first. Powers of two and small integers are exact in all of these formats, so each has
    positions of its own where it shows.
    """
    p, w = _float32(positions)[:, None], _float32(frequencies)[None, :]

    def turns(angles: Floats) -> NDArray[np.complex128]:
        with np.errstate(invalid="ignore"):  # positions beyond float16 are infinite
            return np.asarray(factor * (np.cos(angles) + 1j * np.sin(angles)))

    def tables(angles: Floats, to: Round) -> NDArray[np.complex128]:
        exact = turns(angles)
        with np.errstate(invalid="ignore"):
            return np.asarray(to(exact.real) + 1j * to(exact.imag))

    for name in ("bfloat16", "float16"):
        to = NARROW[name]
        yield f"cos and sin are rounded to {name}", tables(_float32(p * w), to)
        yield f"frequencies are rounded to {name}", turns(_float32(p * to(w)))
        yield f"positions are rounded to {name}", turns(_float32(to(p) * w))
        yield f"angles are rounded to {name}", turns(to(_float32(p * w)))
        inside = to(to(p) * to(w))
        yield f"angles are computed in {name}", turns(inside)
        yield f"angles are computed in {name}, and cos and sin rounded to it", tables(inside, to)
        outside = _float32(to(p) * to(w))
        yield f"positions and frequencies are rounded to {name}", turns(outside)
        yield f"positions, frequencies, cos and sin are rounded to {name}", tables(outside, to)
        yield f"frequencies, cos and sin are rounded to {name}", tables(_float32(p * to(w)), to)
    for to in _TF32:
        yield "angles are computed in TF32", turns(_float32(to(p) * to(w)))
        yield "positions are rounded to TF32", turns(_float32(to(p) * w))
        yield "frequencies are rounded to TF32", turns(_float32(p * to(w)))


def cause(
    turns: Floats, positions: Floats, frequencies: Floats, factor: float, beyond: NDArray[np.bool_]
) -> str | None:
    """Return which rounding explains cos + i sin that are off, in words, None if none does.

    ``beyond`` says which of ``turns``, (tokens, pairs), are off by more than float32 explains.
    """
    reach = np.abs(np.multiply.outer(positions, frequencies))
    # Farther out an angle in float32 is too uncertain to tell what it is rounded to.
    told = reach < _TOLD
    told = told if (told & beyond).any() else np.ones_like(told)
    bound = factor * (2e-6 + 4 * PRODUCT * reach)
    best, most = None, _MOST
    for what, simulated in ways(positions, frequencies, factor):
        with np.errstate(invalid="ignore"):
            right = np.abs(simulated - turns) <= bound
        right |= ~np.isfinite(simulated) & ~np.isfinite(turns)
        share = float(right[told].mean())
        if share > most and right[told & beyond].mean() > _MOST:
            best, most = what, share
    return best
