"""What builders of positions are given, checked, and what they return, placed."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rope_xp._arguments import read
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array, Device, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

Numbers: TypeAlias = float | Sequence[float]
"""One for all axes, or one for each."""


def on_host(name: str, values: Any) -> np.ndarray:
    """Return integers or truth values as an array of numpy."""
    try:
        host = np.asarray(values)
    except (TypeError, ValueError) as error:
        msg = f"{name} must lie on the host, as it is read, in rows of one length; {error}"
        raise RopeError(msg) from error
    if host.dtype.kind not in "iub":
        raise RopeError(f"{name} must hold integers; got {host.dtype}")
    return host


def index(name: str, value: Any) -> int:
    """Return an integer, which may be numpy's."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise RopeError(f"{name} must be an integer; got {value!r}") from error


def count(name: str, value: Any, least: int = 1) -> int:
    """Return a count, positive or not negative."""
    count = index(name, value)
    if count < least:
        bound = "be positive" if least else "not be negative"
        raise RopeError(f"{name} must {bound}; got {count}")
    return count


def cells(**sizes: int) -> np.ndarray:
    lengths = tuple(count(name, size) for name, size in sizes.items())
    return np.indices(lengths).reshape(len(lengths), -1)


def each(name: str, values: Numbers, axes: int) -> list[float]:
    """Return a number for each axis, integers as such."""
    found = list(values) if isinstance(values, Sequence | np.ndarray) else [values] * axes
    if len(found) != axes:
        raise RopeError(f"{name} must be one number or {axes}, one for each axis; got {values!r}")
    for value in found:
        if not isinstance(value, int | float | np.number) or not np.isfinite(value):
            raise RopeError(f"{name} must hold finite numbers; got {value!r}")
    return [int(v) if isinstance(v, int | np.integer) else float(v) for v in found]


def placed(array: np.ndarray, xp: Namespace | None, device: Device | None) -> Array:
    if xp is None:
        if device is not None:
            raise RopeError(f"device = {device!r} needs xp, the library whose device it is")
        return array
    if array.dtype == np.float64:  # which some devices have not
        array = array.astype(np.float32)
    return find.backend_of_namespace(xp).asarray(array, device)


def integers(name: str, values: Any) -> tuple[Backend, Any]:
    """Return a line of integers as an array, and its backend."""
    backend = read.owner_of(values)
    if backend is None:
        values = np.asarray(values)
        backend = find.backend_of(values, name)
    dtype = backend.dtype_name(values)
    if values.ndim != 1 or not dtype.startswith(("int", "uint")):
        msg = f"{name} must have one axis and integers; got {dtype} of {tuple(values.shape)}"
        raise RopeError(msg)
    return backend, backend.integers(values)
