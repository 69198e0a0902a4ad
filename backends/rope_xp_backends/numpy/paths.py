"""Paths of numpy arrays: kernels compiled by LLVM, and chunks of numpy."""

import numpy as np

from rope_xp._core.call import Call
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._rotation import portable
from rope_xp_backends.cpu.launch import KERNELS, CpuLaunch, decline_long_norm, get_kernel_keys

from . import chunks, host


class LLVM(Path):
    """Kernels compiled by LLVM."""

    name = "llvm"
    makes_tables = normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return (
            KERNELS.decline_reason(*get_kernel_keys(call))
            or _decline_subclasses(call)
            or decline_long_norm(call)
        )

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        kernels = list(map(KERNELS.get, get_kernel_keys(call)))  # all of them, before any writes
        outs = call.out or _allocate(call)
        for i, (arrays, group, source) in enumerate(call.groups(outs, one_dtype=True)):
            angles = portable.for_kernel(call, source)
            weights = host.get_weights(call.norm, i, len(arrays))
            host.rotate(kernels[i], arrays, group, angles, call.spec, weights)
        return outs

    def specialize(
        self, call: Call, signature: CallSignature, results: tuple[np.ndarray, ...]
    ) -> host.NumpyLaunch | None:
        arrays, strides = call.arrays, [y.strides for y in results]
        rows, weights = signature.angle_inputs, signature.weights
        if arrays[0].dtype != arrays[-1].dtype or not all(row.flags.aligned for row in rows):
            return None
        if not all(map(host.is_readable, (*arrays, *results, *weights))):
            return None
        contiguous = [np.empty(x.shape, x.dtype).strides for x in arrays] == strides
        if not contiguous and [np.empty_like(x).strides for x in arrays] != strides:
            return None
        plan = host.plan_rotation(arrays, results, rows, call.angles[0], call.spec)  # type: ignore[arg-type]  # of no other kind
        run = CpuLaunch(KERNELS.get(get_kernel_keys(call)[0]), plan)
        return host.NumpyLaunch(run, contiguous, len(weights))


class Chunked(Path):
    """numpy alone, in chunks that stay in cache."""

    name = "chunked"

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return _decline_subclasses(call)

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        outs = call.out or _allocate(call)
        spec, xp = call.spec, call.backend.xp
        for arrays, group, source in call.groups(outs, one_dtype=False):
            tables = portable.cos_sin(call, source)
            cos, sin = (portable.align(xp, table, spec.axes) for table in tables)
            chunks.rotate(arrays, group, cos, sin, spec)
        return outs


def _allocate(call: Call) -> tuple[np.ndarray, ...]:
    """Return new arrays with the memory order of those of a call, but head_dim contiguous."""
    outs = [np.empty_like(x) for x in call.arrays]
    return tuple(x if x.strides[-1] == x.itemsize else np.empty(x.shape, x.dtype) for x in outs)


def _decline_subclasses(call: Call) -> str | None:
    for x in call.arrays if call.out is None else call.arrays + call.out:
        if type(x) is not np.ndarray:
            return f"{type(x).__name__} is a class derived from ndarray"
    return None
