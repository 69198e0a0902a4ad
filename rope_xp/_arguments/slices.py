"""The rotated slice of head_dim, of a rope or of tables."""

from rope_xp._arguments.fields import check_axis_count
from rope_xp._arguments.positions import check_broadcast
from rope_xp._arguments.table_forms import hint_one_column
from rope_xp._core.errors import RopeError
from rope_xp._core.library import Rope
from rope_xp._core.numbers import ROTATED, check_known, same_length


def resolve_slice(
    head_dim: int, rotary_dim: int | None, rotary_offset: int, position_axes: tuple[int, ...] | None
) -> tuple[int, int]:
    """Return (r, offset) of the rotated slice in a head of head_dim components."""
    if head_dim is None:
        check_known(ROTATED, (head_dim,))
    r = head_dim if rotary_dim is None else rotary_dim
    if r % 2:
        check_known(ROTATED, (head_dim,))
        msg = (
            f"head_dim is {head_dim}, an odd number, and components turn in pairs; pass an even "
            "rotary_dim, the rest passes through"
        )
        raise RopeError(msg)
    offset = rotary_offset if rotary_offset >= 0 else head_dim + rotary_offset
    if offset < 0 or offset + r > head_dim:
        msg = (
            f"the rotated slice, rotary_dim={r} components from rotary_offset={rotary_offset}, "
            f"does not lie within head_dim={head_dim}"
        )
        raise RopeError(msg)
    if position_axes is not None:
        check_axis_count(position_axes, r)
    return r, offset


def slice_of(rope: Rope, head_dim: int) -> tuple[int, int]:
    """Return (r, offset) of the slice that a rope rotates."""
    return resolve_slice(head_dim, rope.rotary_dim, rope.rotary_offset, rope.position_axes)


def check_rerotation(rope: Rope, to: Rope, head_dim: int) -> None:
    """Check that two ropes rotate the same pairs."""
    old, new = (
        (*slice_of(r, head_dim), "interleaved" if r.layout == "interleaved" else "half")
        for r in (rope, to)
    )
    if old != new:
        msg = (
            "rerotate needs ropes that rotate the same pairs; got (rotary_dim, rotary_offset, "
            f"layout written) {old} and to with {new}"
        )
        raise RopeError(msg)


def check_same_shape(cos_shape: tuple[int, ...], sin_shape: tuple[int, ...]) -> None:
    """Check that cos and sin have one shape, of two axes at least."""
    same = len(cos_shape) == len(sin_shape)
    if not same or not all(map(same_length, cos_shape, sin_shape)):
        msg = f"cos has shape {cos_shape} and sin {sin_shape}; they must be equal"
        raise RopeError(msg)
    if len(cos_shape) < 2:
        msg = f"cos has shape {cos_shape}; it needs two axes at least, (tokens, r/2)"
        raise RopeError(msg)


def check_pairs(columns: int, rotary_dim: int) -> None:
    """Check that there is a column of cos for each pair that a rope rotates."""
    if not same_length(2 * columns, rotary_dim):
        msg = (
            f"cos has {columns} columns, one for each rotated pair, and the rope rotates "
            f"{rotary_dim} components, {rotary_dim // 2} pairs; make the angles like an array "
            f"of this head_dim, or by a RoPE with rotary_dim={2 * columns}"
            f"{f'. {hint_one_column(columns)}' if columns == rotary_dim else ''}"
        )
        raise RopeError(msg)


def check_one_token(rows: tuple[int, ...], tokens: int) -> None:
    """Check that the angles of one token are not broadcast to several, perhaps by mistake."""
    if rows == (1,) and tokens != 1:
        msg = (
            f"cos has one row, of one token, for {tokens} tokens; make angles of all their "
            f"positions, such as rope.at(offset + arange({tokens}), like=q), or of positions "
            "(batch, 1) where all tokens of a sequence are at one position"
        )
        raise RopeError(msg)


def check_tables(
    cos_shape: tuple[int, ...],
    sin_shape: tuple[int, ...],
    head_dim: int,
    batch: tuple[int, ...],
    tokens: int,
) -> None:
    """Check that cos and sin are (batch..., tokens, r/2)."""
    check_same_shape(cos_shape, sin_shape)
    if cos_shape[-1] == 0 or 2 * cos_shape[-1] > head_dim:
        columns = cos_shape[-1]
        hint = (
            f". {hint_one_column(columns)}" if 0 < columns <= head_dim and columns % 2 == 0 else ""
        )
        msg = (
            f"cos has {columns} columns, one for each rotated pair; head_dim={head_dim} has room "
            f"for 1 to {head_dim // 2}{hint}"
        )
        raise RopeError(msg)
    check_broadcast("cos[..., 0]", cos_shape[:-1], 0, batch, tokens)
