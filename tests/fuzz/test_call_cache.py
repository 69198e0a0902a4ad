"""Cached calls hand kernels memory that is there, though it was freed and reused before."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from support.programs import printed

GUARDED = {"MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}


def run(library: str, count: int, seed: int) -> None:
    for module in (library, "llvmlite"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    options = ("-X", "faulthandler")
    done = printed("cached_calls.py", library, count, seed, options=options, **GUARDED)
    calls, cached = map(int, done.split())
    assert calls == count
    assert cached > count / 4


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_thousand_calls(library: str) -> None:
    run(library, 1000, 1)


@pytest.mark.fuzz
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
@pytest.mark.parametrize(("library", "count"), [("numpy", 70_000), ("torch", 30_000)])
def test_a_hundred_thousand_calls(library: str, count: int) -> None:
    run(library, count, 2)
