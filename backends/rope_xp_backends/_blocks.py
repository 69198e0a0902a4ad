"""What one block of a dask array is asked to do. Every task of a graph carries what is here.

So it holds a rope and a few numbers, and no table: a process that runs blocks makes its own, once.
A block is numpy's or cupy's; it takes the path that it would take as an array by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rope_xp import _angles, _axes, _dispatch, _validate
from rope_xp._contract import Angles, Backend, Call, Difference, Given, Lookup
from rope_xp._typing import Array, Layout
from rope_xp.rope import RoPE


class Recipe(NamedTuple):
    """What the digit tables of a rope are made of."""

    rope: RoPE
    head_dim: int
    inverse: bool
    wide: bool

    def host_tables(self) -> tuple[tuple[np.ndarray, ...], ...]:
        """Return the tables, from the cache of the process."""
        return _angles.host_tables(self.rope, self.head_dim, self.inverse, self.wide)


@dataclass(frozen=True)
class Source:
    """A lookup without its arrays."""

    recipe: Recipe
    reach: _angles.Reach
    scale: float
    components: int
    counted: bool
    """Whether positions are 0, 1, ...: then they come without an axis of components."""
    split: bool
    """Whether a fractional part comes beside the whole part."""

    @property
    def arrays(self) -> int:
        """How many arrays of positions it takes."""
        return 1 + self.split

    def lookup(self, positions: tuple[Array, ...], x: Array) -> Lookup:
        """Return the lookup for a block x, or for tables where x is positions themselves."""
        backend = _dispatch.backend_of(x, "a block")
        whole, part = (*(_placed(backend, p, x) for p in positions), None)[:2]
        if backend.name == "numpy" and whole.dtype.kind == "i":
            whole = whole.astype(np.int64, copy=False)  # the kernels read no other integers
        if self.counted and self.components:
            whole = backend.xp.broadcast_to(whole, (self.components, *whole.shape))
        return Lookup(
            backend.tables(*self.recipe, x),
            whole,
            part,
            backend.device(x),
            whole.shape[-1],
            self.reach,
            self.recipe.wide,
            self.scale,
            self.components,
        )


@dataclass(frozen=True)
class Turn:
    """The rotation of a block: a function of the block and the positions or tables that fit it."""

    axes: str
    layout: Layout
    rotary_dim: int
    rotary_offset: int
    inverse: bool
    sources: tuple[Source, ...]
    """None where cos and sin are given, two where one angle is taken from another."""
    fits: tuple[tuple[int | None, ...], ...]
    """The axis of x that each axis of each further array is as long as, None where it need not."""

    def __call__(self, x: Array, *arrays: Array) -> Array:
        """Return the block rotated, on the path that is chosen for it where it lies."""
        self._check(x, arrays)
        backend = _dispatch.backend_of(x, "a block")
        call = Call(
            backend,
            (x,),
            (self._angles(backend, x, arrays),),
            None,
            _axes.parse(self.axes, x.ndim, "a block"),
            self.layout,
            self.rotary_dim,
            self.rotary_offset,
            self.inverse,
        )
        with _dispatch.use_backend(None):  # a path asked for by name is one of dask arrays
            return _dispatch.run(call)[0]

    def _check(self, x: Array, arrays: tuple[Array, ...]) -> None:
        """Check what could not be when lengths were unknown."""
        for array, axes in zip(arrays, self.fits, strict=True):
            lengths = zip(array.shape, axes, strict=True)
            if any(axis is not None and n != x.shape[axis] for n, axis in lengths):
                raise _validate.unfit_block(tuple(x.shape), tuple(array.shape))

    def _angles(self, backend: Backend, x: Array, arrays: tuple[Array, ...]) -> Angles:
        if not self.sources:
            return Given(*(_placed(backend, table, x) for table in arrays))
        first = self.sources[0]
        new = first.lookup(arrays[: first.arrays], x)
        if len(self.sources) == 1:
            return new
        return Difference(new, self.sources[1].lookup(arrays[first.arrays :], x))


@dataclass(frozen=True)
class Tables:
    """Cos and sin of a block of positions, as one array (2, ..., r/2)."""

    source: Source

    def __call__(self, *positions: Array) -> Array:
        """Return them, on the device of the positions."""
        backend = _dispatch.backend_of(positions[0], "a block of positions")
        lookup = self.source.lookup(positions, positions[0])
        return backend.xp.stack(_angles.cos_sin(backend, lookup))


def _placed(backend: Backend, block: Array, x: Array) -> Array:
    """Return a block of positions or tables beside the block x that it belongs to."""
    owner = _dispatch.backend_of(block, "a block of positions")
    if owner is backend:
        return block
    if owner.name == "numpy":
        return backend.asarray(block, backend.device(x))
    raise _validate.different_libraries("a block", backend, "its positions", owner)


def integers(positions: Array) -> Array:
    """Return a block of positions in a dtype that can be indices."""
    return _dispatch.backend_of(positions, "a block of positions").integers(positions)


def whole(positions: Array) -> Array:
    """Return the whole part of a block of float positions."""
    return _dispatch.backend_of(positions, "a block of positions").parts(positions)[0]


def part(positions: Array) -> Array:
    """Return the fractional part of a block of float positions."""
    return _dispatch.backend_of(positions, "a block of positions").parts(positions)[1]


def table(component: int, digit: int, *recipe: object) -> np.ndarray:
    """Return one digit table, for the portable path."""
    return Recipe(*recipe).host_tables()[component][digit]  # type: ignore[arg-type]  # its fields
