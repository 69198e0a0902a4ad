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


def compute_cos_sin(angles: Any, argument: str) -> GivenTables:
    """Return cos and sin of angles, as their library computes them in their dtype."""
    owner = find.require_backend(angles, argument)
    if checks.check_float(owner, argument, angles) not in ("float32", "float64"):
        angles = owner.xp.astype(angles, owner.xp.float32)
    return GivenTables(owner.xp.cos(angles), owner.xp.sin(angles))


class Pairs(NamedTuple):
    """What a rope says of pairs, where cos and sin are given."""

    layout: Layout
    rotary_dim: int | None
    """0: as many components as cos has columns for."""
    rotary_offset: int
    position_axes: None = None


def rotate(
    pairs: Rope | Pairs,
    arrays: tuple[Array, ...],
    tables: Sequence[GivenTables],
    axes: str | None,
    out: Any,
    inverse: bool = False,
    norm: Any = None,
    arguments: tuple[str, ...] = ("cos",),
) -> Call:
    """Return the call that rotates x, or q and k, by tables for all arrays or for each.

    ``arguments`` are what the caller calls these: cos stands for cos and sin.
    """
    fields.check_layout(pairs.layout)
    has_own = len(tables) > 1
    backend, where, doubles = parse.check_arrays(arrays, axes, has_k_positions=has_own)
    operands = [*zip(("x",) if len(arrays) == 1 else ("q", "k"), arrays, strict=True)]
    shares = [[operand] for operand in operands] if has_own else [operands]
    widths = [[double] for double in doubles] if has_own else [doubles]
    read: list[GivenTables] = []
    angles: tuple[CosSin, ...] = ()
    for given, share, width, name in zip(tables, shares, widths, arguments, strict=False):
        names = (name, "sin" if name == "cos" else name)
        read.append(_read_tables(backend, dict(share), where, given, any(width), names))
        angles += cast_tables(backend, read[-1], width)
    columns = [table.cos.shape[-1] for table in read]
    if has_own and not same_length(*columns):
        raise RopeError(
            f"{arguments[0]} has {columns[0]} columns and {arguments[1]} {columns[1]}; they must "
            "be equal"
        )
    head_dim, by_columns = arrays[0].shape[-1], pairs.rotary_dim == 0
    r, offset = resolve_slice(
        head_dim,
        2 * columns[0] if by_columns else pairs.rotary_dim,
        numbers.check_int("rotary_offset", pairs.rotary_offset),
        pairs.position_axes,
    )
    if not by_columns:
        _check_pairs(columns[0], r)
        _check_rows(read[0].cos, arrays[0].shape[where.tokens])
    norm, weights = check_norm(backend, arrays, where, r, norm)
    inputs = [(name, table) for pair in read for name, table in pair._asdict().items()]
    out = check_out(backend, arrays, out, inputs, weights)
    spec = RotationSpec(where, pairs.layout, r, offset, inverse, norm)
    return Call(backend, arrays, angles, out, spec, weights)


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
    pairs, inverse = Pairs(*slice_[:3]), flags & how.INVERSE != 0
    if flags & how.CHECK_COLUMNS and not find.require_backend(arrays[0], "x").is_compiling():
        check_one_per_pair(*tables)
    arguments = ("angles",) if pairs.rotary_dim == 0 and len(arrays) > 1 else ("cos",)
    call = rotate(pairs, arrays, [GivenTables(*tables)], axes, out, inverse, norm, arguments)
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


def _check_rows(cos: Array, tokens: int) -> None:
    """Check that angles of a single position are for one token."""
    if tuple(cos.shape[:-1]) == (1,) and tokens != 1:
        raise RopeError(
            f"cos has a single row for {tokens} tokens; compute angles for all positions, with "
            f"rope.at(offset + arange({tokens}), like=q), or for positions of shape (batch, 1) if "
            "all tokens of a sequence have the same position"
        )


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
