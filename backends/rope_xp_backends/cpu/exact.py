"""Angles of arrays of frequencies and of steps, by the native module."""

from typing import Any

import numpy as np

from . import native
from .native import Describe


def multiply(
    xp: Any, describe: Describe, positions: Any, frequencies: Any, **place: Any
) -> tuple[Any, Any] | None:
    """See :meth:`rope_xp.backend.Backend.multiply_natively`; of contiguous arrays."""
    if native.MISSING is not None:
        return None
    shape = positions.shape[1], frequencies.shape[1]
    cos, sin = (xp.empty(shape, dtype=xp.float32, **place) for _ in "cs")
    native.module.multiply(positions, frequencies, cos, sin, describe)
    return cos, sin


def accumulate(
    xp: Any, describe: Describe, steps: Any, state: Any, ends: np.ndarray
) -> tuple[Any, bool] | None:
    """See :meth:`rope_xp.backend.Backend.accumulate_natively`; of contiguous arrays."""
    if native.MISSING is not None:
        return None
    angles, ends = xp.empty_like(steps), np.ascontiguousarray(ends, np.int64)
    return angles, native.module.accumulate(steps, state, ends, angles, describe)
