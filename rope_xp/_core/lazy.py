"""Modules and functions of a package that are imported when they are first used."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def load_on_first_use(
    package: str, *modules: str, **functions: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that has these modules (PEP 562).

    ``functions`` has the module of each function.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules and name not in functions:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{functions.get(name, name)}")
        if name in modules:
            return module
        function = vars(sys.modules[package])[name] = getattr(module, name)
        return function

    return get_attribute, lambda: sorted({*vars(sys.modules[package]), *modules, *functions})
