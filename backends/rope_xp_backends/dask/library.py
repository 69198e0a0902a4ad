"""dask: arrays that are graphs of blocks, which may be numpy's or cupy's. Nothing is computed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

from rope_xp._core.caches import cached
from rope_xp._core.call import TableLookup
from rope_xp._core.dtypes import numpy_name
from rope_xp._core.library import DigitTables, TableKey
from rope_xp._core.numbers import ROTATED, check_known
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.tables import checked_frequencies, table_shapes

from . import blocks


class Dask(Backend):
    """The glue of dask. Blocks may be numpy's or cupy's; there is no device to speak of."""

    numpy_dtypes = True
    out_refusal = (
        "dask arrays are graphs of blocks to be computed, with no memory to write to; leave out= "
        "away, the blocks that went in are freed as the rotated ones are made"
    )

    def device(self, x: Array) -> None:
        """Blocks lie where they are computed."""
        return

    def asarray(self, host: np.ndarray, device: None) -> Array:
        """Make one chunk, a copy: what is rotated later must not change with the caller's array."""
        return da.from_array(host, chunks=-1)

    def arange(self, n: int, device: None) -> Array:
        """Count in one chunk."""
        return da.arange(known_length(n), chunks=-1, dtype=np.int32)

    def integers(self, positions: Array) -> Array:
        """Convert block by block."""
        if numpy_name(positions.dtype) in ("int32", "int64"):
            return positions
        return _on_blocks(blocks.integers, positions, np.dtype(np.int32))

    def split_positions(self, positions: Array, double: bool) -> tuple[Array, Array]:
        """Split block by block."""
        dtype = np.dtype(np.float64 if double or positions.dtype == np.float64 else np.float32)
        whole = _on_blocks(blocks.whole, positions, np.dtype(np.int32))
        return whole, _on_blocks(partial(blocks.part, double=double), positions, dtype)

    def replace_slots(self, x: Array, axis: int, rows: Array, values: Array) -> Array:
        """Take them from both. Numbers of rows are computed, as all blocks follow from them."""
        source = np.arange(known_length(x.shape[axis]))
        source[np.asarray(rows)] = len(source) + np.arange(values.shape[axis])
        return da.take(da.concatenate([x, values], axis=axis), source, axis=axis)

    def tables(self, table_key: TableKey, like: Array) -> DigitTables:
        """Return tables that are made where they are needed."""
        check_known(ROTATED, (table_key.head_dim,))
        return _lazy_tables(table_key)

    def cos_sin(self, lookup: TableLookup) -> tuple[Array, Array]:
        """Return both tables of each block of positions from one task."""
        whole: Array = lookup.whole
        if whole.ndim == 0:  # blocks of tables have an axis at least
            part = None if lookup.part is None else lookup.part[None]
            cos, sin = self.cos_sin(replace(lookup, whole=whole[None], part=part))
            return cos[0], sin[0]
        pairs = lookup.tables.frequencies.shape[0]
        index = tuple(range(whole.ndim))
        given = [(whole.rechunk({0: -1}) if lookup.components else whole, index)]
        if lookup.part is not None:
            given.append((lookup.part.rechunk(given[0][0].chunks), index))
        out = (whole.ndim, *(index[1:] if lookup.components else index), whole.ndim + 1)
        dtype: np.dtype = lookup.tables.low.dtype
        both = da.blockwise(
            blocks.BlockTables(blocks.emptied(lookup)),
            out,
            *(each for pair in given for each in pair),
            new_axes={out[0]: 2, out[-1]: pairs},
            token="rope-tables",  # noqa: S106  # no secret: how the tasks are called
            dtype=dtype,
            meta=meta_from_array(whole, len(out), dtype),
            concatenate=True,
            align_arrays=False,
        )
        return both[0], both[1]


def known_length(n: int) -> int:
    """Return the length of an axis of an array to rotate, which must be known."""
    check_known(ROTATED, (n,))
    return n


# What is kept are graphs of one task a table.
@cached(64)
def _lazy_tables(table_key: TableKey) -> DigitTables:
    pairs = len(checked_frequencies(table_key.rope, table_key.head_dim))
    dtype = np.dtype(np.float64 if table_key.double else np.float32)
    made = [
        None
        if shape is None
        else da.map_blocks(
            partial(blocks.table, which, *table_key),
            chunks=tuple((n,) for n in shape),
            dtype=np.dtype(np.int32) if name == "component" else dtype,
            meta=np.empty((0,) * len(shape), dtype),
        )
        for which, (name, shape) in enumerate(
            zip(DigitTables.__match_args__, table_shapes(pairs, table_key.components), strict=True)
        )
    ]
    return DigitTables(*made)


def _on_blocks(function: Callable[[Array], Array], x: Array, dtype: np.dtype) -> Array:
    return da.map_blocks(function, x, dtype=dtype, meta=meta_from_array(x, x.ndim, dtype))
