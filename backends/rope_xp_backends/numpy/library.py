"""numpy: one device, arrays of every dtype, ml_dtypes.bfloat16 among them."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from rope_xp._arguments.positions import read_rows
from rope_xp._core.library import DigitTables, TableKey
from rope_xp._core.memory import Memory
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.call_cache import CallSignature, collect_operands
from rope_xp._rotation.tables import host_tables


class Numpy(Backend):
    """The glue of numpy."""

    host = True
    numpy_dtypes = True

    def signature(
        self,
        context: Hashable,
        arrays: tuple[np.ndarray, ...],
        positions: object,
        out: object,
        tables: tuple[np.ndarray, np.ndarray] | None,
    ) -> CallSignature | None:
        """Take plain arrays, whose flags tell order, alignment and who may write."""
        operands, in_place = arrays, None
        if out is not None:
            found = collect_operands(arrays, out)
            if found is None:
                return None
            operands, in_place = found
        key: list[Hashable] = [context, in_place]
        for x in operands:
            if type(x) is not np.ndarray:
                return None
            key += x.dtype, x.shape, x.strides, x.flags.num
        rows: tuple[np.ndarray, ...] = ()
        position_range, double = None, arrays[0].dtype == np.float64
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
        return CallSignature(tuple(key), arrays, rows, position_range, out)  # type: ignore[arg-type]  # a tuple, if not None

    def are_disjoint(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Know that what owns its memory shares it with its views only."""
        return (x.base is None is y.base) or not np.may_share_memory(x, y)

    def refusal(self, x: np.ndarray) -> str | None:
        """Matrices and masked arrays give another meaning to ``*``."""
        if isinstance(x, (np.matrix, np.ma.MaskedArray)):
            return "its operators are not those of an ndarray; pass numpy.asarray of it"
        return None

    def device(self, x: np.ndarray) -> None:
        """There is one."""
        return

    def asarray(self, host: np.ndarray, device: None) -> np.ndarray:
        """Return it as it is."""
        return host

    def tables(self, table_key: TableKey, like: np.ndarray) -> DigitTables:
        """Return those of the host."""
        return host_tables(table_key)

    def integers(self, positions: np.ndarray) -> np.ndarray:
        """In the byte order of the machine: array_api_compat clips no others."""
        found: np.ndarray = super().integers(positions)
        return found.astype(found.dtype.newbyteorder("="), copy=False)

    def replace_slots(
        self, x: np.ndarray, axis: int, rows: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Copy once."""
        made = x.copy()
        self.write_slots(made, axis, rows, values)
        return made

    def write_slots(self, x: np.ndarray, axis: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Write these alone."""
        where: tuple[Any, ...] = (*(slice(None),) * axis, rows)
        x[where] = values

    def memory(self, x: np.ndarray) -> Memory:
        """Read from the array interface."""
        pointer = x.__array_interface__["data"][0]
        return Memory(pointer, x.shape, x.strides, x.itemsize, x.flags.writeable)
