"""Kernels touch nothing but arrays, from one thread at a time, and do nothing undefined in C++."""

import shutil

import pytest
from support.cases import slow
from support.programs import TESTS, run
from support.sanitized import build

KERNELS = TESTS / "backends" / "cpu" / "test_kernels.py"
THREADS = TESTS / "backends" / "cpu" / "test_threads.py"
ENTRY = TESTS / "core" / "test_entry.py"
MORE = [
    TESTS / "core" / f"test_{name}.py" for name in ("slots", "frequencies", "cumulative_angles")
]
FUZZ = TESTS / "fuzz"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(
    ("sanitizer", "level", "tests"),
    [
        slow(
            *("address,undefined", "3"),
            [
                ("-k", "native and not torch", KERNELS),
                (ENTRY,),
                (
                    "-k",
                    "entry or lies or compared or native_ or moved or any_order or as_promised",
                    *MORE,
                ),
                ("-m", "fuzz", "-k", "numpy and not chunked and not portable", FUZZ),
            ],
        ),
        slow("thread", "2", [("-k", "any_number or eight or outlives", THREADS)]),
    ],
)
def test_sanitizers_find_nothing_in_kernels(sanitizer, level, tests, native, tmp_path):
    lacking = {"baseline": "0", "x86-64-v2": "2"}
    environment = build(tmp_path, sanitizer, lacking.get(native.levels()[-1], level))
    # Sanitizers end a process whose output pytest has captured.
    options = ("-q", "-s", "-n", "0", "-p", "support.sanitized", "-p", "no:cacheprovider")
    for chosen in tests:
        run("-m", "pytest", *options, *chosen, **environment)
