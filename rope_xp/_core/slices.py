"""The slice of head_dim that a rope rotates."""

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.protocols import Rope


def check_axis_count(position_axes: tuple[int, ...], rotary_dim: int) -> None:
    """Check that each rotated pair has a position axis."""
    if len(position_axes) != rotary_dim // 2:
        raise RopeError(
            f"position_axes has {len(position_axes)} entries; {rotary_dim} rotated components have "
            f"{rotary_dim // 2} pairs, and each needs one entry"
        )


def resolve_slice(
    head_dim: int, rotary_dim: int | None, rotary_offset: int, position_axes: tuple[int, ...] | None
) -> tuple[int, int]:
    """Return (r, offset) of the rotated slice in a head of head_dim components."""
    r = head_dim if rotary_dim is None else rotary_dim
    if head_dim is None or r % 2:
        numbers.check_known(numbers.ROTATED, (head_dim,))
        raise RopeError(
            f"head_dim is {head_dim}, an odd number, but pairs are rotated; pass an even "
            "rotary_dim, which leaves the other components as they are"
        )
    offset = rotary_offset if rotary_offset >= 0 else head_dim + rotary_offset
    if offset < 0 or offset + r > head_dim:
        raise RopeError(
            f"the rotated slice, rotary_dim={r} components from rotary_offset={rotary_offset}, "
            f"does not fit in head_dim={head_dim}"
        )
    if position_axes is not None:
        check_axis_count(position_axes, r)
    return r, offset


def slice_of(rope: Rope, head_dim: int) -> tuple[int, int]:
    """Return (r, offset) of the slice that a rope rotates."""
    return resolve_slice(head_dim, rope.rotary_dim, rope.rotary_offset, rope.position_axes)
