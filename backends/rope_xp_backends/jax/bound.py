"""Calls of a kind on jax's arrays: a key, and the compiled function with the same tables."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from rope_xp._arguments.positions import read_if_known
from rope_xp._contract.call import UNKNOWN, Call, Difference, Given, Lookup, Reach, reach_of
from rope_xp._dispatch.bound import Asked

Arrays = tuple[jax.Array, ...]
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


def asked(
    kind: Hashable, arrays: Arrays, positions: Any, out: Any, tables: Arrays | None
) -> Asked | None:
    """Return the key of a call on arrays of one device, and its positions as they are traced."""
    of_jax = type(arrays[0])
    if out is not None or issubclass(of_jax, jax.core.Tracer):
        return None
    placed = _placed(arrays, of_jax)
    if placed is None:
        return None
    wide = arrays[0].dtype == np.float64
    rows, reach = (tables, None) if tables else _read(positions, arrays[0], wide)
    read = _placed(rows, of_jax)
    if read is None or (tables and any(row.dtype.itemsize != (8 if wide else 4) for row in rows)):
        return None
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # made while jax is imported
    return Asked((kind, reach, x64, *placed, *read), arrays, rows, None)


def _placed(arrays: Arrays, of_jax: type) -> list[Hashable] | None:
    """Return what arrays have for a key, None where some do not lie on one device."""
    key: list[Hashable] = []
    for x in arrays:
        if type(x) is not of_jax or type(x.sharding) is not SingleDeviceSharding:
            return None
        key += x.dtype, x.shape, x.sharding, x.committed
    return key


def _read(positions: Any, x: jax.Array, wide: bool) -> tuple[tuple[Any, ...], Reach | None]:
    """Return positions and what they have after the point, and what is known of their size.

    None stands in place of an array that is to be read, or refused, elsewhere.
    """
    if positions is None:
        return (), None
    if type(positions) is type(x):
        return (positions,) if positions.dtype in _INTEGERS else (None,), UNKNOWN
    read = read_if_known(positions, np.int32, wide)
    if read is None:
        return (None,), None
    whole, part, *ends = read
    device = x.device if x.committed else None
    rows = (whole,) if part is None else (whole, part)
    return tuple([jax.device_put(row, device) for row in rows]), reach_of(*ends)


@dataclass(frozen=True)
class Bound:
    """What is left to do for a kind of call.

    Parameters
    ----------
    run : callable
        The function that is compiled, of a call.
    like : Call
        A call of the kind, without arrays and rows.
    """

    run: Callable[[Call], Arrays]
    like: Call

    def __call__(self, asked: Asked) -> Arrays:
        """Return results."""
        like, rows = self.like, asked.rows
        source: Any = like.angles[0]
        if isinstance(source, Given):
            source = Given(*rows)
        elif rows:
            source = _with_rows(source, *rows)
        return self.run(Call(like.backend, asked.arrays, (source,), None, like.turn))


def bind(call: Call, asked: Asked, run: Callable[[Call], Arrays]) -> Bound | None:
    """Return what runs calls like this one, None where more is to be done than to run."""
    source, *more = call.angles
    if more or isinstance(source, Difference):
        return None
    if isinstance(source, Given):
        source = Given(None, None)
    elif source.whole is not None:
        if source.whole.shape != asked.rows[0].shape:
            return None  # a lone number was given an axis on the way
        source = _with_rows(source, None)
    return Bound(run, Call(call.backend, (), (source,), None, call.turn))


def _with_rows(source: Lookup, whole: jax.Array | None, part: jax.Array | None = None) -> Lookup:
    known = source.device, source.tokens, source.reach, source.components
    return Lookup(source.tables, whole, part, *known)
