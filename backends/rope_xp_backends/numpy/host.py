"""From numpy arrays to kernels: plans, and addresses of elements."""

import sys
import weakref
from dataclasses import dataclass
from functools import cache
from operator import is_
from typing import TypeAlias

import numpy as np

from rope_xp._core.call import Call, CosSin, RotationSpec, TableLookup
from rope_xp._core.memory import measure_extent
from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._dispatch.recent_calls import RecentLaunch
from rope_xp_backends.cpu import threads
from rope_xp_backends.cpu.launch import CpuLaunch, Kernel, Locate
from rope_xp_backends.cpu.plan import CHECK, Layouts, build_plan

LONG = 64
"""A longer axis repays a loop over the others in Python."""
COLUMNS = 8
"""Contiguous columns copied at once. More would compete for one set of the cache."""

Arrays = tuple[np.ndarray, ...]
Angles: TypeAlias = TableLookup | CosSin
_ARRAY = np.ndarray


def _find_pointer(x: np.ndarray) -> int:
    return x.ctypes.data


@cache
def load_locate() -> Locate:
    """Return the function that returns the address of the elements of an array.

    CPython has it as the first field of an ndarray behind the object's header, where it is read
    in a thirtieth of the time of ``x.ctypes.data``.
    """
    from rope_xp_backends.cpu import machine

    read, probe = machine.get_pointer_reader(_ARRAY), np.empty(1)
    known = sys.implementation.name == "cpython" and read(probe) == _find_pointer(probe)
    return read if known else _find_pointer


def rotate(kernel: Kernel, call: Call, out: Arrays, source: Angles) -> None:
    """Rotate one array or two of one dtype, which share their angles, into out."""
    if call.offsets is not None and not all(map(is_readable, call.arrays + out)):
        raise PathUnavailable("a copy has no slots")
    results = tuple(
        [y if is_readable(y) else np.empty(y.shape, y.dtype.newbyteorder("=")) for y in out]
    )
    pairs = zip(call.arrays, results, strict=True)
    arrays = tuple([x if is_readable(x) else _copy_into(y, x) for x, y in pairs])
    weights, rows = get_weights(call), get_angle_inputs(source)
    tables = source.tables if isinstance(source, TableLookup) else None
    offsets = () if call.offsets is None else (call.offsets,)
    launch = plan_launch(kernel, arrays, results, weights, rows, source, call.spec, offsets)
    held = arrays + weights + rows + offsets + (() if launch.plan.in_place else results)
    if not launch(held, tables, True):
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
    offsets: Arrays = (),
) -> CpuLaunch:
    """Return the launch of all arrays, weights and angle inputs with the strides of these."""
    in_place, component, views = tuple(map(is_, arrays, outs)), (), rows
    if isinstance(source, TableLookup) and source.components and rows:
        component = tuple(source.tables.component.tolist())  # type: ignore[union-attr]  # there is one
        views = tuple([np.moveaxis(row, 0, -1) for row in rows])
    elif isinstance(source, TableLookup):
        views = tuple([row[..., None] for row in rows])
    groups = arrays, weights, views, offsets, outs
    extents = [tuple([measure_extent(x.shape, x.strides, x.itemsize) for x in xs]) for xs in groups]
    use_tables = isinstance(source, TableLookup)
    plan = build_plan(Layouts(in_place, *extents), spec, use_tables, component)
    return CpuLaunch(weakref.ref(kernel), plan, load_locate(), threads.limit)


@dataclass(frozen=True, slots=True)
class NumpyLaunch:
    """Runs the kernel of a signature."""

    run: CpuLaunch
    contiguous: bool
    """Whether new results are C-contiguous; else they have the strides of ``numpy.empty_like``."""

    def __call__(self, signature: CallSignature, tables: DigitTables | None) -> Arrays | None:
        _, arrays, weights, angle_inputs, out = signature
        return self._launch(arrays, out, weights + angle_inputs, tables)

    def _launch(
        self,
        arrays: Arrays,
        out: Arrays | None,
        inputs: Arrays,
        tables: DigitTables | None,
        mode: int = 0,
    ) -> Arrays | None:
        results = out
        if results is None and self.contiguous:
            results = tuple([np.empty(x.shape, x.dtype) for x in arrays])
        elif results is None:
            results = tuple([np.empty_like(x) for x in arrays])
        held = arrays + inputs if self.run.plan.in_place else arrays + inputs + results
        return results if self.run(held, tables, out is None, mode) else None

    def recognize(self, signature: CallSignature, given: Arrays) -> RecentLaunch | None:
        """Return a launch for calls on arrays like those of a signature and ``given`` angles."""
        _, arrays, weights, angle_inputs, out = signature
        converts = _converts_positions(given, angle_inputs)
        if converts is None or not self.run.plan.rows:
            return None
        operands = arrays + weights + given
        apart = out is not None and not all(map(is_, arrays, out))
        if apart:
            operands += out  # type: ignore[operator]  # not None here
        layouts = [
            (x.dtype, x.shape, None if x.flags.c_contiguous else x.strides, x.flags.num)
            for x in operands
        ]
        mode = CHECK if len(angle_inputs) == 1 else 0

        def run(
            arrays: Arrays, out: Arrays | None, inputs: Arrays, tables: DigitTables | None
        ) -> Arrays | None:
            operands = arrays + inputs + out if apart else arrays + inputs  # type: ignore[operator]  # not None then
            if len(operands) != len(layouts):
                return None
            for x, (dtype, shape, strides, flags) in zip(operands, layouts):  # noqa: B905  # of one length; strict= takes 0.2 us
                if type(x) is not _ARRAY or x.dtype != dtype or x.shape != shape:
                    return None
                if x.flags.num != flags or (strides and x.strides != strides):
                    return None
            if converts:
                inputs = *inputs[:-1], inputs[-1].astype(np.int64)
            return self._launch(arrays, out, inputs, tables, mode)

        return run


def _converts_positions(given: Arrays, angle_inputs: Arrays) -> bool | None:
    """Return whether int32 is given where kernels read int64, None if they read anything else."""
    if len(given) == len(angle_inputs) and all(map(is_, given, angle_inputs)):
        return False
    if len(given) != 1 or type(given[0]) is not _ARRAY or len(angle_inputs) != 1:
        return None
    narrow = given[0].dtype == np.int32 and given[0].flags.c_contiguous
    return True if narrow and given[0].shape == angle_inputs[0].shape else None


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
