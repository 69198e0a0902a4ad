"""Public dataclasses that libraries with pytrees register."""

from collections.abc import Callable

PYTREE_CLASSES: list[tuple[type, tuple[str, ...], tuple[str, ...]]] = []
"""Class, fields of arrays, plain fields. Filled when rope_xp is imported."""
registrars: list[Callable[[object], object]] = []
"""Functions that register the classes before a library takes an instance with this array apart."""
