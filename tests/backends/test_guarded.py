"""No kernel reads or writes beyond an array or in freed memory: see guarded.py, cached_calls.py."""

import importlib.util
import sys
from importlib.metadata import version

import pytest
from support import cuda_on_cpu
from support.cases import slow
from support.programs import printed
from support.targets import NATIVE_MODULE


# Steps are primes, so that they reach every width of every dtype and layout. The short suite
# reaches some, as kernels take long to compile.
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
@pytest.mark.parametrize(
    ("path", "every", "count"),
    [
        *(("native", 541, 8), slow("native", 41, 108)),
        *(slow("streaming", 79, 56), slow("norm", 79, 56)),
        *(slow("cuda", 17, 256), slow("triton", 191, 24)),
    ],
)
def test_kernels_touch_nothing_beyond_an_array(path, every, count):
    if path == "cuda" and (reason := cuda_on_cpu.decline_reason()):
        pytest.skip(reason)
    for module in {"cuda": [], "triton": ["torch", "triton"]}.get(path, [NATIVE_MODULE]):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if path == "triton" and version("triton").startswith("3.6."):
        pytest.skip("the interpreter of triton 3.6 fails with numpy 2.4")
    rotations = printed("guarded.py", path, every, options=FAULTS, TRITON_INTERPRET="1")
    assert rotations == f"{count}\n"


FAULTS = ("-X", "faulthandler")
GUARDED = {"MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
@pytest.mark.parametrize(
    ("library", "count", "seed"),
    [
        *(slow("numpy", 500, 1), slow("torch", 500, 1)),
        # In parts, which processes share.
        *(pytest.param("numpy", 35_000, seed, marks=pytest.mark.fuzz) for seed in (2, 3)),
        *(pytest.param("torch", 15_000, seed, marks=pytest.mark.fuzz) for seed in (2, 3)),
    ],
)
def test_cached_calls_on_reused_and_freed_memory_are_right(library, count, seed):
    for module in (library, NATIVE_MODULE):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    output = printed("cached_calls.py", library, count, seed, options=FAULTS, **GUARDED)
    calls, slow, tables, _ = map(float, output.split())
    assert calls >= count
    assert slow < count / 2  # the others are cached, however often a busy machine clears caches
    assert tables > count / 100  # so many came and went
