"""A RoPE as plain data that JSON can hold, and back."""

from dataclasses import fields
from typing import Any

from rope_xp import scaling
from rope_xp._contract.errors import RopeError
from rope_xp.rope import RoPE

_RULE = "rule"


def written(rope: RoPE) -> dict[str, Any]:
    """Return the fields of a rope, and those of its rule, as numbers, strings and lists.

    Raises
    ------
    RopeError
        If its rule is none of :mod:`rope_xp.scaling`, and so cannot be found again by its name.
    """
    held = {f.name: getattr(rope, f.name) for f in fields(rope)}
    rule = rope.scaling
    if rule is not None:
        name = type(rule).__name__
        if getattr(scaling, name, None) is not type(rule):
            msg = (
                f"cannot save the scaling rule {rule!r}: only those of rope_xp.scaling are found "
                "by their names when a model is loaded"
            )
            raise RopeError(msg)
        own: Any = rule  # which names the fields that it was given, and computes others anew
        held["scaling"] = {_RULE: name, **{f.name: getattr(rule, f.name) for f in fields(own)}}
    return held


def read(data: dict[str, Any]) -> RoPE:
    """Return the rope that was written."""
    held = {name: _tuples(value) for name, value in data.items()}
    if held["scaling"] is not None:
        rule = {name: _tuples(value) for name, value in held["scaling"].items()}
        held["scaling"] = getattr(scaling, rule.pop(_RULE))(**rule)
    return RoPE(**held)


def _tuples(value: Any) -> Any:
    """Return a tuple for a list, into which JSON has made it."""
    return tuple(value) if isinstance(value, list) else value
