"""Bounded caches, safe under threads and forks, each listed in ``REGISTRY``."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from rope_xp._core.forks import DICT_LOCK

_P = ParamSpec("_P")
_T = TypeVar("_T")
_K = TypeVar("_K")

REGISTRY: dict[str, Any] = {}
"""Every cache by the name of its function. Each has ``cache_clear``."""
MAX_BYTES = 64 << 20
"""Size limit of all tables together, except that the newest two sets always stay."""
PINNED: dict[int, Any] = {}
"""Tables in captured graphs, by id. They stay: no library reports when it frees a graph."""
_MIN_BYTES = 1 << 14
"""Counted for smaller tables, as their keys take memory too."""


def cached(results: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Cache the latest results of a function of hashable arguments."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        cache = lru_cache(maxsize=results)(function)
        REGISTRY[_name(function)] = cache
        return cache  # type: ignore[return-value]  # called as the function is

    return decorate


def cached_tables(function: Callable[[_K], _T]) -> Callable[[_K], _T]:
    """Cache the tables that a function builds from one key, within ``MAX_BYTES`` in all."""
    cache = REGISTRY[_name(function)] = TableCache(function)
    return cache.__getitem__


def pin(arrays: Iterable[Any]) -> None:
    """Keep arrays alive for captured graphs."""
    PINNED.update({id(x): x for x in arrays if x is not None})


def clear_caches() -> None:
    """Free the tables, launches and parsed names that the library caches.

    Compiled kernels stay, and so do tables that a captured CUDA graph reads.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> y = rope_xp.RoPE().rotate(np.ones((3, 2, 8)))
    >>> rope_xp.clear_caches()
    """
    for cache in (*REGISTRY.values(), *{cache for cache, _ in list(_ORDER)}):
        cache.cache_clear()


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _evict_first(entries: OrderedDict[_K, Any]) -> list[_K]:
    """Remove the oldest entry and return its key; none where a signal's handler cleared all."""
    with suppress(KeyError):
        return [entries.popitem(last=False)[0]]  # at once: no handler runs amid it
    return []


class BoundedCache:
    """A cache of the latest entries, from which None is never stored."""

    def __init__(self, name: str, max_entries: int) -> None:
        self.max_entries = max_entries
        self._entries: OrderedDict[Any, Any] = OrderedDict()
        REGISTRY[name] = self

    def get(self, key: Any) -> Any:
        """Return the value of a key, or None."""
        value = self._entries.get(key)
        if value is not None:
            try:  # at half the time of suppress()
                self._entries.move_to_end(key)
            except KeyError:  # another thread has cleared it
                return value
        return value

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[Any]:
        with DICT_LOCK:
            return [*self._entries.values()]

    def store(self, key: Any, value: Any) -> None:
        """Add an entry, which is not None, and evict another beyond the limit."""
        with DICT_LOCK:
            self._entries[key] = value
            if len(self) > self.max_entries:
                _evict_first(self._entries)

    def cache_clear(self) -> None:
        with DICT_LOCK:
            self._entries.clear()


_ORDER: OrderedDict[tuple["TableCache", Any], int] = OrderedDict()
"""Bytes of all cached tables, the oldest first."""
_ALWAYS_KEPT = 2
"""Device tables are copied from host tables, so both sets must fit."""


class TableCache(dict[Any, Any]):
    """Tables by their key. A cache hit runs no Python."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # a dict has none

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.built = 0

    def __missing__(self, key: Any) -> Any:
        tables = self.function(key)
        with DICT_LOCK:
            self.built += 1
            tables = self.setdefault(key, tables)
            _ORDER[self, key] = _count_bytes(tables)
            while len(_ORDER) > _ALWAYS_KEPT and sum(_ORDER.values()) > MAX_BYTES:
                for cache, oldest in _evict_first(_ORDER):
                    cache.pop(oldest, None)
        return tables

    def cache_clear(self) -> None:
        with DICT_LOCK:
            for key in list(self):
                _ORDER.pop((self, key), None)
            self.clear()


def _count_bytes(tables: Any) -> int:
    arrays = (x for x in tables if x is not None)
    size: int = sum(math.prod(x.shape) * (8 if "64" in str(x.dtype) else 4) for x in arrays)
    return max(size, _MIN_BYTES)
