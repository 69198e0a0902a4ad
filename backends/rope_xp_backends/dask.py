"""dask: one task a block, which rotates it with the positions that fit it. Nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import cast

import array_api_compat.dask.array as xp
import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

from rope_xp import _angles, _lengths
from rope_xp._contract import Backend, Call, Difference, Given, Lookup, numpy_name
from rope_xp._errors import RopeError
from rope_xp._typing import Array
from rope_xp.rope import RoPE

from . import _blocks

_ROTATED = "the array to rotate"


class Blockwise:
    """One ``da.blockwise`` an array. Its chunks stay, but that head_dim becomes a single one."""

    name = "blockwise"

    def declines(self, call: Call) -> str | None:
        """Decline nothing."""
        return None

    def defers(self, call: Call) -> str | None:
        """Defer to nothing."""
        return None

    def run(self, call: Call) -> tuple[Array, ...]:
        """Add the tasks to the graph."""
        return tuple(_rotated(call, i) for i in range(len(call.arrays)))


def _rotated(call: Call, i: int) -> Array:
    x, angles = call.arrays[i], call.angles[min(i, len(call.angles) - 1)]
    _lengths.check_known(_ROTATED, x.shape[-1:])
    if x.numblocks[-1] > 1:
        x = x.rechunk({x.ndim - 1: -1})
    components, pairs = x.ndim, x.ndim + 1  # numbers of axes that only positions and tables have
    axes = (*call.axes.batch, call.axes.tokens)
    arrays: list[Array] = []
    indices: list[tuple[int, ...]] = []
    sources: list[_blocks.Source] = []
    if isinstance(angles, Given):
        arrays += [angles.cos, angles.sin]
        indices += [(*axes[1 - table.ndim :], pairs) for table in arrays]
    else:
        for lookup in (angles.new, angles.old) if isinstance(angles, Difference) else (angles,):
            sources.append(_source(lookup))
            if lookup.whole is None:
                arrays.append(_counted(x, call.axes.tokens))
                indices.append((call.axes.tokens,))
                continue
            for positions in (lookup.whole,) if lookup.part is None else _both(lookup):
                lead = (components,) if lookup.components else ()
                arrays.append(positions)
                indices.append((*lead, *axes[len(lead) - positions.ndim :]))
    turn = _blocks.Turn(
        call.axes.names,
        call.layout,
        call.rotary_dim,
        call.rotary_offset,
        call.inverse,
        tuple(sources),
        tuple(
            tuple(
                None if axis >= x.ndim or n == 1 else axis
                for n, axis in zip(a.shape, where, strict=True)
            )
            for a, where in zip(arrays, indices, strict=True)
        ),
    )
    index = tuple(range(x.ndim))
    fitting = [_fitting(a, where, x) for a, where in zip(arrays, indices, strict=True)]
    return da.blockwise(
        turn,
        index,
        x,
        index,
        *(each for pair in zip(fitting, indices, strict=True) for each in pair),
        token="rope",  # noqa: S106  # no secret: how the tasks are called
        dtype=x.dtype,
        meta=x._meta,  # noqa: SLF001  # as all of dask's own functions do
        concatenate=True,
        align_arrays=False,  # else dask would cut x where positions are cut
    )


def _source(lookup: Lookup) -> _blocks.Source:
    tables = cast(LazyTables, lookup.tables)  # those that Dask.tables returns
    return _blocks.Source(
        tables.recipe,
        lookup.reach,
        lookup.scale,
        lookup.components,
        lookup.whole is None,
        lookup.part is not None,
    )


def _both(lookup: Lookup) -> tuple[Array, Array]:
    return lookup.whole, lookup.part


def _counted(x: Array, tokens: int) -> Array:
    """Return 0, 1, ... in the chunks of x: so each block knows where it starts."""
    return da.arange(_known(x.shape[tokens]), chunks=(x.chunks[tokens],), dtype=np.int32)


def _known(n: int) -> int:
    _lengths.check_known(_ROTATED, (n,))
    return n


def _fitting(table: Array, index: tuple[int, ...], x: Array) -> Array:
    """Return positions or a table in chunks that fit those of x, whole along axes of their own."""
    chunks = list(table.chunks)
    for axis, i in enumerate(index):
        mine, wanted = chunks[axis], (table.shape[axis],)
        if i < x.ndim and table.shape[axis] != 1:
            wanted = x.chunks[i]
        if any(isinstance(n, float) for n in (*mine, *wanted)):
            if len(mine) != len(wanted):
                msg = (
                    f"positions or tables have {len(mine)} chunks along an axis where "
                    f"{_ROTATED} has {len(wanted)}, and it is not known how long they are; call "
                    "compute_chunk_sizes() on both first"
                )
                raise RopeError(msg)
            continue
        chunks[axis] = wanted
    return table if tuple(chunks) == table.chunks else table.rechunk(tuple(chunks))


class LazyTables(tuple[tuple[Array, ...], ...]):  # noqa: SLOT001  # a tuple has no slots to add to
    """The digit tables as dask arrays, which the portable path reads; blocks make their own."""

    recipe: _blocks.Recipe


# What is kept are graphs of one task a table.
@lru_cache(maxsize=64)
def _lazy_tables(recipe: _blocks.Recipe) -> LazyTables:
    pairs = len(_angles.checked_frequencies(recipe.rope, recipe.head_dim))
    axes = recipe.rope.position_axes
    dtype = np.dtype(np.float64 if recipe.wide else np.float32)
    tables = LazyTables(
        tuple(
            da.map_blocks(
                partial(_blocks.table, component, digit, *recipe),
                chunks=tuple((n,) for n in shape),
                dtype=dtype,
                meta=np.empty((0,) * len(shape), dtype),
            )
            for digit, shape in enumerate(_angles.table_sizes(pairs, recipe.wide))
        )
        for component in range(1 if axes is None else max(axes) + 1)
    )
    tables.recipe = recipe
    return tables


class Dask(Backend):
    """The glue of dask. Blocks may be numpy's or cupy's; there is no device to speak of."""

    out_refusal = (
        "dask arrays are graphs of blocks to be computed, with no memory to write to; leave out= "
        "away, the blocks that went in are freed as the rotated ones are made"
    )

    def dtype_name(self, x: Array) -> str:
        """Dask dtypes are numpy's."""
        return numpy_name(x.dtype)

    def device(self, x: Array) -> None:
        """Blocks lie where they are computed."""
        return

    def asarray(self, host: np.ndarray, device: None) -> Array:
        """Make one chunk, a copy: what is rotated later must not change with the caller's array."""
        return da.from_array(host, chunks=-1)

    def arange(self, n: int, device: None) -> Array:
        """Count in one chunk."""
        return da.arange(_known(n), chunks=-1, dtype=np.int32)

    def integers(self, positions: Array) -> Array:
        """Convert block by block."""
        if numpy_name(positions.dtype) in ("int32", "int64"):
            return positions
        return _on_blocks(_blocks.integers, positions, np.dtype(np.int32))

    def parts(self, positions: Array) -> tuple[Array, Array]:
        """Split block by block."""
        dtype = np.dtype(np.float64 if positions.dtype == np.float64 else np.float32)
        whole = _on_blocks(_blocks.whole, positions, np.dtype(np.int32))
        return whole, _on_blocks(_blocks.part, positions, dtype)

    def tables(
        self, rope: RoPE, head_dim: int, inverse: bool, wide: bool, like: Array
    ) -> tuple[tuple[Array, ...], ...]:
        """Return tables that are made where they are needed."""
        _lengths.check_known(_ROTATED, (head_dim,))
        return _lazy_tables(_blocks.Recipe(rope, head_dim, inverse, wide))

    def cos_sin(self, lookup: Lookup) -> tuple[Array, Array]:
        """Return both tables of each block of positions from one task."""
        source = _source(lookup)
        whole: Array = lookup.whole
        if whole.ndim == 0:  # blocks of tables have an axis at least
            part = None if lookup.part is None else lookup.part[None]
            cos, sin = self.cos_sin(replace(lookup, whole=whole[None], part=part))
            return cos[0], sin[0]
        pairs = len(_angles.checked_frequencies(*source.recipe[:2]))
        index = tuple(range(whole.ndim))
        given = [(whole.rechunk({0: -1}) if source.components else whole, index)]
        if lookup.part is not None:
            given.append((lookup.part.rechunk(given[0][0].chunks), index))
        out = (whole.ndim, *(index[1:] if source.components else index), whole.ndim + 1)
        dtype = np.dtype(np.float64 if source.recipe.wide else np.float32)
        both = da.blockwise(
            _blocks.Tables(source),
            out,
            *(each for pair in given for each in pair),
            new_axes={out[0]: 2, out[-1]: pairs},
            token="rope-tables",  # noqa: S106  # no secret either
            dtype=dtype,
            meta=meta_from_array(whole, len(out), dtype),
            concatenate=True,
            align_arrays=False,
        )
        return both[0], both[1]


def _on_blocks(function: Callable[[Array], Array], x: Array, dtype: np.dtype) -> Array:
    return da.map_blocks(function, x, dtype=dtype, meta=meta_from_array(x, x.ndim, dtype))


BACKEND = Dask("dask", xp, (Blockwise(),))
