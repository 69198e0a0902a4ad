"""Check the arguments of position builders, and return their results in the caller's library."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rope_xp._arguments import parse
from rope_xp._core.errors import RopeError, rewording
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

Numbers: TypeAlias = float | Sequence[float]  # one number for all axes, or one for each axis


def to_host(name: str, values: Any) -> np.ndarray:
    """Return integers or booleans as a numpy array."""
    host = f"{name} must be in host memory, in rows of one length; "
    with rewording((TypeError, ValueError), host):
        array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise RopeError(f"{name} must hold integers; got {array.dtype}")
    return array


def to_int(name: str, value: Any) -> int:
    """Return an integer of Python or numpy as Python's."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise RopeError(f"{name} must be an integer; got {value!r}") from error


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return an integer that is not less than ``least``, which is 0 or 1."""
    number = to_int(name, value)
    if number < least:
        bound = "be positive" if least else "not be negative"
        raise RopeError(f"{name} must {bound}; got {number}")
    return number


def index_cells(**sizes: int) -> np.ndarray:
    """Return the indices (axes, cells) of a grid."""
    lengths = tuple(check_count(name, size) for name, size in sizes.items())
    return np.indices(lengths).reshape(len(lengths), -1)


def index_span(
    grid: int | tuple[int, ...], interval: tuple[float, ...], keep_fractions: bool = False
) -> tuple[np.ndarray, int]:
    """Return positions of a text or video from 0, (3, tokens), and where the next span starts."""
    if isinstance(grid, int):
        return np.tile(np.arange(grid), (3, 1)), grid
    frames, height, width = grid
    cells = index_cells(frames=frames, height=height, width=width)
    time = cells[0].astype(np.float32)
    for factor in interval:  # in float32 as in transformers, where 3 * (25 * 2 / 3) is 50
        time = time * np.float32(factor)
    time = time if keep_fractions else np.floor(time).astype(np.int64)
    return np.stack([time, *cells[1:].astype(time.dtype)]), max(height, width)


def per_axis(name: str, values: Numbers, axes: int) -> np.ndarray:
    """Return a number for each axis (axes, 1), as integers if all are."""
    numbers = list(values) if isinstance(values, Sequence | np.ndarray) else [values] * axes
    if len(numbers) != axes:
        raise RopeError(f"{name} must be one number or {axes}, one for each axis; got {values!r}")
    for number in numbers:
        if not isinstance(number, int | float | np.number) or not np.isfinite(number):
            raise RopeError(f"{name} must hold finite numbers; got {number!r}")
    plain = [int(n) if isinstance(n, int | np.integer) else float(n) for n in numbers]
    return np.array(plain)[:, None]


def to_library(array: np.ndarray, xp: Namespace | None, device: Device | None) -> Array:
    """Return a numpy array as one of another library, on a device."""
    if xp is None:
        if device is not None:
            raise RopeError(f"device = {device!r} needs xp, the library of that device")
        return array
    if array.dtype == np.float64:  # some devices lack it
        array = array.astype(np.float32)
    return find.require_backend_of_namespace(xp).asarray(array, device)


def to_integers(
    name: str,
    values: Any,
    expected: str = "a row of integers",
    *,
    axes: Sequence[int] = (1,),
    dtypes: tuple[str, ...] = ("int", "uint"),
) -> tuple[Backend, Any]:
    """Return integers with so many axes as an array, and its backend."""
    values = np.asarray(values) if parse.backend_of(values) is None else values
    backend = find.require_backend(values, name)
    dtype = backend.dtype_name(values)
    if values.ndim not in axes or not dtype.startswith(dtypes):
        raise RopeError(f"{name} must be {expected}; got {dtype} of {tuple(values.shape)}")
    return backend, backend.integers(values)
