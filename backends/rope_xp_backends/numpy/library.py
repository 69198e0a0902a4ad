"""numpy, with ml_dtypes.bfloat16."""

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np

from rope_xp._arguments.positions import read_rows
from rope_xp._core.memory import Memory
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.tables import host_tables

Arrays = tuple[np.ndarray, ...]


class Numpy(Backend):
    """The glue of numpy."""

    host = True
    assigns_by_index = True
    numpy_dtypes = True

    def describe_call(
        self, operands: Arrays, positions: Any, tables: Any, *, writes: bool
    ) -> tuple[Hashable, Arrays] | None:
        """Describe plain arrays, whose flags give order, alignment and writeability."""
        key: list[Hashable] = []
        for x in operands:
            if type(x) is not np.ndarray:
                return None
            key += x.dtype, x.shape, x.strides, x.flags.num
        rows: Arrays = ()
        double = operands[0].dtype == np.float64
        if tables is not None:
            rows = tables
            dtype = np.float64 if double else np.float32
            if any(type(row) is not np.ndarray or row.dtype != dtype for row in rows):
                return None
        elif positions is not None:
            read = read_rows(positions, np.int64, double)
            if read is None:
                return None
            rows, position_range = read
            key.append(position_range)
        for row in rows:
            key += row.shape, row.strides, row.flags.num
        return tuple(key), rows

    def are_disjoint(self, x: np.ndarray, y: np.ndarray) -> bool:
        return not np.may_share_memory(x, y)

    def refusal(self, x: np.ndarray) -> str | None:
        """Reject matrices and masked arrays, whose ``*`` differs."""
        masked = sys.modules.get("numpy.ma")  # which takes as long to import as the first call
        if isinstance(x, np.matrix) or (masked and isinstance(x, masked.MaskedArray)):
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
