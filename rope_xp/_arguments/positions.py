"""From positions of any kind to whole and fractional parts on the device of the arrays."""

from typing import Any

import numpy as np

from rope_xp._arguments.checks import check_readable, check_same_library_and_device
from rope_xp._core.call import LIMIT, UNKNOWN, PositionRange, get_position_range
from rope_xp._core.dtypes import FLOATS, INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import ROTATED, can_broadcast, check_known
from rope_xp._core.tables import TableKey
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.fractions import DOUBLE, SINGLE


def resolve_positions(
    backend: Backend,
    positions: Any,
    owner: Backend | None,
    like: Array,
    double: bool,
    argument: str,
) -> tuple[Array, Array | None, PositionRange]:
    """Return whole and fractional parts of positions on the device of ``like``, and their range.

    ``owner`` is the backend of positions, None for Python numbers. Those on a device are not read,
    which would synchronise: out of range they give NaN.
    """
    host, is_host = positions, not backend.is_compiling()
    if owner is not None and not owner.host:
        check_same_library_and_device(backend, ROTATED, like, owner, argument, positions)
        host = owner.host_view(positions)
        is_host = host is not None
    elif not is_host:
        positions = backend.asarray_in_trace(positions, backend.device(like))
    if not is_host:
        dtype = backend.dtype_name(positions)
        if dtype in INTEGERS:
            return backend.integers(positions), None, UNKNOWN
        if dtype not in FLOATS:
            check_readable(backend, argument, positions)
            raise wrong_dtype(argument, dtype)
        return *backend.split_positions(positions, double), UNKNOWN
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
        raise RopeError(f"{argument} is a ragged list; pass one number per token") from error
    if host.size == 0:
        return host.astype(integer), None, get_position_range(0, 0)
    kind = host.dtype.kind
    if kind == "O" and not isinstance(positions, (list, tuple)):
        is_array = isinstance(positions, np.ndarray)
        raise wrong_dtype(argument, "dtype object" if is_array else type(positions).__name__)
    if kind not in "iuf" and host.dtype.name != "bfloat16":
        raise wrong_dtype(argument, str(host.dtype))
    exact = host if kind in "iu" else host.astype(np.float64)
    if exact is not host:
        # Towards zero, so that the rest is exact. Without out=, that of one number is no array.
        host = np.trunc(exact, out=np.empty_like(exact))
    if host.size == 1:
        lowest = highest = host.item()
    else:
        lowest, highest = host.min().item(), host.max().item()
    if not (lowest > -LIMIT and highest < LIMIT):
        msg = f"{argument} must lie between -{LIMIT} and {LIMIT}; got {lowest} to {highest}"
        raise RopeError(msg)
    position_range = get_position_range(int(lowest), int(highest))
    whole = host.astype(integer, copy=False)
    if exact is host or not (exact != host).any():
        return whole, None, position_range
    part = np.subtract(exact, host, out=exact)
    return whole, part if double else part.astype(np.float32), position_range


def check_fractions(backend: Backend, argument: str, part: Any, table_key: TableKey) -> None:
    """Check that fractions of a token turn no pair too far. Compiled calls give NaN there."""
    if part is None or backend.is_compiling():
        return
    fastest = float(np.abs(table_key.rope.frequencies(table_key.head_dim)).max())
    if fastest > (DOUBLE if table_key.double else SINGLE).largest:
        raise RopeError(
            f"{argument} has fractions, which need frequencies of at most {SINGLE.largest:g} "
            f"radians per token, or {DOUBLE.largest:g} with float64 arrays; got {fastest:g} of "
            f"{table_key.rope!r}. Pass integers"
        )


def wrong_dtype(argument: str, dtype: str) -> TypeError:
    """Return the error for positions that are not numbers."""
    return TypeError(f"{argument} must hold integers or real floats (tokens); got {dtype}")


def check_components(argument: str, shape: tuple[int, ...], components: int) -> None:
    """Check that positions have the leading axis for position_axes."""
    if not shape or shape[0] != components:
        is_last = len(shape) > 1 and shape[-1] == components
        raise RopeError(
            f"{argument} has shape {shape}; position_axes names {components} components, so it "
            f"needs a leading axis of {components}: ({components}, batch..., tokens)"
            + f". Pass moveaxis({argument}, -1, 0)"
            * is_last
        )


def check_positions_shape(
    argument: str, shape: tuple[int, ...], components: int, batch: tuple[int, ...], tokens: int
) -> None:
    """Check that positions broadcast to (components, batch..., tokens)."""
    if components:
        check_components(argument, shape, components)
    rows = shape[bool(components) :]
    # A single number for several tokens is ambiguous: all there, or the first of a range.
    if rows in ((), (1,)) and tokens != 1:
        n = tokens if isinstance(tokens, int) else "n"
        raise RopeError(
            f"{argument} has shape {shape}, a single number for {n} tokens; write {argument} = "
            f"offset + arange({n}) for consecutive tokens, or pass shape (batch, 1) if all tokens "
            "of a sequence have the same position"
        )
    if rows:
        check_broadcast(argument, shape, components, batch, tokens)


def check_broadcast(
    argument: str,
    shape: tuple[int, ...],
    components: int,
    batch: tuple[int, ...],
    tokens: int,
    hint: str = "",
) -> None:
    """Check that the axes behind that of components broadcast to (batch..., tokens)."""
    rows, full = shape[bool(components) :], (*batch, tokens)
    if not can_broadcast(rows, full):
        check_known(argument, rows)
        check_known(ROTATED, full)
        lead = f"({components}, ...)" if components else "it"
        raise RopeError(
            f"{argument} has shape {shape}; {lead} must broadcast to (batch..., tokens) = {full}, "
            f"batch first whatever axes says. {_advise(argument, shape, components, full)}{hint}"
        )


def _advise(argument: str, shape: tuple[int, ...], components: int, full: tuple[int, ...]) -> str:
    """Return what to do with positions whose axes do not broadcast."""
    rows, (*batch, tokens) = shape[bool(components) :], full
    if components and shape[-1] == components and can_broadcast(shape[:-1], full):
        return f"Pass moveaxis({argument}, -1, 0)"
    if rows == tuple(batch) and tokens == 1:
        return f"Pass {argument}[..., None]"
    if rows[-1] > tokens and can_broadcast((*rows[:-1], tokens), full):
        return f"Pass those of the {tokens} tokens, such as {argument}[..., :{tokens}]"
    if not batch:
        return "Is axes right? Those of (batch, tokens, head_dim) are axes='bsd'"
    return "Is axes right?"
