"""dask: graphs of blocks of numpy or cupy. Nothing is computed here.

Every task is serialized, so it holds a rope and a few numbers, and no table: each process builds
its own.
"""

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import array_api_compat.dask.array as xp
import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

from rope_xp._arguments import checks
from rope_xp._core.call import AngleSource, Call, CosSin, RotationSpec, TableLookup, leaves
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import ROTATED, check_known
from rope_xp._core.path import Path
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._core.typing import Array
from rope_xp._core.versions import check_version
from rope_xp._dispatch import choose, find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import cos_sin
from rope_xp._rotation.tables import host_tables

check_version("dask")

POSITIONS = "a block of positions or tables"
Fits: TypeAlias = tuple[tuple[int | None, ...], ...]


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

    def split_positions(self, positions: Array, double: bool) -> tuple[Array, Array]:
        """Split each block by two tasks, where operations on arrays would be seven."""
        dtype = np.float64 if double or positions.dtype == np.float64 else np.float32
        whole = da.map_blocks(_split_positions, positions, False, 0, dtype=np.int32)
        return whole, da.map_blocks(_split_positions, positions, double, 1, dtype=dtype)

    def replace_slots(self, x: Array, axis: int, slots: Array, values: Array) -> Array:
        """Take from both. Slots are computed, as chunks depend on them."""
        check_known(ROTATED, (x.shape[axis],))
        source, host = np.arange(x.shape[axis]), np.asarray(slots)
        source[host[host >= 0]] = len(source) + np.flatnonzero(host >= 0)
        return da.take(da.concatenate([x, values], axis=axis), source, axis=axis)

    def tables(self, table_key: TableKey, like: Array) -> DigitTables:
        """Return numpy tables, of which tasks of the portable path alone hold any."""
        check_known(ROTATED, (table_key.head_dim,))
        return host_tables(table_key)

    def take_rows(self, table: Array, indices: Array) -> Array:
        if not isinstance(table, np.ndarray):
            return super().take_rows(table, indices)
        return da.map_blocks(
            partial(np.take, table, axis=0),
            indices,
            dtype=table.dtype,
            chunks=(*indices.chunks, (table.shape[1],)),
            new_axis=indices.ndim,
        )

    def cos_sin(self, lookup: TableLookup) -> tuple[Array, Array]:
        """Return both tables, each block of positions by one task."""
        lookup = _count_tokens(lookup, "auto")
        arrays = [leaf.array for leaf in leaves(lookup)]
        if arrays[0].ndim == 0:  # blocks have an axis at least
            arrays = [x[None] for x in arrays]
            cos, sin = self.cos_sin(_with_arrays(lookup, lookup.tables, *arrays))
            return cos[0], sin[0]
        if lookup.components:
            arrays[0] = arrays[0].rechunk({0: -1})
        whole, pairs = arrays[0], lookup.tables.frequencies.shape[0]
        index = tuple(range(whole.ndim))
        out = (whole.ndim, *index[lookup.components > 0 :], whole.ndim + 1)
        dtype = lookup.tables.low.dtype
        both = da.blockwise(
            partial(_compute_tables, _with_arrays(lookup)),
            out,
            *(argument for x in arrays for argument in (x.rechunk(whole.chunks), index)),
            new_axes={out[0]: 2, out[-1]: pairs},
            token="rope-tables",  # noqa: S106  # the name of tasks
            dtype=dtype,
            meta=meta_from_array(whole, len(out), dtype),
            concatenate=True,
            align_arrays=False,
        )
        return both[0], both[1]


class Blockwise(Path):
    """One ``da.blockwise`` an array. Chunks stay, but head_dim becomes a single one."""

    name = "blockwise"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        of_heads = any(w is not None and w.ndim > 1 for w in call.weights)
        return "its blocks take one weight for all heads" if of_heads else None

    def run(self, call: Call) -> tuple[Array, ...]:
        return tuple(_rotate(call, i) for i in range(len(call.arrays)))


BACKEND = Dask("dask", xp, (Blockwise(),))


def _rotate(call: Call, i: int) -> Array:
    x, source, axes = call.arrays[i], call.angles[min(i, len(call.angles) - 1)], call.spec.axes
    check_known(ROTATED, x.shape[-1:])
    x = x.rechunk({x.ndim - 1: -1})
    if isinstance(source, TableLookup):
        if source.whole is None:
            check_known(ROTATED, (x.shape[axes.tokens],))
        source = _count_tokens(source, (x.chunks[axes.tokens],))
    components, pairs = x.ndim, x.ndim + 1  # axes of positions and tables alone
    fits, arguments = [], []
    for array, lead, trail in leaves(source):
        n = array.ndim - lead - trail
        rows = axes.batch_tokens[len(axes.batch_tokens) - n :]
        index = (*(components,) * lead, *rows, *(pairs,) * trail)
        lengths = zip(array.shape, index, strict=True)
        fits.append(tuple(i if i < x.ndim and n != 1 else None for n, i in lengths))
        arguments += [_rechunk(array, fits[-1], x), index]
    weight = None if call.spec.norm is None else call.weights[i]
    if weight is not None:
        arguments += [weight.rechunk(-1), (pairs + 1,)]
    index = tuple(range(x.ndim))
    lookup = _with_arrays(source) if isinstance(source, TableLookup) else None
    return da.blockwise(
        partial(_rotate_block, call.spec, lookup, tuple(fits)),
        index,
        x,
        index,
        *arguments,
        token="rope",  # noqa: S106  # the name of tasks
        dtype=x.dtype,
        meta=x._meta,  # noqa: SLF001  # as dask's own functions do
        concatenate=True,
        align_arrays=False,  # else dask would cut x where positions are cut
    )


