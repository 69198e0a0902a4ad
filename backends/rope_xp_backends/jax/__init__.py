"""jax, and what its arrays are rotated by."""

import jax.numpy as jnp

from .library import Jax
from .paths import Jit, JitGpu

BACKEND = Jax("jax", jnp, (JitGpu(), Jit()))
