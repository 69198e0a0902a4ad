"""Time the kernels for GPUs with other constants, each combination in a process of its own.

    python -m asv_benchmarks.gpu.tune --library torch --out gpu_tune.json
    python -m asv_benchmarks.gpu.tune --library cupy --set THREADS=128,256 --set HEADS_A_THREAD=2
    python -m asv_benchmarks.gpu.tune --library torch --device cpu --set TILE_BYTES=4096

A constant is set in each module below that has one of that name, before the first call. What then
fails, or rotates differently, is not timed. The table says how many times as fast as a copy each
is, the best first; the tree as it is stands in it as "as is". Nothing is written into the tree.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from asv_benchmarks.shared import device_clock
from rope_xp._bench import targets

from . import bars, measure
from .measure import Case

MODULES = {
    "torch": ("gpu.triton_plan", "gpu.triton_compile", "torch.gpu"),
    "cupy": ("gpu.cuda_plan", "gpu.cuda"),
}
KERNELS = {"torch": "triton", "cupy": "cuda"}
SWEEPS = {
    "torch": {"TILE_BYTES": (4096, 8192, 16384), "THREADS": (128, 256), "TILE_HEADS": (4, 8, 16)},
    "cupy": {"HEADS_A_THREAD": (2, 4, 8), "BLOCKS_A_PROCESSOR": (4, 8, 16)},
}
"""The default sweep."""
CASES = {
    "gpu": [Case(256, 1), Case(1, 1024), Case(1, 6554), Case(1, 65536, (1,), 64)],
    "cpu": [Case(1, 16)],
}
LIMIT_S = 90
"""Of a combination, its compilation included."""
Settings = dict[str, int]


def modules(library: str, name: str) -> list[Any]:
    """Return the modules that have a constant of this name."""
    found = []
    for module in MODULES[library]:
        try:
            found.append(importlib.import_module(f"rope_xp_backends.{module}"))
        except ImportError:  # of a kernel whose compiler is absent, which measuring will tell
            continue
    return [module for module in found if isinstance(vars(module).get(name), int)]


def one(library: str, device: str, settings: Settings, repeat: int) -> dict[str, Any]:
    """Return what rope_xp takes with some settings, in this process, or why it was not timed."""
    for name, value in settings.items():
        for module in modules(library, name):
            setattr(module, name, value)
    target = targets.find(f"{library}:{device}")
    if isinstance(target, str):
        return {"why": target}
    made = measure.contenders_of(target)
    ours = {name: made[name] for name in (measure.US, measure.IN_PLACE)}
    _, failed = measure.tried(target, ours)
    timed, found = device_clock.clock_of(target), []
    for case in CASES[device]:
        if failed:
            return {"why": "; ".join(f"{name}: {why}" for name, why in failed.items())}
        rows, failed = measure.speed(target, timed, ours, case, repeat)
        found += rows
    return {"speed": found}


def combinations(sweep: dict[str, tuple[int, ...]]) -> list[Settings]:
    """Return every combination."""
    every = itertools.product(*sweep.values())
    return [dict(zip(sweep, values, strict=True)) for values in every if sweep]


def tried(library: str, device: str, settings: Settings, repeat: int) -> dict[str, Any]:
    """Return what ``one`` does in a process of its own, which may break in any way."""
    words = [sys.executable, "-m", "asv_benchmarks.gpu.tune", "--library", library]
    words += ["--device", device, "--repeat", str(repeat), "--one", json.dumps(settings)]
    # By name, so that where a kernel fails no other path is timed in its stead.
    by_name = {"ROPE_XP_PATH": KERNELS[library]} if device == "gpu" else {}
    try:
        done = subprocess.run(  # noqa: S603  # this file
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            env=os.environ | by_name,
        )
    except subprocess.TimeoutExpired:
        return {"settings": settings, "why": f"took more than {LIMIT_S} s"}
    lines = done.stdout.splitlines() or [""]
    if done.returncode or not lines[-1].startswith("{"):
        why = (done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"settings": settings, "why": why}
    return {"settings": settings} | json.loads(lines[-1])


def shares(row: dict[str, Any]) -> dict[str, float]:
    """Return the shares of a copy that a combination reached, by what was timed."""
    return {
        f"{each['contender']}, {each['direction']}, {each['case']}": each["of_copy"][0]
        for each in row.get("speed", [])
        if each["contender"] in measure.OURS
    }


def rank(row: dict[str, Any]) -> float:
    """Return the least share of a combination among the largest arrays that were timed."""
    timed = [x for x in row.get("speed", []) if x["contender"] in measure.OURS]
    most = max((x["bytes"] for x in timed), default=0)
    return min((x["of_copy"][0] for x in timed if x["bytes"] == most), default=-1.0)


def markdown(found: list[dict[str, Any]]) -> str:
    """Return a table, the best first by what it does worst at 64 MiB."""
    ordered = {_words(row): row for row in sorted(found, key=rank, reverse=True)}
    lines = {
        name: {column: f"{share:.2f}" for column, share in shares(row).items()}
        for name, row in ordered.items()
        if "speed" in row
    }
    columns = list(dict.fromkeys(column for cells in lines.values() for column in cells))
    failed = [f"not timed: {name}: {row['why']}" for name, row in ordered.items() if "why" in row]
    made = [bars.table("times as fast as a copy", columns, lines)] if lines else []
    return "\n".join(made + failed)


def _words(row: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in row["settings"].items()) or "as is"


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.gpu.tune")
    parser.add_argument("--library", choices=tuple(MODULES), required=True)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,VALUE")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=540, help="start none after this long")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    library, device = options.library, options.device
    if options.one is not None:
        print(json.dumps(one(library, device, options.one, options.repeat)))
        return 0
    sweep = SWEEPS[library]
    if options.set:
        asked = (each.partition("=") for each in options.set)
        sweep = {name: tuple(map(int, of.split(","))) for name, _, of in asked}
    if unknown := [name for name in sweep if not modules(library, name)]:
        places = ", ".join(MODULES[library])
        parser.error(f"no constant is called {', '.join(unknown)} in {places}")
    found: list[dict[str, Any]] = []
    every, started = [{}, *combinations(sweep)], time.perf_counter()
    for settings in every:
        if time.perf_counter() - started > options.seconds:
            print(f"{len(every) - len(found)} combinations were left out for want of time")
            break
        found.append(tried(library, device, settings, options.repeat))
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(found))
    return 0 if any("speed" in row for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
