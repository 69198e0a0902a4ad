"""From tables of cos and sin to a checked Call, and from positions to such tables."""

from typing import Any

import numpy as np

from rope_xp._arguments import fields, messages, parse
from rope_xp._arguments.out import check_out
from rope_xp._arguments.slices import (
    check_one_token,
    check_pairs,
    check_same_shape,
    check_tables,
    resolve_slice,
    slice_of,
)
from rope_xp._arguments.table_forms import check_one_per_pair
from rope_xp._core import numbers
from rope_xp._core.call import Axes, Call, CosSin, RotationSpec, TableLookup
from rope_xp._core.errors import RopeError
from rope_xp._core.library import Rope, TableKey, count_components
from rope_xp._core.typing import Array, Layout
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend


def apply_tables(
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
    rotary_offset = numbers.check_int("rotary_offset", rotary_offset)
    backend, where, double = parse.check_array(x, axes)
    if not backend.is_compiling():
        check_one_per_pair(cos, sin)
    cos, sin = _tables(backend, "x", x, where, cos, sin, double)
    slice_ = resolve_slice(x.shape[-1], 2 * cos.shape[-1], rotary_offset, None)
    spec = RotationSpec(where, layout, *slice_, inverse)
    return _call(backend, {"x": x}, cos, sin, (double,), spec, out)


def apply(rope: Rope, q: Array, k: Array, cos: Any, sin: Any, axes: str | None, out: Any) -> Call:
    """Return the call that rotates q and k by the tables of Angles."""
    backend, where, double, k_double = parse.check_pair(q, k, axes, False)
    cos, sin = _tables(backend, "q", q, where, cos, sin, double or k_double)
    spec = RotationSpec(where, rope.layout, *_check_slice(rope, q, where, cos), False)
    widths = (double,) if double == k_double else (double, k_double)
    return _call(backend, {"q": q, "k": k}, cos, sin, widths, spec, out)


def rotate(
    rope: Rope, x: Array, cos: Any, sin: Any, axes: str | None, out: Any, inverse: bool
) -> Call:
    """Return the call that rotates x by the tables of Angles."""
    backend, where, double = parse.check_array(x, axes)
    cos, sin = _tables(backend, "x", x, where, cos, sin, double)
    spec = RotationSpec(where, rope.layout, *_check_slice(rope, x, where, cos), inverse)
    return _call(backend, {"x": x}, cos, sin, (double,), spec, out)


def check_rope_tables(rope: Rope, cos: Any, sin: Any) -> None:
    """Check tables against a rope, as far as they can be without an array to rotate."""
    for argument, table in (("cos", cos), ("sin", sin)):
        messages.check_float(find.require_backend(table, argument), argument, table)
    check_same_shape(tuple(cos.shape), tuple(sin.shape))
    if rope.rotary_dim is None or cos.shape[-1] == rope.rotary_dim:
        check_one_per_pair(cos, sin)
    if rope.rotary_dim is not None:
        check_pairs(cos.shape[-1], rope.rotary_dim)


def angles(
    rope: Rope, positions: Any, like: Array
) -> tuple[Backend, TableLookup, TableLookup | None]:
    """Return the lookup of angles for arrays such as ``like``, and that of the inverse rotation.

    The second is None where both are the same.
    """
    backend = find.require_backend(like, "like")
    double = messages.check_float(backend, "like", like) == "float64"
    if not like.shape:
        msg = "like is a single number; give an array such as q, whose last axis is head_dim"
        raise RopeError(msg)
    table_key = TableKey(rope, like.shape[-1], inverse=False, double=double)
    slice_of(rope, table_key.head_dim)
    lookup = parse.position_lookup(
        backend, table_key, positions, parse.find_device_owner(positions), like
    )
    whole, part = parse.add_tokens_axis(lookup.whole, lookup.part, count_components(table_key.rope))
    lookup.whole, lookup.part = whole, part
    if rope.attention_factor == 1.0:
        return backend, lookup, None
    inverse = TableKey(rope, like.shape[-1], inverse=True, double=double)
    rest = lookup.device, lookup.tokens, lookup.position_range, lookup.components
    return (
        backend,
        lookup,
        TableLookup(backend.tables(inverse, like), whole, part, *rest, inverse),
    )


def _check_slice(rope: Rope, x: Array, axes: Axes, cos: Array) -> tuple[int, int]:
    r, offset = slice_of(rope, x.shape[-1])
    check_pairs(cos.shape[-1], r)
    check_one_token(tuple(cos.shape[:-1]), x.shape[axes.tokens])
    return r, offset


def _tables(
    backend: Backend, name: str, x: Array, axes: Axes, cos: Any, sin: Any, double: bool
) -> tuple[Array, Array]:
    """Return tables as arrays of the library that x belongs to."""
    cos = _table(backend, name, x, cos, double, "cos")
    sin = _table(backend, name, x, sin, double, "sin")
    batch = tuple([x.shape[i] for i in axes.batch])
    check_tables(tuple(cos.shape), tuple(sin.shape), x.shape[-1], batch, x.shape[axes.tokens])
    return cos, sin


def _table(backend: Backend, name: str, x: Array, table: Any, double: bool, argument: str) -> Array:
    owner = find.require_backend(table, argument)
    messages.check_float(owner, argument, table)
    if messages.check_beside(backend, name, x, owner, argument, table):
        return table
    # By numpy, which has dtypes and byte orders that the other library may not have.
    host = table.astype(np.float64 if double else np.float32, copy=False)
    return backend.asarray(host, backend.device(x))


def _call(
    backend: Backend,
    named: dict[str, Array],
    cos: Array,
    sin: Array,
    widths: tuple[bool, ...],
    spec: RotationSpec,
    out: Any,
) -> Call:
    arrays = tuple(named.values())
    out = check_out(backend, tuple(named), arrays, out, (cos, sin))
    xp = backend.xp
    dtypes = [xp.float64 if double else xp.float32 for double in widths]
    angles = [CosSin(*(xp.astype(t, dtype, copy=False) for t in (cos, sin))) for dtype in dtypes]
    return Call(backend, arrays, tuple(angles), out, spec)
