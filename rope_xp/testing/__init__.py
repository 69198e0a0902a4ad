"""Identify the RoPE of a function, and check it.

Functions are black boxes: they may use numpy, torch, jax or cupy, and need not use rope_xp.
"""

from rope_xp.testing._assert import assert_rotates
from rope_xp.testing._fit import Measured
from rope_xp.testing._identify import Identified, identify

__all__ = ["Identified", "Measured", "assert_rotates", "identify"]
