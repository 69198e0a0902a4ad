"""Simulate angles with a rounded step, to find which rounding explains their errors."""

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


def _round_bits(x: Floats, bits: int, nearest: Round = np.rint) -> Floats:
    """Return x rounded to so many bits after the leading one, by default half to even."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(nearest(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))


def _cast(x: Floats, dtype: type[np.floating]) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype).astype(np.float64)


NARROW: dict[str, Round] = {
    "bfloat16": partial(_round_bits, bits=7),
    "float16": partial(_cast, dtype=np.float16),
    "TF32": partial(_round_bits, bits=10),
}
# Tensor cores get numbers rounded half away from zero, truncated, or rounded half to even.
_TF32 = [
    partial(_round_bits, bits=10, nearest=nearest)
    for nearest in (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), np.trunc, np.rint)
]
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
    (sentence.format(name), to, steps)
    for name, roundings, rows in (
        ("bfloat16", [NARROW["bfloat16"]], _STEPS),
        ("float16", [NARROW["float16"]], _STEPS),
        ("TF32", _TF32, _STEPS_OF_PRODUCTS),
    )
    for to in roundings
    for sentence, steps in rows.items()
]


def find_cause(
    turns: Complex, positions: Floats, frequencies: Floats, factor: float, beyond: NDArray[np.bool_]
) -> str | None:
    """Return which rounding explains the errors of cos + i sin, in words, None if none does.

    ``turns``, (tokens, pairs), include ``factor``; ``beyond`` marks those with larger errors than
    float32 explains.
    """
    exact = np.abs(np.multiply.outer(positions, frequencies))
    # Larger angles in float32 are too uncertain to show how they were rounded.
    certain = exact < _CERTAIN
    certain = certain if (certain & beyond).any() else np.ones_like(certain)
    bound = factor * (2e-6 + 4 * PRODUCT * exact)
    best, most = None, _MOST
    with np.errstate(invalid="ignore"):  # positions beyond float16 are infinite
        for cause, to, steps in _CAUSES:
            p, w = _cast(positions[:, None], np.float32), _cast(frequencies, np.float32)
            angles = (to(p) if "p" in steps else p) * (to(w) if "w" in steps else w)
            angles = to(angles) if "a" in steps else _cast(angles, np.float32)
            parts = factor * np.stack([np.cos(angles), np.sin(angles)])
            cos, sin = to(parts) if "t" in steps else parts
            off = np.abs(cos + 1j * sin - turns)
            right = (off <= bound) | ~(np.isfinite(cos) | np.isfinite(turns))
            share = float(right[certain].mean())
            if share > most and right[certain & beyond].mean() > _MOST:
                best, most = cause, share
    return best
