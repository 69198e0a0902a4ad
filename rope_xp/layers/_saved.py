"""A RoPE as plain data that JSON can hold, and back."""

from dataclasses import fields
from typing import Any

from rope_xp import scaling
from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE

_RULE = "scaling rule"
"""The key of a rule's name, which no field has."""


def to_data(rope: RoPE) -> dict[str, Any]:
    """Return the fields of a rope, and those of its rules, as numbers, strings and lists.

    Raises
    ------
    RopeError
        If a rule is none of :mod:`rope_xp.scaling`, and so cannot be found again by its name.
    """
    return {f.name: _value_to_data(getattr(rope, f.name)) for f in fields(rope)}


def _value_to_data(value: Any) -> Any:
    if isinstance(value, tuple):
        return [*value]
    if value is None or isinstance(value, (int, float, str)):
        return value
    name = type(value).__name__
    if getattr(scaling, name, None) is not type(value):
        msg = (
            f"cannot save the scaling rule {value!r}: only those of rope_xp.scaling are found by "
            "their names when a model is loaded"
        )
        raise RopeError(msg)
    held = {f.name: _value_to_data(getattr(value, f.name)) for f in fields(value)}
    return {_RULE: name, **held}


def from_data(data: dict[str, Any]) -> RoPE:
    """Return the rope that such data describes."""
    return RoPE(**{name: _value_from_data(value) for name, value in data.items()})


def _value_from_data(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    held = {name: _value_from_data(v) for name, v in value.items() if name != _RULE}
    return getattr(scaling, value[_RULE])(**held)
