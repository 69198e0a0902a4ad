"""Rules that change the frequencies of a rotary embedding, in numpy float64.

A rule is any hashable object with the members of :class:`Scaling`, given as ``RoPE(scaling=...)``.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rope_xp import _validate

__all__ = ["Linear", "Scaling", "inverse_frequencies"]


@runtime_checkable
class Scaling(Protocol):
    """What a scaling rule must answer. Rules are frozen dataclasses, so that they are hashable."""

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the scaled frequencies in radians per token, shape (rotary_dim / 2,)."""
        ...

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by; 1.0 for most rules."""
        ...

    @property
    def softmax_scale(self) -> float:
        """What the caller's softmax scale is to be multiplied by; 1.0 for most rules."""
        ...

    def for_length(self, n: int) -> Scaling:
        """Return the rule fixed for a context of n tokens; itself where length does not matter."""
        ...


def inverse_frequencies(base: float, rotary_dim: int) -> NDArray[np.float64]:
    """Return the unscaled frequencies, ``base ** (-2 i / rotary_dim)``.

    Parameters
    ----------
    base : float
        The base of the geometric series, often called theta. Positive.
    rotary_dim : int
        Even number of rotated components, r.

    Returns
    -------
    numpy.ndarray
        Shape (r/2,), float64, radians per token; each entry is the float64 nearest to the
        formula's value.

    Notes
    -----
    RoFormer, arXiv 2104.09864, eq. 15.

    Examples
    --------
    >>> from rope_xp.scaling import inverse_frequencies
    >>> inverse_frequencies(10000.0, 8).tolist()
    [1.0, 0.1, 0.01, 0.001]
    """
    return np.array(_powers(float(base), rotary_dim)[0])


def remainders(base: float, rotary_dim: int) -> NDArray[np.float64]:
    """Return what :func:`inverse_frequencies` rounded away; position 2**31 makes 1.2e-7 of it."""
    return np.array(_powers(float(base), rotary_dim)[1])


@lru_cache(maxsize=64)
def _powers(base: float, rotary_dim: int) -> tuple[list[float], list[float]]:
    # A float64 power loses up to five units where 2i/r is no binary fraction, and its last bit
    # differs between processors. Position 2**31 multiplies that error; forty digits leave none.
    with decimal.localcontext(decimal.Context(prec=40)):  # whatever the caller has set
        exact = [
            decimal.Decimal(base) ** (decimal.Decimal(-2 * i) / rotary_dim)
            for i in range(rotary_dim // 2)
        ]
        nearest = [float(f) for f in exact]
        return nearest, [float(f - decimal.Decimal(n)) for f, n in zip(exact, nearest, strict=True)]


@dataclass(frozen=True)
class Linear:
    """Position interpolation: every frequency divided by ``factor``.

    Parameters
    ----------
    factor : float
        How many times longer the context is than the trained one. Positive.

    Raises
    ------
    RopeError
        If factor is not a positive finite number.

    Notes
    -----
    Chen et al., "Extending Context Window of Large Language Models via Positional
    Interpolation", arXiv 2306.15595, eq. 4: f'(x, m) = f(x, m / factor).

    Examples
    --------
    >>> import rope_xp
    >>> rope = rope_xp.RoPE(scaling=rope_xp.scaling.Linear(factor=4.0))
    >>> rope.frequencies(8).tolist()
    [0.25, 0.025, 0.0025, 0.00025]
    """

    factor: float

    def __post_init__(self) -> None:
        _validate.check_positive("Linear.factor", self.factor)

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return ``base ** (-2 i / rotary_dim) / factor``."""
        return inverse_frequencies(base, rotary_dim) / self.factor

    @property
    def attention_factor(self) -> float:
        """Always 1.0, as the rule leaves the length of q and k alone."""
        return 1.0

    @property
    def softmax_scale(self) -> float:
        """Always 1.0, as the rule asks for no correction of the softmax."""
        return 1.0

    def for_length(self, n: int) -> Linear:
        """Return the rule itself, which does not depend on length."""
        return self
