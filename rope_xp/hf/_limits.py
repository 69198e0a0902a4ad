"""Bounds of a configuration, far above models': reading one takes a second at most."""

from collections.abc import Collection, Mapping
from typing import Any

from rope_xp._core.errors import RopeConfigError

FILE_BYTES, ENTRIES, DEPTH = 1 << 22, 1 << 18, 32
"""Of a file; of all dictionaries and lists, and how deep they are in each other. Configurations
with 21,843 labels have 2 MB and list them twice; those of several parts are five deep."""
LAYERS, LAYER_TYPES, COMPONENTS = 1 << 14, 8, 4096
"""Layers, of which models have some hundred; types of layers with rotary parameters of their own,
three; rotated components of a head, 512: frequencies of 4096 take 4 ms."""
_BITS = 1024
"""Of an integer. No float holds more, and Python may decline to print it."""


def check_content(content: object) -> None:
    """Check the entries of dictionaries and lists in each other, their depth and integers."""
    entries, stack = 0, [(content, 0)]
    while stack:
        values, depth = stack.pop()
        if isinstance(values, int):
            check_number("bits of an integer", values.bit_length(), _BITS)
        if not isinstance(values, Mapping | list | tuple):
            continue
        entries += len(values)
        check_number("depth of dictionaries and lists", depth, DEPTH)
        check_number("entries of the configuration", entries, ENTRIES)
        children = values.values() if isinstance(values, Mapping) else values
        stack += [(v, depth + 1) for v in children if not isinstance(v, str | float | None)]


def check_size(name: str, values: Collection[Any], most: int) -> None:
    check_number(f"entries of {name}", len(values), most)


def check_number(name: str, number: int | None, most: int) -> None:
    """Check that a number, if it is known, is no larger than that of any model."""
    if number is not None and number > most:
        msg = f"{name} must be at most {most}, more than any model has; got {number}"
        raise RopeConfigError(msg)
