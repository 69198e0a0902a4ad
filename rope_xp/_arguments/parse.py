"""From arguments to a checked Call, before anything is computed."""

from typing import Any

import numpy as np

from rope_xp._arguments import messages
from rope_xp._arguments.axes import check_fit, parse_axes
from rope_xp._arguments.out import check_out
from rope_xp._arguments.positions import check_components, check_positions_shape, resolve_positions
from rope_xp._arguments.slices import check_rerotation, slice_of
from rope_xp._core.call import (
    COUNTED,
    Axes,
    Call,
    RelativeAngles,
    RotationSpec,
    TableLookup,
    get_position_range,
)
from rope_xp._core.library import Rope, TableKey, count_components
from rope_xp._core.typing import Array, Layout
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

_PYTHON = (int, float, list, tuple, range)


def find_owner(positions: Any) -> Backend | None:
    """Return the backend of positions, None for Python numbers and sequences of them."""
    return None if type(positions) in _PYTHON else find.find_backend(positions)


def find_device_owner(positions: Any) -> Backend | None:
    """Return the backend of positions, None for those of numpy and Python.

    A compiler that meets its first numpy array here cannot look at its class.
    """
    return None if type(positions) is np.ndarray else find_owner(positions)


def _lookup(
    backend: Backend, table_key: TableKey, x: Array, axes: Axes, positions: Any, argument: str
) -> TableLookup:
    shape = x.shape
    tokens = shape[axes.tokens]
    components = count_components(table_key.rope)
    whole = part = None
    if positions is None:
        if tokens is None:
            tokens = backend.axis_length(x, axes.tokens)
        # Compilers have symbols for lengths, which cannot be compared, or split the graph by it.
        # Dynamo's look like an int.
        is_known = type(tokens) is int and not backend.is_compiling()
        position_range = get_position_range(0, tokens) if is_known else COUNTED
    else:
        owner = find_device_owner(positions)
        whole, part, position_range = resolve_positions(
            backend, positions, owner, x, table_key.double, argument
        )
        rows = whole.shape
        if len(rows) != 1 or rows[0] != tokens or components:
            batch = tuple([shape[i] for i in axes.batch])
            check_positions_shape(argument, tuple(rows), components, batch, tokens)
            whole, part = add_tokens_axis(whole, part, components)
    tables = backend.tables(table_key, x)
    return TableLookup(
        tables, whole, part, backend.device(x), tokens, position_range, components, table_key
    )


def add_tokens_axis(
    whole: Array, part: Array | None, components: int
) -> tuple[Array, Array | None]:
    """Return whole and fractional parts with an axis of tokens, where there is one number."""
    if len(whole.shape) != bool(components):
        return whole, part
    return whole[..., None], None if part is None else part[..., None]


def apply(
    rope: Rope, q: Array, k: Array, positions: Any, axes: str | None, k_positions: Any, out: Any
) -> Call:
    """Return the call that rotates q and k."""
    backend, where, double, k_double = check_pair(q, k, axes, k_positions is not None)
    head_dim = q.shape[-1]
    r, offset = slice_of(rope, head_dim)
    table_key = TableKey(rope, head_dim, inverse=False, double=double)
    angles: tuple[TableLookup, ...] = (
        _lookup(backend, table_key, q, where, positions, "positions"),
    )
    if k_positions is not None or double != k_double:
        argument = "positions"
        if k_positions is not None:
            positions, argument = k_positions, "k_positions"
        k_key = TableKey(rope, head_dim, inverse=False, double=k_double)
        angles += (_lookup(backend, k_key, k, where, positions, argument),)
    out = check_out(backend, ("q", "k"), (q, k), out)
    return Call(backend, (q, k), angles, out, RotationSpec(where, rope.layout, r, offset, False))


def rotate(rope: Rope, x: Array, positions: Any, axes: str | None, out: Any, inverse: bool) -> Call:
    """Return the call that rotates x."""
    backend, where, double = check_array(x, axes)
    r, offset = slice_of(rope, x.shape[-1])
    table_key = TableKey(rope, x.shape[-1], inverse, double)
    angles = _lookup(backend, table_key, x, where, positions, "positions")
    out = check_out(backend, ("x",), (x,), out)
    return Call(backend, (x,), (angles,), out, RotationSpec(where, rope.layout, r, offset, inverse))


