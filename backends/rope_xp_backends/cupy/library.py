"""cupy: arrays on the devices of CUDA or ROCm, with numpy's dtypes."""

from typing import Any

import cupy
import numpy as np

from rope_xp._contract.caches import pin
from rope_xp._contract.library import DigitTables, TableKey
from rope_xp._contract.memory import Memory
from rope_xp._dispatch.backend import Backend

from .launch import signature


class Cupy(Backend):
    """The glue of cupy. Devices are named by their number, which hashes."""

    numpy_dtypes = True

    signature = staticmethod(signature)

    def device(self, x: Any) -> int:
        """Return the number of the device."""
        return int(x.device.id)

    def asarray(self, host: np.ndarray, device: Any) -> Any:
        """Copy to the device."""
        if device is None:
            return cupy.asarray(host)
        with cupy.cuda.Device(device):
            return cupy.asarray(host)

    def tables(self, recipe: TableKey, like: Any) -> DigitTables:
        """Keep what a graph that is captured will read."""
        made = super().tables(recipe, like)
        if cupy.cuda.get_current_stream().is_capturing():
            pin(made)
        return made

    def settle(self, device: int) -> None:
        """Wait for the stream that copies, as no other one would."""
        with cupy.cuda.Device(device):
            cupy.cuda.get_current_stream().synchronize()

    def arange(self, n: int, device: int) -> Any:
        """Count on the device."""
        with cupy.cuda.Device(device):
            return cupy.arange(n, dtype=cupy.int32)

    def put_rows(self, x: Any, axis: int, rows: Any, values: Any) -> None:
        """Write these alone."""
        x[(*(slice(None),) * axis, rows)] = values

    def memory(self, x: Any) -> Memory:
        """Read from the array's pointer."""
        return Memory(int(x.data.ptr), x.shape, x.strides, x.itemsize, True)
