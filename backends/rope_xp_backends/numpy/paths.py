"""What numpy arrays are rotated by: kernels of numba, chunks of numpy, complex products."""

from collections.abc import Callable, Iterator

import numpy as np

from rope_xp._contract.call import Call
from rope_xp._contract.dtypes import numpy_name
from rope_xp._contract.path import Path
from rope_xp._rotation import portable
from rope_xp_backends.cpu import launch, threads, views
from rope_xp_backends.cpu.compiled import KERNELS, Key

from . import chunks


class Numba(Path):
    """Kernels compiled by numba."""

    name = "numba"

    def objection(self, call: Call, *, asked: bool) -> str | None:
        """Decline what kernels cannot read, and small calls until there is a kernel."""
        keys = _keys(call)
        return (
            KERNELS.objection(*keys)
            or _first(_not_for_kernels, call)
            or (None if asked else launch.not_yet(call, keys))
        )

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by kernels."""
        kernels = [KERNELS.get(key) for key in _keys(call)]  # all of them, before any writes
        outs = call.out or _new(call)
        limit = threads.limit()
        for i, (arrays, group, source) in enumerate(call.groups(outs, one_dtype=True)):
            x, y = [_bits(x) for x in arrays], [_bits(y) for y in group]
            found = portable.for_kernel(call, source, components=False)
            launch.rotate(kernels[i], x, y, found, call.turn, limit)
        return outs


class Chunked(Path):
    """numpy alone, in chunks that stay in cache."""

    name = "chunked"

    def objection(self, call: Call, *, asked: bool) -> str | None:
        """Decline arrays of classes that may give operators a meaning of their own."""
        return _first(_not_plain, call)

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by numpy."""
        outs = call.out or _new(call)
        for x, out, cos, sin in _with_tables(call, outs):
            chunks.rotate(x, out, cos, sin, *call.turn.side_by_side, call.turn.rotary_offset)
        return outs


class Complex(Path):
    """Neighbouring pairs as complex numbers: one product of numpy, which may fuse multiply-add."""

    name = "complex"

    def objection(self, call: Call, *, asked: bool) -> str | None:
        """Decline what is no complex number in memory, and to run unasked: bits may differ."""
        if call.turn.layout != "interleaved":
            return f"its pairs are neighbours, and the layout is {call.turn.layout!r}"
        unasked = "its results are within 2 ulp, and not equal in every bit; ask for it by name"
        return (
            _first(_not_for_kernels, call)
            or _first(_too_narrow, call)
            or (None if asked else unasked)
        )

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by products of complex numbers."""
        outs = call.out or _new(call)
        for x, out, cos, sin in _with_tables(call, outs):
            chunks.rotate_complex(x, out, cos, sin, call.turn.rotary_offset)
        return outs


def _with_tables(
    call: Call, outs: tuple[np.ndarray, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield an array, where it goes, cos and the sine with its sign, all in one order of axes."""
    for arrays, group, source in call.groups(outs, one_dtype=False):
        cos, sin = portable.cos_sin(call, source)
        tables = (cos, -sin if call.turn.inverse else sin)
        for each in zip(arrays, group, strict=True):
            for (x, out), (c, s) in views.in_order(each, (), tables, call.turn.axes):
                yield x, out, c, s


def _keys(call: Call) -> list[Key]:
    return launch.keys(call.turn, [numpy_name(x.dtype) for x in call.arrays])


def _new(call: Call) -> tuple[np.ndarray, ...]:
    """Return new arrays with axes in memory as those of a call have them, but head_dim last."""
    new = [np.empty_like(x) for x in call.arrays]
    return tuple(x if x.strides[-1] == x.itemsize else np.empty(x.shape, x.dtype) for x in new)


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint16) if x.itemsize == 2 else x


def _first(objection: Callable[[np.ndarray], str | None], call: Call) -> str | None:
    for x in call.arrays if call.out is None else call.arrays + call.out:
        reason = objection(x)
        if reason is not None:
            return reason
    return None


def _not_plain(x: np.ndarray) -> str | None:
    return None if type(x) is np.ndarray else f"{type(x).__name__} is a class derived from ndarray"


def _not_for_kernels(x: np.ndarray) -> str | None:
    if type(x) is not np.ndarray:
        return _not_plain(x)
    if x.strides[-1] != x.itemsize and x.shape[-1] > 1 and x.size > 0:
        return "the last axis of an array is not contiguous"
    if not (x.dtype.isnative and x.flags.aligned):
        return "an array has another byte order than the machine, or is not aligned"
    return None


def _too_narrow(x: np.ndarray) -> str | None:
    return None if x.itemsize > 2 else f"numpy has no complex numbers of two {x.dtype}"
