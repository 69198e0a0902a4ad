"""Angles of arrays of frequencies and of steps, on numpy arrays, by the native module."""

import numpy as np

from . import native
from .entry import describe


def multiply(
    positions: np.ndarray, frequencies: np.ndarray, cos: np.ndarray, sin: np.ndarray
) -> bool:
    """See :meth:`rope_xp.backend.Backend.multiply_on_host`."""
    dtypes = np.int32, np.int64, np.float32
    if native.MISSING is not None or positions.dtype not in dtypes:
        return False
    contiguous = np.ascontiguousarray(positions), np.ascontiguousarray(frequencies)
    native.module.multiply(*contiguous, cos, sin, describe)
    return True


def accumulate(
    steps: np.ndarray, state: np.ndarray, ends: np.ndarray, angles: np.ndarray
) -> bool | None:
    """See :meth:`rope_xp.backend.Backend.accumulate_on_host`."""
    if native.MISSING is not None or steps.dtype != angles.dtype:
        return None
    inputs = np.ascontiguousarray(steps), state, np.ascontiguousarray(ends, np.int64)
    inside: bool = native.module.accumulate(*inputs, angles, describe)
    return inside
