"""Read keys from the slots of a cache that a function wrote them to."""

import numpy as np
from numpy.typing import NDArray

FILL = -40.0
"""What a cache holds before: no rotated number of a test is as far from 0, or all of a row this."""


class WrongSlotsError(Exception):
    """A function writes to other slots than it was given."""


def read_slots(cache: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the keys (n, heads, head_dim) in these slots, if no others were written."""
    written = np.flatnonzero((cache != FILL).any(axis=(1, 2)))
    expected = np.sort(slots)
    if np.array_equal(written, expected):
        return cache[slots]
    shown = f"{written[:6].tolist()} ..., and not to {expected[:6].tolist()} ..."
    message = f"k is written to slots {shown}"
    if not written.size:
        message = "k is written to no slot of the cache"
    for shift in (-2, -1, 1, 2):
        if np.array_equal(written, np.unique((slots + shift) % len(cache))):
            message += f": slots are off by {shift:+d}"
    missing, others = np.setdiff1d(expected, written), np.setdiff1d(written, expected)
    if missing.size and not others.size and written.size:
        message += f": {missing.size} of {slots.size} are not written"
    raise WrongSlotsError(message)
