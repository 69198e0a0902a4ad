"""cupy: the portable path through array-api-compat, on the device of the array."""

from __future__ import annotations

from typing import Any

import array_api_compat.cupy as xp
import cupy
import numpy as np

from rope_xp._contract import Backend, Memory, numpy_name


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

    def arange(self, n: int, device: int) -> Any:
        """Count on the device."""
        with cupy.cuda.Device(device):
            return cupy.arange(n, dtype=cupy.int32)

    def memory(self, x: Any) -> Memory:
        """Read from the array's pointer."""
        return Memory(int(x.data.ptr), x.shape, x.strides, x.itemsize, True)


BACKEND = Cupy("cupy", xp)
