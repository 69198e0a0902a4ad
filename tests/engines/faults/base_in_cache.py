"""Modules of different bases share one cache

The cache of `RotaryPositionalEmbedding` has the size and the dtype as its key, not `theta`: the second module rotates
by the table of the first, unless it is called with more tokens. No report was found; `theta` became a field with
[equinox#735](https://github.com/patrick-kidger/equinox/pull/735).
"""

import jax.numpy as jnp
from equinox.nn import RotaryPositionalEmbedding

x = jnp.ones((8, 64))
first = RotaryPositionalEmbedding(64, theta=1e4)(x)
second = RotaryPositionalEmbedding(64, theta=5e5)(x)
print(jnp.abs(first - second).max())  # prints 0.0, as if theta were the same
