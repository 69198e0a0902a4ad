"""cupy: arrays on the devices of CUDA or ROCm, with numpy's dtypes."""

from collections.abc import Hashable
from typing import Any

import cupy
import numpy as np

from rope_xp._core.caches import pin
from rope_xp._core.memory import ACCESS, Memory
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.call_cache import Arrays

_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


class Cupy(Backend):
    """The glue of cupy. A device is its number, which hashes."""

    assigns_by_index = True
    numpy_dtypes = True

    def describe_call(
        self, operands: Arrays, positions: Any, tables: Any, *, writes: bool
    ) -> tuple[Hashable, Arrays] | None:
        angle_inputs: Arrays = (positions,)
        allowed: tuple[Any, ...] = _INTEGERS
        if positions is None:
            double = operands[0].dtype == np.float64
            angle_inputs, allowed = tables or (), (np.dtype(np.float64 if double else np.float32),)
        if any(getattr(row, "dtype", None) not in allowed for row in angle_inputs):
            return None
        key: list[Hashable] = []
        for x in operands + angle_inputs:
            if type(x) is not cupy.ndarray:
                return None
            key += x.dtype, x.shape, x.strides, x.data.device_id, x.data.ptr % ACCESS
        return tuple(key), angle_inputs

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
