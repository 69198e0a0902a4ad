"""From arrays in CPU memory to kernels. Shared by numpy and torch."""

from collections.abc import Sequence

import numpy as np

from rope_xp._contract.call import Call, Given, Lookup, Turn

from . import threads as pool
from . import views
from .compiled import KERNELS, Kernel, Key

BYTES_A_THREAD = 1 << 21
"""Waking a second thread takes as long as rotating this many bytes."""
BYTES_TO_STREAM = 1 << 25
"""Results that leave the last cache before anyone reads them are written past it."""
BYTES_TO_COMPILE_FOR = 1 << 22
"""Compiling takes a second. What rotates fewer bytes waits for a larger call to have it done."""


def keys(turn: Turn, dtypes: Sequence[str]) -> list[Key]:
    """Return the keys of the kernels that turn arrays of these dtypes."""
    read, write = turn.side_by_side
    return [(dtype, read, write) for dtype in dtypes]


def not_yet(call: Call, wanted: Sequence[Key]) -> str | None:
    """Return why a call would not have its kernels compiled, None if it would or they are."""
    if all(map(KERNELS.ready, wanted)):
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
    kernel: Kernel,
    arrays: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
    source: Lookup | Given,
    turn: Turn,
    threads: int,
) -> None:
    """Rotate one array or two of one dtype, which share their angles.

    Arrays are numpy's, 16-bit floats as their bits. Positions are int64, without components.
    """
    positions: tuple[np.ndarray, ...] = ()
    cos_sin: tuple[np.ndarray, ...] = ()
    tables: tuple[np.ndarray, ...] = _NO_TABLES
    if isinstance(source, Given):
        cos_sin = _aligned(source.cos), _aligned(source.sin)
    else:
        tables = source.digits
        if source.whole is not None:
            positions = (_aligned(source.whole),)
    ends = [x for each in zip(arrays, outs, strict=True) for x in each]
    for x, angles in views.in_order(ends, positions, cos_sin, turn.axes):
        looked_up = angles if positions else [_NO_POSITIONS]
        given = angles if cos_sin else _NO_ANGLES
        _launch(kernel, x, (*looked_up, *tables, *given), turn, threads)


def _aligned(angles: np.ndarray) -> np.ndarray:
    return angles if angles.flags.aligned else angles.copy()


def _launch(
    kernel: Kernel,
    arrays: list[np.ndarray],
    angles: tuple[np.ndarray, ...],
    turn: Turn,
    threads: int,
) -> None:
    if len(arrays) == 2:
        arrays += [x[:, :, :0] for x in arrays]
    q, _, k, _ = arrays
    size = q.nbytes + k.nbytes
    stream = size >= BYTES_TO_STREAM
    arguments = (*arrays, *angles, turn.rotary_offset, turn.inverse, stream)
    rows = q.shape[0] * q.shape[1]
    threads = min(threads, size // BYTES_A_THREAD)
    if threads <= 1:
        kernel(*arguments, 0, rows)
        return
    pool.share(lambda start, stop: kernel(*arguments, start, stop), rows, threads)
