"""Paths of numpy arrays: kernels that LLVM compiles, and chunks of numpy."""

from collections.abc import Iterator

import numpy as np

from rope_xp._core.call import Call
from rope_xp._core.dtypes import numpy_name
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._rotation import portable
from rope_xp_backends.cpu import launch, views
from rope_xp_backends.cpu.compiled import KERNELS
from rope_xp_backends.cpu.plan import KernelKey

from . import chunks, host


class LLVM(Path):
    """Kernels compiled by LLVM."""

    name = "llvm"
    makes_tables = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline what kernels cannot read."""
        return KERNELS.decline_reason(*_keys(call)) or _decline_subclasses(call)

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by kernels."""
        kernels = [KERNELS.get(key) for key in _keys(call)]  # all of them, before any writes
        outs = call.out or _new(call)
        for i, (arrays, group, source) in enumerate(call.groups(outs, one_dtype=True)):
            host.rotate(kernels[i], arrays, group, portable.for_kernel(call, source), call.spec)
        return outs

    def specialize(
        self, call: Call, signature: CallSignature, results: tuple[np.ndarray, ...]
    ) -> host.KernelLaunch | None:
        """Keep the kernel and its parameters."""
        arrays, angle_inputs = call.arrays, signature.angle_inputs
        if arrays[0].dtype != arrays[-1].dtype:
            return None
        kernel = KERNELS.get(_keys(call)[0])
        return host.specialize(kernel, arrays, results, angle_inputs, call.angles[0], call.spec)  # type: ignore[arg-type]  # of no other kind


class Chunked(Path):
    """numpy alone, in chunks that stay in cache."""

    name = "chunked"

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline arrays of classes that may give operators a meaning of their own."""
        return _decline_subclasses(call)

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        """Rotate by numpy."""
        outs = call.out or _new(call)
        for x, out, cos, sin in _with_tables(call, outs):
            chunks.rotate(x, out, cos, sin, *call.spec.interleaved, call.spec.rotary_offset)
        return outs


def _with_tables(
    call: Call, outs: tuple[np.ndarray, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield an array, where it goes, cos and the sine with its sign, all in one order of axes."""
    for arrays, group, source in call.groups(outs, one_dtype=False):
        cos, sin = portable.cos_sin(call, source)
        tables = (cos, -sin if call.spec.inverse else sin)
        for each in zip(arrays, group, strict=True):
            for (x, out), (c, s) in views.in_order(each, tables, call.spec.axes):
                yield x, out, c, s


def _keys(call: Call) -> list[KernelKey]:
    return launch.keys(call.spec, [numpy_name(x.dtype) for x in call.arrays])


def _new(call: Call) -> tuple[np.ndarray, ...]:
    """Return new arrays with axes in memory as those of a call have them, but head_dim last."""
    new = [np.empty_like(x) for x in call.arrays]
    return tuple(x if x.strides[-1] == x.itemsize else np.empty(x.shape, x.dtype) for x in new)


def _decline_subclasses(call: Call) -> str | None:
    for x in call.arrays if call.out is None else call.arrays + call.out:
        if type(x) is not np.ndarray:
            return f"{type(x).__name__} is a class derived from ndarray"
    return None
