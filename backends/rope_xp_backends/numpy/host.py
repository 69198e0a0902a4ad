"""From numpy arrays to the native module."""

import sys
from dataclasses import dataclass
from operator import is_
from typing import TypeAlias

import numpy as np

from rope_xp._core.call import Call, CosSin, RotationSpec, TableLookup
from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._dispatch.recent_calls import RecentLaunch
from rope_xp_backends.cpu import native, threads
from rope_xp_backends.cpu.native import CHECK_OVERLAP, CHECK_POSITIONS, DTYPES, Rotate

LONG = 64
"""A longer axis repays a loop over the others in Python."""
COLUMNS = 8
"""Contiguous columns copied at once. More would compete for one set of the cache."""

Arrays = tuple[np.ndarray, ...]
Angles: TypeAlias = TableLookup | CosSin
_ARRAY = np.ndarray


def describe(x: np.ndarray) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Describe an array that the native module cannot read by its fields, see ``Describe``."""
    name = x.dtype.name
    number = DTYPES.index(name) if name in DTYPES and x.dtype.isnative else len(DTYPES)
    return x.ctypes.data, number, x.shape, x.strides


def read_by_fields() -> None:
    """Let the native module read arrays by their fields, where these are as numpy 2 has them."""
    if native.MISSING is not None or sys.implementation.name != "cpython":
        return
    bfloat16 = getattr(sys.modules.get("ml_dtypes"), "bfloat16", None)  # others are described
    dtypes = [
        (np.dtype(name) if name != "bfloat16" else bfloat16 and np.dtype(bfloat16))
        for name in DTYPES
    ]
    examples = np.ones((2, 3), np.float32), np.ones((4, 5, 6))[::2, :, ::-1], np.ones(0, np.int64)
    probes = tuple([(x, *describe(x)) for x in examples])
    native.module.set_up_numpy(np.ndarray, tuple(dtypes), probes)


read_by_fields()


def rotate(call: Call, out: Arrays, source: Angles) -> None:
    """Rotate one array or two of one dtype, which share their angles, into out."""
    if call.offsets is not None and not all(map(is_readable, call.arrays + out)):
        raise PathUnavailable("a copy has no slots")
    results = tuple(
        [y if is_readable(y) else np.empty(y.shape, y.dtype.newbyteorder("=")) for y in out]
    )
    pairs = zip(call.arrays, results, strict=True)
    arrays = tuple([x if is_readable(x) else _copy_into(y, x) for x, y in pairs])
    tables = source.tables if isinstance(source, TableLookup) else None
    offsets = () if call.offsets is None else (call.offsets,)
    operands = arrays, results, get_weights(call), get_angle_inputs(source), tables
    make_rotate(source, call.spec).run(*operands, offsets=offsets)
    for y, result in zip(out, results, strict=True):
        if result is not y:
            y[...] = result


def make_rotate(source: Angles, spec: RotationSpec) -> Rotate:
    """Return the native function for a rotation of numpy arrays."""
    columns = 1
    if isinstance(source, TableLookup):
        columns = 0 if source.components else -1
    return Rotate(native.describe_spec(spec, columns), describe, threads.limit)


@dataclass(frozen=True, slots=True)
class NumpyLaunch:
    """Runs the native function for a signature."""

    run: Rotate
    contiguous: bool
    """Whether new results are C-contiguous; else they have the strides of ``numpy.empty_like``."""

    def __call__(self, signature: CallSignature, tables: DigitTables | None) -> Arrays | None:
        _, arrays, weights, angle_inputs, out = signature
        return self._launch(arrays, out, weights, angle_inputs, tables)

    def _launch(
        self,
        arrays: Arrays,
        out: Arrays | None,
        weights: Arrays,
        angles: Arrays,
        tables: DigitTables | None,
        checks: int = 0,
    ) -> Arrays | None:
        results = out
        if results is not None:
            checks |= CHECK_OVERLAP
        elif self.contiguous:
            results = tuple([np.empty(x.shape, x.dtype) for x in arrays])
        else:
            results = tuple([np.empty_like(x) for x in arrays])
        done = self.run(arrays, results, weights, angles, tables, checks)
        return results if done else None

    def recognize(self, signature: CallSignature, given: Arrays) -> RecentLaunch | None:
        """Return a launch for calls on arrays like those of a signature and ``given`` angles."""
        _, arrays, weights, angle_inputs, out = signature
        converts = _converts_positions(given, angle_inputs)
        if converts is None or not arrays[0].size:
            return None
        operands = arrays + weights + given
        apart = out is not None and not all(map(is_, arrays, out))
        if apart:
            operands += out  # type: ignore[operator]  # not None here
        layouts = [
            (x.dtype, x.shape, None if x.flags.c_contiguous else x.strides, x.flags.num)
            for x in operands
        ]
        checks = CHECK_POSITIONS if len(angle_inputs) == 1 else 0
        n = len(weights)

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
            return self._launch(arrays, out, inputs[:n], inputs[n:], tables, checks)

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
