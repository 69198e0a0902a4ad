"""Scalings by one factor or a few. Public in :mod:`rope_xp.scaling`."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.scaling._base import Scaling, no_length


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: divide every frequency by ``factor``.

    Chen et al., "Extending Context Window of Large Language Models via Positional
    Interpolation", arXiv 2306.15595, eq. 4: f'(x, m) = f(x, m / factor).

    Parameters
    ----------
    factor : float
        Length of the new context divided by that of the trained one.

    Examples
    --------
    >>> import rope_xp
    >>> rope = rope_xp.RoPE(scaling=rope_xp.scaling.Linear(factor=4.0))
    >>> rope.frequencies(8).tolist()
    [0.25, 0.025, 0.0025, 0.00025]
    """

    factor: float

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "factor")

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return ``base ** (-2 i / rotary_dim) / factor``."""
        return inverse_frequencies(base, rotary_dim) / self.factor


@dataclass(frozen=True)
class NTK(Scaling):
    """A larger base: the slowest pair turns ``factor`` times slower, the fastest is unchanged.

    "NTK-aware" interpolation: the base becomes ``base * factor ** (r / (r - 2))``. Peng et al.,
    YaRN, arXiv 2309.00071, eq. 16 and 17.

    Parameters
    ----------
    factor : float
        As for :class:`Linear`; often called alpha. At least two pairs are needed.

    Examples
    --------
    >>> from rope_xp.scaling import NTK, inverse_frequencies
    >>> (NTK(factor=8.0).frequencies(1e4, 8) / inverse_frequencies(1e4, 8)).round(3).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """

    factor: float

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "factor")

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the frequencies for the larger base."""
        return _stretch("NTK", base, self.factor, rotary_dim)


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """NTK with a factor that grows with the context, beyond the trained length.

    With n = max(length, L), the base becomes
    ``base * (factor * n / L - (factor - 1)) ** (r / (r - 2))``. Peng et al., arXiv 2309.00071,
    section 3.3, in the form of transformers' ``dynamic``.

    Parameters
    ----------
    factor : float
        Growth rate of the base.
    max_position_embeddings : int
        Tokens of the trained context, L.
    length : int, optional
        Tokens of the current context, fixed by :meth:`for_length`. All keys of one attention must
        be rotated for the same length; for cached keys see :meth:`rope_xp.RoPE.rerotate`.

    Examples
    --------
    >>> from rope_xp.scaling import DynamicNTK, inverse_frequencies
    >>> scaling = DynamicNTK(factor=2.0, max_position_embeddings=4096).for_length(8192)
    >>> (scaling.frequencies(1e4, 8) / inverse_frequencies(1e4, 8)).round(3).tolist()
    [1.0, 0.693, 0.481, 0.333]
    """

    factor: float
    max_position_embeddings: int
    length: int | None = None

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "factor")
        self._check(numbers.check_positive_int, "max_position_embeddings", "length")

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the frequencies of the base for this length."""
        if self.length is None:
            raise no_length(self)
        trained = self.max_position_embeddings
        factor = float(self.factor) * max(self.length, trained) / trained - (self.factor - 1)
        return _stretch("DynamicNTK", base, factor, rotary_dim)

    def for_length(self, n: int) -> "DynamicNTK":
        """Return the scaling fixed for a context of n tokens."""
        return replace(self, length=n)


def _stretch(name: str, base: float, factor: float, rotary_dim: int) -> NDArray[np.float64]:
    if rotary_dim < 4:
        raise RopeError(f"{name} needs two pairs or more; got {rotary_dim} rotated components")
    try:
        stretched = float(base * factor ** (rotary_dim / (rotary_dim - 2)))
    except OverflowError:
        stretched = math.inf
    numbers.check_positive(f"the base that {name} computes from base = {base!r}", stretched)
    return inverse_frequencies(stretched, rotary_dim)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Divide slow pairs by ``factor`` and keep fast ones, with a ramp between: Llama 3.1 and later.

    With t_i = (L w_i / (2 pi) - low_freq_factor) / (high_freq_factor - low_freq_factor), clipped to
    [0, 1]: ``(1 - t_i) * w_i / factor + t_i * w_i``. From Meta's code for Llama 3.1; Dubey et al.,
    "The Llama 3 Herd of Models", arXiv 2407.21783, describe the model.

    Parameters
    ----------
    factor : float
        Divisor of the slow pairs.
    low_freq_factor, high_freq_factor : float
        Pairs that turn fewer than ``low_freq_factor`` times within L are slow. Pairs that turn more
        than ``high_freq_factor`` times are fast. The second must not be below the first; equal
        factors give a step, as in Llama 4 Scout.
    original_max_position_embeddings : int
        Tokens of the trained context, L.

    Examples
    --------
    >>> from rope_xp.scaling import Llama3, inverse_frequencies
    >>> frequencies = Llama3(8.0, 1.0, 4.0, 8192).frequencies(500000.0, 8)
    >>> (frequencies / inverse_frequencies(500000.0, 8)).round(3).tolist()
    [1.0, 1.0, 0.371, 0.125]
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "factor", "low_freq_factor", "high_freq_factor")
        self._check(numbers.check_positive_int, "original_max_position_embeddings")
        self._check_not_below("high_freq_factor", "low_freq_factor")

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return slow, fast and intermediate frequencies."""
        plain = inverse_frequencies(base, rotary_dim)
        turns = self.original_max_position_embeddings * plain / (2.0 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor
        above = turns - self.low_freq_factor
        ramp = np.clip(above / width, 0.0, 1.0) if width else np.asarray(above >= 0.0, np.float64)
        return (1.0 - ramp) * plain / self.factor + ramp * plain


@dataclass(frozen=True)
class Proportional(Scaling):
    """Only the fastest-rotating pairs rotate; the others have frequency 0: Gemma 4.

    ``w_i / factor`` for i < floor(partial_rotary_factor * r / 2), else 0; transformers'
    ``proportional``. A smaller ``rotary_dim`` would change the frequencies.

    Parameters
    ----------
    partial_rotary_factor : float, default 1.0
        Share of pairs that rotate, at most 1.
    factor : float, default 1.0
        Divisor of all frequencies.

    Examples
    --------
    >>> from rope_xp.scaling import Proportional
    >>> Proportional(partial_rotary_factor=0.5).frequencies(1e4, 8).tolist()
    [1.0, 0.1, 0.0, 0.0]
    """

    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "factor")
        self._check(numbers.check_share, "partial_rotary_factor")

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the frequencies of the pairs that turn, then zeros."""
        scaled = inverse_frequencies(base, rotary_dim) / self.factor
        scaled[int(self.partial_rotary_factor * rotary_dim // 2) :] = 0.0
        return scaled
