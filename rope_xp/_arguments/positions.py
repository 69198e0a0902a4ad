"""Positions as the caller gives them, brought to whole and fractional parts on the right device."""

from __future__ import annotations

from typing import Any

import numpy as np

from rope_xp._arguments import messages
from rope_xp._contract.call import LIMIT, UNKNOWN, Reach, reach_of
from rope_xp._contract.dtypes import FLOATS, INTEGERS
from rope_xp._contract.errors import RopeError
from rope_xp._contract.library import ArrayLibrary
from rope_xp._contract.typing import Array

_ROTATED = "the array to rotate"


def resolve_positions(
    backend: ArrayLibrary,
    positions: Any,
    owner: ArrayLibrary | None,
    like: Array,
    wide: bool,
    argument: str,
) -> tuple[Array, Array | None, Reach]:
    """Return (whole, part, reach) of positions, on the device of ``like``.

    ``owner`` is the backend that the positions belong to, None for Python numbers. numpy arrays
    and Python numbers are read here, checked and moved; arrays on a device are not read, as that
    would wait for it: there positions out of range become NaN in the result.
    """
    if owner is None or owner.host:
        if backend.is_compiling():
            traced = backend.traced(positions, backend.device(like))
            return _from_device(backend, traced, wide, argument)
        # numpy indexes with 64 bits; anywhere else half the bytes travel.
        integer = np.int64 if backend.host else np.int32
        whole, part, reach = _from_host(positions, integer, wide, argument)
        if not backend.host:
            device = backend.device(like)
            whole = backend.asarray(whole, device)
            part = None if part is None else backend.asarray(part, device)
        return whole, part, reach
    if owner is not backend and owner is not backend.kin:
        raise messages.different_libraries(_ROTATED, backend, argument, owner)
    messages.check_same_device(backend, _ROTATED, like, argument, positions)
    return _from_device(backend, positions, wide, argument)


def _from_host(
    positions: Any, integer: type[np.integer[Any]], wide: bool, argument: str
) -> tuple[np.ndarray, np.ndarray | None, Reach]:
    try:
        host = np.asarray(positions)
    except ValueError as error:
        msg = f"{argument} is a ragged list; give one number a token"
        raise RopeError(msg) from error
    kind = host.dtype.kind
    if kind not in "iuf" and host.dtype.name != "bfloat16" and host.size:
        raise messages.not_positions(argument, str(host.dtype))
    if host.size == 0:
        return host.astype(integer), None, Reach(1, False, True)
    exact = host if kind in "iu" else host.astype(np.float64)
    if exact is not host:
        host = np.floor(exact)
    if host.size == 1:
        lowest = highest = host.item()
    else:
        lowest, highest = host.min().item(), host.max().item()
    if not (lowest > -LIMIT and highest < LIMIT):
        raise messages.positions_out_of_range(argument, lowest, highest, LIMIT)
    whole, reach = host.astype(integer, copy=False), reach_of(int(lowest), int(highest))
    if exact is host or not (exact != host).any():
        return whole, None, reach
    part = exact - host
    return whole, part if wide else part.astype(np.float32), reach


def _from_device(
    backend: ArrayLibrary, positions: Array, wide: bool, argument: str
) -> tuple[Array, Array | None, Reach]:
    xp = backend.xp
    dtype = backend.dtype_name(positions)
    if dtype in INTEGERS:
        if wide and dtype.startswith("u"):
            return xp.astype(positions, xp.float64), None, UNKNOWN
        return backend.integers(positions), None, UNKNOWN
    if dtype not in FLOATS:
        raise messages.not_positions(argument, dtype)
    if wide:
        return positions, None, UNKNOWN
    return *backend.parts(positions), UNKNOWN
