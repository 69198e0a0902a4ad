"""Time the kernels for GPUs with other constants, each combination in a process of its own.

    python -m asv_benchmarks.gpu_tune --library torch --out gpu_tune.json
    python -m asv_benchmarks.gpu_tune --library cupy --set THREADS=128,256 --set HEADS_A_THREAD=2
    python -m asv_benchmarks.gpu_tune --library torch --device cpu --set TILE_BYTES=4096

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

from rope_xp._bench import targets

from . import gpu_bars, gpu_clock, gpu_measure, gpu_rivals
from .gpu_measure import Case

MODULES = {
    "torch": ("gpu.triton_plan", "gpu.triton_compile", "torch.gpu"),
    "cupy": ("gpu.cuda_plan", "gpu.cuda"),
}
KERNELS = {"torch": "triton", "cupy": "cuda"}
SWEEPS = {
    "torch": {"TILE_BYTES": (4096, 8192, 16384), "THREADS": (128, 256), "TILE_HEADS": (4, 8, 16)},
    "cupy": {"HEADS_A_THREAD": (2, 4, 8), "BLOCKS_A_PROCESSOR": (4, 8, 16)},
}
"""The default sweep. A name that no module has any more is left out."""
ALONE = {
    "torch": (
        *({"BARRIER": 0}, {"EVICT_FIRST": 0}),
        *({"TILES": n, "BARRIER": 0} for n in (2, 4)),  # Triton prefetches past no barrier
    ),
    "cupy": (),
}
"""What is tried before those, with all other constants as they are."""
CASES = {
    "gpu": [Case(1, 1024), Case(1, 6554), Case(1, 65536, (1,), 64)],
    "cpu": [Case(1, 16)],
}
LIMIT = 90
"""Seconds of a combination, its compilation included."""
Settings = dict[str, int]


def modules(library: str) -> list[Any]:
    """Return the modules whose constants are set."""
    found = []
    for name in MODULES[library]:
        try:
            found.append(importlib.import_module(f"rope_xp_backends.{name}"))
        except ImportError:  # of a kernel whose compiler is absent, which measuring will tell
            continue
    return found


def known(library: str, name: str) -> bool:
    """Whether there is such a constant."""
    return any(isinstance(vars(module).get(name), int) for module in modules(library))


def put(library: str, settings: Settings) -> None:
    """Set constants, wherever they were imported to."""
    for module, (name, value) in itertools.product(modules(library), settings.items()):
        if name in vars(module):
            setattr(module, name, value)


def one(library: str, device: str, settings: Settings, repeat: int) -> dict[str, Any]:
    """Return what rope_xp takes with some settings, in this process, or why it was not timed."""
    put(library, settings)
    target = targets.find(f"{library}:{device}")
    if isinstance(target, str):
        return {"why": target}
    made = gpu_rivals.ours(target)
    names = (gpu_rivals.US, gpu_rivals.IN_PLACE)
    made, missing = gpu_measure.tried(target, {name: made[name] for name in names})
    if missing:
        return {"why": "; ".join(f"{name}: {why}" for name, why in missing.items())}
    timed = gpu_clock.clock_of(target)
    found: list[dict[str, Any]] = []
    for case in CASES[device]:
        rows, failed = gpu_measure.speed(target, timed, made, case, repeat)
        if failed:
            return {"why": "; ".join(f"{name}: {why}" for name, why in failed.items())}
        found += rows
    return {"speed": found}


def combinations(sweep: dict[str, tuple[int, ...]]) -> list[Settings]:
    """Return every combination, and first of all none."""
    every = itertools.product(*sweep.values())
    return [{}] + [dict(zip(sweep, values, strict=True)) for values in every if sweep]


def tried(library: str, device: str, settings: Settings, repeat: int) -> dict[str, Any]:
    """Return what ``one`` does in a process of its own, which may break in any way."""
    words = [sys.executable, "-m", "asv_benchmarks.gpu_tune", "--library", library]
    words += ["--device", device, "--repeat", str(repeat), "--one", json.dumps(settings)]
    # By name, so that where a kernel fails no other path is timed in its stead.
    by_name = {"ROPE_XP_PATH": KERNELS[library]} if device == "gpu" else {}
    started = time.perf_counter()
    try:
        done = subprocess.run(  # noqa: S603  # this file
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
            env=os.environ | by_name,
        )
    except subprocess.TimeoutExpired:
        return {"settings": settings, "why": f"took more than {LIMIT} s"}
    lines = done.stdout.splitlines() or [""]
    if done.returncode or not lines[-1].startswith("{"):
        found = {"why": (done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]}
    else:
        found = json.loads(lines[-1])
    return {"settings": settings, "took_s": time.perf_counter() - started} | found


def shares(row: dict[str, Any]) -> dict[str, float]:
    """Return the shares of a copy that a combination reached, by what was timed."""
    return {
        f"{each['contender']}, {each['direction']}, {gpu_bars.size(each)}": each["share_of_copy"][0]
        for each in row.get("speed", [])
        if each["share_of_copy"] is not None
    }


def rank(row: dict[str, Any]) -> float:
    """Return the least share of a combination among the largest arrays that were timed."""
    timed = [x for x in row.get("speed", []) if x["share_of_copy"] is not None]
    most = max((x["bytes"] for x in timed), default=0)
    return min((x["share_of_copy"][0] for x in timed if x["bytes"] == most), default=-1.0)


def markdown(found: list[dict[str, Any]]) -> str:
    """Return a table, the best first by what it does worst at 64 MiB."""
    ordered = sorted(found, key=rank, reverse=True)
    columns = dict.fromkeys(name for row in ordered for name in shares(row))
    lines = [
        f"| times as fast as a copy | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [
        f"| {_words(row)} | {' | '.join(f'{of[c]:.2f}' for c in columns)} |"
        for row in ordered
        if (of := shares(row))
    ]
    failed = [f"not timed: {_words(row)}: {row['why']}" for row in ordered if "why" in row]
    return "\n".join((lines if columns else []) + failed)


def _words(row: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in row["settings"].items()) or "as is"


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.gpu_tune")
    parser.add_argument("--library", choices=tuple(MODULES), required=True)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,VALUE")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=540, help="start none after this long")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(one(options.library, options.device, options.one, options.repeat)))
        return 0
    sweep = {k: v for k, v in SWEEPS[options.library].items() if known(options.library, k)}
    alone = [
        each for each in ALONE[options.library] if all(known(options.library, k) for k in each)
    ]
    if options.set:
        alone = []
        asked = (each.partition("=") for each in options.set)
        sweep = {name: tuple(map(int, values.split(","))) for name, _, values in asked}
    if unknown := [name for name in sweep if not known(options.library, name)]:
        places = ", ".join(MODULES[options.library])
        parser.error(f"no constant is called {', '.join(unknown)} in {places}")
    found: list[dict[str, Any]] = []
    started, (as_is, *others) = time.perf_counter(), combinations(sweep)
    every = [as_is, *alone, *others]
    for settings in every:
        if time.perf_counter() - started > options.seconds:
            print(f"{len(every) - len(found)} combinations were left out for want of time")
            break
        found.append(tried(options.library, options.device, settings, options.repeat))
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(found))
    return 0 if any("speed" in row for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
