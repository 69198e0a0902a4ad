"""Tell which RoPE a function is, and whether it is right.

Nothing here is imported by the rest of rope_xp. Functions are asked as black boxes: they may be of
numpy, torch, jax or cupy, and need not know of rope_xp.
"""

from rope_xp.testing._assert import assert_rotates
from rope_xp.testing._identify import Identified, identify
from rope_xp.testing._rules import Measured

__all__ = ["Identified", "Measured", "assert_rotates", "identify"]
