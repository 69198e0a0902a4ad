"""What one block of a dask array is asked to do. Every task of a graph carries what is here.

So it holds a rope and a few numbers, and no table: a process that runs blocks makes its own, once.
A block is numpy's or cupy's; it takes the path that it would take as an array by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rope_xp._arguments import messages
from rope_xp._core.call import (
    AngleSource,
    Call,
    CosSin,
    RelativeAngles,
    RotationSpec,
    TableLookup,
)
from rope_xp._core.errors import RopeError
from rope_xp._core.library import TableKey
from rope_xp._core.typing import Array
from rope_xp._dispatch import choose, find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import cos_sin
from rope_xp._rotation.tables import host_tables


def emptied(source: AngleSource) -> AngleSource:
    """Return a source of angles without tables and arrays, which a task brings itself."""
    if isinstance(source, CosSin):
        return CosSin(None, None)
    if isinstance(source, RelativeAngles):
        return RelativeAngles(emptied(source.new), emptied(source.old))  # type: ignore[arg-type]  # Lookups
    part = None if source.part is None else ...
    return replace(source, tables=None, whole=None, part=part)  # type: ignore[arg-type]  # until filled


def filled(source: AngleSource, arrays: Iterator[Array], x: Array) -> AngleSource:
    """Return the source with the arrays that fit a block x, or tables where x is positions."""
    backend = find.require_backend(x, "a block")
    if isinstance(source, CosSin):
        return CosSin(_placed(backend, next(arrays), x), _placed(backend, next(arrays), x))
    if isinstance(source, RelativeAngles):
        return RelativeAngles(filled(source.new, arrays, x), filled(source.old, arrays, x))  # type: ignore[arg-type]  # Lookups
    whole = _placed(backend, next(arrays), x)
    part = None if source.part is None else _placed(backend, next(arrays), x)
    if backend.host and whole.dtype.kind == "i":
        whole = whole.astype(np.int64, copy=False)  # the kernels read no other integers
    if source.components and whole.ndim == 1:  # counted, and so alike in all components
        whole = backend.xp.broadcast_to(whole, (source.components, *whole.shape))
    table_key: TableKey = source.table_key  # type: ignore[assignment]  # given to every call
    tokens, device = whole.shape[-1], backend.device(x)
    tables = backend.tables(table_key, x)
    return TableLookup(
        tables, whole, part, device, tokens, source.position_range, source.components, table_key
    )


@dataclass(frozen=True)
class Rotation:
    """The rotation of a block: a function of the block and the positions or tables that fit it."""

    spec: RotationSpec
    source: AngleSource
    """Emptied; positions that are counted come as an array like others."""
    fits: tuple[tuple[int | None, ...], ...]
    """The axis of x that each axis of each further array is as long as, None where it need not."""

    def __call__(self, x: Array, *arrays: Array) -> Array:
        """Return the block rotated, on the path that is chosen for it where it lies."""
        self._check(x, arrays)
        backend = find.require_backend(x, "a block")
        call = Call(backend, (x,), (filled(self.source, iter(arrays), x),), None, self.spec)
        with choose.use_path(None):  # a path asked for by name is one of dask arrays
            return choose.run(call)[0]

    def _check(self, x: Array, arrays: tuple[Array, ...]) -> None:
        """Check what could not be when lengths were unknown."""
        for array, axes in zip(arrays, self.fits, strict=True):
            lengths = zip(array.shape, axes, strict=True)
            if any(axis is not None and n != x.shape[axis] for n, axis in lengths):
                msg = (
                    f"a block of shape {tuple(x.shape)} meets a block of positions or tables of "
                    f"shape {tuple(array.shape)}, which does not fit; what was selected from one "
                    "was not selected from the other"
                )
                raise RopeError(msg)


@dataclass(frozen=True)
class BlockTables:
    """Cos and sin of a block of positions, as one array (2, ..., r/2)."""

    source: AngleSource

    def __call__(self, *positions: Array) -> Array:
        """Return them, on the device of the positions."""
        backend = find.require_backend(positions[0], "a block of positions")
        lookup = filled(self.source, iter(positions), positions[0])
        return backend.xp.stack(cos_sin(backend, lookup))


def _placed(backend: Backend, block: Array, x: Array) -> Array:
    """Return a block of positions or tables beside the block x that it belongs to."""
    owner = find.require_backend(block, "a block of positions")
    if owner is backend:
        return block
    if owner.host:
        return backend.asarray(block, backend.device(x))
    raise messages.different_libraries("a block", backend, "its positions", owner)


def integers(positions: Array) -> Array:
    """Return a block of positions in a dtype that can be indices."""
    return find.require_backend(positions, "a block of positions").integers(positions)


def whole(positions: Array) -> Array:
    """Return the whole part of a block of float positions."""
    return find.require_backend(positions, "a block of positions").split_positions(
        positions, False
    )[0]


def part(positions: Array, double: bool) -> Array:
    """Return the fractional part of a block of float positions."""
    return find.require_backend(positions, "a block of positions").split_positions(
        positions, double
    )[1]


def table(which: int, *table_key: object) -> np.ndarray:
    """Return one of the tables of a rope, for the portable path."""
    return tuple(host_tables(TableKey(*table_key)))[which]  # type: ignore[arg-type,no-any-return]  # its fields
