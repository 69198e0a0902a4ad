"""What a call asks for, but for its arguments. entry.cpp has the same numbers."""

from collections.abc import Callable

from rope_xp._core.call import Call

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
