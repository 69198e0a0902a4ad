"""The backend of jax."""

import jax.numpy as jnp

from rope_xp._core.versions import check_version

check_version("jax")

from .library import Jax  # noqa: E402  # an older version fails there without a reason
from .paths import Jit  # noqa: E402  # it imports .library

BACKEND = Jax("jax", jnp, (Jit(),))