def rerotate(
    rope: Rope,
    to: Rope,
    x: Array,
    old_positions: Any,
    new_positions: Any,
    axes: str | None,
    out: Any,
) -> Call:
    """Return the call that composes the inverse of one rotation with another."""
    backend, where, double = check_array(x, axes)
    head_dim = x.shape[-1]
    r, offset = slice_of(rope, head_dim)
    check_rerotation(rope, to, head_dim)
    old_key = TableKey(rope, head_dim, inverse=True, double=double)
    old = _lookup(backend, old_key, x, where, old_positions, "old_positions")
    new_key = TableKey(to, head_dim, inverse=False, double=double)
    new = _lookup(backend, new_key, x, where, new_positions, "new_positions")
    out = check_out(backend, ("x",), (x,), out)
    # x lies in the layout that the rotation wrote.
    layout: Layout = "interleaved" if rope.layout == "interleaved" else "half"
    angles = RelativeAngles(new, old)
    return Call(backend, (x,), (angles,), out, RotationSpec(where, layout, r, offset, False))


def cos_sin(
    rope: Rope, positions: Any, head_dim: int, xp: Any, device: Any, dtype: Any
) -> tuple[TableLookup, Backend]:
    """Return the lookup of cos and sin for positions of any shape, and its backend."""
    owner = find_owner(positions)
    if xp is not None:
        backend = find.require_backend_of_namespace(xp)
        if owner is not None and owner.compatible_backend is backend:
            backend = owner
    else:
        backend = owner or find.require_backend_of_namespace(np)
    double = dtype is not None and bool(dtype == backend.xp.float64)
    if dtype is not None and backend.numpy_dtypes:
        double = np.dtype(dtype) == np.float64  # numpy's many names for it, such as float and "d"
    like = positions
    if owner is not backend or device is not None:
        put = backend.asarray_in_trace if backend.is_compiling() else backend.asarray
        like = put(np.zeros((), np.float64 if double else np.float32), device)
    table_key = TableKey(rope, head_dim, inverse=False, double=double)
    return position_lookup(backend, table_key, positions, owner, like), backend


def position_lookup(
    backend: Backend, table_key: TableKey, positions: Any, owner: Backend | None, like: Array
) -> TableLookup:
    """Return the lookup of positions of any shape, which belong to no array."""
    whole, part, position_range = resolve_positions(
        backend, positions, owner, like, table_key.double, "positions"
    )
    if count_components(table_key.rope):
        check_components("positions", tuple(whole.shape), count_components(table_key.rope))
    tables, device = backend.tables(table_key, like), backend.device(like)
    return TableLookup(
        tables, whole, part, device, 0, position_range, count_components(table_key.rope), table_key
    )


def check_pair(
    q: Array, k: Array, axes: str | None, own_positions: bool
) -> tuple[Backend, Axes, bool, bool]:
    """Return the backend and axes of q and k, and whether each is of float64."""
    backend = find.require_backend(q, "q")
    other = find.require_backend(k, "k")
    if other is not backend:
        raise messages.different_libraries("q", backend, "k", other)
    double = messages.check_float(backend, "q", q) == "float64"
    k_double = messages.check_float(backend, "k", k) == "float64"
    where = parse_axes(axes, len(q.shape), "q")
    check_fit(where, "k", len(k.shape))
    messages.check_same_device(backend, "q", q, "k", k)
    messages.check_pair(where, q.shape, k.shape, own_positions)
    return backend, where, double, k_double


def check_array(x: Array, axes: str | None) -> tuple[Backend, Axes, bool]:
    """Return the backend and axes of x, and whether it is of float64."""
    backend = find.require_backend(x, "x")
    double = messages.check_float(backend, "x", x) == "float64"
    return backend, parse_axes(axes, len(x.shape), "x"), double
