"""Measure what calls take of memory, and what first calls take of time, each in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from measured_group import Group, Rows

ROOT = Path(__file__).resolve().parents[2]
PEAK = """
from asv_benchmarks import memory
measured = memory.Peak()
measured.setup("{library}:cpu", "float32")
print(measured.track_peak_over_results("", ""), measured.track_peak_of_usual("", ""))
"""
FIRST = """
import time
import numpy as np
q, k = np.ones((1, 1, 32, 128), np.float32), np.ones((1, 1, 8, 128), np.float32)
start = time.perf_counter()
import rope_xp
imported = time.perf_counter()
rope_xp.apply(q, k, layout="half")
first = time.perf_counter()
print(imported - start, first - imported)
"""
RUNS = 5


def run(*arguments: str, **environment: str) -> list[float]:
    """Return the numbers that a process prints."""
    done = subprocess.run(  # noqa: S603  # this Python
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _paths())), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(word) for word in done.stdout.split()]


def _paths() -> tuple[Path, ...]:
    return ROOT, ROOT / "backends", ROOT / "tests"


def peak() -> Rows:
    """Return the peak of a call of 4096 tokens over the size of its results."""
    return {
        library: dict(
            zip(("rope_xp", "formula"), run("-c", PEAK.format(library=library)), strict=True)
        )
        for library in ("numpy", "torch", "jax")
    }


def held() -> Rows:
    """Return by how many MiB a process has grown after thousands of different calls."""
    script = str(ROOT / "tests" / "support" / "held_memory.py")
    # malloc returns what is freed at once, so that what calls hold is all that is left.
    malloc = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    names = ("held", "cleared")
    return {"numpy": dict(zip(names, run(script, "mixed", "numpy", **malloc), strict=True))}


def first_calls() -> Rows:
    """Return milliseconds of the import and of the first call."""
    found = [run("-c", FIRST) for _ in range(RUNS)]
    names = ("import", "first")
    return {
        "numpy": {n: 1e3 * min(x) for n, x in zip(names, zip(*found, strict=True), strict=True)}
    }


def devices() -> Rows:
    """Return MiB that each of many devices holds of ten million tokens, and its collectives."""
    script = str(Path(__file__).with_name("memory_per_device.py"))
    found = iter(run(script))
    return {
        str(count): {"q and k": held / 2**20, "extra": extra / 2**20, "collectives": collectives}
        for count, held, extra, collectives in zip((8, 32, 128), found, found, found, strict=True)
    }


GROUPS: dict[str, Group] = {
    "peak": Group("results", peak, "one call after one that warms up"),
    "held": Group("MiB", held, "resident memory after calls, less that before"),
    "devices": Group("MiB", devices, "what XLA plans"),
    "first_calls": Group("ms", first_calls, f"the shortest of {RUNS} processes"),
}
