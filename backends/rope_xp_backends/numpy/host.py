"""From numpy's arrays to kernels, which are given the objects themselves."""

from collections.abc import Sequence

import numpy as np

from rope_xp._contract.call import Given, Lookup, Turn
from rope_xp._contract.memory import Laid
from rope_xp_backends.cpu import copies, launch, threads
from rope_xp_backends.cpu.compiled import Kernel
from rope_xp_backends.cpu.plan import Angles, Pair


def rotate(
    kernel: Kernel,
    arrays: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
    source: Lookup | Given,
    turn: Turn,
) -> None:
    """Rotate one array or two of one dtype, which share their angles, into outs."""
    written = [y if copies.readable(y) else copies.empty(y) for y in outs]
    read = [
        x if copies.readable(x) else copies.copied(x, y)
        for x, y in zip(arrays, written, strict=True)
    ]
    ends = [x for each in zip(read, written, strict=True) for x in each]
    rows = angles_of(source)
    made = prepare(kernel, ends, rows, source, turn)
    made(*addresses(ends, rows), limit=threads.limit)
    for y, result in zip(outs, written, strict=True):
        if result is not y:
            y[...] = result


def prepare(
    kernel: Kernel,
    ends: Sequence[np.ndarray],
    rows: Sequence[np.ndarray],
    source: Lookup | Given,
    turn: Turn,
) -> launch.Launch:
    """Return what rotates all arrays that lie as these, q, q_out, k and k_out, by such angles."""
    laid = [Laid(x.shape, x.strides) for x in ends]
    pairs = [Pair(x, y) for x, y in zip(laid[::2], laid[1::2], strict=True)]
    if isinstance(source, Given):
        of_rows = tuple(Laid(a.shape, a.strides) for a in rows)
        angles = Angles(rows[0].shape[-1], of_rows, ())
        kept = None
    else:
        kept, components = source.tables, source.components if rows else 0
        of_rows = tuple(_components_last(a, components) for a in rows)
        component = () if kept.component is None or not rows else tuple(kept.component.tolist())
        tables = tuple([0 if t is None else t.ctypes.data for t in kept])
        angles = Angles(kept.frequencies.shape[0], of_rows, tables, component)
    return launch.prepare(kernel, pairs, angles, turn, ends[0].itemsize, kept, boxed=True)


def angles_of(source: Lookup | Given) -> list[np.ndarray]:
    """Return positions and what they have after the point, or cos and sin, as kernels read them."""
    if isinstance(source, Given):
        return [_aligned(source.cos), _aligned(source.sin)]
    if source.whole is None:
        return []
    if source.part is None:
        return [_aligned(source.whole)]
    part = source.part.astype(source.tables.low.dtype, copy=False)
    return [_aligned(source.whole), _aligned(part)]


def addresses(ends: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> list[int]:
    """Return what a kernel is given for arrays and angles. Their owner must keep them meanwhile."""
    given = [id(x) for x in ends]
    given += [0] * (4 - len(given)) + [id(a) for a in rows]
    return given + [0] * (6 - len(given))


def _components_last(a: np.ndarray, components: int) -> Laid:
    if components:
        return Laid((*a.shape[1:], components), (*a.strides[1:], a.strides[0]))
    return Laid((*a.shape, 1), (*a.strides, 0))


def _aligned(angles: np.ndarray) -> np.ndarray:
    return angles if angles.flags.aligned else angles.copy()
