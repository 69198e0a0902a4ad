"""Kernels touch nothing but arrays, from one thread at a time, and do nothing undefined in C++."""

import shutil

import pytest
from support.cases import slow
from support.programs import TESTS, run
from support.sanitized import build

CPU, CORE = TESTS / "backends" / "cpu", TESTS / "core"
MORE = [CORE / f"test_{name}.py" for name in ("slots", "frequencies", "cumulative_angles")]
NATIVE = "numpy and not chunked and not portable and not cuda"
ADDRESSES = [
    *(("-k", "native and not torch", CPU / "test_kernels.py"), (CORE / "test_entry.py",)),
    (TESTS / "backends" / "torch" / "test_signatures.py",),
    *(("-k", f"({NATIVE}) or lies", *MORE), ("-m", "fuzz", "-k", NATIVE, TESTS / "fuzz")),
]
THREADS = [("-k", "any_number or eight or outlives", CPU / "test_threads.py")]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(
    ("sanitizer", "level", "tests"),
    [slow("address,undefined", "3", ADDRESSES), slow("thread", "2", THREADS)],
)
def test_sanitizers_find_nothing_in_kernels(sanitizer, level, tests, native, tmp_path):
    lacking = {"baseline": "0", "x86-64-v2": "2"}
    environment = build(tmp_path, sanitizer, lacking.get(native.levels()[-1], level))
    # Sanitizers end a process whose output pytest has captured.
    options = ("-q", "-s", "-n", "0", "-p", "support.sanitized", "-p", "no:cacheprovider")
    for chosen in tests:
        run("-m", "pytest", *options, *chosen, **environment)
