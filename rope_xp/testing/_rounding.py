"""Angles as they come out where a step to them is rounded, simulated in numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rope_xp.testing._box import Complex, Floats

Round = Callable[[Floats], Floats]

# A float32 product of float32 frequencies: half a unit each, and a few of the power before it.
PRODUCT = 1e-6
_CERTAIN = 1000.0
# A few fall on the other side of a tie.
_MOST = 0.9


def rounded(x: Floats, bits: int, nearest: Callable[[Floats], Floats] = np.rint) -> Floats:
    """Return x rounded, by default to nearest, with so many bits after the leading one.

    Examples
    --------
    >>> rounded(np.array([257.0, 1.0]), 7).tolist()
    [256.0, 1.0]
    """
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(nearest(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))


def _half_away(x: Floats) -> Floats:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _cast(x: Floats, dtype: type[np.floating]) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype).astype(np.float64)


_float32: Round = partial(_cast, dtype=np.float32)
NARROW: dict[str, Round] = {
    "bfloat16": partial(rounded, bits=7),
    "float16": partial(_cast, dtype=np.float16),
    "TF32": partial(rounded, bits=10),
}
# Tensor cores are given numbers rounded half away from zero, or cut, or rounded half to even.
_TF32: tuple[Round, ...] = (
    partial(rounded, bits=10, nearest=_half_away),
    partial(rounded, bits=10, nearest=np.trunc),
    NARROW["TF32"],
)
# What is rounded: p positions, w frequencies, a their product, t cos and sin. Simplest first.
_STEPS = {
    "cos and sin are rounded to {}": "t",
    "frequencies are rounded to {}": "w",
    "positions are rounded to {}": "p",
    "angles are rounded to {}": "a",
    "angles are computed in {}": "pwa",
    "angles are computed in {}, and cos and sin rounded to it": "pwat",
    "positions and frequencies are rounded to {}": "pw",
    "positions, frequencies, cos and sin are rounded to {}": "pwt",
    "frequencies, cos and sin are rounded to {}": "wt",
}
_STEPS_OF_PRODUCTS = {
    "angles are computed in {}": "pw",
    "positions are rounded to {}": "p",
    "frequencies are rounded to {}": "w",
}
# Powers of two and small integers are exact in all of these formats, so each has positions of its
# own where it shows.
_WAYS = [
    (words.format(name), to, steps)
    for name, to, rows in (
        ("bfloat16", NARROW["bfloat16"], _STEPS),
        ("float16", NARROW["float16"], _STEPS),
        *(("TF32", to, _STEPS_OF_PRODUCTS) for to in _TF32),
    )
    for words, steps in rows.items()
]


def _simulate(
    positions: Floats, frequencies: Floats, factor: float, to: Round, steps: str
) -> Complex:
    """Return cos + i sin, (tokens, pairs), with these steps rounded and the others in float32."""
    p, w = _float32(positions)[:, None], _float32(frequencies)[None, :]
    p, w = to(p) if "p" in steps else p, to(w) if "w" in steps else w
    angles = to(p * w) if "a" in steps else _float32(p * w)
    cos, sin = factor * np.cos(angles), factor * np.sin(angles)
    if "t" in steps:
        cos, sin = to(cos), to(sin)
    return np.asarray(cos + 1j * sin)


def cause(
    turns: Complex, positions: Floats, frequencies: Floats, factor: float, beyond: NDArray[np.bool_]
) -> str | None:
    """Return which rounding explains cos + i sin that are off, in words, None if none does.

    ``turns``, (tokens, pairs), have ``factor`` in them; ``beyond`` says which of them are off by
    more than float32 explains.
    """
    angles = np.abs(np.multiply.outer(positions, frequencies))
    # Farther out an angle in float32 is too uncertain to tell how it was rounded.
    certain = angles < _CERTAIN
    certain = certain if (certain & beyond).any() else np.ones_like(certain)
    bound = factor * (2e-6 + 4 * PRODUCT * angles)
    best, most = None, _MOST
    with np.errstate(invalid="ignore"):  # positions beyond float16 are infinite
        for words, to, steps in _WAYS:
            simulated = _simulate(positions, frequencies, factor, to, steps)
            right = np.abs(simulated - turns) <= bound
            right |= ~np.isfinite(simulated) & ~np.isfinite(turns)
            share = float(right[certain].mean())
            if share > most and right[certain & beyond].mean() > _MOST:
                best, most = words, share
    return best
