"""From arguments to a checked Call. Everything is checked here, before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rope_xp import _angles, _axes, _dispatch, _fields, _out, _positions, _validate
from rope_xp._axes import Axes
from rope_xp._contract import Backend, Call, Difference, Given, Lookup
from rope_xp._typing import Array, Layout

if TYPE_CHECKING:
    from rope_xp.rope import RoPE


_PYTHON = (int, float, list, tuple, range)


def owner_of(positions: Any) -> Backend | None:
    """Return the backend of positions, None for Python numbers and sequences of them."""
    return None if type(positions) in _PYTHON else _dispatch.find(positions)


def _lookup(
    backend: Backend,
    rope: RoPE,
    x: Array,
    axes: Axes,
    positions: Any,
    inverse: bool,
    wide: bool,
    argument: str,
) -> Lookup:
    shape = x.shape
    tokens = shape[axes.tokens]
    components = 0 if rope.position_axes is None else max(rope.position_axes) + 1
    whole = part = None
    if positions is None:
        if tokens is None:
            tokens, reach = backend.length(x, axes.tokens), _angles.COUNTED
        elif backend.is_compiling():
            # It sees a symbol for the number of tokens, and comparing it splits the graph.
            reach = _angles.COUNTED
        else:
            reach = _angles.reach_of(0, tokens)
    else:
        owner = owner_of(positions)
        whole, part, reach = _positions.resolve(backend, positions, owner, x, wide, argument)
        given = whole.shape
        if len(given) != 1 or given[0] != tokens or components:
            batch = tuple([shape[i] for i in axes.batch])
            _validate.check_positions_shape(argument, tuple(given), components, batch, tokens)
            if len(given) == (1 if components else 0):
                whole = whole[..., None]
                part = None if part is None else part[..., None]
    return Lookup(
        backend.tables(rope, shape[-1], inverse, wide, x),
        whole,
        part,
        backend.device(x),
        tokens,
        reach,
        wide,
        _angles.rope_scale(rope, inverse) if wide else 1.0,
        components,
    )


def pair(
    rope: RoPE,
    q: Array,
    k: Array,
    positions: Any,
    axes: str | None,
    k_positions: Any,
    out: Any,
) -> Call:
    """Return the call that rotates q and k."""
    backend = _dispatch.backend_of(q, "q")
    other = _dispatch.backend_of(k, "k")
    if other is not backend:
        raise _validate.different_libraries("q", backend, "k", other)
    shape, k_shape = q.shape, k.shape
    where = _axes.parse(axes, len(shape), "q")
    if len(k_shape) != len(shape):
        raise _validate.axes_do_not_fit(where.names, "k", len(k_shape))
    wide = _validate.check_float(backend, "q", q) == "float64"
    k_wide = _validate.check_float(backend, "k", k) == "float64"
    _validate.check_same_device(backend, "q", q, "k", k)
    _validate.check_pair(where, shape, k_shape, k_positions is not None)
    r, offset = _slice(rope, shape[-1])
    angles: tuple[Lookup, ...] = (
        _lookup(backend, rope, q, where, positions, False, wide, "positions"),
    )
    if k_positions is not None:
        angles += (_lookup(backend, rope, k, where, k_positions, False, k_wide, "k_positions"),)
    elif wide != k_wide:
        angles += (_lookup(backend, rope, k, where, positions, False, k_wide, "positions"),)
    arrays = (q, k)
    if out is not None:
        out = _out.check(backend, ("q", "k"), arrays, out)
    return Call(backend, arrays, angles, out, where, rope.layout, r, offset, False)


def single(
    rope: RoPE,
    x: Array,
    positions: Any,
    axes: str | None,
    out: Any,
    inverse: bool,
) -> Call:
    """Return the call that rotates x."""
    backend, where, wide = _one(x, axes)
    r, offset = _slice(rope, x.shape[-1])
    angles = _lookup(backend, rope, x, where, positions, inverse, wide, "positions")
    if out is not None:
        out = _out.check(backend, ("x",), (x,), out)
    return Call(backend, (x,), (angles,), out, where, rope.layout, r, offset, inverse)


def between(
    rope: RoPE,
    to: RoPE,
    x: Array,
    old_positions: Any,
    new_positions: Any,
    axes: str | None,
    out: Any,
) -> Call:
    """Return the call that takes x from its old rotation to a new one, at once."""
    backend, where, wide = _one(x, axes)
    r, offset = _slice(rope, x.shape[-1])
    _validate.check_rerotation(rope, to, (r, offset), _slice(to, x.shape[-1]))
    old = _lookup(backend, rope, x, where, old_positions, True, wide, "old_positions")
    new = _lookup(backend, to, x, where, new_positions, False, wide, "new_positions")
    if out is not None:
        out = _out.check(backend, ("x",), (x,), out)
    # What was rotated lies in the layout that the rotation writes.
    layout: Layout = "interleaved" if rope.layout == "interleaved" else "half"
    angles = Difference(new, old)
    return Call(backend, (x,), (angles,), out, where, layout, r, offset, False)


def tables(
    rope: RoPE, positions: Any, head_dim: int, xp: Any, device: Any, dtype: Any
) -> tuple[Lookup, Backend]:
    """Return the lookup of cos and sin for positions of any shape, and its backend."""
    owner = owner_of(positions)
    if xp is not None:
        backend = _dispatch.backend_of_namespace(xp)
        if owner is not None and owner.kin is backend:
            backend = owner
    else:
        backend = owner or _dispatch.backend_of_namespace(np)
    wide = dtype is not None and bool(dtype == backend.xp.float64)
    if dtype is not None and backend.name in ("numpy", "jax", "cupy", "dask"):
        wide = np.dtype(dtype) == np.float64  # numpy's many names for it, such as float and "d"
    like = positions
    if owner is not backend or device is not None:
        like = backend.asarray(np.zeros((), np.float64 if wide else np.float32), device)
    whole, part, reach = _positions.resolve(backend, positions, owner, like, wide, "positions")
    components = 0
    if rope.position_axes is not None:
        components = max(rope.position_axes) + 1
        _validate.check_components("positions", tuple(whole.shape), components)
    lookup = Lookup(
        backend.tables(rope, head_dim, False, wide, like),
        whole,
        part,
        backend.device(like),
        0,
        reach,
        wide,
        _angles.rope_scale(rope, False) if wide else 1.0,
        components,
    )
    return lookup, backend


def with_tables(
    x: Array,
    cos: Any,
    sin: Any,
    layout: Layout,
    inverse: bool,
    axes: str | None,
    rotary_offset: int,
    out: Any,
) -> Call:
    """Return the call that rotates x by the caller's tables."""
    _fields.check_layout(layout)
    _fields.check_rotary_offset(rotary_offset)
    backend, where, wide = _one(x, axes)
    cos, sin = _table(backend, x, cos, "cos"), _table(backend, x, sin, "sin")
    head_dim, tokens = x.shape[-1], x.shape[where.tokens]
    batch = tuple(x.shape[i] for i in where.batch)
    _validate.check_tables(tuple(cos.shape), tuple(sin.shape), head_dim, batch, tokens)
    r, offset = _validate.resolve_slice(head_dim, 2 * cos.shape[-1], rotary_offset, None)
    if out is not None:
        out = _out.check(backend, ("x",), (x,), out, (cos, sin))
    xp = backend.xp
    compute = xp.float64 if wide else xp.float32
    given = Given(xp.astype(cos, compute, copy=False), xp.astype(sin, compute, copy=False))
    return Call(backend, (x,), (given,), out, where, layout, r, offset, inverse)


def _table(backend: Backend, x: Array, table: Any, argument: str) -> Array:
    owner = _dispatch.backend_of(table, argument)
    _validate.check_float(owner, argument, table)
    if owner is backend or owner is backend.kin:
        _validate.check_same_device(backend, "x", x, argument, table)
        return table
    if owner.name == "numpy":
        return backend.asarray(table, backend.device(x))
    raise _validate.different_libraries("x", backend, argument, owner)


def _one(x: Array, axes: str | None) -> tuple[Backend, Axes, bool]:
    backend = _dispatch.backend_of(x, "x")
    where = _axes.parse(axes, len(x.shape), "x")
    return backend, where, _validate.check_float(backend, "x", x) == "float64"


def _slice(rope: RoPE, head_dim: int) -> tuple[int, int]:
    return _validate.resolve_slice(
        head_dim, rope.rotary_dim, rope.rotary_offset, rope.position_axes
    )