def _count_tokens(lookup: TableLookup, chunks: Any) -> TableLookup:
    """Return a lookup with implicit positions, which are those of all components, as an array."""
    if lookup.whole is not None:
        return lookup
    whole = da.arange(lookup.tokens, chunks=chunks, dtype=np.int32)
    if lookup.components:
        whole = da.broadcast_to(whole, (lookup.components, lookup.tokens))
    return replace(lookup, whole=whole)


def _with_arrays(
    lookup: TableLookup, tables: DigitTables | None = None, *positions: Array
) -> TableLookup:
    """Return a lookup with other arrays, or without any, as tasks get it."""
    whole, part = (*positions, None, None)[:2]
    return replace(lookup, tables=tables, whole=whole, part=part)  # type: ignore[arg-type]  # for now


def _rechunk(table: Array, fits: tuple[int | None, ...], x: Array) -> Array:
    """Return positions or a table in the chunks of axes of x, and whole along others."""
    chunks = list(table.chunks)
    for axis, i in enumerate(fits):
        old, new = chunks[axis], (table.shape[axis],) if i is None else x.chunks[i]
        if not any(isinstance(n, float) for n in (*old, *new)):
            chunks[axis] = new
        elif len(old) != len(new):
            raise RopeError(
                f"positions or tables have {len(old)} chunks along an axis where "
                f"{ROTATED} has {len(new)}, and it is not known how long they are; call "
                "compute_chunk_sizes() on both first"
            )
    return table.rechunk(tuple(chunks)) if tuple(chunks) != table.chunks else table


# What follows runs in tasks, on blocks of numpy or cupy.


def _split_positions(positions: Array, double: bool, part: int) -> Array:
    return find.require_backend(positions, POSITIONS).split_positions(positions, double)[part]


def _compute_tables(lookup: TableLookup, *positions: Array) -> Array:
    """Return cos and sin of a block of positions, as one array (2, ..., r/2) on its device."""
    backend = find.require_backend(positions[0], POSITIONS)
    source = _build_source(backend, lookup, positions[0], positions)
    return backend.xp.stack(cos_sin(backend, source))


def _rotate_block(
    spec: RotationSpec, lookup: TableLookup | None, fits: Fits, x: Array, *arrays: Any
) -> Array:
    """Return a block x rotated on the path that it takes by itself.

    ``arrays`` are positions, or cos and sin; then any weight of the norm. ``fits`` holds for each
    but the weight the axis of x that each of its axes must be as long as, or None.
    """
    for array, axes in zip(arrays, fits, strict=False):  # lengths may have been unknown
        lengths = zip(array.shape, axes, strict=True)
        if any(axis is not None and n != x.shape[axis] for n, axis in lengths):
            raise RopeError(
                f"a block of shape {tuple(x.shape)} meets a block of positions or tables of "
                f"shape {tuple(array.shape)}, which does not fit; what was selected from one was "
                "not selected from the other"
            )
    backend = find.require_backend(x, "a block")
    source = _build_source(backend, lookup, x, arrays[: len(fits)])
    weights = () if spec.norm is None else (*arrays[len(fits) :], None)[:1]
    with choose.use_path(None):  # a forced path is one of dask
        return choose.run(Call(backend, (x,), (source,), None, spec, weights))[0]


def _build_source(
    backend: Backend, lookup: TableLookup | None, x: Array, arrays: tuple[Array, ...]
) -> AngleSource:
    """Return angles for a block x, by positions, or from cos and sin without a lookup."""
    on_device = []
    for block in arrays:
        owner = find.require_backend(block, POSITIONS)
        is_here = checks.check_same_library_and_device(
            backend, "a block", x, owner, POSITIONS, block
        )
        on_device.append(block if is_here else backend.asarray(block, backend.device(x)))
    if lookup is None:
        return CosSin(*on_device)
    if backend.host:
        on_device[0] = on_device[0].astype(np.int64, copy=False)  # as kernels read them
    tables = backend.tables(lookup.table_key, x)  # type: ignore[arg-type]  # in every call
    lookup = replace(lookup, device=backend.device(x), tokens=on_device[0].shape[-1])
    return _with_arrays(lookup, tables, *on_device)
