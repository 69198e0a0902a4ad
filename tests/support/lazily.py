"""Modules that few tests need: collecting all tests is to import none of them."""

import importlib
import importlib.util
from typing import Any

import pytest


class Lazily:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest_")):  # which pytest asks of all in a module
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
