"""cupy: arrays on the devices of CUDA or ROCm, with numpy's dtypes."""

from typing import Any

import cupy
import numpy as np

from rope_xp._core.caches import pin
from rope_xp._core.memory import Memory
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._dispatch.backend import Backend


class Cupy(Backend):
    """The glue of cupy. A device is its number, which hashes."""

    assigns_by_index = True
    numpy_dtypes = True

    def device(self, x: Any) -> int:
        return int(x.device.id)

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
