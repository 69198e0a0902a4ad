"""A rope, its tables and an array library, as the layers below RoPE and Backend see them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.typing import Array, Device, Layout, Namespace


class Rope(Protocol):
    """The hashable fields of :class:`rope_xp.RoPE`. Properties, as nothing may write to them."""

    @property
    def base(self) -> float: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def rotary_dim(self) -> int | None: ...
    @property
    def rotary_offset(self) -> int: ...
    @property
    def scaling(self) -> Any: ...
    @property
    def position_axes(self) -> tuple[int, ...] | None: ...
    @property
    def attention_factor(self) -> float: ...
    def frequencies(self, head_dim: int) -> NDArray[np.float64]: ...


class TableKey(NamedTuple):
    """All that tables depend on, a device aside."""

    rope: Rope
    head_dim: int
    inverse: bool
    """Whether tables are divided by the attention factor."""
    double: bool
    """Whether angles are computed in float64."""


def count_components(rope: Rope) -> int:
    """Return the length of the leading axis of positions, 0 where they have none."""
    axes = rope.position_axes
    return 0 if axes is None else max(axes) + 1


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
    pointers: Any = field(default=None, kw_only=True)
    """Addresses of the arrays above as a C array, where they lie in the memory of this process."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.low, self.middle, self.high, self.frequencies, self.component))

    def __reduce__(self) -> tuple[Any, ...]:
        return DigitTables, tuple(self)  # a copy lies elsewhere


TREES: list[tuple[type, tuple[str, ...], tuple[str, ...]]] = []
"""Public dataclasses to register as pytrees: class, fields of arrays, plain fields.

Filled while rope_xp is imported, before any backend is.
"""


class ArrayLibrary(Protocol):
    """The members of :class:`rope_xp.backend.Backend` that a rotation uses."""

    xp: Namespace

    def dtype_name(self, x: Array) -> str: ...
    def arange(self, n: int, device: Device) -> Array: ...
    def integers(self, positions: Array) -> Array: ...
    def multiply_exactly(self, a: Array, b: Array) -> Array: ...
    def take_rows(self, table: Array, indices: Array) -> Array: ...
