"""The two ways of a call: the native entry, and the slow path, which checks in Python."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from rope_xp._arguments import parse, parse_tables
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

ENTRIES = "rotate_by_rope", "rotate_by_tables", "look_up_angles"
GENERAL = [(parse, name) for name in ("rotate", "rerotate", "cos_sin")]
GENERAL.append((parse_tables, "rotate"))


def decline_all(patch: pytest.MonkeyPatch) -> None:
    """Have the entry of every library leave all calls to the slow path."""
    for library in find.libraries:
        if library.name in ("numpy", "torch") and importlib.util.find_spec(library.name):
            for name in ENTRIES:
                patch.setattr(type(library.load()), name, getattr(Backend, name))


def run_both_ways(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return the results of a call by the slow path, and of the entry, which takes it."""
    with monkeypatch.context() as patch:
        decline_all(patch)
        slow = call()
    with monkeypatch.context() as patch:
        for module, name in GENERAL:
            patch.setattr(module, name, lambda *_, **__: pytest.fail("it took the slow path"))
        return slow, call()
