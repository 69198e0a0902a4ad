"""Compare rope_xp on a GPU with a copy and with its rivals, print tables and write JSON.

    python -m asv_benchmarks.gpu.report --out gpu_report.json
    python -m asv_benchmarks.gpu.report --libraries cupy --add --out gpu_report.json
    python -m asv_benchmarks.gpu.report --device cpu     # tiny sizes, to see that it works

It needs no network. q is (b, s, 32, 128) and k (b, s, 8, 128), bfloat16; 6554 tokens are 64 MiB.
One more case is a single array of one head. Each contender rotates a few tokens first, which must
be as float64 has them, and is not timed otherwise. Contenders take turns in an order that changes,
on the clocks of shared/device_clock.py. "times as fast as" is the median time of the other over
that of a contender, and larger is better. A copy is one of each array into given memory, and its
limit is 1; forward and backward is compared with two. A flat copy has the same bytes in one array.
Cases begin with the largest, and rope_xp is measured alone before rivals are, which may break off a
process: the JSON is written after each case.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rope_xp
from asv_benchmarks.shared import device_clock
from asv_benchmarks.shared.device_clock import Failed, attempt
from rope_xp._bench import targets

from . import bars, measure
from .measure import Case

LIBRARIES = ("torch", "cupy", "jax")
CASES = {
    "gpu": [
        *(Case(1, tokens) for tokens in (16384, 6554, 4096, 1024, 256)),
        *(Case(batch, 1) for batch in (256, 16, 1)),
        Case(1, 65536, (1,), 64),
    ],
    "cpu": [Case(2, 16), Case(1, 1), Case(1, 16, (1,), 64)],
}
LOOPS = {"gpu": 300, "cpu": 20}
"""Calls in a row, by which the host's time is measured."""
PACKAGES = (
    *("numpy", "torch", "triton", "cupy-cuda12x", "cupy-cuda13x", "jax", "jax-cuda13-plugin"),
    *("transformers", "liger-kernel", "flash-attn", "flashinfer-python", "quack-kernels"),
)
READINGS = (
    *("name", "driver_version", "memory.total", "clocks.sm", "clocks.mem"),
    *("clocks.max.sm", "clocks.max.mem", "temperature.gpu", "power.draw", "power.limit"),
)
"""The fields that nvidia-smi reports. Nothing is set."""


def report(
    device: str,
    libraries: list[str],
    repeat: int,
    compile_too: bool,
    save: Callable[[dict[str, Any]], None],
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return everything that was found out, and what is missing by name.

    It is saved after each case, should the next one break off. What was measured before, of other
    libraries, is kept.
    """
    found = before or {"targets": {}, "speed": [], "missing": {}}
    found["versions"] = versions()
    for library in libraries:
        name = f"{library}:{device}"
        found["targets"].pop(name, None)
        found["speed"] = [row for row in found["speed"] if row["target"] != name]
        others = {k: why for k, why in found["missing"].items() if k.partition(" ")[0] != name}
        found["missing"] = missing = others
        target = targets.find(name) if name in targets.NAMES else f"{library} has no {device}"
        if isinstance(target, str):
            missing[name] = target
            continue
        own = found["targets"][name] = {"before": readings(target), "paths": {}}
        timed = device_clock.clock_of(target)
        every = measure.contenders_of(target, compile_too)
        if not compile_too:
            missing[f"{name} torch.compile"] = "left out by --no-compile"
        for made in ({k: v for k, v in every.items() if k in measure.OURS}, every):
            right, wrong = measure.tried(target, made)
            missing |= {f"{name} {contender}": why for contender, why in wrong.items()}
            for case in CASES[device]:
                result = attempt(measure.speed, target, timed, right, case, repeat)
                if isinstance(result, Failed):
                    missing[f"{name} {case}"] = str(result)
                    continue
                rows, failed = result
                missing |= {f"{name} {of}, {case}": why for of, why in failed.items()}
                measured_again = {"target": name, "case": str(case)}.items()
                found["speed"] = [x for x in found["speed"] if not measured_again <= x.items()]
                found["speed"] += rows
                at = case.put(target)
                ran = rope_xp.explain(at.arrays[0], at.arrays[-1], at.positions, measure.ROPE)
                own["paths"][str(case)] = str(ran)
                save(found)
            result = attempt(measure.facts, target, right, LOOPS[device])
            facts, failed = ({}, {"facts": str(result)}) if isinstance(result, Failed) else result
            missing |= {f"{name} {what}": why for what, why in failed.items()}
            own |= facts | {"after": readings(target)}
            save(found)
    return found


def versions() -> dict[str, str]:
    """Return the versions of what is installed."""
    found = {"platform": platform.platform(), "python": platform.python_version()}
    found["rope_xp"] = rope_xp.__version__
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def readings(target: targets.Target) -> list[str]:
    """Return what nvidia-smi and torch say of each GPU, or why they say nothing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(READINGS)}", "--format=csv"]
    done = attempt(
        lambda: (
            subprocess.run(  # noqa: S603  # the words are above
                command, check=True, capture_output=True, text=True, timeout=30
            ).stdout
        )
    )
    lines = str(done).splitlines()
    if target.name == "torch:gpu":  # the size of its L2 cache too
        lines.append(str(importlib.import_module("torch").cuda.get_device_properties(0)))
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run it. Without a GPU, and unless --device is cpu, it measures nothing and says so."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.gpu.report")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default %(default)s")
    parser.add_argument("--repeat", type=int, default=30, help="timed calls, default 30")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--add", action="store_true", help="keep what the file has of others")
    parser.add_argument("--out", type=Path, default=Path("gpu_report.json"))
    options = parser.parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # jax would take all memory
    libraries = options.libraries.split(",")
    if unknown := set(libraries) - set(LIBRARIES):
        parser.error(f"no library is called {', '.join(unknown)}; there are {', '.join(LIBRARIES)}")
    before = json.loads(options.out.read_text()) if options.add and options.out.exists() else None

    def save(found: dict[str, Any]) -> None:
        part = options.out.with_suffix(".part")  # so that who is ended here leaves what was there
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.replace(options.out)

    found = report(options.device, libraries, options.repeat, not options.no_compile, save, before)
    if not found["targets"]:
        for name, why in found["missing"].items():
            print(f"{name}: {why}", file=sys.stderr)
        print("nothing was measured: no library finds a device", file=sys.stderr)
        return 1
    save(found)
    print(bars.markdown(found))
    print(f"\nwritten to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
