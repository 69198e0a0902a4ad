"""A RoPE as a module of flax nnx."""

from flax import nnx

from rope_xp.layers import _common
from rope_xp.rope import RoPE


class Rotary(nnx.Module):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    It has no variables: its state is empty, and the RoPE is part of its graph definition.
    Arguments are those of :class:`rope_xp.layers.torch.Rotary`, without ``learn``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import rope_xp
    >>> from flax import nnx
    >>> from rope_xp.layers.flax import Rotary
    >>> rotary = Rotary(rope_xp.RoPE(base=5e5, layout="half"), axes="bhsd")
    >>> q, k = jnp.ones((1, 8, 5, 64)), jnp.ones((1, 2, 5, 64))
    >>> q_rotated, k_rotated = nnx.jit(rotary)(q, k, 1000 + jnp.arange(5))
    >>> k_rotated.shape
    (1, 2, 5, 64)
    """

    def __init__(self, rope: RoPE, *, axes: str | None = None) -> None:
        self.rope = _common.check_rope(rope)
        self.axes = axes

    __call__ = _common.rotate
    at = _common.at
