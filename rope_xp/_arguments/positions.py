"""Positions as the caller gives them, brought to whole and fractional parts on the right device."""

from typing import Any

import numpy as np

from rope_xp._arguments.messages import (
    check_readable,
    check_same_device,
    different_libraries,
)
from rope_xp._core.call import LIMIT, UNKNOWN, PositionRange, get_position_range
from rope_xp._core.dtypes import FLOATS, INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import ROTATED, check_known, same_length
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend

_READ = (np.ndarray, int, float, list, tuple, range)


def resolve_positions(
    backend: Backend,
    positions: Any,
    owner: Backend | None,
    like: Array,
    double: bool,
    argument: str,
) -> tuple[Array, Array | None, PositionRange]:
    """Return (whole, part, reach) of positions, on the device of ``like``.

    ``owner`` is the backend that the positions belong to, None for Python numbers. What lies in the
    host's memory is read here, checked and moved; arrays on a device are not read, as that would
    wait for it: there positions out of range become NaN in the result.
    """
    if owner is None or owner.host:
        if backend.is_compiling():
            traced = backend.asarray_in_trace(positions, backend.device(like))
            return _from_device(backend, traced, double, argument)
        host = positions
    else:
        if owner is not backend and owner is not backend.compatible_backend:
            raise different_libraries(ROTATED, backend, argument, owner)
        check_same_device(backend, ROTATED, like, argument, positions)
        host = owner.host_view(positions)
        if host is None:
            return _from_device(backend, positions, double, argument)
    # numpy indexes with 64 bits; anywhere else half the bytes travel.
    integer = np.int64 if backend.host else np.int32
    whole, part, position_range = read_host(host, integer, double, argument)
    if not backend.host:
        device = backend.device(like)
        whole = backend.asarray(whole, device)
        part = None if part is None else backend.asarray(part, device)
    return whole, part, position_range


def read_host(
    positions: Any, integer: type[np.integer[Any]], double: bool, argument: str
) -> tuple[np.ndarray, np.ndarray | None, PositionRange]:
    """Return the whole part of positions on the host, the fractional part, and their range."""
    try:
        host = np.asarray(positions)
    except ValueError as error:
        msg = f"{argument} is a ragged list; give one number a token"
        raise RopeError(msg) from error
    kind = host.dtype.kind
    if kind not in "iuf" and host.dtype.name != "bfloat16" and host.size:
        raise no_numbers(argument, str(host.dtype))
    if host.size == 0:
        return host.astype(integer), None, get_position_range(0, 0)
    exact = host if kind in "iu" else host.astype(np.float64)
    if exact is not host:
        host = np.floor(
            exact, out=np.empty_like(exact)
        )  # or it returns a number for one without axes
    if host.size == 1:
        lowest = highest = host.item()
    else:
        lowest, highest = host.min().item(), host.max().item()
    if not (lowest > -LIMIT and highest < LIMIT):
        msg = f"{argument} must be finite and of modulus below {LIMIT}; got {lowest} to {highest}"
        raise RopeError(msg)
    position_range = get_position_range(int(lowest), int(highest))
    whole = host.astype(integer, copy=False)
    if exact is host or not (exact != host).any():
        return whole, None, position_range
    part = np.subtract(exact, host, out=exact)
    return whole, part if double else part.astype(np.float32), position_range


def read_rows(
    positions: Any, integer: type[np.integer[Any]], double: bool
) -> tuple[tuple[np.ndarray, ...], PositionRange] | None:
    """Return the same for a signature: an array or two, and their range.

    None for what is to be read, or refused, on the slow path.
    """
    if type(positions) not in _READ:
        return None
    try:
        whole, part, position_range = read_host(positions, integer, double, "positions")
    except (RopeError, TypeError):
        return None
    if not whole.shape:
        whole, part = whole.reshape(1), None if part is None else part.reshape(1)
    return (whole,) if part is None else (whole, part), position_range


def _from_device(
    backend: Backend, positions: Array, double: bool, argument: str
) -> tuple[Array, Array | None, PositionRange]:
    dtype = backend.dtype_name(positions)
    if dtype in INTEGERS:
        return backend.integers(positions), None, UNKNOWN
    if dtype not in FLOATS:
        check_readable(backend, argument, positions)
        raise no_numbers(argument, dtype)
    return *backend.split_positions(positions, double), UNKNOWN


def no_numbers(argument: str, dtype: str) -> TypeError:
    """Return the error for positions of a dtype that is no number."""
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
    """Check that positions broadcast to (components, batch..., tokens), a lone number to nothing.

    It could be the position of each token, or of the first. One beside a batch axis says what of.
    """
    if components:
        check_components(argument, shape, components)
    each = shape[bool(components) :]
    if each in ((), (1,)) and tokens != 1:
        n = tokens if isinstance(tokens, int) else "n"
        msg = (
            f"{argument} has shape {shape}, which is one number for {n} tokens; write {argument} = "
            f"offset + arange({n}) for tokens that follow each other, or give it the shape "
            "(batch, 1) where all tokens of a sequence are at one position"
        )
        raise RopeError(msg)
    if each:
        check_broadcast(argument, shape, components, batch, tokens)


def check_broadcast(
    argument: str, shape: tuple[int, ...], components: int, batch: tuple[int, ...], tokens: int
) -> None:
    """Check that what is behind the axis of components broadcasts to (batch..., tokens)."""
    each, full = shape[bool(components) :], (*batch, tokens)
    fits = len(each) <= len(full) and all(
        n == 1 or same_length(n, m) for n, m in zip(each[::-1], full[::-1], strict=False)
    )
    if not fits:
        check_known(argument, each)
        check_known(ROTATED, full)
        lead = f"({components}, ...)" if components else "it"
        msg = (
            f"{argument} has shape {shape}; {lead} must broadcast to (batch..., tokens) = {full}, "
            "batch first whatever axes says. Is axes right?"
        )
        raise RopeError(msg)
