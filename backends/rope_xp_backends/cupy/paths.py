"""cupy: one kernel for angles, q and k, on the arrays' device and its current stream."""

from collections.abc import Callable
from typing import Any

import cupy

from rope_xp._core.call import Call
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._dispatch.kernels import Kernels
from rope_xp_backends.gpu import cuda
from rope_xp_backends.gpu.cuda_plan import ARGUMENTS, Key

from .launch import specialize


def _load() -> Callable[[tuple[Key, int]], Any]:
    from . import kernel

    return lambda key: kernel.compile_kernel(key[0].expression)


class Cuda(Path):
    """The kernel of gpu/rotate.cu, compiled for a device when it is first needed there."""

    name = "cuda"

    def __init__(self) -> None:
        self._kernels: Kernels[tuple[Key, int], Any] = Kernels("cupy", _load)

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline arrays that the kernel cannot read, and all where cupy cannot compile it."""
        if cupy.cuda.runtime.is_hip:
            return "this cupy is built for ROCm, and the kernel is CUDA"
        return self._kernels.decline_reason() or cuda.decline_reason(call)

    def run(self, call: Call) -> tuple[Any, ...]:
        """Launch the kernel, for q and k at once where they have one dtype and one position."""
        device = int(call.arrays[0].device.id)
        with cupy.cuda.Device(device):
            outs = call.out or tuple(_new(x) for x in call.arrays)
            launches = cuda.launches(call, outs, _copy)
            # What fails in the capture of a graph may work at other times.
            give_up = not cupy.cuda.get_current_stream().is_capturing()
            kernels = [self._kernels.get((each.key, device), give_up=give_up) for each in launches]
            for kernel, launch in zip(kernels, launches, strict=True):
                kernel(launch.grid, launch.block, (launch.words.view(ARGUMENTS),))
        return outs

    def specialize(self, call: Call, signature: CallSignature, results: tuple[Any, ...]) -> Any:
        """Keep the launch."""
        device = int(call.arrays[0].device.id)
        with cupy.cuda.Device(device):
            return specialize(
                call, signature, results, lambda key: self._kernels.get((key, device)), _new
            )


def _new(x: Any) -> Any:
    """Return new memory laid out like x, but with contiguous rows."""
    new = cupy.empty_like(x)
    return new if new.strides[-1] == new.itemsize else cupy.empty(x.shape, x.dtype)


def _copy(x: Any) -> Any:
    return cupy.array(x, order="C")
