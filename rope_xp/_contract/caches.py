"""The home of every cache: each is bounded, safe under threads, and listed here."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

ALL: dict[str, Any] = {}
"""Every cache of ``lru_cache``, by the name of the function whose results it keeps."""


def kept(results: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Keep the latest results of a function, of which its arguments say all."""

    def keep(function: Callable[_P, _T]) -> Callable[_P, _T]:
        cache = lru_cache(maxsize=results)(function)
        ALL[f"{function.__module__}.{function.__qualname__}"] = cache
        return cache  # type: ignore[return-value]  # called as the function is

    return keep
