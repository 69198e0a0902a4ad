"""The base class of scaling rules. Public in :mod:`rope_xp.scaling`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.errors import RopeError


class Scaling(ABC):
    """Base class of scaling rules: derive a frozen dataclass from it, and write ``frequencies``.

    Whatever else a rule has to say has a default here. A rule must be hashable, as tables are
    cached for it; fields that are numbers, strings and tuples make it so.

    Examples
    --------
    A rule that slows every second pair down:

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
    """What cos and sin are multiplied by; None where the rule computes it."""
    softmax_scale: float = 1.0
    """What the caller's softmax scale is to be multiplied by."""

    @abstractmethod
    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the scaled frequencies in radians per token, shape (rotary_dim / 2,)."""

    @property
    def effective_attention_factor(self) -> float:
        """What cos and sin are multiplied by, a number always.

        A rule that computes it where ``attention_factor`` is None overrides this.
        """
        return self.attention_factor  # type: ignore[return-value]  # checked when a RoPE is made

    def for_length(self, n: int) -> Scaling:
        """Return the rule fixed for a context of n tokens; itself where length does not matter."""
        return self

    def _check(self, check: Callable[[str, Any], Any], *names: str) -> None:
        """Check fields by a function of :mod:`rope_xp._core.numbers`; None where it fits."""
        for name in names:
            given = getattr(self, name)
            if given is None and getattr(type(self), name, ...) is None:
                continue
            value = check(f"{type(self).__name__}.{name}", given)
            if type(value) is not type(given):
                object.__setattr__(self, name, value)


def no_length(rule: str) -> RopeError:
    """Return the error of a rule whose frequencies depend on the length of the context."""
    return RopeError(
        f"the frequencies of {rule} depend on the length of the context; fix it first, by "
        "rope = rope.for_length(n). All keys of one attention need the same"
    )
