"""A RoPE as a module of equinox."""

import equinox
import jax

from rope_xp.angles import Angles
from rope_xp.layers import _held
from rope_xp.rope import Positions, RoPE


class Rotary(equinox.Module):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    It is a pytree without leaves: the RoPE is part of its structure.

    Parameters
    ----------
    rope : RoPE
        Such as :func:`rope_xp.from_hf_config` returns.
    axes : str, optional
        Names of the axes of q and k; see :func:`rope_xp.apply`.

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

    rope: RoPE = equinox.field(static=True)
    axes: str | None = equinox.field(static=True)

    def __init__(self, rope: RoPE, *, axes: str | None = None) -> None:
        self.rope = _held.checked(rope)
        self.axes = axes

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        positions: Positions = None,
        *,
        k_positions: Positions = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Rotate queries and keys; the arguments are those of :func:`rope_xp.apply`."""
        return self.rope.apply(q, k, positions, axes=self.axes, k_positions=k_positions)

    def at(self, positions: Positions, *, like: jax.Array) -> Angles:
        """Return the angles of a forward pass, for all its layers; see :meth:`rope_xp.RoPE.at`."""
        return self.rope.at(positions, like=like)
