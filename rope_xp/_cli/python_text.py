"""A RoPE as text to paste into a program."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from rope_xp import scaling
from rope_xp.rope import RoPE

_WIDTH = 80
_LONGEST_UNIT = 3
"""Of numbers that repeat: the components of a position, in turn."""


def format_assignment(name: str, rope: RoPE | None) -> str | None:
    """Return the lines ``name = rope_xp.RoPE(...)``, None if its rule is none of rope_xp's own.

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
    return f"{name} = {_format_call('rope_xp.RoPE', rope, ('base', 'layout'), 0)}"


def _format_call(name: str, made: Any, always: Sequence[str], indent: int) -> str:
    """Return a call that makes a dataclass, without the fields that have their defaults."""
    space = " " * (indent + 4)
    lines = [
        f"{space}{key}={_format_value(value, indent + 4)},"
        for key, value, default in _list_fields(made)
        if key in always or value != default
    ]
    return "\n".join([f"{name}(", *lines, f"{' ' * indent})"])


def _list_fields(made: Any) -> Iterator[tuple[str, Any, Any]]:
    for each in fields(made):
        default = None if each.default is MISSING else each.default
        yield each.name, getattr(made, each.name), MISSING if each.default is MISSING else default


def _format_value(value: Any, indent: int) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if is_dataclass(value):
        return _format_call(f"rope_xp.scaling.{type(value).__name__}", value, (), indent)
    if isinstance(value, tuple):
        return _format_tuple(value, indent)
    return repr(value)


def _format_tuple(values: tuple[Any, ...], indent: int) -> str:
    """Return a tuple: parts that repeat as products, if that is shorter, or lines of numbers."""
    products = " + ".join(
        f"({', '.join(map(repr, unit))}{',' * (len(unit) == 1)}) * {times}"
        for unit, times in _find_runs(values)
    )
    plain = f"({', '.join(map(repr, values))}{',' * (len(values) == 1)})"
    shorter = min(products, plain, key=len)
    if len(shorter) + indent < _WIDTH - 20:
        return shorter
    space = " " * indent
    lines = textwrap.wrap(
        f"{', '.join(map(repr, values))},",
        _WIDTH,
        initial_indent=f"{space}    ",
        subsequent_indent=f"{space}    ",
    )
    return "\n".join(["(", *lines, f"{space})"])


def _find_runs(values: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield units and how often each follows itself, as many values as possible at a time."""
    at = 0
    while at < len(values):
        best: tuple[tuple[Any, ...], int] = (values[at : at + 1], 1)
        for length in range(1, _LONGEST_UNIT + 1):
            unit, times = values[at : at + length], 1
            while values[at + times * length : at + (times + 1) * length] == unit:
                times += 1
            if len(unit) * times > len(best[0]) * best[1] and (times > 1):
                best = unit, times
        yield best
        at += len(best[0]) * best[1]
