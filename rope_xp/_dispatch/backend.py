"""The glue of an array library: defaults in the array API standard. See backends/README.md."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from rope_xp._core.caches import cached_tables
from rope_xp._core.call import LIMIT, TableLookup
from rope_xp._core.dtypes import numpy_name
from rope_xp._core.memory import Memory
from rope_xp._core.path import Path, ShardedExecutor
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp._rotation.angles import cos_sin
from rope_xp._rotation.tables import host_tables


class Backend:
    """The glue of one array library: its name, array API namespace and paths, fastest first."""

    out_refusal: str | None = None
    """Why the library cannot take ``out=``, or None if it can."""
    host: bool = False
    """Whether its arrays are those of numpy, whose values are read at once."""
    assigns_by_index: bool = False
    """Whether ``x[integers] = values`` works and reshaped slices are views, as in numpy."""
    numpy_dtypes: bool = False
    """Whether its dtypes are those of numpy."""
    compatible_backend: Backend | None = None
    """Another backend whose arrays are accepted as positions and tables."""
    runs_portable: bool = True
    """Whether the operations of ``xp`` take its arrays. If not, a path has to take every call."""
    takes_calls_whole: bool = False
    """Whether its paths take calls apart themselves, as a compiler does."""
    sharded_executor: ShardedExecutor | None = None
    """Runs calls on arrays that lie on several devices, in place of paths."""

    def __init__(self, name: str, xp: Namespace, paths: tuple[Path, ...] = ()) -> None:
        self.name = name
        self.xp = xp
        self.paths = paths

    def __repr__(self) -> str:
        return f"<backend {self.name}>"

    def recognises(self, x: object) -> bool:
        """Return whether x is an array of this library. Called on third-party backends only."""
        return False

    def refusal(self, x: Array) -> str | None:
        """Return why arrays of this type cannot be taken, or None. Called once a type."""
        return None

    def is_sharded(self, x: Array, axis: int) -> bool:
        """Return whether an axis lies in several places, so that no operation goes along it."""
        return False

    def slots_refusal(self, x: Array, axis: int) -> str | None:
        """Return why slots along an axis of x cannot be reached, to follow "slots=", or None."""
        return None

    def rotate_by_rope(self, *call: Any) -> Any:
        """Run a call as it was written, or return None before anything is written.

        The slow path then takes it, which alone raises errors of arguments. ``call`` holds rope, q,
        k, positions, k_positions, axes, out, norm, slots, cache_axes, and a sum of flags, see
        :mod:`rope_xp._dispatch.how`.
        """
        return None

    def rotate_by_tables(self, *call: Any) -> Any:
        """Do the same by cos and sin.

        ``call`` holds layout, rotary_dim (0: as many components as there are columns),
        rotary_offset, the number of their form among ``COLUMN_FORMS``, q, k, cos, sin, axes, out,
        norm, slots, cache_axes, and flags. Where sin is None it lies behind cos in one array.
        """
        return None

    def look_up_angles(self, *call: Any) -> Any:
        """Return cos and sin, side by side in one array; None to leave it to the slow path.

        ``call`` holds rope, positions, like, head_dim or None, and whether they are of the inverse;
        then None twice, or a rope and positions whose angles are subtracted.
        """
        return None

    def is_compiling(self) -> bool:
        """Return whether a compiler traces the call."""
        return False

    def asarray_in_trace(self, host: object, device: Device) -> Array:
        """Return numpy or Python numbers as an array, while a compiler traces."""
        return self.xp.asarray(host, device=device)

    def dtype_name(self, x: Array) -> str:
        """Return the name of the dtype of x as numpy would spell it, such as "bfloat16"."""
        return numpy_name(x.dtype) if self.numpy_dtypes else str(x.dtype).rpartition(".")[2]

    def unreadable_reason(self, x: Array) -> str | None:
        """Return why elements of x cannot be read, and what to pass instead, or None.

        Called where ``dtype_name`` is no known dtype.
        """
        return None

    def has_float64(self, x: Array) -> bool:
        """Return whether the device of x computes float64."""
        return True

    def device(self, x: Array) -> Device:
        """Return the device of x, hashable; None where there is only one."""
        import array_api_compat  # 2 to 7 ms

        return array_api_compat.device(x)

    def asarray(self, host: np.ndarray, device: Device) -> Array:
        """Return a numpy array as an array of the library on a device."""
        return self.xp.asarray(host, device=device)

    def synchronize(self, device: Device) -> None:
        """Synchronize, so that every stream may read freshly copied tables."""

    def host_view(self, positions: Array) -> np.ndarray | None:
        """Return positions as a numpy array, None where reading them waits for a device."""
        return positions if self.host else None

    def memory(self, x: Array) -> Memory | None:
        """Return the memory of x, None if it is unknown."""
        return None

    def unwritable_reason(self, out: Array, x: Array) -> str | None:
        """Return why the result of x may not be written to ``out``, or None."""
        return None

    def write(self, out: Array, result: Array) -> None:
        """Copy result into out."""
        out[...] = result

    def axis_length(self, x: Array, axis: int) -> Array:
        """Return the length of an axis that is None in the shape, as ``arange`` takes it."""
        raise NotImplementedError

    def arange(self, n: int, device: Device) -> Array:
        """Return the integers 0 to n - 1."""
        if not self.runs_portable:  # whose devices xp may not know
            return self.asarray(np.arange(n, dtype=np.int32), device)
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

    def split_positions(self, positions: Array, double: bool) -> tuple[Array, Array]:
        """Return the integer part of float positions, as int32, and the fractional part.

        With ``double`` the fraction of float32 positions is computed in float64.
        """
        xp = self.xp
        if double:
            positions = xp.astype(positions, xp.float64, copy=False)
        elif self.dtype_name(positions) in ("float16", "bfloat16"):
            positions = xp.astype(positions, xp.float32)
        # The lookup takes -LIMIT for out of range; so are NaN and infinity.
        inside = xp.abs(positions) < float(LIMIT)
        positions = xp.where(inside, positions, xp.full_like(positions, -float(LIMIT)))
        whole = xp.trunc(positions)
        return xp.astype(whole, xp.int32), positions - whole

    def multiply_exactly(self, a: Array, b: Array) -> Array:
        """Return a * b rounded to its dtype, also where a compiler would fuse multiply-add."""
        return a * b

    def stop_gradient(self, x: Array) -> Array:
        """Return x as a constant to derivatives; x itself where there are none."""
        return x

    def add_derivative(self, value: Array, function: Callable[[Array], Array], x: Array) -> Array:
        """Return value with the derivatives of a linear function of x, of the same shape."""
        if self.stop_gradient(x) is x:
            return value
        total = function(x)
        return value + (total - self.stop_gradient(total))

    def materialize(self, cos: Array, sin: Array) -> tuple[Array, Array]:
        """Return cos and sin such that no compiler recomputes them for every head."""
        return cos, sin

    def tables(self, table_key: TableKey, like: Array) -> DigitTables:
        """Return the digit tables of a rope on the device of ``like``, from a bounded cache."""
        return _tables_on_device((self, table_key, self.device(like)))

    def cos_sin(self, lookup: TableLookup) -> tuple[Array, Array]:
        """Return cos and sin, (..., tokens, r/2), of a call that returns them."""
        return cos_sin(self, lookup)

    def take_rows(self, table: Array, indices: Array) -> Array:
        """Return rows of a table, (*indices.shape, columns)."""
        if indices.ndim == 1:
            return self.xp.take(table, indices, axis=0)
        # The standard takes 1-D indices only.
        rows = self.xp.take(table, self.xp.reshape(indices, (-1,)), axis=0)
        return self.xp.reshape(rows, (*indices.shape, table.shape[1]))

    def rotate_by_product(self, *call: Any) -> Any:
        """Rotate q and k by cos and sin of products, None to leave that to the slow path.

        ``call`` holds q, k, positions, frequencies, layout, axes and out.
        """
        return None

    def accumulate_angles(self, *call: Any) -> Any:
        """Return angles of sums of steps, None to leave that to operations on arrays.

        ``call`` holds steps, axis, start, cu_seqlens, and whether the state is returned too.
        """
        return None

    def cumulative_sum(self, x: Array, axis: int) -> Array:
        """Return cumulative sums in the dtype of x."""
        return self.xp.cumulative_sum(x, axis=axis, dtype=x.dtype)

    def replace_slots(self, x: Array, axis: int, slots: Array, values: Array) -> Array:
        """Return x with other values in slots of an axis, by ``take``. Skip negative slots."""
        xp, n = self.xp, slots.shape[0]
        if self.assigns_by_index:
            return self.write_slots(xp.asarray(x, copy=True), axis, slots, values)
        if n == 0:
            return xp.asarray(x, copy=True)
        order = xp.astype(xp.argsort(slots), xp.int32)
        ordered = xp.take(slots, order, axis=0)
        indices = xp.arange(x.shape[axis], dtype=slots.dtype, device=self.device(x))
        place = xp.searchsorted(ordered, indices)
        place = xp.where(place < n, place, xp.zeros_like(place))
        is_new = xp.take(ordered, place, axis=0) == indices
        source = xp.astype(xp.take(order, place, axis=0), slots.dtype, copy=False) + x.shape[axis]
        source = xp.where(is_new, source, indices)
        return xp.take(xp.concat([x, values], axis=axis), source, axis=axis)

    def write_slots(self, x: Array, axis: int, slots: Array, values: Array) -> Array:
        """Write values to slots of an axis of x, and return x."""
        if self.assigns_by_index:
            x[(*(slice(None),) * axis, slots)] = values
        else:
            self.write(x, self.replace_slots(x, axis, slots, values))
        return x


@cached_tables
def _tables_on_device(key: tuple[Backend, TableKey, Hashable]) -> DigitTables:
    backend, table_key, device = key
    tables = put_tables(backend, table_key, device)
    backend.synchronize(device)
    return tables


def put_tables(backend: Backend, table_key: TableKey, device: Device) -> DigitTables:
    """Return new digit tables of a rope on a device."""
    tables = host_tables(table_key)
    return DigitTables(*[None if x is None else backend.asarray(x, device) for x in tables])
