"""Unscaled frequencies, in numpy float64."""

import decimal
from itertools import accumulate, repeat
from operator import mul

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.caches import cached


def inverse_frequencies(base: float, rotary_dim: int) -> NDArray[np.float64]:
    """Return the unscaled frequencies, ``base ** (-2 i / rotary_dim)``.

    RoFormer, arXiv 2104.09864, eq. 15. RopeError if base is not positive and finite, or rotary_dim
    not positive and even.

    Parameters
    ----------
    base : float
        The base of the geometric series, often called theta.
    rotary_dim : int
        Number of rotated components, r.

    Returns
    -------
    numpy.ndarray
        Shape (r/2,), float64, radians per token, each the float64 nearest to the formula's value.

    Examples
    --------
    >>> from rope_xp.scaling import inverse_frequencies
    >>> inverse_frequencies(10000.0, 8).tolist()
    [1.0, 0.1, 0.01, 0.001]
    """
    numbers.check_positive("base", base)
    numbers.check_even("rotary_dim", rotary_dim)
    return np.array(_powers(float(base), rotary_dim)[0])


def remainders(base: float, rotary_dim: int) -> NDArray[np.float64]:
    """Return the rounding errors of :func:`inverse_frequencies`, 1.2e-7 at position 2**31."""
    return np.array(_powers(float(base), rotary_dim)[1])


@cached(64)
def _powers(base: float, rotary_dim: int) -> tuple[list[float], list[float]]:
    # A float64 power is off by up to five units where 2i/r is no binary fraction, and its last bit
    # differs between processors. Position 2**31 multiplies that error; with 50 digits none is left.
    with decimal.localcontext(decimal.Context(prec=50)):
        ratio = decimal.Decimal(base) ** (decimal.Decimal(-2) / rotary_dim)
        one = decimal.Decimal(1)
        exact = list(accumulate(repeat(ratio, rotary_dim // 2 - 1), mul, initial=one))
        nearest = [float(f) for f in exact]
        return nearest, [float(f - decimal.Decimal(n)) for f, n in zip(exact, nearest, strict=True)]
