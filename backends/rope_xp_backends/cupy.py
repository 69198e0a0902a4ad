"""cupy: arrays on the devices of CUDA or ROCm, with numpy's dtypes, and one kernel for a call."""

import pathlib
from functools import partial
from typing import Any

import array_api_compat.cupy as xp
import cupy
import numpy as np

from rope_xp._arguments.table_forms import COLUMN_FORMS, one_per_pair
from rope_xp._core.caches import pin
from rope_xp._core.call import Call
from rope_xp._core.memory import Memory
from rope_xp._core.path import Path
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._core.versions import check_version
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.kernels import Kernels

from .gpu import cuda, cuda_calls, relaxed_capture
from .gpu.cuda_plan import CudaKey, CudaLaunch

check_version("cupy")

OPTIONS = ("--std=c++17", "--fmad=false")
SOURCE = pathlib.Path(cuda.__file__).with_name("rotate.cu")


class Cupy(Backend):
    """The glue of cupy. A device is its number, which hashes."""

    assigns_by_index = True
    numpy_dtypes = True
    paths: "tuple[Cuda, ...]"

    def rotate_by_rope(self, *call: Any) -> Any:
        """Take one array of integer positions, or none."""
        positions, k_positions = call[3:5]
        inputs = () if positions is None else (positions,)
        if k_positions is not None or not all(map(_is_integral, inputs)):
            return None
        return self._rotate(call[:1], call[1:], (positions, None), inputs)

    def rotate_by_tables(self, *call: Any) -> Any:
        """Take cos and sin in arrays of cupy."""
        if not all(type(t) is cupy.ndarray for t in call[6:8]):
            return None
        inputs = tuple([one_per_pair(t, COLUMN_FORMS[call[3]]) for t in call[6:8]])
        return self._rotate(call[:4], call[4:], inputs, inputs)

    def _rotate(self, head: Any, rest: Any, angles: Any, inputs: tuple[Any, ...]) -> Any:
        q = rest[0]
        is_current = type(q) is cupy.ndarray and cupy.cuda.runtime.getDevice() == self.device(q)
        if not is_current or cupy.cuda.get_current_stream().is_capturing():
            return None
        launch = partial(self.paths[0].launch, device=self.device(q))
        library = cuda_calls.Library(self, _empty_result, _point, launch)
        return cuda_calls.rotate(library, head, rest, angles, inputs)

    def device(self, x: Any) -> int:
        return int(x.data.device_id)

    def asarray(self, host: np.ndarray, device: Any) -> Any:
        with cupy.cuda.Device(device):  # None: the current one
            return cupy.asarray(host)

    def tables(self, table_key: TableKey, like: Any) -> DigitTables:
        """Return tables from a cache, which stay if a captured graph reads them."""
        # A pool would reuse evicted memory while other streams read it; cudaFree waits for all.
        with cupy.cuda.using_allocator(None):
            tables = super().tables(table_key, like)
        if cupy.cuda.get_current_stream().is_capturing():
            pin(tables)
        return tables

    def synchronize(self, device: int) -> None:
        with cupy.cuda.Device(device):
            cupy.cuda.get_current_stream().synchronize()

    def arange(self, n: int, device: int) -> Any:
        with cupy.cuda.Device(device):
            return cupy.arange(n, dtype=cupy.int32)

    def memory(self, x: Any) -> Memory:
        return Memory(int(x.data.ptr), x.shape, x.strides, x.itemsize, True)


def compile_kernel(key: tuple[CudaKey, int]) -> cupy.RawKernel:
    """Compile a kernel, before cupy 14.2 in each process, and load it on the current device."""
    name = key[0].expression
    module = cupy.RawModule(code=SOURCE.read_text(), options=OPTIONS, name_expressions=(name,))
    with relaxed_capture():
        return module.get_function(name).kernel


class Cuda(Path):
    """The kernel of gpu/rotate.cu, compiled for a device when it is first needed there."""

    name = "cuda"
    normalizes = takes_slots = True

    def __init__(self) -> None:
        self._kernels: Kernels[tuple[CudaKey, int], Any] = Kernels("cupy", lambda: compile_kernel)

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        if cupy.cuda.runtime.is_hip:
            return "this cupy is built for ROCm, and the kernel is CUDA"
        return self._kernels.decline_reason() or cuda.decline_reason(call)

    def run(self, call: Call) -> tuple[Any, ...]:
        """Launch the kernel, for q and k at once where they have one dtype."""
        device = int(call.arrays[0].device.id)
        with cupy.cuda.Device(device):
            outs = call.out
            if outs is None and call.slots is not None:
                outs = _empty_result(call.arrays[0]), call.slots.cache
            outs = outs or tuple(_empty_result(x) for x in call.arrays)
            launches = cuda.build_launches(call, outs, lambda x: cupy.array(x, order="C"))
            self.launch(launches, device)
        return outs

    def launch(self, launches: list[CudaLaunch], device: int) -> None:
        """Launch kernels on the current device, all of which are compiled before."""
        # What fails in the capture of a graph may work at other times.
        give_up = not cupy.cuda.get_current_stream().is_capturing()
        kernels = [self._kernels.get((x.key, device), give_up=give_up) for x in launches]
        for kernel, launch in zip(kernels, launches, strict=True):
            kernel(launch.grid, launch.block, (launch.argument,))


def _point(x: Any) -> int:
    return int(x.data.ptr)


def _is_integral(positions: Any) -> bool:
    return type(positions) is cupy.ndarray and positions.dtype in (np.int32, np.int64)


def _empty_result(x: Any) -> Any:
    """Return memory laid out like x, but with contiguous rows."""
    result = cupy.empty_like(x)
    return result if result.strides[-1] == result.itemsize else cupy.empty(x.shape, x.dtype)


BACKEND = Cupy("cupy", xp, (Cuda(),))
