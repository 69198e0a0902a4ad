"""Caches: one home, and a bound for each."""

import importlib
import re
from pathlib import Path

import rope_xp
from rope_xp._core import caches

ROOT = Path(rope_xp.__file__).parent
HOME = ROOT / "_core" / "caches.py"


def test_no_cache_is_made_elsewhere() -> None:
    folders = [ROOT, Path(importlib.import_module("rope_xp_backends").__file__ or "").parent]
    uses = re.compile(
        r"^(?:\s*@.*|from functools import.*|.*functools\.)(?:lru_cache|cached_property)",
        re.MULTILINE,
    )
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    # What times calls keeps its inputs, and runs in no program of a user.
    paths = [path for path in paths if "_bench" not in path.parts and path != HOME]
    assert [path for path in paths if uses.search(path.read_text("utf-8"))] == []


def test_each_is_bounded_and_listed() -> None:
    importlib.import_module("rope_xp_backends.numpy")
    assert "rope_xp._rotation.tables.host_tables" in caches.REGISTRY
    for name, cache in caches.REGISTRY.items():
        if isinstance(cache, caches.TableCache):
            continue  # test_tables.py sees to their bytes
        counted = isinstance(cache, caches.BoundedCache)
        assert 0 < (cache.max_entries if counted else cache.cache_info().maxsize) <= 4096, name


def test_the_bound_holds() -> None:
    @caches.cached(2)
    def twice(n: int) -> int:
        return 2 * n

    name = f"{__name__}.test_the_bound_holds.<locals>.twice"
    try:
        assert [twice(n) for n in (1, 2, 3, 3)] == [2, 4, 6, 6]
        info = caches.REGISTRY[name].cache_info()
        assert (info.hits, info.misses, info.currsize) == (1, 3, 2)
    finally:
        del caches.REGISTRY[name]
