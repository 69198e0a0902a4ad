"""From arguments to a checked Call. Everything is checked here, before anything is computed."""

from typing import Any

import numpy as np

from rope_xp._arguments import fields, messages
from rope_xp._arguments.axes import check_fit, parse_axes
from rope_xp._arguments.out import check_out
from rope_xp._arguments.positions import check_components, check_positions_shape, resolve_positions
from rope_xp._arguments.slices import check_rerotation, check_tables, resolve_slice, slice_of
from rope_xp._contract.call import COUNTED, Axes, Call, Difference, Given, Lookup, Turn, reach_of
from rope_xp._contract.library import Recipe, Rope
from rope_xp._contract.typing import Array, Layout
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

_PYTHON = (int, float, list, tuple, range)


def owner_of(positions: Any) -> Backend | None:
    """Return the backend of positions, None for Python numbers and sequences of them."""
    return None if type(positions) in _PYTHON else find.find(positions)


def _lookup(
    backend: Backend, recipe: Recipe, x: Array, axes: Axes, positions: Any, argument: str
) -> Lookup:
    shape = x.shape
    tokens = shape[axes.tokens]
    components = recipe.components
    whole = part = None
    if positions is None:
        if tokens is None:
            tokens, reach = backend.length(x, axes.tokens), COUNTED
        elif backend.is_compiling():
            # It sees a symbol for the number of tokens, and comparing it splits the graph.
            reach = COUNTED
        else:
            reach = reach_of(0, tokens)
    else:
        owner = owner_of(positions)
        whole, part, reach = resolve_positions(backend, positions, owner, x, recipe.wide, argument)
        given = whole.shape
        if len(given) != 1 or given[0] != tokens or components:
            batch = tuple([shape[i] for i in axes.batch])
            check_positions_shape(argument, tuple(given), components, batch, tokens)
            if len(given) == (1 if components else 0):
                whole = whole[..., None]
                part = None if part is None else part[..., None]
    tables = backend.tables(recipe, x)
    return Lookup(tables, whole, part, backend.device(x), tokens, reach, components, recipe)


def pair(
    rope: Rope, q: Array, k: Array, positions: Any, axes: str | None, k_positions: Any, out: Any
) -> Call:
    """Return the call that rotates q and k."""
    backend = find.backend_of(q, "q")
    other = find.backend_of(k, "k")
    if other is not backend:
        raise messages.different_libraries("q", backend, "k", other)
    shape, k_shape = q.shape, k.shape
    where = parse_axes(axes, len(shape), "q")
    check_fit(where, "k", len(k_shape))
    wide = messages.check_float(backend, "q", q) == "float64"
    k_wide = messages.check_float(backend, "k", k) == "float64"
    messages.check_same_device(backend, "q", q, "k", k)
    messages.check_pair(where, shape, k_shape, k_positions is not None)
    r, offset = slice_of(rope, shape[-1])
    recipe = Recipe(rope, shape[-1], inverse=False, wide=wide)
    angles: tuple[Lookup, ...] = (_lookup(backend, recipe, q, where, positions, "positions"),)
    if k_positions is not None or wide != k_wide:
        own, argument = (positions, "positions")
        if k_positions is not None:
            own, argument = (k_positions, "k_positions")
        angles += (_lookup(backend, recipe._replace(wide=k_wide), k, where, own, argument),)
    arrays = (q, k)
    if out is not None:
        out = check_out(backend, ("q", "k"), arrays, out)
    return Call(backend, arrays, angles, out, Turn(where, rope.layout, r, offset, False))


def single(rope: Rope, x: Array, positions: Any, axes: str | None, out: Any, inverse: bool) -> Call:
    """Return the call that rotates x."""
    backend, where, wide = _one(x, axes)
    r, offset = slice_of(rope, x.shape[-1])
    recipe = Recipe(rope, x.shape[-1], inverse, wide)
    angles = _lookup(backend, recipe, x, where, positions, "positions")
    if out is not None:
        out = check_out(backend, ("x",), (x,), out)
    return Call(backend, (x,), (angles,), out, Turn(where, rope.layout, r, offset, inverse))


