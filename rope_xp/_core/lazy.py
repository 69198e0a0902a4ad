"""Modules of a package that are imported when they are first used."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def load_on_first_use(
    package: str, *names: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that has these modules (PEP 562)."""

    def get_attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return get_attribute, lambda: sorted({*vars(sys.modules[package]), *names})
