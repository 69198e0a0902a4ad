"""A RoPE as a layer of Keras 3, on its backends torch, jax and numpy."""

from typing import Any

import keras

from rope_xp.layers import _held, _saved
from rope_xp.rope import RoPE


@keras.saving.register_keras_serializable(package="rope_xp")
class Rotary(keras.layers.Layer):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    It has no weights. q and k keep their dtypes under any policy, and positions are never cast.

    Parameters
    ----------
    rope : RoPE
        Such as :func:`rope_xp.from_hf_config` returns.
    axes : str, optional
        Names of the axes of q and k; see :func:`rope_xp.apply`.
    **options
        Those of every layer, such as ``name``.

    Examples
    --------
    >>> import keras
    >>> import rope_xp
    >>> from rope_xp.layers.keras import Rotary
    >>> rotary = Rotary(rope_xp.RoPE(base=5e5, layout="half"), axes="bhsd")
    >>> q, k = keras.ops.ones((1, 8, 5, 64)), keras.ops.ones((1, 2, 5, 64))
    >>> q_rotated, k_rotated = rotary(q, k, 1000 + keras.ops.arange(5))
    >>> tuple(k_rotated.shape)
    (1, 2, 5, 64)
    """

    def __init__(self, rope: RoPE, *, axes: str | None = None, **options: Any) -> None:
        super().__init__(**{"autocast": False, **options})
        self.rope = _held.check_rope(rope)
        self.axes = axes

    call = _held.rotate
    at = _held.at

    def compute_output_spec(self, q: Any, k: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Return what a functional model knows of the results: they are as q and k."""
        return keras.KerasTensor(q.shape, q.dtype), keras.KerasTensor(k.shape, k.dtype)

    def get_config(self) -> dict[str, Any]:
        """Return what ``from_config`` makes the layer of again."""
        return {**super().get_config(), "rope": _saved.to_data(self.rope), "axes": self.axes}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Rotary":
        """Return the layer that a configuration was made of."""
        return cls(**{**config, "rope": _saved.from_data(config["rope"])})
