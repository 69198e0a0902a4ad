"""Positions as the caller gives them, brought to whole and fractional parts on the right device."""

from typing import Any

import numpy as np

from rope_xp._arguments.messages import check_same_device, different_libraries
from rope_xp._contract.call import LIMIT, UNKNOWN, Reach, reach_of
from rope_xp._contract.dtypes import FLOATS, INTEGERS
from rope_xp._contract.errors import RopeError
from rope_xp._contract.library import ArrayLibrary
from rope_xp._contract.numbers import ROTATED, check_known, same_length
from rope_xp._contract.typing import Array


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
        raise different_libraries(ROTATED, backend, argument, owner)
    check_same_device(backend, ROTATED, like, argument, positions)
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
        raise _no_numbers(argument, str(host.dtype))
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
        msg = f"{argument} must be finite and of modulus below {LIMIT}; got {lowest} to {highest}"
        raise RopeError(msg)
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
        raise _no_numbers(argument, dtype)
    if wide:
        return positions, None, UNKNOWN
    return *backend.parts(positions), UNKNOWN


def _no_numbers(argument: str, dtype: str) -> TypeError:
    return TypeError(f"{argument} must hold integers or real floats (tokens); got {dtype}")


def check_components(argument: str, shape: tuple[int, ...], components: int) -> None:
    """Check that positions have the leading axis that position_axes asks for."""
    if not shape or shape[0] != components:
        msg = (
            f"{argument} has shape {shape}; position_axes names {components} components, so it "
            f"needs a leading axis of {components}: ({components}, batch..., tokens)"
        )
        raise RopeError(msg)


def check_positions_shape(
    argument: str, shape: tuple[int, ...], components: int, batch: tuple[int, ...], tokens: int
) -> None:
    """Check that positions broadcast to (components, batch..., tokens)."""
    rest = shape
    if components:
        check_components(argument, shape, components)
        rest = shape[1:]
    if not rest:
        if tokens == 1:
            return
        n = "n" if tokens is None else tokens
        msg = (
            f"{argument} is one number for {n} tokens; write {argument} = offset + arange({n}) "
            "for consecutive tokens from an offset"
        )
        raise RopeError(msg)
    full = (*batch, tokens)
    fits = len(rest) <= len(full) and all(
        n == 1 or same_length(n, m) for n, m in zip(rest[::-1], full[::-1], strict=False)
    )
    if not fits:
        check_known(argument, rest)
        check_known(ROTATED, full)
        lead = f"({components}, ...)" if components else "it"
        msg = (
            f"{argument} has shape {shape}; {lead} must broadcast to (batch..., tokens) = {full}, "
            "batch first whatever axes says. Is axes right?"
        )
        raise RopeError(msg)
