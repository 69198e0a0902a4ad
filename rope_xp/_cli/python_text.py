"""Write a RoPE as Python text to paste into a program."""

import pprint
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any

from rope_xp import scaling
from rope_xp.rope import RoPE

_WIDTH = 80


def format_assignment(name: str, rope: RoPE | None) -> str | None:
    """Return the lines ``name = rope_xp.RoPE(...)``, None if its scaling is not rope_xp's own.

    Examples
    --------
    >>> print(format_assignment("rope", RoPE(layout="half", scaling=scaling.Linear(factor=2.0))))
    rope = rope_xp.RoPE(
        base=10000.0,
        layout="half",
        scaling=rope_xp.scaling.Linear(
            factor=2.0,
        ),
    )
    """
    if rope is None:
        return f"{name} = None"
    rule = rope.scaling
    if rule is not None and getattr(scaling, type(rule).__name__, None) is not type(rule):
        return None
    return f"{name} = {_format_value(rope)}"


def _format_value(value: Any) -> str:
    """Return the text of a field; that of a dataclass without the fields that have defaults."""
    if isinstance(value, str):
        return f'"{value}"'
    if not is_dataclass(value):
        return pprint.pformat(value, width=_WIDTH - 20, compact=True)
    name = f"rope_xp.scaling.{type(value).__name__}"
    shown: tuple[str, ...] = ()
    if isinstance(value, RoPE):
        name, shown = "rope_xp.RoPE", ("base", "layout")
    lines = [
        textwrap.indent(f"{field.name}={_format_value(getattr(value, field.name))},", " " * 4)
        for field in fields(value)
        if field.name in shown or getattr(value, field.name) != field.default
    ]
    return "\n".join([f"{name}(", *lines, ")"])
