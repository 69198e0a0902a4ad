"""dask: graphs of blocks of numpy or cupy. Nothing is computed here.

Every task is serialized, so it holds a rope and a few numbers, and no table: each process builds
its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

from rope_xp._arguments import checks
from rope_xp._core.caches import cached
from rope_xp._core.call import AngleSource, CosSin, TableLookup
from rope_xp._core.dtypes import numpy_name
from rope_xp._core.numbers import ROTATED, check_known
from rope_xp._core.protocols import count_components
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import cos_sin
from rope_xp._rotation.tables import checked_frequencies, host_tables, table_shapes

POSITIONS = "a block of positions"


class Dask(Backend):
    """The glue of dask."""

    numpy_dtypes = takes_calls_whole = True
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
        check_known(ROTATED, (n,))
        return da.arange(n, chunks=-1, dtype=np.int32)

    def integers(self, positions: Array) -> Array:
        if numpy_name(positions.dtype) in ("int32", "int64"):
            return positions
        return _map(_convert_integers, positions, np.int32)

    def split_positions(self, positions: Array, double: bool) -> tuple[Array, Array]:
        dtype = np.float64 if double or positions.dtype == np.float64 else np.float32
        whole = _map(partial(_split_positions, part=0, double=False), positions, np.int32)
        return whole, _map(partial(_split_positions, part=1, double=double), positions, dtype)

    def replace_slots(self, x: Array, axis: int, slots: Array, values: Array) -> Array:
        """Take from both. Slots are computed, as chunks depend on them."""
        check_known(ROTATED, (x.shape[axis],))
        source, host = np.arange(x.shape[axis]), np.asarray(slots)
        source[host[host >= 0]] = len(source) + np.flatnonzero(host >= 0)
        return da.take(da.concatenate([x, values], axis=axis), source, axis=axis)

    def tables(self, table_key: TableKey, like: Array) -> DigitTables:
        check_known(ROTATED, (table_key.head_dim,))
        return _lazy_tables(table_key)

    def cos_sin(self, lookup: TableLookup) -> tuple[Array, Array]:
        """Return both tables, each block of positions by one task."""
        whole: Array = lookup.whole
        if whole is None:
            whole = da.arange(lookup.tokens, dtype=np.int32)
            lookup = replace(lookup, whole=whole, components=0)
        if whole.ndim == 0:  # blocks have an axis at least
            part = None if lookup.part is None else lookup.part[None]
            cos, sin = self.cos_sin(replace(lookup, whole=whole[None], part=part))
            return cos[0], sin[0]
        index = tuple(range(whole.ndim))
        whole = whole.rechunk({0: -1}) if lookup.components else whole
        arguments = [whole, index]
        if lookup.part is not None:
            arguments += [lookup.part.rechunk(whole.chunks), index]
        out = (whole.ndim, *(index[1:] if lookup.components else index), whole.ndim + 1)
        dtype: np.dtype = lookup.tables.low.dtype
        both = da.blockwise(
            partial(_compute_tables, remove_arrays(lookup)),
            out,
            *arguments,
            new_axes={out[0]: 2, out[-1]: lookup.tables.frequencies.shape[0]},
            token="rope-tables",  # noqa: S106  # the name of tasks
            dtype=dtype,
            meta=meta_from_array(whole, len(out), dtype),
            concatenate=True,
            align_arrays=False,
        )
        return both[0], both[1]


@cached(64)  # graphs of one task a table
def _lazy_tables(table_key: TableKey) -> DigitTables:
    pairs = len(checked_frequencies(table_key.rope, table_key.head_dim))
    dtype = np.dtype(np.float64 if table_key.double else np.float32)
    shapes = table_shapes(pairs, count_components(table_key.rope))
    tables: dict[str, Array] = {}
    for name, shape in zip(DigitTables.__match_args__, shapes, strict=True):
        tables[name] = shape and da.map_blocks(
            partial(_build_table, name, *table_key),
            chunks=tuple((n,) for n in shape),
            dtype=np.dtype(np.int32) if name == "component" else dtype,
            meta=np.empty((0,) * len(shape), dtype),
        )
    return DigitTables(**tables)


def _map(function: Callable[[Array], Array], x: Array, dtype: Any) -> Array:
    meta = meta_from_array(x, x.ndim, np.dtype(dtype))
    return da.map_blocks(function, x, dtype=meta.dtype, meta=meta)


# What follows runs in tasks, on blocks of numpy or cupy.


def _convert_integers(positions: Array) -> Array:
    return find.require_backend(positions, POSITIONS).integers(positions)


def _split_positions(positions: Array, part: int, double: bool) -> Array:
    return find.require_backend(positions, POSITIONS).split_positions(positions, double)[part]


def _build_table(name: str, *table_key: Any) -> Any:
    return getattr(host_tables(TableKey(*table_key)), name)


def _compute_tables(source: AngleSource, *positions: Array) -> Array:
    """Return cos and sin of a block of positions, as one array (2, ..., r/2) on its device."""
    backend = find.require_backend(positions[0], POSITIONS)
    return backend.xp.stack(cos_sin(backend, add_arrays(source, iter(positions), positions[0])))


def remove_arrays(source: AngleSource) -> AngleSource:
    """Return a source of angles without tables and arrays, which a task adds."""
    if isinstance(source, CosSin):
        return CosSin(None, None)
    part = None if source.part is None else ...
    return replace(source, tables=None, whole=None, part=part)  # type: ignore[arg-type]  # for now


def add_arrays(source: AngleSource, arrays: Iterator[Array], x: Array) -> AngleSource:
    """Return a source with the arrays of a block x, which may be positions, and with tables."""
    backend = find.require_backend(x, "a block")
    if isinstance(source, CosSin):
        return CosSin(*(_move(backend, next(arrays), x) for _ in "cs"))
    whole = _move(backend, next(arrays), x)
    part = None if source.part is None else _move(backend, next(arrays), x)
    if backend.host and whole.dtype.kind == "i":
        whole = whole.astype(np.int64, copy=False)  # as kernels read them
    if source.components and whole.ndim == 1:  # implicit, and equal in all components
        whole = backend.xp.broadcast_to(whole, (source.components, *whole.shape))
    tables = backend.tables(source.table_key, x)  # type: ignore[arg-type]  # in every call
    device, tokens = backend.device(x), whole.shape[-1]
    return replace(source, tables=tables, whole=whole, part=part, device=device, tokens=tokens)


def _move(backend: Backend, block: Array, x: Array) -> Array:
    """Return a block of positions or tables on the device of the block x."""
    owner = find.require_backend(block, POSITIONS)
    if owner is backend:
        return block
    if owner.host:
        return backend.asarray(block, backend.device(x))
    raise checks.different_libraries("a block", backend, "its positions", owner)
