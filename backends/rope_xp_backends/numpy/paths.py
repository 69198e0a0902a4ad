"""Paths of numpy arrays: kernels compiled by LLVM, and chunks of numpy."""

import numpy as np

from rope_xp._core.call import Call, get_interleaved
from rope_xp._core.dtypes import numpy_name
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._rotation import portable
from rope_xp_backends.cpu import launch
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
        outs = call.out or _allocate(call)
        for i, (arrays, group, source) in enumerate(call.groups(outs, one_dtype=True)):
            host.rotate(kernels[i], arrays, group, portable.for_kernel(call, source), call.spec)
        return outs

    def specialize(
        self, call: Call, signature: CallSignature, results: tuple[np.ndarray, ...]
    ) -> host.NumpyLaunch | None:
        """Keep the kernel and its plan."""
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
        outs = call.out or _allocate(call)
        spec, xp = call.spec, call.backend.xp
        for arrays, group, source in call.groups(outs, one_dtype=False):
            tables = portable.cos_sin(call, source)
            cos, sin = (portable.align(xp, table, spec.axes) for table in tables)
            sin = -sin if spec.inverse else sin
            chunks.rotate(arrays, group, cos, sin, get_interleaved(spec), spec.rotary_offset)
        return outs


def _keys(call: Call) -> list[KernelKey]:
    return launch.get_kernel_keys(call.spec, [numpy_name(x.dtype) for x in call.arrays])


def _allocate(call: Call) -> tuple[np.ndarray, ...]:
    """Return new arrays with the memory order of those of a call, but head_dim contiguous."""
    outs = [np.empty_like(x) for x in call.arrays]
    return tuple(x if x.strides[-1] == x.itemsize else np.empty(x.shape, x.dtype) for x in outs)


def _decline_subclasses(call: Call) -> str | None:
    for x in call.arrays if call.out is None else call.arrays + call.out:
        if type(x) is not np.ndarray:
            return f"{type(x).__name__} is a class derived from ndarray"
    return None
