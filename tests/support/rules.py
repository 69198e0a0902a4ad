"""Scalings of third parties, of which some are equal though they are not the same."""

from dataclasses import dataclass

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


class Only(Scaling):
    """Given frequencies alone, in a class that is no dataclass."""

    def __init__(self, given: tuple[float, ...]) -> None:
        self.given = given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Only) and self.given == other.given

    def __hash__(self) -> int:
        return hash(self.given)

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.array(self.given, np.float64)


class Twice(Only):
    """It equals an Only of the same value, and turns twice as fast."""

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return 2 * super().frequencies(base, rotary_dim)


class Temperature(Linear):
    """A rule whose factor is part of the derivative."""

    attention_factor = 1.25
