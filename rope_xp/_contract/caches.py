"""The home of every cache: each is bounded, safe under threads and forks, and listed here."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from rope_xp._contract.forks import QUICK

_P = ParamSpec("_P")
_T = TypeVar("_T")
_K = TypeVar("_K")

ALL: dict[str, Any] = {}
"""Every cache, by the name of the function whose results it keeps."""
MOST_BYTES = 64 << 20
"""What all caches of tables hold together. Only one or two tables may be larger, alone."""
HELD: dict[int, Any] = {}
"""What captured graphs read by its address, whatever caches forget.

It is kept for good, as no library tells when a graph is gone: a rope's tables for each that was
captured, once, however often.
"""
_LEAST_BYTES = 1 << 14
"""As many are counted for small tables, which have keys too."""


def kept(results: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Keep the latest results of a function, of which its arguments say all."""

    def keep(function: Callable[_P, _T]) -> Callable[_P, _T]:
        cache = lru_cache(maxsize=results)(function)
        ALL[_name(function)] = cache
        return cache  # type: ignore[return-value]  # called as the function is

    return keep


def kept_tables(function: Callable[[_K], _T]) -> Callable[[_K], _T]:
    """Keep the tables that a function makes of one argument, which says all of them.

    Those that were asked for last stay, as many as ``MOST_BYTES`` have room for.
    """
    cache = ALL[_name(function)] = Recent(function)
    _TABLES.append(cache)
    return cache.__getitem__


def hold(arrays: Iterable[Any]) -> None:
    """Keep arrays for graphs that are captured."""
    HELD.update({id(x): x for x in arrays if x is not None})


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


class Latest:
    """As many values as were asked for last. To find one takes no lock.

    Order is kept by two generations, as in :class:`Recent`.
    """

    def __init__(self, name: str, most: int) -> None:
        self.most = most
        self.now: dict[Any, Any] = {}
        self.before: dict[Any, Any] = {}
        ALL[name] = self

    def get(self, key: Any) -> Any:
        """Return what was kept, or None."""
        found = self.now.get(key)
        if found is None:
            found = self.before.get(key)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: Any, value: Any) -> None:
        """Keep a value, and forget those that nobody asked for in a while."""
        with QUICK:
            if len(self.now) >= self.most // 2:
                self.now, self.before = {}, self.now
            self.now[key] = value

    def cache_clear(self) -> None:
        """Forget all."""
        with QUICK:
            self.now, self.before = {}, {}


class Recent(dict[Any, Any]):
    """Tables by what they are made of. To find one takes one look into a dict, and no Python.

    Order is kept by two generations: this dict, and those before. When all caches together are
    half full, each becomes its own past, and what it forgets is what nobody asked for since.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.before: dict[Any, Any] = {}
        self.made = 0

    def __missing__(self, key: Any) -> Any:
        found = self.before.get(key)
        if found is None:
            found = self.function(key)
            self.made += 1
        with QUICK:
            full = sum(_bytes(each) for cache in _TABLES for each in cache.values())
            if full + _bytes(found) > MOST_BYTES // 2:
                for cache in _TABLES:
                    cache.before = dict(cache)
                    cache.clear()
            return self.setdefault(key, found)


_TABLES: list[Recent] = []


def _bytes(tables: Any) -> int:
    made = (each for each in tables if each is not None)
    size: int = sum(math.prod(x.shape) * (8 if "64" in str(x.dtype) else 4) for x in made)
    return max(size, _LEAST_BYTES)
