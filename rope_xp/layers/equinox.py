"""A RoPE as a module of equinox."""

import equinox

from rope_xp.layers import _common
from rope_xp.rope import RoPE


class Rotary(equinox.Module):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    It is a pytree without leaves: the RoPE is part of its structure.
    Arguments are those of :class:`rope_xp.layers.torch.Rotary`, without ``learn``.

    Examples
    --------
    >>> import equinox
    >>> import jax.numpy as jnp
    >>> import rope_xp
    >>> from rope_xp.layers.equinox import Rotary
    >>> rotary = Rotary(rope_xp.RoPE(base=5e5, layout="half"), axes="bhsd")
    >>> q, k = jnp.ones((1, 8, 5, 64)), jnp.ones((1, 2, 5, 64))
    >>> q_rotated, k_rotated = equinox.filter_jit(rotary)(q, k, 1000 + jnp.arange(5))
    >>> k_rotated.shape
    (1, 2, 5, 64)
    """

    rope: RoPE = equinox.field(static=True, converter=_common.check_rope)
    axes: str | None = equinox.field(static=True, default=None, kw_only=True)

    __call__ = _common.rotate
    at = _common.at
