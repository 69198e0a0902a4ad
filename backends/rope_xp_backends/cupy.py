"""cupy: one kernel for angles, q and k, on the device of the arrays and its current stream."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import array_api_compat.cupy as xp
import cupy
import numpy as np
from cupy.cuda.compiler import CompileException

from rope_xp._contract import Backend, Call, Memory, Unavailable, numpy_name
from rope_xp._dispatch import BROKEN

from . import _cuda
from ._cuda_plan import ARGUMENTS, Key


class Cupy(Backend):
    """The glue of cupy. Devices are named by their number, which hashes."""

    def dtype_name(self, x: Any) -> str:
        """Cupy dtypes are numpy's."""
        return numpy_name(x.dtype)

    def device(self, x: Any) -> int:
        """Return the number of the device."""
        return int(x.device.id)

    def asarray(self, host: np.ndarray, device: Any) -> Any:
        """Copy to the device."""
        if device is None:
            return cupy.asarray(host)
        with cupy.cuda.Device(device):
            return cupy.asarray(host)

    def settle(self, device: int) -> None:
        """Wait for the stream that copies, as no other one would."""
        with cupy.cuda.Device(device):
            cupy.cuda.get_current_stream().synchronize()

    def arange(self, n: int, device: int) -> Any:
        """Count on the device."""
        with cupy.cuda.Device(device):
            return cupy.arange(n, dtype=cupy.int32)

    def memory(self, x: Any) -> Memory:
        """Read from the array's pointer."""
        return Memory(int(x.data.ptr), x.shape, x.strides, x.itemsize, True)


class Cuda:
    """The kernel of kernels/rotate.cu, compiled when it is first needed."""

    name = "cuda"

    def __init__(self) -> None:
        self._kernels: dict[Key, Any] = {}
        self._objection: str | None = None
        if cupy.cuda.runtime.is_hip:
            self._objection = "this cupy is built for ROCm, and the kernel is CUDA"

    def declines(self, call: Call) -> str | None:
        """Decline what the kernel cannot read, and everything where it could not be compiled."""
        return self._objection or _cuda.objection(call)

    def defers(self, call: Call) -> str | None:
        """Defer to nothing."""
        return None

    def run(self, call: Call) -> tuple[Any, ...]:
        """Launch the kernel, for q and k at once where they have one dtype and one position."""
        with cupy.cuda.Device(call.arrays[0].device.id):
            outs = call.out or tuple(_new(x) for x in call.arrays)
            launches = _cuda.launches(call, outs, _copy)
            functions = [self._function(launch.key) for launch in launches]
            for function, launch in zip(functions, launches, strict=True):
                function(launch.grid, launch.block, (launch.words.view(ARGUMENTS),))
        return outs

    def _function(self, key: Key) -> Any:
        """Return a kernel as the current device has it, or raise Unavailable."""
        try:
            if key not in self._kernels:
                from .kernels import cuda as kernels

                self._kernels[key] = kernels.compiled(key.expression)
            function = self._kernels[key].kernel
        except (*BROKEN, CompileException) as error:
            self._fail(error)
        return function

    def _fail(self, error: Exception) -> NoReturn:
        """Warn, once, and leave the kernel alone from here on."""
        reason = " ".join(str(error).split()) or type(error).__name__
        self._objection = f"the kernel cannot be compiled: {reason}"
        warnings.warn(
            f"rope_xp goes on without its kernel for cupy. {self._objection}",
            RuntimeWarning,
            stacklevel=2,
        )
        raise Unavailable(self._objection) from error


def _new(x: Any) -> Any:
    """Return a new array with axes in memory as those of x, but head_dim last."""
    new = cupy.empty_like(x)
    return new if new.strides[-1] == new.itemsize else cupy.empty(x.shape, x.dtype)


def _copy(x: Any) -> Any:
    return cupy.array(x, order="C")


BACKEND = Cupy("cupy", xp, (Cuda(),))
