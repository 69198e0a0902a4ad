"""Tasks of dask graphs: functions of one block, an array of numpy or cupy.

Every task is serialized, so it holds a rope and a few numbers, and no table: each process builds
its own. A block takes the path that it would take by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rope_xp._arguments import messages
from rope_xp._core.call import (
    AngleSource,
    Call,
    CosSin,
    RelativeAngles,
    RotationSpec,
)
from rope_xp._core.errors import RopeError
from rope_xp._core.library import TableKey
from rope_xp._core.typing import Array
from rope_xp._dispatch import choose, find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import cos_sin
from rope_xp._rotation.tables import host_tables


def remove_arrays(source: AngleSource) -> AngleSource:
    """Return a source of angles without tables and arrays, which a task adds."""
    if isinstance(source, CosSin):
        return CosSin(None, None)
    if isinstance(source, RelativeAngles):
        return RelativeAngles(remove_arrays(source.new), remove_arrays(source.old))  # type: ignore[arg-type]  # lookups
    part = None if source.part is None else ...
    return replace(source, tables=None, whole=None, part=part)  # type: ignore[arg-type]  # for now


def add_arrays(source: AngleSource, arrays: Iterator[Array], x: Array) -> AngleSource:
    """Return a source with the arrays of a block x, which may be positions, and with tables."""
    backend = find.require_backend(x, "a block")
    if isinstance(source, CosSin):
        return CosSin(*(_move(backend, next(arrays), x) for _ in "cs"))
    if isinstance(source, RelativeAngles):
        return RelativeAngles(*(add_arrays(s, arrays, x) for s in (source.new, source.old)))  # type: ignore[arg-type]  # lookups
    whole = _move(backend, next(arrays), x)
    part = None if source.part is None else _move(backend, next(arrays), x)
    if backend.host and whole.dtype.kind == "i":
        whole = whole.astype(np.int64, copy=False)  # as kernels read them
    if source.components and whole.ndim == 1:  # implicit, and equal in all components
        whole = backend.xp.broadcast_to(whole, (source.components, *whole.shape))
    tables = backend.tables(source.table_key, x)  # type: ignore[arg-type]  # in every call
    device, tokens = backend.device(x), whole.shape[-1]
    return replace(source, tables=tables, whole=whole, part=part, device=device, tokens=tokens)


@dataclass(frozen=True)
class Rotation:
    """The rotation of a block: a function of it and its positions or tables."""

    spec: RotationSpec
    source: AngleSource
    """Without arrays. Implicit positions come as an array too."""
    fits: tuple[tuple[int | None, ...], ...]
    """For each further array, the axis of x that each of its axes must be as long as, or None."""

    def __call__(self, x: Array, *arrays: Array) -> Array:
        """Return the block rotated."""
        self._check(x, arrays)
        backend = find.require_backend(x, "a block")
        call = Call(backend, (x,), (add_arrays(self.source, iter(arrays), x),), None, self.spec)
        with choose.use_path(None):  # a forced path is one of dask
            return choose.run(call)[0]

    def _check(self, x: Array, arrays: tuple[Array, ...]) -> None:
        """Check lengths, which may have been unknown before."""
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
    """cos and sin of a block of positions, as one array (2, ..., r/2)."""

    source: AngleSource

    def __call__(self, *positions: Array) -> Array:
        """Return both, on the device of the positions."""
        backend = find.require_backend(positions[0], "a block of positions")
        lookup = add_arrays(self.source, iter(positions), positions[0])
        return backend.xp.stack(cos_sin(backend, lookup))


def _move(backend: Backend, block: Array, x: Array) -> Array:
    """Return a block of positions or tables on the device of the block x."""
    owner = find.require_backend(block, "a block of positions")
    if owner is backend:
        return block
    if owner.host:
        return backend.asarray(block, backend.device(x))
    raise messages.different_libraries("a block", backend, "its positions", owner)


def convert_integers(positions: Array) -> Array:
    """Return a block of positions in a dtype that can be indices."""
    return find.require_backend(positions, "a block of positions").integers(positions)


def split_positions(positions: Array, part: int, double: bool) -> Array:
    """Return the integer part (0) or the fraction (1) of a block of float positions."""
    backend = find.require_backend(positions, "a block of positions")
    return backend.split_positions(positions, double)[part]


def build_table(name: str, *table_key: Any) -> Any:
    """Return one of the tables of a rope, for the portable path."""
    return getattr(host_tables(TableKey(*table_key)), name)
