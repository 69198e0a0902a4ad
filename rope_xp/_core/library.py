"""What a rope and an array library are asked, by everything that needs to know of them.

:class:`rope_xp.RoPE` and :class:`rope_xp.backend.Backend` are what answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.memory import Memory
from rope_xp._core.typing import Array, Device, Layout, Namespace


class Rope(Protocol):
    """What angles are made of. Hashable."""

    # Properties, as nothing may write to them. rope_xp.RoPE describes each.
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
    """What tables are made of: with a device, all that they depend on."""

    rope: Rope
    head_dim: int
    inverse: bool
    """Whether the factor on cos and sin is undone."""
    double: bool
    """Whether angles are computed in float64."""

    @property
    def components(self) -> int:
        """The length of the leading axis of positions, 0 where they have none."""
        axes = self.rope.position_axes
        return 0 if axes is None else max(axes) + 1


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class DigitTables:
    """The tables of :mod:`rope_xp._rotation.tables`, each (digits, r): cosines, then sines.

    float32, or float64 where the recipe is wide; then middle and high hold cosines less 1. It is no
    tuple, as the call cache refers to it weakly.
    """

    low: Array
    """The factor on cos and sin is in here."""
    middle: Array
    high: Array
    frequencies: Array
    """(r/2,), for what positions have after the point."""
    component: Array | None
    """(r/2,) int32: which component of positions each frequency reads; None for one component."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.low, self.middle, self.high, self.frequencies, self.component))


class ArrayLibrary(Protocol):
    """What is asked of an array library. :class:`rope_xp.backend.Backend` describes each answer."""

    name: str
    xp: Namespace
    out_refusal: str | None
    host: bool
    numpy_dtypes: bool
    # Of Path, and of Spread: those know a call, and a call knows its library.
    paths: tuple[Any, ...]
    sharded_executor: Any

    @property
    def compatible_backend(self) -> ArrayLibrary | None: ...  # described in Backend, as are all
    def is_compiling(self) -> bool: ...
    def traced(self, host: object, device: Device) -> Array: ...
    def dtype_name(self, x: Array) -> str: ...
    def unreadable(self, x: Array) -> str | None: ...
    def device(self, x: Array) -> Device: ...
    def asarray(self, host: np.ndarray, device: Device) -> Array: ...
    def length(self, x: Array, axis: int) -> Array: ...
    def arange(self, n: int, device: Device) -> Array: ...
    def integers(self, positions: Array) -> Array: ...
    def host_view(self, positions: Array) -> np.ndarray | None: ...
    def parts(self, positions: Array, double: bool) -> tuple[Array, Array]: ...
    def product(self, a: Array, b: Array) -> Array: ...
    def constant(self, x: Array) -> Array: ...
    def computed_once(self, cos: Array, sin: Array) -> tuple[Array, Array]: ...
    def take_rows(self, table: Array, indices: Array) -> Array: ...
    def has_float64(self, x: Array) -> bool: ...
    def with_rows(self, x: Array, axis: int, rows: Array, values: Array) -> Array: ...
    def put_rows(self, x: Array, axis: int, rows: Array, values: Array) -> None: ...
    def tables(self, table_key: TableKey, like: Array) -> DigitTables: ...
    def memory(self, x: Array) -> Memory | None: ...
    def unwritable_reason(self, out: Array, x: Array) -> str | None: ...
    def are_apart(self, x: Array, y: Array) -> bool: ...
    def write(self, out: Array, result: Array) -> None: ...
