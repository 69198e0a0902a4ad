"""The glue of an array library, with defaults that need only the array API standard.

A *backend* is the glue of one array library: one :class:`Backend`. It lists its fast paths,
fastest first; see :class:`rope_xp._core.path.Path`. To add one, see backends/README.md.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from rope_xp._core.caches import cached_tables
from rope_xp._core.call import LIMIT, TableLookup
from rope_xp._core.dtypes import numpy_name
from rope_xp._core.library import DigitTables, TableKey
from rope_xp._core.memory import Memory, placed
from rope_xp._core.path import Path, ShardedExecutor
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp._rotation.angles import cos_sin
from rope_xp._rotation.tables import host_tables


class Backend:
    """What rope_xp must know of one array library. The defaults need only the standard.

    Parameters
    ----------
    name : str
        The library's name, as users call it.
    xp : namespace
        Its array API namespace.
    paths : tuple of Path, optional
        Its fast paths, fastest first.
    """

    out_refusal: str | None = None
    """Why the library cannot take ``out=``, or None if it can."""
    host: bool = False
    """Whether its arrays are those of numpy, whose values are read at once."""
    numpy_dtypes: bool = False
    """Whether its dtypes are those of numpy."""
    compatible_backend: Backend | None = None
    """The backend of arrays that are taken for positions and tables too, or None for its own."""
    sharded_executor: ShardedExecutor | None = None
    """What runs a call whose arrays lie on several devices, in place of paths; None elsewhere."""

    def __init__(self, name: str, xp: Namespace, paths: tuple[Path, ...] = ()) -> None:
        self.name = name
        self.xp = xp
        self.paths = paths

    def __repr__(self) -> str:
        return f"<backend {self.name}>"

    def recognises(self, x: object) -> bool:
        """Return whether x is an array of this library. Asked only of third-party backends."""
        return False

    def cos_sin(self, lookup: TableLookup) -> tuple[Array, Array]:
        """Return cos and sin, (..., tokens, r/2), as the result of a call for them alone."""
        return cos_sin(self, lookup)

    def refusal(self, x: Array) -> str | None:
        """Return why this array of the library cannot be taken, or None. Asked once a type."""
        return None

    def signature(
        self,
        context: Hashable,
        arrays: tuple[Array, ...],
        positions: object,
        out: object,
        tables: tuple[Array, Array] | None,
    ) -> Any:
        """Return the ``CallSignature`` of a call, None if it cannot be cached.

        ``context`` is what its key has besides arrays. ``tables`` are cos and sin, if given. See
        :mod:`rope_xp._dispatch.call_cache`.
        """
        return None

    def are_apart(self, x: Array, y: Array) -> bool:
        """Return whether two arrays surely share no memory."""
        a, b = placed(self.memory(x)), placed(self.memory(y))
        return a is not None and b is not None and (a.end <= b.start or b.end <= a.start)

    def is_compiling(self) -> bool:
        """Return whether a compiler is tracing the Python code of the call right now."""
        return False

    def traced(self, host: object, device: Device) -> Array:
        """Return numpy or Python numbers as an array, asked only while a compiler is tracing."""
        return self.xp.asarray(host, device=device)

    def dtype_name(self, x: Array) -> str:
        """Return the name of the dtype of x as numpy would spell it, such as "bfloat16"."""
        return numpy_name(x.dtype) if self.numpy_dtypes else str(x.dtype).rpartition(".")[2]

    def unreadable(self, x: Array) -> str | None:
        """Return what x is, if it is an array of which elements cannot be read, and what to give.

        Asked where ``dtype_name`` is the name of no dtype.
        """
        return None

    def device(self, x: Array) -> Device:
        """Return the device of x, hashable; None where there is only one."""
        import array_api_compat  # which takes 2 to 7 ms, and few libraries ask

        return array_api_compat.device(x)

    def asarray(self, host: np.ndarray, device: Device) -> Array:
        """Return a numpy array as an array of the library on a device."""
        return self.xp.asarray(host, device=device)

    def settle(self, device: Device) -> None:
        """Return once all streams of a device can read what ``asarray`` put there.

        Asked of tables, which are kept for every later call. Others are read where they were put.
        """

    def length(self, x: Array, axis: int) -> Array:
        """Return what ``arange`` takes for the length of an axis that is None in the shape."""
        raise NotImplementedError

    def arange(self, n: int, device: Device) -> Array:
        """Return the integers 0 to n - 1."""
        return self.xp.arange(n, dtype=self.xp.int32, device=device)

    def integers(self, positions: Array) -> Array:
        """Return integer positions in a signed dtype of at least 32 bits, which can be indices."""
        xp, dtype = self.xp, self.dtype_name(positions)
        if dtype in ("int32", "int64"):
            return positions
        if dtype not in ("uint32", "uint64"):
            return xp.astype(positions, xp.int32)
        # Spelled with numbers that fit 32 signed bits: jax takes no others without x64.
        signed = xp.astype(positions & (LIMIT - 1), xp.int32)
        return xp.where(positions >> 31 == 0, signed, xp.full_like(signed, -LIMIT))

    def host_view(self, positions: Array) -> np.ndarray | None:
        """Return positions as a numpy array, None where reading them waits for a device."""
        return positions if self.host else None

    def parts(self, positions: Array, double: bool) -> tuple[Array, Array]:
        """Return the whole part of float positions, as int32, and the fractional part.

        With ``double`` the fraction of float32 positions is computed in float64.
        """
        xp = self.xp
        if double:
            positions = xp.astype(positions, xp.float64, copy=False)
        elif self.dtype_name(positions) in ("float16", "bfloat16"):
            positions = xp.astype(positions, xp.float32)
        # Not a number, infinite, or too large: the one number that the lookup takes for "outside".
        inside = xp.abs(positions) < float(LIMIT)
        positions = xp.where(inside, positions, xp.full_like(positions, -float(LIMIT)))
        floor = xp.floor(positions)
        return xp.astype(floor, xp.int32), positions - floor

    def product(self, a: Array, b: Array) -> Array:
        """Return a * b rounded to its dtype, also where a compiler likes to fuse multiply-add."""
        return a * b

    def constant(self, x: Array) -> Array:
        """Return x as a number that derivatives do not follow; itself where there are none."""
        return x

    def computed_once(self, cos: Array, sin: Array) -> tuple[Array, Array]:
        """Return cos and sin such that a compiler does not compute them anew for every head."""
        return cos, sin

    def take_rows(self, table: Array, indices: Array) -> Array:
        """Return rows of a table, (*indices.shape, columns)."""
        if indices.ndim == 1:
            return self.xp.take(table, indices, axis=0)
        # The standard takes lines of indices only.
        rows = self.xp.take(table, self.xp.reshape(indices, (-1,)), axis=0)
        return self.xp.reshape(rows, (*indices.shape, table.shape[1]))

    def has_float64(self, x: Array) -> bool:
        """Return whether float64 is computed where x lies."""
        return True

    def with_rows(self, x: Array, axis: int, rows: Array, values: Array) -> Array:
        """Return x with other values in rows of an axis. The standard only has ``take`` for it."""
        xp, n = self.xp, rows.shape[0]
        if n == 0:
            return xp.asarray(x, copy=True)
        order = xp.astype(xp.argsort(rows), xp.int32)
        ordered = xp.take(rows, order, axis=0)
        every = xp.arange(x.shape[axis], dtype=rows.dtype, device=self.device(x))
        place = xp.searchsorted(ordered, every)
        place = xp.where(place < n, place, xp.zeros_like(place))
        new = xp.take(ordered, place, axis=0) == every
        source = xp.astype(xp.take(order, place, axis=0), rows.dtype, copy=False) + x.shape[axis]
        return xp.take(xp.concat([x, values], axis=axis), xp.where(new, source, every), axis=axis)

    def put_rows(self, x: Array, axis: int, rows: Array, values: Array) -> None:
        """Write values to rows of an axis of x."""
        self.write(x, self.with_rows(x, axis, rows, values))

    def tables(self, table_key: TableKey, like: Array) -> DigitTables:
        """Return the digit tables of a rope on the device of ``like``, from a bounded cache."""
        return _tables_on_device((self, table_key, self.device(like)))

    def memory(self, x: Array) -> Memory | None:
        """Return where x lies, or None if the library does not tell."""
        return None

    def unwritable_reason(self, out: Array, x: Array) -> str | None:
        """Return why this result may not be written over ``out``, or None."""
        return None

    def write(self, out: Array, result: Array) -> None:
        """Copy result into out."""
        out[...] = result


@cached_tables
def _tables_on_device(key: tuple[Backend, TableKey, Hashable]) -> DigitTables:
    backend, table_key, device = key
    tables = put_tables(backend, table_key, device)
    backend.settle(device)
    return tables


def put_tables(backend: Backend, table_key: TableKey, device: Device) -> DigitTables:
    """Return the digit tables of a rope on a device, copied there anew."""
    host = host_tables(table_key)
    placed = [None if table is None else backend.asarray(table, device) for table in host]
    return DigitTables(*placed)
