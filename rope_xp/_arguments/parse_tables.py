"""From tables of cos and sin to a checked Call, and from positions to such tables."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rope_xp._arguments import checks, fields, parse
from rope_xp._arguments.norm import check_norm
from rope_xp._arguments.out import check_out
from rope_xp._arguments.positions import check_broadcast
from rope_xp._arguments.table_forms import check_one_per_pair, hint_one_column
from rope_xp._core import numbers
from rope_xp._core.call import Axes, Call, CosSin, RotationSpec, TableLookup
from rope_xp._core.dtypes import NARROW
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import same_length
from rope_xp._core.protocols import Rope
from rope_xp._core.slices import resolve_slice, slice_of
from rope_xp._core.tables import make_table_key
from rope_xp._core.typing import Array, Layout
from rope_xp._dispatch import find, how
from rope_xp._dispatch.backend import Backend


class GivenTables(NamedTuple):
    """cos and sin of the caller."""

    cos: Array
    sin: Array


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
    backend, where, doubles = parse.check_arrays((x,), axes)
    if not backend.is_compiling():
        check_one_per_pair(cos, sin)
    tables = _read_tables(backend, {"x": x}, where, GivenTables(cos, sin), doubles[0])
    slice_ = resolve_slice(x.shape[-1], 2 * tables[0].shape[-1], rotary_offset, None)
    spec = RotationSpec(where, layout, *slice_, inverse)
    out = check_out(backend, (x,), out, zip(("cos", "sin"), tables, strict=True))
    return Call(backend, (x,), cast_tables(backend, tables, doubles), out, spec)


def compute_cos_sin(angles: Any, argument: str) -> GivenTables:
    """Return cos and sin of angles, as their library computes them in their dtype."""
    owner = find.require_backend(angles, argument)
    if checks.check_float(owner, argument, angles) not in ("float32", "float64"):
        angles = owner.xp.astype(angles, owner.xp.float32)
    return GivenTables(owner.xp.cos(angles), owner.xp.sin(angles))


def apply_angles(
    q: Array,
    k: Array,
    tables: GivenTables,
    k_tables: GivenTables | None,
    layout: Layout,
    axes: str | None,
    rotary_offset: int,
    out: Any,
    norm: Any,
) -> Call:
    """Return the call that rotates q and k by cos and sin of angles."""
    fields.check_layout(layout)
    rotary_offset = numbers.check_int("rotary_offset", rotary_offset)
    has_k_positions = k_tables is not None
    backend, where, doubles = parse.check_arrays((q, k), axes, has_k_positions=has_k_positions)
    names, k_names = ("angles", "angles"), ("k_angles", "k_angles")
    if k_tables is None:
        tables = _read_tables(backend, {"q": q, "k": k}, where, tables, any(doubles), names)
        angles = cast_tables(backend, tables, doubles)
    else:
        tables = _read_tables(backend, {"q": q}, where, tables, doubles[0], names)
        k_tables = _read_tables(backend, {"k": k}, where, k_tables, doubles[1], k_names)
        columns = tables.cos.shape[-1], k_tables.cos.shape[-1]
        if not same_length(*columns):
            msg = f"angles has {columns[0]} columns and k_angles {columns[1]}; they must be equal"
            raise RopeError(msg)
        angles = cast_tables(backend, tables, doubles[:1])
        angles += cast_tables(backend, k_tables, doubles[1:])
    r, offset = resolve_slice(q.shape[-1], 2 * tables.cos.shape[-1], rotary_offset, None)
    norm, weights = check_norm(backend, (q, k), where, r, norm)
    out = check_out(backend, (q, k), out, (), weights)
    spec = RotationSpec(where, layout, r, offset, False, norm)
    return Call(backend, (q, k), angles, out, spec, weights)


def rotate(
    rope: Rope,
    arrays: tuple[Array, ...],
    cos: Any,
    sin: Any,
    axes: str | None,
    out: Any,
    inverse: bool,
    norm: Any = None,
) -> Call:
    """Return the call that rotates x, or q and k, by the tables of Angles."""
    x, name = arrays[0], "x" if len(arrays) == 1 else "q"
    backend, where, doubles = parse.check_arrays(arrays, axes)
    operands = dict(zip((name, "k"), arrays, strict=False))
    tables = _read_tables(backend, operands, where, GivenTables(cos, sin), any(doubles))
    r, offset = slice_of(rope, x.shape[-1])
    _check_pairs(tables[0].shape[-1], r)
    rows, tokens = tuple(tables[0].shape[:-1]), x.shape[where.tokens]
    if rows == (1,) and tokens != 1:
        raise RopeError(
            f"cos has a single row for {tokens} tokens; compute angles for all positions, with "
            f"rope.at(offset + arange({tokens}), like=q), or for positions of shape (batch, 1) if "
            "all tokens of a sequence have the same position"
        )
    norm, weights = check_norm(backend, arrays, where, r, norm)
    spec = RotationSpec(where, rope.layout, r, offset, inverse, norm)
    out = check_out(backend, arrays, out, zip(("cos", "sin"), tables, strict=True), weights)
    return Call(backend, arrays, cast_tables(backend, tables, doubles), out, spec, weights)


class _Slice(NamedTuple):
    """What a rope says of pairs, where cos and sin are given."""

    layout: Layout
    rotary_dim: int | None
    rotary_offset: int
    position_axes: None = None


def rotate_by_tables(
    slice_: tuple[Any, ...],
    arrays: tuple[Array, ...],
    tables: tuple[Any, Any],
    axes: Any,
    out: Any,
    norm: Any,
    flags: int,
) -> Call:
    """Return the call that the entry would run. ``tables`` have one column for each pair."""
    layout, rotary_dim, offset, _ = slice_
    inverse = flags & how.INVERSE != 0
    if rotary_dim == 0 and flags & how.CHECK_COLUMNS:
        call = apply_tables(arrays[0], *tables, layout, inverse, axes, offset, out)
    elif rotary_dim == 0 and len(arrays) > 1:
        given = GivenTables(*tables)
        q, k = arrays
        call = apply_angles(q, k, given, None, layout, axes, offset, out, norm)
    else:
        rope: Any = _Slice(layout, rotary_dim or 2 * tables[0].shape[-1], offset)
        call = rotate(rope, arrays, *tables, axes, out, inverse, norm)
    return parse.transpose(call) if flags & how.TRANSPOSED else call


how.builders["rotate_by_tables"] = rotate_by_tables


def check_rope_tables(rope: Rope, cos: Any, sin: Any) -> None:
    """Check tables against a rope, as far as they can be without an array to rotate."""
    for argument, table in (("cos", cos), ("sin", sin)):
        checks.check_float(find.require_backend(table, argument), argument, table)
    _check_same_shape(tuple(cos.shape), tuple(sin.shape))
    if rope.rotary_dim is None or cos.shape[-1] == rope.rotary_dim:
        check_one_per_pair(cos, sin)
    if rope.rotary_dim is not None:
        _check_pairs(cos.shape[-1], rope.rotary_dim)


def angles(
    rope: Rope, positions: Any, like: Array, head_dim: int | None
) -> tuple[Backend, list[TableLookup]]:
    """Return the lookup of angles for arrays such as ``like``, and any other of the inverse."""
    backend = find.require_backend(like, "like")
    if head_dim is None:
        checks.check_float(backend, "like", like)
        if not like.shape:
            msg = "like is a number; pass an array such as q, whose last axis is head_dim"
            raise RopeError(f"{msg}, or pass head_dim")
        head_dim = like.shape[-1]
    double = backend.dtype_name(like) == "float64"
    slice_of(rope, head_dim)
    table_key = make_table_key(rope, head_dim, inverse=False, double=double)
    owner = parse.device_backend_of(positions)
    lookup = parse.position_lookup(backend, table_key, positions, owner, like)
    whole, part = parse.add_token_axis(lookup.whole, lookup.part, lookup.components)
    lookup.whole, lookup.part = whole, part
    if rope.attention_factor == 1.0:
        return backend, [lookup]
    inverse_key = make_table_key(rope, head_dim, inverse=True, double=double)
    tables = backend.tables(inverse_key, like)
    shared = lookup.device, lookup.tokens, lookup.position_range, lookup.components
    return backend, [lookup, TableLookup(tables, whole, part, *shared, inverse_key)]


def _read_tables(
    backend: Backend,
    operands: dict[str, Array],
    axes: Axes,
    tables: GivenTables,
    double: bool,
    names: tuple[str, str] = ("cos", "sin"),
) -> GivenTables:
    """Return tables that fit arrays as arrays of their library, by the names of arguments."""
    (name, x), *_ = operands.items()
    cos, sin = (
        _read_table(backend, name, x, table, double, argument)
        for table, argument in zip(tables, names, strict=True)
    )
    _check_same_shape(tuple(cos.shape), tuple(sin.shape), names[0])
    columns, head_dim = cos.shape[-1], x.shape[-1]
    if columns == 0 or 2 * columns > head_dim:
        is_doubled = 0 < columns <= head_dim and columns % 2 == 0
        raise RopeError(
            f"{names[0]} has {columns} columns, one for each rotated pair, but head_dim={head_dim} "
            f"has 1 to {head_dim // 2} pairs{hint_one_column(columns) if is_doubled else ''}"
        )
    batch = tuple([x.shape[i] for i in axes.batch])
    shape, label, hint = tuple(cos.shape[:-1]), f"{names[0]}[..., 0]", ""
    if axes.heads is not None:
        hint = " For each head, pass all axes: (batch..., tokens, heads, r/2)"
        if len(shape) + 1 == len(axes.names):
            checks.check_heads(names[0], shape[-1], axes, operands)
            shape, label = shape[:-1], f"{names[0]}[..., 0, 0]"
    check_broadcast(label, shape, 0, batch, x.shape[axes.tokens], hint)
    return GivenTables(cos, sin)


def _read_table(
    backend: Backend, name: str, x: Array, table: Any, double: bool, argument: str
) -> Array:
    owner = find.require_backend(table, argument)
    checks.check_float(owner, argument, table)
    if checks.check_same_library_and_device(backend, name, x, owner, argument, table):
        return table
    # By numpy, which has dtypes and byte orders that the other library may not have.
    host = table.astype(np.float64 if double else np.float32, copy=False)
    return backend.asarray(host, backend.device(x))


def _check_same_shape(
    cos_shape: tuple[int, ...], sin_shape: tuple[int, ...], name: str = "cos"
) -> None:
    if len(cos_shape) != len(sin_shape) or not all(map(same_length, cos_shape, sin_shape)):
        raise RopeError(f"cos has shape {cos_shape} and sin {sin_shape}; they must be equal")
    if len(cos_shape) < 2:
        raise RopeError(f"{name} has shape {cos_shape}; it needs two axes at least, (tokens, r/2)")


def _check_pairs(columns: int, rotary_dim: int) -> None:
    """Check that there is a column of cos for each pair that a rope rotates."""
    if not same_length(2 * columns, rotary_dim):
        raise RopeError(
            f"cos has {columns} columns, one for each rotated pair, but the rope rotates "
            f"{rotary_dim} components, {rotary_dim // 2} pairs; pass like= an array with this "
            f"head_dim, or use a RoPE with rotary_dim={2 * columns}"
            f"{hint_one_column(columns) if columns == rotary_dim else ''}"
        )


def cast_tables(
    backend: Backend, tables: tuple[Array, Array], doubles: Sequence[bool]
) -> tuple[CosSin, ...]:
    """Return tables in float64 or float32 for each array, one for all if that is the same.

    Those of 16 bits that are for float32 stay: a kernel may read them.
    """
    xp, sources = backend.xp, []
    are_narrow = all(backend.dtype_name(t) in NARROW for t in tables)
    for double in doubles[: len(set(doubles))]:
        dtype = xp.float64 if double else xp.float32
        keeps = are_narrow and not double
        sources.append(CosSin(*(t if keeps else xp.astype(t, dtype, copy=False) for t in tables)))
    return tuple(sources)
