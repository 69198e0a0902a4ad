"""From numpy's arrays to kernels: plans, and the addresses of elements."""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rope_xp._core.call import CosSin, RotationSpec, TableLookup
from rope_xp._core.library import DigitTables
from rope_xp._core.memory import StridedLayout
from rope_xp_backends.cpu import copies, launch, threads
from rope_xp_backends.cpu.compiled import Kernel
from rope_xp_backends.cpu.plan import Angles, Pair

Arrays = tuple[np.ndarray, ...]
_ARRAY = np.ndarray
_HEADER = object.__basicsize__
_read = ctypes.c_void_p.from_address


def addresses(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the addresses of arrays' elements, which lie there for as long as they are held.

    Every address that a kernel is given comes from here. It is the first field of an ndarray
    behind the object's header, and so read in a tenth of the time of ``x.ctypes.data``.
    """
    found: list[Any] = []
    for x in arrays:
        if type(x) is not _ARRAY:
            msg = f"a kernel reads a numpy.ndarray; got {type(x).__name__}"
            raise TypeError(msg)
        found.append(_read(id(x) + _HEADER).value if _IS_READ else x.ctypes.data)
    return found


def _is_read() -> bool:
    """Return whether this interpreter lays arrays out so."""
    if sys.implementation.name != "cpython":
        return False
    probe = np.empty(1)
    return _read(id(probe) + _HEADER).value == probe.ctypes.data


_IS_READ = _is_read()


def rotate(
    kernel: Kernel,
    arrays: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
    source: TableLookup | CosSin,
    spec: RotationSpec,
) -> None:
    """Rotate one array or two of one dtype, which share their angles, into outs."""
    written = [y if copies.readable(y) else copies.empty(y) for y in outs]
    read = [
        x if copies.readable(x) else copies.copied(x, y)
        for x, y in zip(arrays, written, strict=True)
    ]
    angle_inputs = angle_inputs_of(source)
    run = prepare(kernel, read, written, angle_inputs, source, spec)
    KernelLaunch(run, True)(tuple(read), tuple(written), tuple(angle_inputs))
    for y, result in zip(outs, written, strict=True):
        if result is not y:
            y[...] = result


def prepare(
    kernel: Kernel,
    arrays: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
    angle_inputs: Sequence[np.ndarray],
    source: TableLookup | CosSin,
    spec: RotationSpec,
) -> launch.Launch:
    """Return what rotates all arrays that lie as these by angles that lie as these rows."""
    pairs = [Pair(_laid(x), _laid(y)) for x, y in zip(arrays, outs, strict=True)]
    if isinstance(source, CosSin):
        angles = Angles(angle_inputs[0].shape[-1], tuple(map(_laid, angle_inputs)), ())
    else:
        tables, components = source.tables, source.components if angle_inputs else 0
        component = () if not components else tuple(tables.component.tolist())  # type: ignore[union-attr]  # there is one
        places = addresses([t for t in tables if t is not None])
        strides_of_inputs = tuple([_components_last(a, components) for a in angle_inputs])
        angles = Angles(tables.frequencies.shape[0], strides_of_inputs, tuple(places), component)
    return launch.prepare(kernel, pairs, angles, spec, arrays[0].itemsize)


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Runs a kernel by the plan of a signature.

    Parameters
    ----------
    run : Launch
        The kernel and its parameters.
    contiguous : bool
        Whether new results are C-contiguous; else they have the strides of ``numpy.empty_like``.
    """

    run: launch.Launch
    contiguous: bool

    def __call__(
        self,
        arrays: Arrays,
        out: Arrays | None,
        angle_inputs: Arrays,
        _tables: DigitTables | None = None,
    ) -> Arrays:
        """Return results."""
        if out is None:
            if self.contiguous:
                out = tuple([np.empty(x.shape, x.dtype) for x in arrays])
            else:
                out = tuple([np.empty_like(x) for x in arrays])
        if len(arrays) == 1:
            q, q_out, *angles = addresses((arrays[0], out[0], *angle_inputs))
            k = k_out = 0
        else:
            q, q_out, k, k_out, *angles = addresses(
                (arrays[0], out[0], arrays[1], out[1], *angle_inputs)
            )
        a, b = angles if len(angles) == 2 else (*angles, 0, 0)[:2]
        self.run(q, q_out, k, k_out, a, b, limit=threads.limit)
        return out


def specialize(
    kernel: Kernel,
    arrays: Arrays,
    results: Arrays,
    angle_inputs: Arrays,
    source: TableLookup | CosSin,
    spec: RotationSpec,
) -> KernelLaunch | None:
    """Return what runs a kernel on all arrays that lie as these, None where some are copied."""
    if not all(map(copies.readable, (*arrays, *results))):
        return None
    if not all(row.flags.aligned for row in angle_inputs):
        return None
    strides = [y.strides for y in results]
    contiguous = [np.empty(x.shape, x.dtype).strides for x in arrays] == strides
    if not contiguous and [np.empty_like(x).strides for x in arrays] != strides:
        return None
    return KernelLaunch(prepare(kernel, arrays, results, angle_inputs, source, spec), contiguous)


def angle_inputs_of(source: TableLookup | CosSin) -> list[np.ndarray]:
    """Return positions and their fractions, or cos and sin, as kernels read them: plain arrays."""
    if isinstance(source, CosSin):
        return [_aligned(source.cos), _aligned(source.sin)]
    if source.whole is None:
        return []
    if source.part is None:
        return [_aligned(source.whole)]
    part = source.part.astype(source.tables.low.dtype, copy=False)
    return [_aligned(source.whole), _aligned(part)]


def _laid(x: np.ndarray) -> StridedLayout:
    return StridedLayout(x.shape, x.strides)


def _components_last(a: np.ndarray, components: int) -> StridedLayout:
    if components:
        rest, strides = a.shape[1:] or (1,), a.strides[1:] or (0,)
        return StridedLayout((*rest, components), (*strides, a.strides[0]))
    return StridedLayout((*a.shape, 1), (*a.strides, 0))


def _aligned(angles: np.ndarray) -> np.ndarray:
    plain = np.asarray(angles)
    return plain if plain.flags.aligned else plain.copy()
