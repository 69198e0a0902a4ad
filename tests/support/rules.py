"""Scalings of third parties: with and without a base class, equal though they are not the same."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rope_xp.scaling import Linear, Scaling, YaRN, inverse_frequencies


@dataclass(frozen=True)
class Times(Scaling):
    """All frequencies, multiplied by a number."""

    factor: float

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return self.factor * inverse_frequencies(base, rotary_dim)


@dataclass(frozen=True)
class Warm(YaRN):
    """A scaling of a user, with one more field."""

    warmth: float = 1.0


class Only(NamedTuple):
    """No base class, and given frequencies alone. It equals any tuple of the same value."""

    given: tuple[float, ...]
    effective_attention_factor = softmax_scale = 1.0

    def for_length(self, n: int) -> Any:
        return self

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.array(self.given, np.float64)


class Twice(Only):
    """It equals an Only of the same value, and turns twice as fast."""

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return 2 * super().frequencies(base, rotary_dim)


class Temperature(Linear):
    """A rule whose factor is part of the derivative."""

    attention_factor = 1.25
