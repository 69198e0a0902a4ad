"""From numpy arrays to the native module."""

from typing import TypeAlias

import numpy as np

from rope_xp._core.call import Call, CosSin, TableLookup
from rope_xp_backends.cpu import native

LONG = 64
"""A longer axis repays a loop over the others in Python."""
COLUMNS = 8
"""Contiguous columns copied at once. More would compete for one set of the cache."""

Arrays = tuple[np.ndarray, ...]
Angles: TypeAlias = TableLookup | CosSin


def rotate(call: Call, out: Arrays, source: Angles) -> None:
    """Rotate one array or two of one dtype, which share their angles, into out."""
    results = tuple(
        [y if _is_readable(y) else np.empty(y.shape, y.dtype.newbyteorder("=")) for y in out]
    )
    pairs = zip(call.arrays, results, strict=True)
    arrays = tuple([x if _is_readable(x) else _copy_into(y, x) for x, y in pairs])
    tables, columns = None, 1
    if isinstance(source, TableLookup):
        tables, columns = source.tables, 0 if source.components else -1
    operands = arrays, results, _get_weights(call), _get_angle_inputs(source), tables
    native.rotate(native.describe_spec(call.spec, columns), *operands)
    for y, result in zip(out, results, strict=True):
        if result is not y:
            y[...] = result


def _get_weights(call: Call) -> Arrays:
    """Return the weights of a call that are given, with contiguous rows."""
    weights = map(_read_plain, (w for w in call.weights if w is not None))
    return tuple(map(np.ascontiguousarray, weights))


def _get_angle_inputs(source: Angles) -> Arrays:
    """Return positions and their fractions, or cos and sin."""
    if isinstance(source, CosSin):
        inputs = [source.cos, source.sin]
    else:
        inputs = [] if source.whole is None else [source.whole]
        if source.part is not None:
            inputs.append(source.part.astype(source.tables.low.dtype, copy=False))
    return tuple(map(_read_plain, inputs))


def _read_plain(x: np.ndarray) -> np.ndarray:
    """Return an array without a class of its own, aligned and in native byte order."""
    plain = np.asarray(x, x.dtype.newbyteorder("="))
    return plain if plain.flags.aligned else plain.copy()


# --- copies of arrays that kernels cannot read ---------------------------------------------------


def _is_readable(x: np.ndarray) -> bool:
    """Return whether kernels can read and write an array: head_dim contiguous, native, aligned."""
    contiguous = x.strides[-1] == x.itemsize or x.shape[-1] <= 1 or x.size == 0
    return contiguous and x.dtype.isnative and x.flags.aligned


def _copy_into(new: np.ndarray, x: np.ndarray) -> np.ndarray:
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
