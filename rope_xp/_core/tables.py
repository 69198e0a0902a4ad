"""Digit tables on a device, and what they depend on."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rope_xp._core.protocols import Rope
from rope_xp._core.typing import Array


class TableKey(NamedTuple):
    """All that tables depend on, a device aside."""

    rope: Rope
    head_dim: int
    inverse: bool
    """Whether tables are divided by the attention factor."""
    double: bool
    """Whether angles are computed in float64."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class DigitTables:
    """The tables of :mod:`rope_xp._rotation.tables`, each (digits, r): cosines, then sines.

    float32, or float64 where the key says ``double``: then middle and high hold cosines less 1. No
    tuple, as the call cache needs weak references.
    """

    low: Array
    """Includes the attention factor."""
    middle: Array
    high: Array
    frequencies: Array
    """(r/2,), for the fractional part of positions."""
    component: Array | None
    """(r/2,) int32: the position component that each frequency reads; None for one component."""

    handle: Any = field(default=None, kw_only=True)
    """What a backend's native code made of the arrays above, and keeps with them."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.low, self.middle, self.high, self.frequencies, self.component))

    def __reduce__(self) -> tuple[Any, ...]:
        return DigitTables, tuple(self)  # a copy has a handle of its own
