"""Identify the RoPE of a function, and check it; vectors for ports to other languages.

Functions are black boxes: they may use numpy, torch, jax or cupy, and need not use rope_xp.
"""

from rope_xp.testing._assert import assert_rotates
from rope_xp.testing._fit import Measured
from rope_xp.testing._identify import Identified, identify
from rope_xp.testing._vectors import Vectors, vectors

__all__ = ["Identified", "Measured", "Vectors", "assert_rotates", "identify", "vectors"]
