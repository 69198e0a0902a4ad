"""Public classes that hold arrays, for libraries whose transformations ask how they are built."""

from typing import NamedTuple


class Tree(NamedTuple):
    """A dataclass, whose fields are either arrays, or trees of them, or plain values."""

    kind: type
    arrays: tuple[str, ...]
    plain: tuple[str, ...]


TREES: list[Tree] = []
"""All of them. They are added as rope_xp is imported, which is before any backend is."""
