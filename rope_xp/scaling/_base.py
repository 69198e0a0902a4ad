"""The base class of scalings. Public in :mod:`rope_xp.scaling`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.errors import RopeError


class Scaling(ABC):
    """Base class of scalings: derive a frozen dataclass from it, and write ``frequencies``.

    All other members have defaults here. A scaling must be hashable, as tables are cached for it;
    fields that are numbers, strings and tuples make it so.

    Examples
    --------
    A scaling that slows every second pair down:

    >>> from dataclasses import dataclass
    >>> import rope_xp
    >>> from rope_xp.scaling import Scaling, inverse_frequencies
    >>> @dataclass(frozen=True)
    ... class Alternate(Scaling):
    ...     factor: float
    ...
    ...     def frequencies(self, base, rotary_dim):
    ...         frequencies = inverse_frequencies(base, rotary_dim)
    ...         frequencies[1::2] /= self.factor
    ...         return frequencies
    >>> rope_xp.RoPE(scaling=Alternate(2.0)).frequencies(8).tolist()
    [1.0, 0.05, 0.01, 0.0005]
    """

    attention_factor: float | None = 1.0
    """Multiplies cos and sin; None if ``effective_attention_factor`` computes it."""
    softmax_scale: float = 1.0
    """The caller multiplies its softmax scale by it."""

    @abstractmethod
    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the scaled frequencies in radians per token, shape (rotary_dim / 2,)."""

    @property
    def effective_attention_factor(self) -> float:
        """The number that multiplies cos and sin, also if ``attention_factor`` is None."""
        return self.attention_factor  # type: ignore[return-value]  # RoPE checks it

    def for_length(self, n: int) -> Scaling:
        """Return the scaling fixed for a context of n tokens; itself if length does not matter."""
        return self

    def _check(self, check: Callable[[str, Any], Any], *names: str) -> None:
        """Check fields by a function of :mod:`rope_xp._core.numbers`; a default of None passes."""
        for name in names:
            value = getattr(self, name)
            if value is None and getattr(type(self), name, ...) is None:
                continue
            number = check(f"{type(self).__name__}.{name}", value)
            if type(number) is not type(value):
                object.__setattr__(self, name, number)


def no_length(name: str) -> RopeError:
    """Return the error of a scaling whose frequencies depend on the length of the context."""
    return RopeError(
        f"the frequencies of {name} depend on the length of the context; fix it first, by "
        "rope = rope.for_length(n). All keys of one attention need the same"
    )
