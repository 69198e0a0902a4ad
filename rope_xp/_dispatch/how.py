"""What a call asks for, but for its arguments. entry.cpp has the same numbers."""

from collections.abc import Callable
from typing import Any

from rope_xp._core.call import Call
from rope_xp._core.typing import Array

BOTH = 0
"""To rotate q and k."""
ONE = 1
"""To rotate one array, q; k is not read."""
INVERSE = 2
"""To undo a rotation, attention factor included."""
TRANSPOSED = 4
"""To rotate back, with the same attention factor: the derivative."""
RECORDED = 8
"""Autograd records the call, and takes plain results."""
GIVEN_COLUMNS = 16
"""A single row of cos and sin may be that of several tokens."""
CHECK_COLUMNS = 32
"""Tables of columns that look as if they held each angle twice are left to the slow path."""

builders: dict[str, Callable[..., Call]] = {}
"""By the names of the methods of backends: functions that check their arguments and build a Call.

Filled by :mod:`rope_xp._arguments`, a layer above backends, of which some need them.
"""


def build_call(
    head: tuple[Any, ...],
    arrays: tuple[Array, ...],
    angles: Any,
    axes: Any,
    out: Any,
    norm: Any,
    how: int,
) -> Call:
    """Check the arguments of a call that was not run as it was written.

    ``head`` is what calls have before q: a rope, or the slice of tables and their form. ``angles``
    are positions of q and of k, or cos and sin with one column a pair.
    """
    if len(head) > 1:
        return builders["rotate_by_tables"](head, arrays, angles, axes, out, norm, how)
    positions, k_positions = angles
    build = builders["rotate_by_rope"]
    return build(*head, arrays, positions, axes, out, norm, how, k_positions)
