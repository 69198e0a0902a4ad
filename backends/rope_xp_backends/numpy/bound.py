"""Calls of a kind on numpy's arrays: a key, positions in range, memory for results, a kernel."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rope_xp._arguments.positions import read_if_known
from rope_xp._contract.call import Call, Difference, Given, Lookup
from rope_xp._dispatch.bound import Asked
from rope_xp_backends.cpu import copies, threads
from rope_xp_backends.cpu.launch import Launch

from . import host


def asked(
    kind: Hashable,
    arrays: tuple[np.ndarray, ...],
    positions: Any,
    out: Any,
    tables: tuple[np.ndarray, np.ndarray] | None,
) -> Asked | None:
    """Return the key of a call, its positions as kernels read them, and where it goes."""
    key: list[Hashable] = [kind]
    ends = arrays
    if out is not None:
        if type(out) is not tuple or len(out) != len(arrays):
            return None
        same = [x is y for x, y in zip(arrays, out, strict=True)]
        key += same
        if not all(same):
            ends += out
    for x in ends:
        if type(x) is not np.ndarray:
            return None
        key += x.dtype, x.shape, x.strides, x.flags.num
    rows: tuple[np.ndarray, ...] = ()
    wide = arrays[0].dtype == np.float64
    if tables is not None:
        rows = tables
        for row in rows:
            if type(row) is not np.ndarray or row.dtype != (np.float64 if wide else np.float32):
                return None
    elif positions is not None:
        read = read_if_known(positions, np.int64, wide)
        if read is None:
            return None
        whole, part, *_ = read
        rows = (whole,) if part is None else (whole, part)
    for row in rows:
        key += row.shape, row.strides, row.flags.num
    return Asked(tuple(key), arrays, rows, out)


@dataclass(frozen=True)
class Bound:
    """What is left to do for a kind of call.

    Parameters
    ----------
    launch : Launch
        The kernel, and what it is told.
    plain : bool
        Whether new results lie as numpy makes arrays of a shape.
    given : bool
        Whether cos and sin are given, which results must not be written over.
    """

    launch: Launch
    plain: bool
    given: bool

    def __call__(self, asked: Asked) -> tuple[np.ndarray, ...] | None:
        """Return results, or None where memory may overlap."""
        arrays, out = asked.arrays, asked.out
        if out is None:
            if self.plain:
                out = tuple([np.empty(x.shape, x.dtype) for x in arrays])
            else:
                out = tuple([np.empty_like(x) for x in arrays])
        elif not _apart(arrays, out, asked.rows if self.given else ()):
            return None
        if len(arrays) == 1:
            ends = id(arrays[0]), id(out[0]), 0, 0
        else:
            ends = id(arrays[0]), id(out[0]), id(arrays[1]), id(out[1])
        rows = asked.rows
        a = id(rows[0]) if rows else 0
        b = id(rows[1]) if len(rows) > 1 else 0
        self.launch(*ends, a, b, limit=threads.limit)
        return out


def _apart(
    arrays: tuple[np.ndarray, ...], out: tuple[np.ndarray, ...], tables: tuple[np.ndarray, ...]
) -> bool:
    """Return whether each result is its own array, or surely apart from all others."""
    own = [x for x, y in zip(arrays, out, strict=True) if x is not y]
    own += tables
    for i, y in enumerate(out):
        for other in (*out[:i], *own):
            if other is y:
                return False
            # What owns its memory shares it with its views alone.
            if not (other.base is None is y.base) and np.may_share_memory(other, y):
                return False
    return True


def bind(call: Call, asked: Asked, results: tuple[np.ndarray, ...], kernel: Any) -> Bound | None:
    """Return what runs calls like this one, None where more is to be done than a launch."""
    if len(call.angles) != 1 or call.arrays[0].dtype != call.arrays[-1].dtype:
        return None
    source = call.angles[0]
    ends = [x for each in zip(call.arrays, results, strict=True) for x in each]
    if isinstance(source, Difference) or not all(map(copies.readable, ends)):
        return None
    if not all(row.flags.aligned for row in asked.rows):
        return None
    rows = asked.rows
    if isinstance(source, Lookup) and rows and rows[0].ndim == (source.components > 0):
        rows = tuple([row[..., None] for row in rows])  # of a lone number
    launch = host.prepare(kernel, ends, rows, source, call.turn)
    like = [np.empty(x.shape, x.dtype) for x in call.arrays]
    plain = all(a.strides == b.strides for a, b in zip(like, results, strict=True))
    if not plain and call.out is None:
        like = [np.empty_like(x) for x in call.arrays]
        if any(a.strides != b.strides for a, b in zip(like, results, strict=True)):
            return None
    return Bound(launch, plain, isinstance(source, Given))
