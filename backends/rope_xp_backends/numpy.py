"""numpy: one device, arrays of every dtype, ml_dtypes.bfloat16 among them."""

from __future__ import annotations

import array_api_compat.numpy as xp
import numpy as np

from rope_xp._contract import Backend, Memory

_names: dict[np.dtype, str] = {}


class Numpy(Backend):
    """The glue of numpy."""

    def refusal(self, x: np.ndarray) -> str | None:
        """Matrices and masked arrays give another meaning to ``*``."""
        if isinstance(x, (np.matrix, np.ma.MaskedArray)):
            return "its operators are not those of an ndarray; pass numpy.asarray of it"
        return None

    def dtype_name(self, x: np.ndarray) -> str:
        """dtype.name takes 1 us to build."""
        name = _names.get(x.dtype)
        if name is None:
            name = _names[x.dtype] = x.dtype.name
        return name

    def device(self, x: np.ndarray) -> None:
        """There is one."""
        return

    def asarray(self, host: np.ndarray, device: None) -> np.ndarray:
        """Return it as it is."""
        return host

    def memory(self, x: np.ndarray) -> Memory:
        """Read from the array interface."""
        pointer = x.__array_interface__["data"][0]
        return Memory(pointer, x.shape, x.strides, x.itemsize, x.flags.writeable)


BACKEND = Numpy("numpy", xp)
