"""Whether a call that was cached takes the slow path again."""

from collections.abc import Callable
from typing import Any

import pytest

from rope_xp._arguments import parse, parse_tables
from rope_xp._dispatch import call_cache

FUNCTIONS = ((parse, "rotate"), (parse_tables, "rotate"))


def run_twice(
    call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, *functions: tuple[Any, str]
) -> tuple[Any, Any]:
    """Return the results of a call on the slow path, and cached: without these functions too.

    The third cached call is recognized as a recent one, where it can be.
    """
    call()  # of a class of arrays that may be new
    call_cache.CALLS.cache_clear()
    first = call()
    with monkeypatch.context() as patch:
        for module, name in (*FUNCTIONS, *functions):
            patch.setattr(module, name, lambda *_: pytest.fail("it took the slow path"))
        for _ in range(2):
            call()
        return first, call()
