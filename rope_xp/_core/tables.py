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


def make_table_key(rope: Rope, head_dim: int, inverse: bool, double: bool) -> TableKey:
    """Return the key of tables; without an attention factor those of the inverse are the same."""
    if inverse and rope.attention_factor == 1.0:  # no expression, of which Dynamo makes a symbol
        inverse = False
    return TableKey(rope, head_dim, inverse, double)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class DigitTables:
    """The tables of :mod:`rope_xp._rotation.tables`, each (digits, r): cosines, then sines.

    float32, or float64 where the key says ``double``: then middle and high hold cosines less 1. No
    tuple, as launches refer to them weakly.
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


@dataclass(frozen=True, slots=True, eq=False)
class SmallTables:
    """What rows of DigitTables in float32 are computed from, in a tenth of their memory.

    cos and sin, in float64, of two digits of each digit: in base 32, the first of which are inner.
    """

    inner: Array
    """(3 * 32, r), of the low, middle and high digit: cosines, then sines."""
    outer: Array
    """(64 + 64 + 16, r)."""
    frequencies: Array
    component: Array | None
    factor: float
    """The attention factor of low rows."""

    handle: Any = field(default=None, kw_only=True)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.inner, self.outer, self.frequencies, self.component))
