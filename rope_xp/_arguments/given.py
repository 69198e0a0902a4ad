"""From tables of cos and sin to a checked Call, and from positions to such tables."""

from dataclasses import replace
from typing import Any

import numpy as np

from rope_xp._arguments import fields, messages, read
from rope_xp._arguments.columns import check_one_per_pair
from rope_xp._arguments.out import check_out
from rope_xp._arguments.slices import (
    check_alike,
    check_one_token,
    check_pairs,
    check_tables,
    resolve_slice,
    slice_of,
)
from rope_xp._contract.call import Axes, Call, CosSin, RotationSpec, TableLookup
from rope_xp._contract.errors import RopeError
from rope_xp._contract.library import Rope, TableKey
from rope_xp._contract.typing import Array, Layout
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend


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
    rotary_offset = fields.check_rotary_offset(rotary_offset)
    backend, where, wide = read.one(x, axes)
    if not backend.is_compiling():
        check_one_per_pair(cos, sin)
    cos, sin = _tables(backend, "x", x, where, cos, sin, wide)
    slice_ = resolve_slice(x.shape[-1], 2 * cos.shape[-1], rotary_offset, None)
    turn = RotationSpec(where, layout, *slice_, inverse)
    return _call(backend, {"x": x}, cos, sin, (wide,), turn, out)


def pair(rope: Rope, q: Array, k: Array, cos: Any, sin: Any, axes: str | None, out: Any) -> Call:
    """Return the call that rotates q and k by angles that are held."""
    backend, where, wide, k_wide = read.two(q, k, axes, False)
    cos, sin = _tables(backend, "q", q, where, cos, sin, wide or k_wide)
    turn = RotationSpec(where, rope.layout, *_slice_held(rope, q, where, cos), False)
    widths = (wide,) if wide == k_wide else (wide, k_wide)
    return _call(backend, {"q": q, "k": k}, cos, sin, widths, turn, out)


def single(
    rope: Rope, x: Array, cos: Any, sin: Any, axes: str | None, out: Any, inverse: bool
) -> Call:
    """Return the call that rotates x by angles that are held."""
    backend, where, wide = read.one(x, axes)
    cos, sin = _tables(backend, "x", x, where, cos, sin, wide)
    turn = RotationSpec(where, rope.layout, *_slice_held(rope, x, where, cos), inverse)
    return _call(backend, {"x": x}, cos, sin, (wide,), turn, out)


def check(rope: Rope, cos: Any, sin: Any) -> None:
    """Check what can be of tables before there is an array that a rope turns by them."""
    for argument, table in (("cos", cos), ("sin", sin)):
        messages.check_float(find.backend_of(table, argument), argument, table)
    check_alike(tuple(cos.shape), tuple(sin.shape))
    if rope.rotary_dim is None or cos.shape[-1] == rope.rotary_dim:
        check_one_per_pair(cos, sin)
    if rope.rotary_dim is not None:
        check_pairs(cos.shape[-1], rope.rotary_dim)


def at(rope: Rope, positions: Any, like: Array) -> tuple[Backend, TableLookup, TableLookup | None]:
    """Return the lookup of angles for arrays such as ``like``, and that of what undoes them.

    None where it is the same.
    """
    backend = find.backend_of(like, "like")
    wide = messages.check_float(backend, "like", like) == "float64"
    if not like.shape:
        msg = "like is a single number; give an array such as q, whose last axis is head_dim"
        raise RopeError(msg)
    recipe = TableKey(rope, like.shape[-1], inverse=False, wide=wide)
    slice_of(rope, recipe.head_dim)
    lookup = read.alone(backend, recipe, positions, read.owner_beside(positions), like)
    if len(lookup.whole.shape) == (1 if recipe.components else 0):  # type: ignore[union-attr]  # given
        part = None if lookup.part is None else lookup.part[..., None]
        lookup = replace(lookup, whole=lookup.whole[..., None], part=part)  # type: ignore[index]  # likewise
    if rope.attention_factor == 1.0:
        return backend, lookup, None
    inverse = recipe._replace(inverse=True)
    return backend, lookup, replace(lookup, tables=backend.tables(inverse, like), recipe=inverse)


def _slice_held(rope: Rope, x: Array, axes: Axes, cos: Array) -> tuple[int, int]:
    r, offset = slice_of(rope, x.shape[-1])
    check_pairs(cos.shape[-1], r)
    check_one_token(tuple(cos.shape[:-1]), x.shape[axes.tokens])
    return r, offset


def _tables(
    backend: Backend, name: str, x: Array, axes: Axes, cos: Any, sin: Any, wide: bool
) -> tuple[Array, Array]:
    """Return tables as arrays of the library that x belongs to."""
    cos = _table(backend, name, x, cos, wide, "cos")
    sin = _table(backend, name, x, sin, wide, "sin")
    batch = tuple([x.shape[i] for i in axes.batch])
    check_tables(tuple(cos.shape), tuple(sin.shape), x.shape[-1], batch, x.shape[axes.tokens])
    return cos, sin


def _table(backend: Backend, name: str, x: Array, table: Any, wide: bool, argument: str) -> Array:
    owner = find.backend_of(table, argument)
    messages.check_float(owner, argument, table)
    if owner is backend or owner is backend.kin:
        messages.check_same_device(backend, name, x, argument, table)
        return table
    if owner.host:
        # Here, as numpy knows dtypes and orders of bytes that the other library may not.
        host = table.astype(np.float64 if wide else np.float32, copy=False)
        return backend.asarray(host, backend.device(x))
    raise messages.different_libraries(name, backend, argument, owner)


def _call(
    backend: Backend,
    named: dict[str, Array],
    cos: Array,
    sin: Array,
    widths: tuple[bool, ...],
    turn: RotationSpec,
    out: Any,
) -> Call:
    arrays = tuple(named.values())
    if out is not None:
        out = check_out(backend, tuple(named), arrays, out, (cos, sin))
    xp = backend.xp
    dtypes = [xp.float64 if wide else xp.float32 for wide in widths]
    angles = [CosSin(*(xp.astype(t, dtype, copy=False) for t in (cos, sin))) for dtype in dtypes]
    return Call(backend, arrays, tuple(angles), out, turn)
