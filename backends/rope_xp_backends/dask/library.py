"""dask: graphs of blocks of numpy or cupy. Nothing is computed here."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

from rope_xp._core.caches import cached
from rope_xp._core.call import TableLookup
from rope_xp._core.dtypes import numpy_name
from rope_xp._core.library import DigitTables, TableKey, count_components
from rope_xp._core.numbers import ROTATED, check_known
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.tables import checked_frequencies, table_shapes

from . import blocks


class Dask(Backend):
    """The glue of dask."""

    numpy_dtypes = True
    out_refusal = (
        "dask arrays are graphs of blocks to be computed, with no memory to write to; leave out= "
        "away, the blocks that went in are freed as the rotated ones are made"
    )

    def device(self, x: Array) -> None:
        """Return None: blocks lie where they are computed."""

    def asarray(self, host: np.ndarray, device: None) -> Array:
        """Return one chunk, a copy, as the caller may change the array before it is computed."""
        return da.from_array(host, chunks=-1)

    def arange(self, n: int, device: None) -> Array:
        """Return one chunk."""
        return da.arange(known_length(n), chunks=-1, dtype=np.int32)

    def integers(self, positions: Array) -> Array:
        """Convert block by block."""
        if numpy_name(positions.dtype) in ("int32", "int64"):
            return positions
        return _map(blocks.convert_integers, positions, np.dtype(np.int32))

    def split_positions(self, positions: Array, double: bool) -> tuple[Array, Array]:
        """Split block by block."""
        dtype = np.dtype(np.float64 if double or positions.dtype == np.float64 else np.float32)
        whole = _map(
            partial(blocks.split_positions, part=0, double=False), positions, np.dtype(np.int32)
        )
        return whole, _map(partial(blocks.split_positions, part=1, double=double), positions, dtype)

    def replace_slots(self, x: Array, axis: int, slots: Array, values: Array) -> Array:
        """Take from both. Slots are computed, as chunks depend on them."""
        source = np.arange(known_length(x.shape[axis]))
        source[np.asarray(slots)] = len(source) + np.arange(values.shape[axis])
        return da.take(da.concatenate([x, values], axis=axis), source, axis=axis)

    def tables(self, table_key: TableKey, like: Array) -> DigitTables:
        """Return lazy tables, which each process builds itself."""
        check_known(ROTATED, (table_key.head_dim,))
        return _lazy_tables(table_key)

    def cos_sin(self, lookup: TableLookup) -> tuple[Array, Array]:
        """Return both tables, each block of positions by one task."""
        whole: Array = lookup.whole
        if whole.ndim == 0:  # blocks have an axis at least
            part = None if lookup.part is None else lookup.part[None]
            cos, sin = self.cos_sin(replace(lookup, whole=whole[None], part=part))
            return cos[0], sin[0]
        pairs = lookup.tables.frequencies.shape[0]
        index = tuple(range(whole.ndim))
        whole = whole.rechunk({0: -1}) if lookup.components else whole
        arguments = [whole, index]
        if lookup.part is not None:
            arguments += [lookup.part.rechunk(whole.chunks), index]
        out = (whole.ndim, *(index[1:] if lookup.components else index), whole.ndim + 1)
        dtype: np.dtype = lookup.tables.low.dtype
        both = da.blockwise(
            blocks.BlockTables(blocks.remove_arrays(lookup)),
            out,
            *arguments,
            new_axes={out[0]: 2, out[-1]: pairs},
            token="rope-tables",  # noqa: S106  # the name of tasks
            dtype=dtype,
            meta=meta_from_array(whole, len(out), dtype),
            concatenate=True,
            align_arrays=False,
        )
        return both[0], both[1]


def known_length(n: int) -> int:
    """Return the length of an axis of an array to rotate, or raise if it is unknown."""
    check_known(ROTATED, (n,))
    return n


@cached(64)  # graphs of one task a table
def _lazy_tables(table_key: TableKey) -> DigitTables:
    pairs = len(checked_frequencies(table_key.rope, table_key.head_dim))
    dtype = np.dtype(np.float64 if table_key.double else np.float32)
    shapes = table_shapes(pairs, count_components(table_key.rope))
    tables: dict[str, Array] = {}
    for name, shape in zip(DigitTables.__match_args__, shapes, strict=True):
        tables[name] = shape and da.map_blocks(
            partial(blocks.build_table, name, *table_key),
            chunks=tuple((n,) for n in shape),
            dtype=np.dtype(np.int32) if name == "component" else dtype,
            meta=np.empty((0,) * len(shape), dtype),
        )
    return DigitTables(**tables)


def _map(function: Callable[[Array], Array], x: Array, dtype: np.dtype) -> Array:
    return da.map_blocks(function, x, dtype=dtype, meta=meta_from_array(x, x.ndim, dtype))
