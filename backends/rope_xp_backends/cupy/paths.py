"""cupy: one kernel for angles, q and k, on the arrays' device and its current stream."""

import pathlib
from collections.abc import Callable
from typing import Any

import cupy

from rope_xp._core.call import Call
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._dispatch.kernels import Kernels
from rope_xp_backends.gpu import cuda, relaxed_capture
from rope_xp_backends.gpu.cuda_plan import ARGUMENTS, CudaKey

from .launch import CupyLaunch

OPTIONS = ("--std=c++17", "--fmad=false")


def _load_compiler() -> Callable[[tuple[CudaKey, int]], Any]:
    source = (pathlib.Path(cuda.__file__).parent / "rotate.cu").read_text()
    return lambda key: compile_kernel(source, key[0].expression)


def compile_kernel(source: str, expression: str) -> cupy.RawKernel:
    """Compile a kernel and load it on the current device: once from cupy 14.2 on.

    Before, each process compiles it.
    """
    module = cupy.RawModule(code=source, options=OPTIONS, name_expressions=(expression,))
    with relaxed_capture():
        return module.get_function(expression).kernel


class Cuda(Path):
    """The kernel of gpu/rotate.cu, compiled for a device when it is first needed there."""

    name = "cuda"

    def __init__(self) -> None:
        self._kernels: Kernels[tuple[CudaKey, int], Any] = Kernels("cupy", _load_compiler)

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Decline arrays that the kernel cannot read, and all where cupy cannot compile it."""
        if cupy.cuda.runtime.is_hip:
            return "this cupy is built for ROCm, and the kernel is CUDA"
        return self._kernels.decline_reason() or cuda.decline_reason(call)

    def run(self, call: Call) -> tuple[Any, ...]:
        """Launch the kernel, for q and k at once where they have one dtype and one position."""
        device = int(call.arrays[0].device.id)
        with cupy.cuda.Device(device):
            outs = call.out or tuple(_empty_result(x) for x in call.arrays)
            launches = cuda.build_launches(call, outs, lambda x: cupy.array(x, order="C"))
            # What fails in the capture of a graph may work at other times.
            give_up = not cupy.cuda.get_current_stream().is_capturing()
            kernels = [self._kernels.get((x.key, device), give_up=give_up) for x in launches]
            for kernel, launch in zip(kernels, launches, strict=True):
                kernel(launch.grid, launch.block, (launch.words.view(ARGUMENTS),))
        return outs

    def specialize(
        self, call: Call, signature: CallSignature, results: tuple[Any, ...]
    ) -> CupyLaunch | None:
        """Keep the launch, None where it is several launches."""
        device = int(call.arrays[0].device.id)
        with cupy.cuda.Device(device):
            step = cuda.relocatable_launch(call, results, signature.angle_inputs)
            if step is None:
                return None
            kernel = self._kernels.get((step.key, device))
            return CupyLaunch(kernel, step, _empty_result, call.backend)


def _empty_result(x: Any) -> Any:
    """Return memory laid out like x, but with contiguous rows."""
    result = cupy.empty_like(x)
    return result if result.strides[-1] == result.itemsize else cupy.empty(x.shape, x.dtype)
