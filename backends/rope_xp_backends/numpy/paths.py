"""Paths of numpy arrays: the native module, and chunks of numpy."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from rope_xp._core.call import Call, CosSin, TableLookup
from rope_xp._core.path import Path
from rope_xp._rotation import portable
from rope_xp_backends.cpu import native

Arrays: TypeAlias = tuple[np.ndarray, ...]
Angles: TypeAlias = TableLookup | CosSin
LONG = 64
"""A longer axis repays a loop over the others in Python."""
COLUMNS = 8
"""Contiguous columns copied at once. More would compete for one set of the cache."""
CHUNK_BYTES = 1 << 18
"""Of x. Smaller chunks spend their time in calls, products of larger ones leave the cache."""


class Native(Path):
    """Kernels of the native module."""

    name = "native"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return native.decline_reason(call) or _decline_subclasses(call)

    def run(self, call: Call) -> Arrays:
        outs = call.out or _allocate(call)
        for part in replace(call, out=outs).split(one_dtype=True):
            _rotate(part, part.out or (), portable.for_kernel(call, part.angles[0]))
        return outs


class Chunked(Path):
    """The portable path in chunks of tokens, whose products stay in cache."""

    name = "chunked"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return _decline_subclasses(call)

    def run(self, call: Call) -> Arrays:
        call = replace(call, out=call.out or _allocate(call))
        if sum(x.nbytes for x in call.arrays) <= CHUNK_BYTES:
            return portable.run(call)
        for part in call.split(one_dtype=False):
            for chunk in _split_tokens(part):
                portable.run(chunk)
        return call.out or ()


def _rotate(call: Call, out: Arrays, source: Angles) -> None:
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


def _get_weights(call: Call) -> Arrays:
    """Return the weights of a call that are given, with contiguous rows."""
    weights = map(_read_plain, (w for w in call.weights if w is not None))
    return tuple(map(np.ascontiguousarray, weights))


def _get_angle_inputs(source: Angles) -> Arrays:
    """Return positions and their fractions, or cos and sin."""
    if isinstance(source, CosSin):
        return _read_plain(source.cos), _read_plain(source.sin)
    part = source.part
    if part is not None:
        part = part.astype(source.tables.low.dtype, copy=False)
    return tuple([_read_plain(x) for x in (source.whole, part) if x is not None])


def _read_plain(x: np.ndarray) -> np.ndarray:
    """Return an array without a class of its own, aligned and in native byte order."""
    plain = np.asarray(x, x.dtype.newbyteorder("="))
    return plain if plain.flags.aligned else plain.copy()


def _is_readable(x: np.ndarray) -> bool:
    """Return whether kernels can read and write an array: head_dim contiguous, native, aligned."""
    contiguous = x.strides[-1] == x.itemsize or x.shape[-1] <= 1 or x.size == 0
    return contiguous and x.dtype.isnative and x.flags.aligned


def _split_tokens(call: Call) -> Iterator[Call]:
    """Yield calls on chunks of the tokens of each array of a call."""
    axis, tables = call.spec.axes.tokens, portable.cos_sin(call, call.angles[0])
    for i, (x, out) in enumerate(zip(call.arrays, call.out or (), strict=True)):
        n = x.shape[axis]
        step = max(CHUNK_BYTES * n // max(x.nbytes, 1), 1)
        for start in range(0, n, step):
            tokens = slice(start, start + step)
            index = *(slice(None),) * axis, tokens
            rows = [t if t.shape[-2] == 1 else t[..., tokens, :] for t in tables]
            operands = (x[index],), (CosSin(*rows),), (out[index],)
            yield Call(call.backend, *operands, call.spec, call.weights[i : i + 1])


def _allocate(call: Call) -> Arrays:
    """Return new arrays with the memory order of those of a call, but head_dim contiguous."""
    outs = [np.empty_like(x) for x in call.arrays]
    return tuple(x if x.strides[-1] == x.itemsize else np.empty(x.shape, x.dtype) for x in outs)


def _decline_subclasses(call: Call) -> str | None:
    for x in call.arrays if call.out is None else call.arrays + call.out:
        if type(x) not in (np.ndarray, np.memmap):
            return f"{type(x).__name__} is a class derived from ndarray"
    return None
