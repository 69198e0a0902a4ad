"""Calls of a kind on cupy's arrays: a key, memory for results, and a launch with new addresses."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from rope_xp._contract.call import Call, Lookup
from rope_xp._contract.library import ArrayLibrary
from rope_xp._contract.memory import ACCESS, placed
from rope_xp._dispatch.bound import Asked
from rope_xp_backends.gpu import cuda
from rope_xp_backends.gpu.cuda_plan import ARGUMENTS

Arrays = tuple[Any, ...]
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


def asked(
    kind: Hashable, arrays: Arrays, positions: Any, out: Any, tables: Arrays | None
) -> Asked | None:
    """Return the key of a call on arrays in the memory of a device."""
    rows, ends = tables or (), arrays
    key: list[Hashable] = [kind]
    if positions is not None:
        if getattr(positions, "dtype", None) not in _INTEGERS:
            return None
        rows = (positions,)
    if out is not None:
        if type(out) is not tuple or len(out) != len(arrays):
            return None
        key += [x is y for x, y in zip(arrays, out, strict=True)]
        ends += out
    for x in (*ends, *rows):
        if type(x) is not cupy.ndarray:
            return None
        key += x.dtype, x.shape, x.strides, x.data.device_id, x.data.ptr % ACCESS
    return Asked(tuple(key), arrays, rows, out)


@dataclass(frozen=True)
class Bound:
    """What is left to do for a kind of call.

    Parameters
    ----------
    function : callable
        The kernel, loaded on the device.
    again : cuda.Again
        Its launch, but for addresses.
    new : callable
        From an array to memory for its result.
    backend : ArrayLibrary
        It tells where arrays lie.
    kept : object
        What the launch has addresses of.
    """

    function: Callable[..., None]
    again: cuda.Again
    new: Callable[[Any], Any]
    backend: ArrayLibrary
    kept: object

    def __call__(self, asked: Asked) -> Arrays | None:
        """Return results, or None where memory may overlap.

        None in a graph that is captured too: the long way keeps what a graph will read.
        """
        arrays, out, rows = asked.arrays, asked.out, asked.rows
        if out is not None and not self._apart(arrays, out, rows):
            return None
        with cupy.cuda.Device(arrays[0].data.device_id):
            if cupy.cuda.get_current_stream().is_capturing():
                return None
            made = tuple([self.new(x) for x in arrays]) if out is None else out
            words = self.again.words.copy()
            words[: cuda.ADDRESSES] += cuda.addresses(self.backend, arrays, made, rows)
            self.function(self.again.grid, self.again.block, (words.view(ARGUMENTS),))
        return made

    def _apart(self, arrays: Arrays, out: Arrays, rows: Sequence[Any]) -> bool:
        """Return whether each result is its own array, or surely apart from all others."""
        at = [placed(self.backend.memory(x)) for x in (*out, *arrays, *rows)]
        own = {i + len(out) for i, (x, y) in enumerate(zip(arrays, out, strict=True)) if x is y}
        return not any(
            mine is None or other is None or (mine.start < other.end and other.start < mine.end)
            for i, mine in enumerate(at[: len(out)])
            for j, other in enumerate(at)
            if j > i and j not in own
        )


def bind(
    call: Call,
    asked: Asked,
    results: Arrays,
    function: Callable[[Any], Any],
    new: Callable[[Any], Any],
) -> Bound | None:
    """Return what runs calls like this one, None where more is to be done than a launch."""
    again = cuda.again(call, results, asked.rows)
    if again is None:
        return None
    (source,) = call.angles
    kept = source.tables if isinstance(source, Lookup) else None
    return Bound(function(again.key), again, new, call.backend, kept)
