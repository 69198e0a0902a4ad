"""A RoPE as a layer of Keras 3, on its backends torch, jax and numpy."""

from dataclasses import fields
from typing import Any

import keras

from rope_xp import scaling
from rope_xp._core.errors import RopeError
from rope_xp.layers import _common
from rope_xp.rope import RoPE

_CLASS = "class_name"


@keras.saving.register_keras_serializable(package="rope_xp")
class Rotary(keras.layers.Layer):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    It has no weights. q and k keep their dtypes under any policy, and positions are never cast.
    Arguments are those of :class:`rope_xp.layers.torch.Rotary`, without ``learn``. ``options`` are
    those of every layer, such as ``name``.

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
        self.rope = _common.check_rope(rope)
        self.axes = axes

    call = _common.rotate
    at = _common.at

    def compute_output_spec(
        self, q: Any, k: Any, *_: Any, out: Any = None, slots: Any = None, **__: Any
    ) -> tuple[Any, Any]:
        """Return the shapes and dtypes of q and k, or of the key cache with slots."""
        k = k if slots is None else out[1]
        return keras.KerasTensor(q.shape, q.dtype), keras.KerasTensor(k.shape, k.dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration for ``from_config``."""
        return {**super().get_config(), "rope": _to_data(self.rope), "axes": self.axes}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Rotary":
        """Return the layer of a configuration."""
        return cls(**{**config, "rope": _from_data(config["rope"])})


def _to_data(value: Any) -> Any:
    """Return a RoPE, or a value of its fields, as dictionaries, numbers, strings and lists."""
    if isinstance(value, tuple):
        return [*value]
    if value is None or isinstance(value, (int, float, str)):
        return value
    name = type(value).__name__
    if type(value) not in (RoPE, getattr(scaling, name, None)):
        raise RopeError(
            f"cannot save scaling = {value!r}: when a model is loaded, only classes of "
            "rope_xp.scaling can be found by name"
        )
    data = {f.name: _to_data(getattr(value, f.name)) for f in fields(value)}
    return data if type(value) is RoPE else {_CLASS: name, **data}


def _from_data(data: Any) -> Any:
    """Return what such data was made from."""
    if isinstance(data, list):
        return tuple(data)
    if not isinstance(data, dict):
        return data
    values = {name: _from_data(value) for name, value in data.items() if name != _CLASS}
    return (getattr(scaling, data[_CLASS]) if _CLASS in data else RoPE)(**values)
