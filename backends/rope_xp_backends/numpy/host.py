"""From numpy arrays to kernels: plans, and addresses of elements."""

import ctypes
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rope_xp._core.call import Call, CosSin, RotationSpec, TableLookup
from rope_xp._core.memory import StridedLayout, measure_extent
from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp_backends.cpu import threads
from rope_xp_backends.cpu.launch import CpuLaunch, Kernel
from rope_xp_backends.cpu.plan import AngleLayouts, InOut, build_plan

LONG = 64
"""A longer axis repays a loop over the others in Python."""
COLUMNS = 8
"""Contiguous columns copied at once. More would compete for one set of the cache."""

Arrays = tuple[np.ndarray, ...]
Angles: TypeAlias = TableLookup | CosSin
_ARRAY = np.ndarray
_HEADER = object.__basicsize__
_read = ctypes.c_void_p.from_address
_PROBE = np.empty(1)
_HAS_POINTER = (
    sys.implementation.name == "cpython" and _read(id(_PROBE) + _HEADER).value == _PROBE.ctypes.data
)


def locate(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the addresses of the elements of arrays, for all kernels.

    CPython has it as the first field of an ndarray behind the object's header, where it is read in
    a tenth of the time of ``x.ctypes.data``.
    """
    pointers: list[Any] = []
    for x in arrays:
        if type(x) is not _ARRAY:
            raise TypeError(f"a kernel reads a numpy.ndarray; got {type(x).__name__}")
        pointers.append(_read(id(x) + _HEADER).value if _HAS_POINTER else x.ctypes.data)
    return pointers


def rotate(kernel: Kernel, call: Call, out: Arrays, source: Angles) -> None:
    """Rotate one array or two of one dtype, which share their angles, into out."""
    results = tuple(
        [y if is_readable(y) else np.empty(y.shape, y.dtype.newbyteorder("=")) for y in out]
    )
    pairs = zip(call.arrays, results, strict=True)
    arrays = tuple([x if is_readable(x) else _copy_into(y, x) for x, y in pairs])
    weights, rows = get_weights(call), get_angle_inputs(source)
    tables = source.tables if isinstance(source, TableLookup) else None
    launch = plan_launch(kernel, arrays, results, weights, rows, source, call.spec)
    if not launch(arrays, results, weights + rows, tables, are_apart=True):
        raise PathUnavailable("an array has no memory")
    for y, result in zip(out, results, strict=True):
        if result is not y:
            y[...] = result


def plan_launch(
    kernel: Kernel,
    arrays: Arrays,
    outs: Arrays,
    weights: Arrays,
    rows: Arrays,
    source: Angles,
    spec: RotationSpec,
) -> CpuLaunch:
    """Return the launch of all arrays, weights and angle inputs with the strides of these."""
    pairs = zip(arrays, outs, strict=True)
    operands = [InOut(_get_layout(x), _get_layout(y), x is y) for x, y in pairs]
    if isinstance(source, CosSin):
        angles = AngleLayouts(rows[0].shape[-1], tuple(map(_get_layout, rows)), False)
    else:
        tables, components = source.tables, source.components if rows else 0
        component = () if not components else tuple(tables.component.tolist())  # type: ignore[union-attr]  # there is one
        layouts = tuple([_move_components_last(row, components) for row in rows])
        angles = AngleLayouts(tables.frequencies.shape[0], layouts, True, component)
    inputs = [measure_extent(x.shape, x.strides, x.itemsize) for x in weights + rows]
    plan = build_plan(operands, angles, spec, arrays[0].itemsize, inputs)
    return CpuLaunch(weakref.ref(kernel), plan, locate, threads.limit)


@dataclass(frozen=True, slots=True)
class NumpyLaunch:
    """Runs the kernel of a signature."""

    run: CpuLaunch
    contiguous: bool
    """Whether new results are C-contiguous; else they have the strides of ``numpy.empty_like``."""

    def __call__(self, signature: CallSignature, tables: DigitTables | None) -> Arrays | None:
        _, arrays, weights, angle_inputs, out = signature
        results = out
        if results is None and self.contiguous:
            results = tuple([np.empty(x.shape, x.dtype) for x in arrays])
        elif results is None:
            results = tuple([np.empty_like(x) for x in arrays])
        inputs = weights + angle_inputs
        launched = self.run(arrays, results, inputs, tables, are_apart=out is None)
        return results if launched else None


def get_weights(call: Call) -> Arrays:
    """Return the weights of a call that are given, with contiguous rows."""
    weights = map(_read_plain, (w for w in call.weights if w is not None))
    return tuple(map(np.ascontiguousarray, weights))


def get_angle_inputs(source: Angles) -> Arrays:
    """Return positions and their fractions, or cos and sin."""
    if isinstance(source, CosSin):
        inputs = [source.cos, source.sin]
    else:
        inputs = [] if source.whole is None else [source.whole]
        if source.part is not None:
            inputs.append(source.part.astype(source.tables.low.dtype, copy=False))
    return tuple(map(_read_plain, inputs))


def _read_plain(x: np.ndarray) -> np.ndarray:
    """Return an array without a class of its own, aligned and in native byte order."""
    plain = np.asarray(x, x.dtype.newbyteorder("="))
    return plain if plain.flags.aligned else plain.copy()


def _get_layout(x: np.ndarray) -> StridedLayout:
    return StridedLayout(x.shape, x.strides)


def _move_components_last(a: np.ndarray, components: int) -> StridedLayout:
    if components:
        rest, strides = a.shape[1:] or (1,), a.strides[1:] or (0,)
        return StridedLayout((*rest, components), (*strides, a.strides[0]))
    return StridedLayout((*a.shape, 1), (*a.strides, 0))


# --- copies of arrays that kernels cannot read ---------------------------------------------------


def is_readable(x: np.ndarray) -> bool:
    """Return whether kernels can read and write an array: head_dim contiguous, native, aligned."""
    contiguous = x.strides[-1] == x.itemsize or x.shape[-1] <= 1 or x.size == 0
    return contiguous and x.dtype.isnative and x.flags.aligned


def _copy_into(new: np.ndarray, x: np.ndarray) -> np.ndarray:
    fastest = min(range(x.ndim), key=lambda i: (x.shape[i] == 1, abs(x.strides[i])))
    if fastest == x.ndim - 1 or x.shape[fastest] < LONG:
        new[...] = x
        return new
    # numpy copies in the order of the result, and so passes through all of x for each row of it: a
    # few columns at a time are four times as fast.
    source, target = (np.moveaxis(a, fastest, -2) for a in (x, new))
    for index in np.ndindex(source.shape[:-2]):
        for i in range(0, x.shape[-1], COLUMNS):
            target[index][:, i : i + COLUMNS] = source[index][:, i : i + COLUMNS]
    return new
