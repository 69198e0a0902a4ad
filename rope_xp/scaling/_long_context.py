"""YaRN and LongRoPE, which also scale cos and sin. Public in :mod:`rope_xp.scaling`."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.scaling._base import Scaling, no_length


@dataclass(frozen=True)
class YaRN(Scaling):
    """Divide slow pairs by ``factor`` and keep fast ones, with a ramp over the pairs between.

    Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", arXiv
    2309.00071: eq. 17 for the pair that turns b times, c(b) = r ln(L / (2 pi b)) / (2 ln base);
    eq. 18 to 20 for ``w_i (1 - t_i) + w_i / s * t_i``, with a ramp t_i over i from c(beta_fast) to
    c(beta_slow), as in the authors' code; eq. 22 for g. ``softmax_scale`` is g(mscale_all_dim)**2;
    the caller multiplies its own softmax scale by it, as DeepSeek-V2 and V3 do.

    Parameters
    ----------
    factor : float
        Length of the new context divided by that of the trained one, s.
    original_max_position_embeddings : int
        Tokens of the trained context, L.
    beta_fast, beta_slow : float, default 32.0, 1.0
        Pairs with more than ``beta_fast`` turns within L are kept, those with fewer than
        ``beta_slow`` are divided. The first must not be below the second.
    attention_factor : float, optional
        Factor on cos and sin. None: ``g(mscale) / g(mscale_all_dim)`` if both are given and not
        0, else ``g(1)``, where g(m) = 0.1 m ln s + 1, and 1 for s <= 1.
    mscale, mscale_all_dim : float, optional
        0 or more, as in DeepSeek's configurations.
    truncate : bool, default True
        Whether the ends of the ramp are rounded outwards to whole pairs.

    Examples
    --------
    >>> from rope_xp.scaling import YaRN, inverse_frequencies
    >>> yarn = YaRN(factor=4.0, original_max_position_embeddings=4096)
    >>> (yarn.frequencies(1e4, 16) / inverse_frequencies(1e4, 16)).round(3).tolist()
    [1.0, 1.0, 1.0, 0.812, 0.625, 0.438, 0.25, 0.25]
    >>> round(yarn.effective_attention_factor, 4)
    1.1386
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "factor", "beta_fast", "beta_slow", "attention_factor")
        self._check(numbers.check_positive_int, "original_max_position_embeddings")
        self._check(numbers.check_not_negative, "mscale", "mscale_all_dim")
        self._check_not_below("beta_fast", "beta_slow")
        numbers.check_positive("YaRN.softmax_scale", self.softmax_scale)

    def _magnitude(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1.0 else 0.1 * mscale * math.log(self.factor) + 1.0

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return slow, fast and intermediate frequencies."""
        if base == 1:
            raise RopeError("base must not be 1 with YaRN: all pairs would have the same frequency")
        plain, i = inverse_frequencies(base, rotary_dim), np.arange(rotary_dim // 2)

        def pair_index(turns: float) -> float:
            length = self.original_max_position_embeddings / (2.0 * math.pi * turns)
            numbers.check_positive(f"the wavelength of pairs that turn {turns!r} times", length)
            return rotary_dim * math.log(length) / (2.0 * math.log(base))

        low, high = pair_index(self.beta_fast), pair_index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        if low == high:
            high += 0.001  # a step, as the authors' code has it
        ramp = np.clip((i - low) / (high - low), 0.0, 1.0)
        return np.asarray(plain * (1.0 - ramp) + plain / self.factor * ramp)

    @property
    def effective_attention_factor(self) -> float:
        """``attention_factor``; if it is None, computed from the factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def softmax_scale(self) -> float:  # type: ignore[override]  # derived from fields
        """``g(mscale_all_dim)**2``; 1.0 without it."""
        magnitude = self._magnitude(self.mscale_all_dim) if self.mscale_all_dim else 1.0
        return magnitude * magnitude


@dataclass(frozen=True)
class LongRoPE(Scaling):
    """Divide each pair by its own factor, from one list for short contexts and one for long ones.

    Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv 2402.13753,
    eq. 2 for the divisors; Abdin et al. (Phi-3), arXiv 2404.14219, for the attention factor.

    Parameters
    ----------
    short_factor, long_factor : sequence of float, length r/2
        Divisors of the frequencies up to L tokens, and beyond.
    original_max_position_embeddings : int
        L, greater than 1.
    factor : float, optional
        As for :class:`YaRN`, s. None: ``max_position_embeddings / L``.
    attention_factor : float, optional
        Factor on cos and sin. None: sqrt(1 + ln s / ln L), and 1 for s <= 1.
    max_position_embeddings : int, optional
        Tokens of the extended context, required if the other two are None.
    length : int, optional
        As for :class:`DynamicNTK`.

    Examples
    --------
    >>> from rope_xp.scaling import LongRoPE
    >>> scaling = LongRoPE([1.0, 1.0], [1.0, 4.0], 4096, factor=32.0)
    >>> [scaling.for_length(n).frequencies(1e4, 4).tolist() for n in (4096, 4097)]
    [[1.0, 0.01], [1.0, 0.0025]]
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    max_position_embeddings: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        self._check_items(numbers.check_positive, "short_factor", "pair")
        self._check_items(numbers.check_positive, "long_factor", "pair")
        trained = "original_max_position_embeddings"
        self._check(numbers.check_positive_int, trained, "max_position_embeddings", "length")
        if self.original_max_position_embeddings == 1:
            raise RopeError(f"LongRoPE.{trained} must exceed 1; got 1")
        self._check(numbers.check_positive, "factor", "attention_factor")
        numbers.check_positive("LongRoPE.attention_factor", self.effective_attention_factor)

    @property
    def effective_attention_factor(self) -> float:
        """``attention_factor``; if it is None, computed from the factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        trained, factor = self.original_max_position_embeddings, self.factor
        if factor is None:
            if self.max_position_embeddings is None:
                msg = "LongRoPE needs factor, max_position_embeddings or attention_factor"
                raise RopeError(msg)
            factor = self.max_position_embeddings / trained
        return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(trained))

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the frequencies for the fixed length."""
        if self.length is None:
            raise no_length(self)
        long = self.length > self.original_max_position_embeddings
        divisors = self.long_factor if long else self.short_factor
        if len(divisors) != rotary_dim // 2:
            raise RopeError(
                f"LongRoPE.{'long' if long else 'short'}_factor has {len(divisors)} entries; "
                f"{rotary_dim} rotated components have {rotary_dim // 2} pairs. Set "
                "RoPE.rotary_dim if only part of a head is rotated"
            )
        return np.asarray(inverse_frequencies(base, rotary_dim) / np.array(divisors, np.float64))

    def for_length(self, n: int) -> "LongRoPE":
        """Return the scaling fixed for a context of n tokens."""
        return replace(self, length=n)
