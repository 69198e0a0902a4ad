"""The path of dask: one task a block, with the positions that belong to it."""

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import dask.array as da
import numpy as np

from rope_xp._core.call import AngleSource, Call, RotationSpec, TableLookup, leaves
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import ROTATED, check_known
from rope_xp._core.path import Path
from rope_xp._core.typing import Array
from rope_xp._dispatch import choose, find

from .library import add_arrays, remove_arrays

Fits: TypeAlias = tuple[tuple[int | None, ...], ...]


class Blockwise(Path):
    """One ``da.blockwise`` an array. Chunks stay, but head_dim becomes a single one."""

    name = "blockwise"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        of_heads = any(w is not None and w.ndim > 1 for w in call.weights)
        return "its blocks take one weight for all heads" if of_heads else None

    def run(self, call: Call) -> tuple[Array, ...]:
        return tuple(_rotate(call, i) for i in range(len(call.arrays)))


def _rotate(call: Call, i: int) -> Array:
    x, source = call.arrays[i], call.angles[min(i, len(call.angles) - 1)]
    check_known(ROTATED, x.shape[-1:])
    if x.numblocks[-1] > 1:
        x = x.rechunk({x.ndim - 1: -1})
    components, pairs = x.ndim, x.ndim + 1  # axes of positions and tables alone
    axes = call.spec.axes
    fits, arguments = [], []
    for array, lead, trail in leaves(_count_tokens(source, x, axes.tokens)):
        n = array.ndim - lead - trail
        rows = axes.batch_tokens[len(axes.batch_tokens) - n :]
        index = (*(components,) * lead, *rows, *(pairs,) * trail)
        lengths = zip(array.shape, index, strict=True)
        fits.append(tuple(i if i < x.ndim and n != 1 else None for n, i in lengths))
        arguments += [_rechunk(array, index, x), index]
    weight = None if call.spec.norm is None else call.weights[i]
    if weight is not None:
        arguments += [weight.rechunk(-1), (pairs + 1,)]
    index = tuple(range(x.ndim))
    return da.blockwise(
        partial(rotate_block, call.spec, remove_arrays(source), tuple(fits)),
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


def rotate_block(
    spec: RotationSpec, source: AngleSource, fits: Fits, x: Array, *arrays: Any
) -> Array:
    """Return a block x rotated on the path that it takes by itself. Runs in tasks.

    ``arrays`` are those removed from ``source``, and implicit positions; then any weight of the
    norm. ``fits`` holds for each but the weight the axis of x that each of its axes must be as long
    as, or None.
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
    rest = iter(arrays)
    angles = add_arrays(source, rest, x)
    weights = () if spec.norm is None else (next(rest, None),)
    call = Call(backend, (x,), (angles,), None, spec, weights)
    with choose.use_path(None):  # a forced path is one of dask
        return choose.run(call)[0]


def _count_tokens(source: AngleSource, x: Array, axis: int) -> AngleSource:
    """Return a source with implicit positions as an array, in the chunks of x."""
    if isinstance(source, TableLookup) and source.whole is None:
        check_known(ROTATED, (x.shape[axis],))
        whole = da.arange(x.shape[axis], chunks=(x.chunks[axis],), dtype=np.int32)
        return replace(source, whole=whole, components=0)
    return source


def _rechunk(table: Array, index: tuple[int, ...], x: Array) -> Array:
    """Return positions or a table in the chunks of x, and whole along other axes."""
    chunks = list(table.chunks)
    for axis, i in enumerate(index):
        old, new = chunks[axis], (table.shape[axis],)
        if i < x.ndim and table.shape[axis] != 1:
            new = x.chunks[i]
        if any(isinstance(n, float) for n in (*old, *new)):
            if len(old) != len(new):
                raise RopeError(
                    f"positions or tables have {len(old)} chunks along an axis where "
                    f"{ROTATED} has {len(new)}, and it is not known how long they are; call "
                    "compute_chunk_sizes() on both first"
                )
            continue
        chunks[axis] = new
    return table if tuple(chunks) == table.chunks else table.rechunk(tuple(chunks))
