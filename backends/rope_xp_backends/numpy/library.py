"""numpy: one device, arrays of every dtype, ml_dtypes.bfloat16 among them."""

from typing import Any

import numpy as np

from rope_xp._contract.library import Digits, Recipe
from rope_xp._contract.memory import Memory
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.tables import host_tables

from . import bound


class Numpy(Backend):
    """The glue of numpy."""

    host = True
    numpy_dtypes = True

    asked = staticmethod(bound.asked)

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

    def tables(self, recipe: Recipe, like: np.ndarray) -> Digits:
        """Return those of the host."""
        return host_tables(recipe)

    def integers(self, positions: np.ndarray) -> np.ndarray:
        """In the byte order of the machine: array_api_compat clips no others."""
        found: np.ndarray = super().integers(positions)
        return found.astype(found.dtype.newbyteorder("="), copy=False)

    def with_rows(
        self, x: np.ndarray, axis: int, rows: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Copy once."""
        made = x.copy()
        self.put_rows(made, axis, rows, values)
        return made

    def put_rows(self, x: np.ndarray, axis: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Write these alone."""
        where: tuple[Any, ...] = (*(slice(None),) * axis, rows)
        x[where] = values

    def memory(self, x: np.ndarray) -> Memory:
        """Read from the array interface."""
        pointer = x.__array_interface__["data"][0]
        return Memory(pointer, x.shape, x.strides, x.itemsize, x.flags.writeable)
