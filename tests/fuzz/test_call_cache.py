"""Cached calls hand kernels memory that is there, though it was freed and reused before."""

import importlib.util
import sys

import pytest
from support.programs import printed

GUARDED = {"MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
@pytest.mark.parametrize(
    ("library", "count", "seed"),
    [
        *(("numpy", 1000, 1), ("torch", 1000, 1)),
        pytest.param("numpy", 70_000, 2, marks=pytest.mark.fuzz),
        pytest.param("torch", 30_000, 2, marks=pytest.mark.fuzz),
    ],
)
def test_calls_on_freed_memory(library, count, seed):
    for module in (library, "llvmlite"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    options = ("-X", "faulthandler")
    output = printed("cached_calls.py", library, count, seed, options=options, **GUARDED)
    calls, cached = map(int, output.split())
    assert calls == count
    assert cached > count / 4
