"""Caches: one home, and a bound for each."""

import ast
import importlib
from pathlib import Path

import pytest

import rope_xp
from rope_xp._core import caches

ROOT = Path(rope_xp.__file__).parent
HOME = ROOT / "_core" / "caches.py"


def sources() -> list[Path]:
    folders = [ROOT, Path(importlib.import_module("rope_xp_backends").__file__ or "").parent]
    found = [path for folder in folders for path in folder.rglob("*.py")]
    # What times calls keeps its inputs, and runs in no program of a user.
    return [path for path in found if "_bench" not in path.parts and path != HOME]


@pytest.mark.parametrize("path", sources(), ids=lambda path: "/".join(path.parts[-2:]))
def test_no_cache_is_made_elsewhere(path: Path) -> None:
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, (ast.Name, ast.Attribute))
    }
    assert not names & {"lru_cache", "cached_property"}


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
