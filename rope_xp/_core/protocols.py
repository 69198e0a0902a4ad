"""A rope and an array library, as the layers below RoPE and Backend see them."""

from typing import Any, Protocol

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


def count_components(rope: Rope) -> int:
    """Return the length of the leading axis of positions, 0 where they have none."""
    axes = rope.position_axes
    return 0 if axes is None else max(axes) + 1


class ArrayLibrary(Protocol):
    """The members of :class:`rope_xp.backend.Backend` that a rotation uses."""

    xp: Namespace

    def dtype_name(self, x: Array) -> str: ...
    def arange(self, n: int, device: Device) -> Array: ...
    def integers(self, positions: Array) -> Array: ...
    def multiply_exactly(self, a: Array, b: Array) -> Array: ...
    def take_rows(self, table: Array, indices: Array) -> Array: ...
    def cumulative_sum(self, x: Array, axis: int) -> Array: ...
