"""From a checked call to kernels on CPU memory. Shared by numpy and torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rope_xp import _portable
from rope_xp._axes import Axes
from rope_xp._contract import Angles, Call, Lookup
from rope_xp._rotate import PAIR_AXIS
from rope_xp._typing import Array, Layout

from . import _compiled, _threads, _views

BYTES_A_THREAD = 1 << 21
"""Waking a second thread takes as long as rotating this many bytes."""
BYTES_TO_STREAM = 1 << 25
"""Results that leave the last cache before anyone reads them are written past it."""
BYTES_TO_COMPILE_FOR = 1 << 22
"""Compiling takes a second. What rotates fewer bytes waits for a larger call to have it done."""


class Source(NamedTuple):
    """Where a kernel gets its angles: arrays of the caller's library, or of numpy."""

    positions: Array | None
    """Whole positions to look up, (batch..., tokens); None for 0, 1, 2, ... or with tables."""
    tables: tuple[Array, ...]
    """The digit tables (low, middle, high), or (cos, sin) of every token."""
    components: Array | None = None
    """Which component of positions each frequency reads, (r/2,); they are the last axis then."""


class Rotation(NamedTuple):
    """What is done to every array of a call."""

    axes: Axes
    layout: Layout
    offset: int
    inverse: bool

    def key(self, dtype: str) -> _compiled.Key:
        """Return the key of the kernel for arrays of a dtype."""
        read, write = PAIR_AXIS[self.layout]
        if self.inverse:
            read, write = write, read
        return dtype, read == -1, write == -1


class Operand(NamedTuple):
    """An array to rotate and where to, in numpy. 16-bit floats come as their bits."""

    dtype: str
    x: np.ndarray
    out: np.ndarray


def rotation_of(call: Call) -> Rotation:
    """Return what a call does to its arrays."""
    return Rotation(call.axes, call.layout, call.rotary_offset, call.inverse)


def source_of(call: Call, angles: Angles) -> Source:
    """Return where a kernel gets these angles. Those it cannot look up are computed here."""
    if (
        not isinstance(angles, Lookup)
        or angles.wide
        or angles.components
        or angles.part is not None
    ):
        return Source(None, _portable.cos_sin(call, angles))
    return Source(angles.whole, angles.tables[0][:3])


def defers(call: Call, dtypes: tuple[str, ...]) -> str | None:
    """Return why a call would not have its kernels compiled, None if it would or they are."""
    rotation = rotation_of(call)
    if all(_compiled.ready(rotation.key(dtype)) for dtype in dtypes):
        return None
    size = sum(x.nbytes for x in call.arrays)
    if size >= BYTES_TO_COMPILE_FOR:
        return None
    return (
        f"its kernel is not compiled yet, which takes a second, and q and k have {size} bytes; a "
        f"call with {BYTES_TO_COMPILE_FOR} compiles it, or any under use_backend('numba')"
    )


# --- running -------------------------------------------------------------------------------------

_NO_POSITIONS = np.empty((0, 0), np.int64)
_NO_TABLES = (np.empty((0, 0), np.float32),) * 3
_NO_ANGLES = (np.empty((0, 0, 0), np.float32),) * 2


def rotate(
    operands: tuple[Operand, ...], sources: tuple[Source, ...], rotation: Rotation, threads: int
) -> None:
    """Rotate one array or two, which share one source of angles or have one each.

    Raises Unavailable, before anything is written, where a kernel cannot be compiled.
    """
    for operand in operands:
        _compiled.kernel(rotation.key(operand.dtype))
    if len(sources) == 1 and operands[0].dtype == operands[-1].dtype:
        _rotate(operands, sources[0], rotation, threads)
        return
    for i, operand in enumerate(operands):
        _rotate((operand,), sources[min(i, len(sources) - 1)], rotation, threads)


def _rotate(
    operands: tuple[Operand, ...], source: Source, rotation: Rotation, threads: int
) -> None:
    kernel = _compiled.kernel(rotation.key(operands[0].dtype))
    arrays = [x for operand in operands for x in (operand.x, operand.out)]
    positions, tables = source.positions, source.tables
    for views, angles in _views.in_order(
        arrays,
        () if positions is None else (_aligned(positions),),
        () if len(tables) == 3 else [_aligned(table) for table in tables],
        rotation.axes,
    ):
        if len(tables) == 3:
            given = (*(angles or (_NO_POSITIONS,)), *tables, *_NO_ANGLES)
        else:
            given = (_NO_POSITIONS, *_NO_TABLES, *angles)
        _launch(kernel, views, given, rotation, threads)


def _aligned(angles: np.ndarray) -> np.ndarray:
    return angles if angles.flags.aligned else angles.copy()


def _launch(
    kernel: _compiled.Kernel,
    arrays: list[np.ndarray],
    angles: tuple[np.ndarray, ...],
    rotation: Rotation,
    threads: int,
) -> None:
    if len(arrays) == 2:
        arrays += [x[:, :, :0] for x in arrays]
    q, _, k, _ = arrays
    size = q.nbytes + k.nbytes
    stream = size >= BYTES_TO_STREAM
    arguments = (*arrays, *angles, rotation.offset, rotation.inverse, stream)
    rows = q.shape[0] * q.shape[1]
    threads = min(threads, size // BYTES_A_THREAD)
    if threads <= 1:
        kernel(*arguments, 0, rows)
        return
    _threads.share(lambda start, stop: kernel(*arguments, start, stop), rows, threads)
