"""The backend of jax."""

import jax.numpy as jnp

from .library import Jax
from .paths import Jit, JitGpu

BACKEND = Jax("jax", jnp, (JitGpu(), Jit()))
