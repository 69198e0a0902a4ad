"""Signatures of eager calls on jax arrays, each on one device."""

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from rope_xp._arguments.positions import read_rows
from rope_xp._core.call import UNKNOWN, PositionRange
from rope_xp._dispatch.call_cache import CallSignature

Arrays = tuple[jax.Array, ...]
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


def signature(
    context: Hashable, arrays: Arrays, positions: Any, out: Any, tables: Arrays | None
) -> CallSignature | None:
    """Return the signature of a call, with positions as jax arrays."""
    array_type = type(arrays[0])
    if out is not None or issubclass(array_type, jax.core.Tracer):
        return None
    for x in arrays:
        if type(x.sharding) is not SingleDeviceSharding:
            return None
    double, position_range, angle_inputs = arrays[0].dtype == np.float64, None, tables or ()
    if positions is not None:
        read = _read_positions(positions, arrays[0], double)
        if read is None:
            return None
        angle_inputs, position_range = read
    elif any(row.dtype.itemsize != (8 if double else 4) for row in angle_inputs):
        return None
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # set while jax is imported
    key: list[Hashable] = [context, position_range, x64]
    for x in (*arrays, *angle_inputs):
        if type(x) is not array_type or type(x.sharding) is not SingleDeviceSharding:
            return None
        key += x.dtype, x.shape, x.sharding, x.committed
    return CallSignature(tuple(key), arrays, angle_inputs, position_range, None)


def _read_positions(
    positions: Any, x: jax.Array, double: bool
) -> tuple[Arrays, PositionRange] | None:
    """Return positions, their fractions and range, None for those that the slow path reads."""
    if type(positions) is type(x):
        return ((positions,), UNKNOWN) if positions.dtype in _INTEGERS else None
    read = read_rows(positions, np.int32, double)
    if read is None:
        return None
    angle_inputs, position_range = read
    device = x.device if x.committed else None
    return tuple([jax.device_put(row, device) for row in angle_inputs]), position_range
