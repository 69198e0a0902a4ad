"""numpy, with ml_dtypes.bfloat16."""

import sys
from typing import Any

import numpy as np

from rope_xp._core.memory import Memory
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.tables import host_tables
from rope_xp_backends.cpu import entry, native  # noqa: F401  # from then on it reads arrays


class Numpy(Backend):
    """The glue of numpy."""

    host = True
    assigns_by_index = True
    numpy_dtypes = True
    if native.MISSING is None:
        rotate_by_rope = native.module.rotate_by_rope
        rotate_by_tables = native.module.rotate_by_tables
        look_up_angles = native.module.look_up_angles
        accumulate_angles = native.module.accumulate_angles

    def rotate_by_product(self, *call: Any) -> Any:
        q, k, positions, frequencies, layout, axes, out = call
        if native.MISSING is not None:
            return None
        table = native.module.multiply_angles(positions, frequencies, q, axes)
        if table is None:
            return None
        return self.rotate_by_tables(layout, 0, 0, 0, q, k, table, None, axes, out, *(None,) * 3, 0)

    def refusal(self, x: np.ndarray) -> str | None:
        """Reject matrices and masked arrays, whose ``*`` differs."""
        masked = sys.modules.get("numpy.ma")  # which takes as long to import as the first call
        if masked and isinstance(x, masked.MaskedArray):
            return "its operators are not those of an ndarray; pass filled(0) of it"
        if isinstance(x, np.matrix):
            return "its operators are not those of an ndarray; pass numpy.asarray of it"
        return None

    def device(self, x: np.ndarray) -> None:
        return None

    def asarray(self, host: np.ndarray, device: None) -> np.ndarray:
        return host

    def tables(self, table_key: TableKey, like: np.ndarray) -> DigitTables:
        return host_tables(table_key)

    def integers(self, positions: np.ndarray) -> np.ndarray:
        """Convert to native byte order too: array_api_compat clips no other."""
        converted: np.ndarray = super().integers(positions)
        return converted.astype(converted.dtype.newbyteorder("="), copy=False)

    def memory(self, x: np.ndarray) -> Memory:
        pointer = x.__array_interface__["data"][0]
        return Memory(pointer, x.shape, x.strides, x.itemsize, x.flags.writeable)
