"""Simulate angles with a rounded step, to find which rounding explains their errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rope_xp.testing._box import Complex, Floats

Round = Callable[[Floats], Floats]

PRODUCT = 1e-6
"""Error of float32 angles, relative: half a unit of each factor, and a few of the power."""
_CERTAIN = 1000.0
_MOST = 0.9  # not all: a few values fall on the other side of a tie


def round_bits(x: Floats, bits: int, nearest: Callable[[Floats], Floats] = np.rint) -> Floats:
    """Return x rounded to so many bits after the leading one, by default to nearest.

    Examples
    --------
    >>> round_bits(np.array([257.0, 1.0]), 7).tolist()
    [256.0, 1.0]
    """
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(nearest(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))


def _round_half_away(x: Floats) -> Floats:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _cast(x: Floats, dtype: type[np.floating]) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype).astype(np.float64)


_float32: Round = partial(_cast, dtype=np.float32)
NARROW: dict[str, Round] = {
    "bfloat16": partial(round_bits, bits=7),
    "float16": partial(_cast, dtype=np.float16),
    "TF32": partial(round_bits, bits=10),
}
# Tensor cores get numbers rounded half away from zero, truncated, or rounded half to even.
_TF32 = (
    partial(round_bits, bits=10, nearest=_round_half_away),
    partial(round_bits, bits=10, nearest=np.trunc),
    NARROW["TF32"],
)
# The rounded steps: p positions, w frequencies, a their product, t cos and sin. Simplest first.
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
_CAUSES: list[tuple[str, Round, str]] = [
    (words.format(name), to, steps)
    for name, to, rows in (
        *((name, NARROW[name], _STEPS) for name in ("bfloat16", "float16")),
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


def find_cause(
    turns: Complex, positions: Floats, frequencies: Floats, factor: float, beyond: NDArray[np.bool_]
) -> str | None:
    """Return which rounding explains the errors of cos + i sin, in words, None if none does.

    ``turns``, (tokens, pairs), include ``factor``; ``beyond`` marks those with larger errors than
    float32 explains.
    """
    angles = np.abs(np.multiply.outer(positions, frequencies))
    # Larger angles in float32 are too uncertain to show how they were rounded.
    certain = angles < _CERTAIN
    certain = certain if (certain & beyond).any() else np.ones_like(certain)
    bound = factor * (2e-6 + 4 * PRODUCT * angles)
    best, most = None, _MOST
    with np.errstate(invalid="ignore"):  # positions beyond float16 are infinite
        for words, to, steps in _CAUSES:
            simulated = _simulate(positions, frequencies, factor, to, steps)
            right = np.abs(simulated - turns) <= bound
            right |= ~np.isfinite(simulated) & ~np.isfinite(turns)
            share = float(right[certain].mean())
            if share > most and right[certain & beyond].mean() > _MOST:
                best, most = words, share
    return best
