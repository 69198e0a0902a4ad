"""dask: one task a block, which rotates it with the positions that fit it."""

import dask.array as da
import numpy as np

from rope_xp._core.call import (
    AngleSource,
    Axes,
    Call,
    Leaf,
    RelativeAngles,
    TableLookup,
    leaves,
)
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import ROTATED, check_known
from rope_xp._core.path import Path
from rope_xp._core.typing import Array

from . import blocks
from .library import known_length


class Blockwise(Path):
    """One ``da.blockwise`` an array. Its chunks stay, but that head_dim becomes a single one."""

    name = "blockwise"

    def run(self, call: Call) -> tuple[Array, ...]:
        """Add the tasks to the graph."""
        return tuple(_rotated(call, i) for i in range(len(call.arrays)))


def _rotated(call: Call, i: int) -> Array:
    x, source = call.arrays[i], call.angles[min(i, len(call.angles) - 1)]
    check_known(ROTATED, x.shape[-1:])
    if x.numblocks[-1] > 1:
        x = x.rechunk({x.ndim - 1: -1})
    components, pairs = x.ndim, x.ndim + 1  # numbers of axes that only positions or tables have
    axes = call.spec.axes
    arrays: list[Array] = []
    indices: list[tuple[int, ...]] = []
    for array, lead, trail in _leaves(source, x, axes):
        n = array.ndim - lead - trail
        arrays.append(array)
        rows = axes.batch_tokens[len(axes.batch_tokens) - n :]
        indices.append((*(components,) * lead, *rows, *(pairs,) * trail))
    fits = tuple(
        tuple(
            None if axis >= x.ndim or n == 1 else axis
            for n, axis in zip(a.shape, where, strict=True)
        )
        for a, where in zip(arrays, indices, strict=True)
    )
    index = tuple(range(x.ndim))
    fitting = [_fitting(a, where, x) for a, where in zip(arrays, indices, strict=True)]
    return da.blockwise(
        blocks.Rotation(call.spec, blocks.emptied(source), fits),
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


def _leaves(source: AngleSource, x: Array, axes: Axes) -> tuple[Leaf, ...]:
    """Return what angles depend on; positions that are counted, as an array in the chunks of x."""
    if isinstance(source, RelativeAngles):
        return _leaves(source.new, x, axes) + _leaves(source.old, x, axes)
    if isinstance(source, TableLookup) and source.whole is None:
        n, chunks = known_length(x.shape[axes.tokens]), x.chunks[axes.tokens]
        return (Leaf(da.arange(n, chunks=(chunks,), dtype=np.int32), 0, 0),)
    return leaves(source)


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
                    f"{ROTATED} has {len(wanted)}, and it is not known how long they are; call "
                    "compute_chunk_sizes() on both first"
                )
                raise RopeError(msg)
            continue
        chunks[axis] = wanted
    return table if tuple(chunks) == table.chunks else table.rechunk(tuple(chunks))
