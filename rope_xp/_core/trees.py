"""Public dataclasses of arrays, for libraries that register classes as pytrees."""

from typing import NamedTuple


class Tree(NamedTuple):
    """A dataclass whose fields are arrays (or such dataclasses), or plain values."""

    kind: type
    arrays: tuple[str, ...]
    plain: tuple[str, ...]


TREES: list[Tree] = []
"""Filled while rope_xp is imported, before any backend is."""
