"""Convert a RoPE to plain data that JSON can hold, and back."""

from dataclasses import fields
from typing import Any

from rope_xp import scaling
from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE

_CLASS = "class_name"


def to_data(rope: RoPE) -> dict[str, Any]:
    """Return the fields of a RoPE and of its scaling as numbers, strings and lists."""
    return {f.name: _value_to_data(getattr(rope, f.name)) for f in fields(rope)}


def _value_to_data(value: Any) -> Any:
    if isinstance(value, tuple):
        return [*value]
    if value is None or isinstance(value, (int, float, str)):
        return value
    name = type(value).__name__
    if getattr(scaling, name, None) is not type(value):
        raise RopeError(
            f"cannot save scaling = {value!r}: only classes of rope_xp.scaling are found by their "
            "names when a model is loaded"
        )
    return {_CLASS: name, **{f.name: _value_to_data(getattr(value, f.name)) for f in fields(value)}}


def from_data(data: dict[str, Any]) -> RoPE:
    """Return the RoPE of such data."""
    return RoPE(**{name: _value_from_data(value) for name, value in data.items()})


def _value_from_data(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    values = {name: _value_from_data(v) for name, v in value.items() if name != _CLASS}
    return getattr(scaling, value[_CLASS])(**values)
