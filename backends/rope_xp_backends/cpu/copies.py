"""Copies of arrays whose memory layout kernels cannot read."""

import numpy as np

LONG = 64
"""A longer axis repays a loop over the others in Python."""
COLUMNS = 8
"""Contiguous columns copied at once. More would compete for one set of the cache."""


def is_readable(x: np.ndarray) -> bool:
    """Return whether kernels can read and write an array: head_dim contiguous, native, aligned."""
    contiguous = x.strides[-1] == x.itemsize or x.shape[-1] <= 1 or x.size == 0
    return contiguous and x.dtype.isnative and x.flags.aligned


def allocate(x: np.ndarray) -> np.ndarray:
    """Return an empty array of the shape of x that kernels can write."""
    return np.empty(x.shape, x.dtype.newbyteorder("="))


def copy_into(new: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Copy the elements of x into ``new``, and return ``new``."""
    fastest = min(range(x.ndim), key=lambda i: (x.shape[i] == 1, abs(x.strides[i])))
    if fastest == x.ndim - 1 or x.shape[fastest] < LONG:
        new[...] = x
        return new
    # numpy copies in the order of the result, and so passes through all of x for each row of it: a
    # few columns at a time are four times as fast.
    source, target = (np.moveaxis(a, fastest, -2) for a in (x, new))
    for index in np.ndindex(source.shape[:-2]):
        for i in range(0, x.shape[-1], COLUMNS):
            target[index][:, i : i + COLUMNS] = source[index][:, i : i + COLUMNS]
    return new