def between(
    rope: Rope,
    to: Rope,
    x: Array,
    old_positions: Any,
    new_positions: Any,
    axes: str | None,
    out: Any,
) -> Call:
    """Return the call that takes x from its old rotation to a new one, at once."""
    backend, where, wide = _one(x, axes)
    head_dim = x.shape[-1]
    r, offset = slice_of(rope, head_dim)
    check_rerotation(rope, to, head_dim)
    undone = Recipe(rope, head_dim, inverse=True, wide=wide)
    old = _lookup(backend, undone, x, where, old_positions, "old_positions")
    done = Recipe(to, head_dim, inverse=False, wide=wide)
    new = _lookup(backend, done, x, where, new_positions, "new_positions")
    if out is not None:
        out = check_out(backend, ("x",), (x,), out)
    # What was rotated lies in the layout that the rotation writes.
    layout: Layout = "interleaved" if rope.layout == "interleaved" else "half"
    angles = Difference(new, old)
    return Call(backend, (x,), (angles,), out, Turn(where, layout, r, offset, False))


def tables(
    rope: Rope, positions: Any, head_dim: int, xp: Any, device: Any, dtype: Any
) -> tuple[Lookup, Backend]:
    """Return the lookup of cos and sin for positions of any shape, and its backend."""
    owner = owner_of(positions)
    if xp is not None:
        backend = find.backend_of_namespace(xp)
        if owner is not None and owner.kin is backend:
            backend = owner
    else:
        backend = owner or find.backend_of_namespace(np)
    wide = dtype is not None and bool(dtype == backend.xp.float64)
    if dtype is not None and backend.numpy_dtypes:
        wide = np.dtype(dtype) == np.float64  # numpy's many names for it, such as float and "d"
    recipe = Recipe(rope, head_dim, inverse=False, wide=wide)
    like = positions
    if owner is not backend or device is not None:
        like = backend.asarray(np.zeros((), np.float64 if wide else np.float32), device)
    whole, part, reach = resolve_positions(backend, positions, owner, like, wide, "positions")
    if recipe.components:
        check_components("positions", tuple(whole.shape), recipe.components)
    tables, device = backend.tables(recipe, like), backend.device(like)
    return Lookup(tables, whole, part, device, 0, reach, recipe.components, recipe), backend


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
    fields.check_layout(layout)
    fields.check_rotary_offset(rotary_offset)
    backend, where, wide = _one(x, axes)
    cos, sin = _table(backend, x, cos, "cos"), _table(backend, x, sin, "sin")
    head_dim, tokens = x.shape[-1], x.shape[where.tokens]
    batch = tuple(x.shape[i] for i in where.batch)
    check_tables(tuple(cos.shape), tuple(sin.shape), head_dim, batch, tokens)
    r, offset = resolve_slice(head_dim, 2 * cos.shape[-1], rotary_offset, None)
    if out is not None:
        out = check_out(backend, ("x",), (x,), out, (cos, sin))
    xp = backend.xp
    compute = xp.float64 if wide else xp.float32
    given = Given(xp.astype(cos, compute, copy=False), xp.astype(sin, compute, copy=False))
    return Call(backend, (x,), (given,), out, Turn(where, layout, r, offset, inverse))


def _table(backend: Backend, x: Array, table: Any, argument: str) -> Array:
    owner = find.backend_of(table, argument)
    messages.check_float(owner, argument, table)
    if owner is backend or owner is backend.kin:
        messages.check_same_device(backend, "x", x, argument, table)
        return table
    if owner.host:
        return backend.asarray(table, backend.device(x))
    raise messages.different_libraries("x", backend, argument, owner)


def _one(x: Array, axes: str | None) -> tuple[Backend, Axes, bool]:
    backend = find.backend_of(x, "x")
    where = parse_axes(axes, len(x.shape), "x")
    return backend, where, messages.check_float(backend, "x", x) == "float64"
