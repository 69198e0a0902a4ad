"""cupy: arrays on the devices of CUDA or ROCm, with numpy's dtypes."""

from typing import Any

import cupy
import numpy as np

from rope_xp._core.caches import pin
from rope_xp._core.library import DigitTables, TableKey
from rope_xp._core.memory import Memory
from rope_xp._dispatch.backend import Backend

from .launch import signature


class Cupy(Backend):
    """The glue of cupy. A device is its number, which hashes."""

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

    def tables(self, table_key: TableKey, like: Any) -> DigitTables:
        """Keep tables alive that a captured graph reads."""
        tables = super().tables(table_key, like)
        if cupy.cuda.get_current_stream().is_capturing():
            pin(tables)
        return tables

    def synchronize(self, device: int) -> None:
        """Synchronise the stream that copied tables, as other streams will read them."""
        with cupy.cuda.Device(device):
            cupy.cuda.get_current_stream().synchronize()

    def arange(self, n: int, device: int) -> Any:
        """Return 0, 1, ..., n - 1 on the device."""
        with cupy.cuda.Device(device):
            return cupy.arange(n, dtype=cupy.int32)

    def write_slots(self, x: Any, axis: int, rows: Any, values: Any) -> None:
        """Write values into these rows of an axis."""
        x[(*(slice(None),) * axis, rows)] = values

    def memory(self, x: Any) -> Memory:
        """Return pointer, shape and strides of an array."""
        return Memory(int(x.data.ptr), x.shape, x.strides, x.itemsize, True)
