"""From numpy arrays to kernels: plans, and addresses of elements."""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rope_xp._core.call import CosSin, RotationSpec, TableLookup
from rope_xp._core.memory import StridedLayout
from rope_xp._dispatch.norm import QKNorm
from rope_xp_backends.cpu import threads
from rope_xp_backends.cpu.launch import CpuLaunch, Kernel, pad_inputs
from rope_xp_backends.cpu.plan import AngleLayouts, CpuPlan, InOut, build_plan

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


def addresses(arrays: Sequence[np.ndarray]) -> list[int]:
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


def rotate(
    kernel: Kernel, arrays: Arrays, out: Arrays, source: Angles, spec: RotationSpec, weights: Arrays
) -> None:
    """Rotate one array or two of one dtype, which share their angles, into out."""
    results = tuple(
        [y if is_readable(y) else np.empty(y.shape, y.dtype.newbyteorder("=")) for y in out]
    )
    pairs = zip(arrays, results, strict=True)
    inputs = tuple([x if is_readable(x) else _copy_into(y, x) for x, y in pairs])
    angle_inputs = get_angle_inputs(source)
    plan = plan_rotation(inputs, results, angle_inputs, source, spec)
    launch = NumpyLaunch(CpuLaunch(kernel, plan), True, len(weights))
    launch(inputs, results, weights + angle_inputs)
    for y, result in zip(out, results, strict=True):
        if result is not y:
            y[...] = result


def plan_rotation(
    arrays: Arrays, outs: Arrays, angle_inputs: Arrays, source: Angles, spec: RotationSpec
) -> CpuPlan:
    """Return the plan of all arrays and angle inputs with the strides of these."""
    operands = [InOut(_get_layout(x), _get_layout(y)) for x, y in zip(arrays, outs, strict=True)]
    if isinstance(source, CosSin):
        layouts = tuple(map(_get_layout, angle_inputs))
        angles = AngleLayouts(angle_inputs[0].shape[-1], layouts, ())
    else:
        tables, components = source.tables, source.components if angle_inputs else 0
        component = () if not components else tuple(tables.component.tolist())  # type: ignore[union-attr]  # there is one
        pointers = tuple(addresses([t for t in tables if t is not None]))
        layouts = tuple([_move_components_last(a, components) for a in angle_inputs])
        angles = AngleLayouts(tables.frequencies.shape[0], layouts, pointers, component)
    return build_plan(operands, angles, spec, arrays[0].itemsize)


@dataclass(frozen=True, slots=True)
class NumpyLaunch:
    """Runs the kernel of a signature."""

    run: CpuLaunch
    contiguous: bool
    """Whether new results are C-contiguous; else they have the strides of ``numpy.empty_like``."""
    weights: int = 0
    """How many of the inputs, the first ones, are weights."""

    def __call__(
        self, arrays: Arrays, out: Arrays | None, inputs: Arrays, _tables: Any = None
    ) -> Arrays:
        if out is None:
            if self.contiguous:
                out = tuple([np.empty(x.shape, x.dtype) for x in arrays])
            else:
                out = tuple([np.empty_like(x) for x in arrays])
        if len(arrays) == 1:
            q, q_out, *rest = addresses((arrays[0], out[0], *inputs))
            k = k_out = 0
        else:
            q, q_out, k, k_out, *rest = addresses((arrays[0], out[0], arrays[1], out[1], *inputs))
        rest = pad_inputs(rest, self.weights) if self.weights else [*rest, 0, 0][:2]
        self.run(q, q_out, k, k_out, *rest, limit=threads.limit)
        return out


def get_weights(norm: QKNorm | None, first: int, count: int) -> Arrays:
    """Return the weights of some arrays of a call, as kernels read them."""
    named = [] if norm is None else norm.select(first, count).list_weights(count)
    return tuple([np.require(w, requirements=["C", "A"]) for _, w in named])


def get_angle_inputs(source: Angles) -> Arrays:
    """Return positions and their fractions, or cos and sin, as plain aligned arrays."""
    if isinstance(source, CosSin):
        inputs = [source.cos, source.sin]
    else:
        inputs = [] if source.whole is None else [source.whole]
        if source.part is not None:
            inputs.append(source.part.astype(source.tables.low.dtype, copy=False))
    return tuple([x if x.flags.aligned else x.copy() for x in map(np.asarray, inputs)])


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
