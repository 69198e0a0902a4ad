"""QKNorm: RMSNorm of queries and keys before their rotation."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.pytrees import PYTREE_CLASSES, registrars

MIN_EPS = 2.0**-126
"""The smallest normal number of float32. Below it the factor of a row of zeros is infinite."""


@dataclass(frozen=True, eq=False)
class QKNorm:
    """RMSNorm of each head before its rotation: ``x / sqrt(mean(x**2) + eps) * (weight + offset)``.

    Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv 1910.07467, eq. 4), computed
    in float32, for float64 in float64, and rounded once, after the rotation. In jax it is a pytree.

    Parameters
    ----------
    q_weight, k_weight : array, (head_dim,) or (heads, head_dim), optional
        Of the library and device of q and k. A last axis of ``rotary_dim`` normalizes the rotated
        slice alone, in both arrays. None: no weight.
    eps : float, default 1e-6
        Added to the mean of squares. At least 2**-126.
    offset : float, default 0.0
        Added to weights, not negative: 1.0 for Gemma.
    round_between : bool, default False
        Whether to round to the dtype of q and k before the rotation too, as Hugging Face's modules
        do. That takes two passes over memory.

    Raises
    ------
    RopeError, TypeError
        If a number is out of range or of the wrong type.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> q, k = np.ones((1, 5, 8, 64), np.float32), np.ones((1, 5, 2, 64), np.float32)
    >>> norm = rope_xp.QKNorm(np.ones(64, np.float32), np.full(64, 2.0, np.float32))
    >>> q_rotated, k_rotated = rope_xp.apply(q, k, layout="half", norm=norm)
    """

    q_weight: Any = None
    k_weight: Any = None
    eps: float = 1e-6
    offset: float = 0.0
    round_between: bool = False

    def __post_init__(self) -> None:
        if numbers.check_positive("eps", self.eps) < MIN_EPS:
            raise RopeError(f"eps must be at least 2**-126, as float32 has no less; got {self.eps}")
        numbers.check_not_negative("offset", self.offset)
        if not isinstance(self.round_between, bool):
            raise TypeError(f"round_between must be True or False; got {self.round_between!r}")
        for register in registrars:  # before a transform of jax takes the norm apart
            register(self.q_weight)


def describe_norm(norm: QKNorm, count: int) -> tuple[Hashable, tuple[Any, ...]]:
    """Return the part of a norm that identifies a call of ``count`` arrays, and given weights."""
    q_weight, k_weight = norm.q_weight, norm.k_weight if count == 2 else None
    given: tuple[Any, ...] = (q_weight, k_weight)
    if q_weight is None or k_weight is None:
        given = tuple([weight for weight in given if weight is not None])
    return (norm.eps, norm.offset, norm.round_between, q_weight is None, len(given)), given


def read_norm(norm: Any) -> Any:
    """Return a norm (weight, eps) of one array as a QKNorm."""
    if type(norm) is tuple and len(norm) == 2:
        return QKNorm(norm[0], eps=norm[1])
    return norm


PYTREE_CLASSES.append((QKNorm, ("q_weight", "k_weight"), ("eps", "offset", "round_between")))
