"""Signatures of calls on cupy's arrays, and launches with the addresses of each call."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from rope_xp._core.call import UNKNOWN
from rope_xp._core.library import DigitTables
from rope_xp._core.memory import ACCESS
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.call_cache import CallSignature, collect_operands
from rope_xp_backends.gpu import cuda
from rope_xp_backends.gpu.cuda_plan import ARGUMENTS, CudaLaunch

Arrays = tuple[Any, ...]
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


def signature(
    context: Hashable, arrays: Arrays, positions: Any, out: Any, tables: Arrays | None
) -> CallSignature | None:
    """Return the signature of a call on arrays in the memory of a device."""
    checked = collect_operands(arrays, out)
    if checked is None:
        return None
    operands, in_place = checked
    dtype = np.dtype(np.float64 if arrays[0].dtype == np.float64 else np.float32)
    angle_inputs: Arrays = tables or ()
    allowed: tuple[Any, ...] = (dtype,)
    if positions is not None:
        angle_inputs, allowed = (positions,), _INTEGERS
    if any(getattr(row, "dtype", None) not in allowed for row in angle_inputs):
        return None
    key: list[Hashable] = [context, in_place]
    for x in (*operands, *angle_inputs):
        if type(x) is not cupy.ndarray:
            return None
        key += x.dtype, x.shape, x.strides, x.data.device_id, x.data.ptr % ACCESS
    return CallSignature(tuple(key), arrays, angle_inputs, UNKNOWN if tables is None else None, out)


@dataclass(frozen=True, slots=True)
class CupyLaunch:
    """Launches a kernel by the plan of a signature."""

    function: Callable[..., None]
    """The kernel, loaded on the device."""
    step: CudaLaunch
    """Its launch, but for addresses."""
    new: Callable[[Any], Any]
    """From an array to memory for its result."""
    backend: Backend
    """It reads addresses."""

    def __call__(
        self, arrays: Arrays, out: Arrays | None, angle_inputs: Arrays, _tables: DigitTables | None
    ) -> Arrays | None:
        """Return results, None while a graph is captured: the slow path pins what it will read."""
        with cupy.cuda.Device(arrays[0].data.device_id):
            if cupy.cuda.get_current_stream().is_capturing():
                return None
            results = tuple([self.new(x) for x in arrays]) if out is None else out
            words = self.step.words.copy()
            addresses = cuda.read_addresses(self.backend, arrays, results, angle_inputs)
            words[: cuda.ADDRESSES] += addresses
            self.function(self.step.grid, self.step.block, (words.view(ARGUMENTS),))
        return results
