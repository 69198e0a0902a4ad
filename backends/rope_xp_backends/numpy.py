"""numpy: one device, arrays of every dtype, ml_dtypes.bfloat16 among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import array_api_compat.numpy as xp
import numpy as np

from rope_xp import _portable
from rope_xp._contract import Backend, Call, Memory, numpy_name

from . import _chunks, _compiled, _cpu, _threads, _views
from ._cpu import Operand


class Numpy(Backend):
    """The glue of numpy."""

    def refusal(self, x: np.ndarray) -> str | None:
        """Matrices and masked arrays give another meaning to ``*``."""
        if isinstance(x, (np.matrix, np.ma.MaskedArray)):
            return "its operators are not those of an ndarray; pass numpy.asarray of it"
        return None

    def dtype_name(self, x: np.ndarray) -> str:
        """Return numpy's own name."""
        return numpy_name(x.dtype)

    def device(self, x: np.ndarray) -> None:
        """There is one."""
        return

    def asarray(self, host: np.ndarray, device: None) -> np.ndarray:
        """Return it as it is."""
        return host

    def memory(self, x: np.ndarray) -> Memory:
        """Read from the array interface."""
        pointer = x.__array_interface__["data"][0]
        return Memory(pointer, x.shape, x.strides, x.itemsize, x.flags.writeable)


class Numba:
    """Kernels compiled by numba."""

    name = "numba"

    def declines(self, call: Call) -> str | None:
        """Decline what kernels cannot read, and everything where there is no numba."""
        return _compiled.objection() or _first(_not_for_kernels, call)

    def defers(self, call: Call) -> str | None:
        """Leave small calls to numpy until there is a kernel."""
        return _cpu.defers(call, tuple(numpy_name(x.dtype) for x in call.arrays))

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by kernels."""
        outs = call.out or _new(call)
        operands = [
            Operand(numpy_name(x.dtype), _bits(x), _bits(out))
            for x, out in zip(call.arrays, outs, strict=True)
        ]
        sources = tuple(_cpu.source_of(call, angles) for angles in call.angles)
        _cpu.rotate(tuple(operands), sources, _cpu.rotation_of(call), _threads.limit())
        return outs


class Chunked:
    """numpy alone, in chunks that stay in cache."""

    name = "chunked"

    def declines(self, call: Call) -> str | None:
        """Decline arrays of classes that may give operators a meaning of their own."""
        return _first(_not_plain, call)

    def defers(self, call: Call) -> str | None:
        """Defer to nothing."""
        return None

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by numpy."""
        outs = call.out or _new(call)
        _, read_pairs, write_pairs = _cpu.rotation_of(call).key("")
        for x, out, cos, sin in _with_tables(call, outs):
            _chunks.rotate(x, out, cos, sin, read_pairs, write_pairs, call.rotary_offset)
        return outs


class Complex:
    """Neighbouring pairs as complex numbers: one product of numpy, which may fuse multiply-add."""

    name = "complex"

    def declines(self, call: Call) -> str | None:
        """Decline what is no complex number in memory."""
        if call.layout != "interleaved":
            return f"its pairs are neighbours, and the layout is {call.layout!r}"
        return _first(_not_for_kernels, call) or _first(_too_narrow, call)

    def defers(self, call: Call) -> str | None:
        """Never run unasked: bits differ between processors."""
        return "its results are within 2 ulp, and not equal in every bit; ask for it by name"

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by products of complex numbers."""
        outs = call.out or _new(call)
        for x, out, cos, sin in _with_tables(call, outs):
            _chunks.rotate_complex(x, out, cos, sin, call.rotary_offset)
        return outs


def _with_tables(
    call: Call, outs: tuple[np.ndarray, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield an array, where it goes, cos and the sine with its sign, all in one order of axes."""
    angles = [_portable.cos_sin(call, angles) for angles in call.angles]
    for i, arrays in enumerate(zip(call.arrays, outs, strict=True)):
        cos, sin = angles[min(i, len(angles) - 1)]
        tables = (cos, -sin if call.inverse else sin)
        for (x, out), (c, s) in _views.in_order(arrays, (), tables, call.axes):
            yield x, out, c, s


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


BACKEND = Numpy("numpy", xp, (Numba(), Chunked(), Complex()))
