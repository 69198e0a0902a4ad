"""Compare rope_xp on a GPU with a copy and with its rivals, print tables and write JSON.

    python -m asv_benchmarks.gpu_report --out gpu_report.json
    python -m asv_benchmarks.gpu_report --libraries cupy --add --out gpu_report.json
    python -m asv_benchmarks.gpu_report --device cpu     # tiny sizes, to see that it works

It needs no network. q is (b, s, 32, 128) and k (b, s, 8, 128), bfloat16; 6554 tokens are 64 MiB.
One more case is a single array of one head. Each contender rotates a few tokens first, which must
be as float64 has them, and is not timed otherwise. Contenders take turns in an order that changes,
on the clocks of gpu_clock.py. "times as fast as" is the median time of the other over that of a
contender, and larger is better. A copy is one of each array into given memory, and its limit is 1;
forward and backward is compared with two. A flat copy has the same bytes in one array. Cases begin
with the largest, and rope_xp is measured alone before rivals are, which may break off a process:
the JSON is written after each case.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rope_xp._bench import targets

from . import gpu_bars, gpu_clock, gpu_facts, gpu_measure, gpu_rivals
from .gpu_attempt import Failed, attempt
from .gpu_measure import Case

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
    found["machine"] = gpu_facts.machine()
    for library in libraries:
        name = f"{library}:{device}"
        target = targets.find(name) if name in targets.NAMES else f"{library} has no {device}"
        _forget(found, name)
        if isinstance(target, str):
            found["missing"][name] = target
            continue

        def lacks(failed: dict[str, str], name: str = name) -> None:
            found["missing"] |= {f"{name} {what}": why for what, why in failed.items()}

        own = found["targets"][name] = {"device": gpu_facts.properties(target)}
        timed = gpu_clock.clock_of(target)
        own |= {"before": gpu_facts.readings(), "paths": {}}
        every, absent = gpu_rivals.contenders(target, compile_too)
        lacks(absent)
        ours = {name: every[name] for name in gpu_rivals.ours(target) if name in every}
        for contenders in (ours, every):
            right, failed = gpu_measure.tried(target, contenders)
            lacks(failed)
            for case in CASES[device]:
                result = attempt(partial(gpu_measure.speed, target, timed, right, case, repeat))
                if isinstance(result, Failed):
                    lacks({str(case): str(result)})
                    continue
                rows, failed = result
                _put(found["speed"], rows)
                lacks({f"{contender}, {case}": why for contender, why in failed.items()})
                own["paths"][str(case)] = gpu_measure.path(target, case)
                save(found)
            result = attempt(partial(gpu_measure.facts, target, right, LOOPS[device]))
            if isinstance(result, Failed):
                lacks({"facts": str(result)})
            else:
                own |= result[0]
                lacks(result[1])
            own["after"] = gpu_facts.readings()
            save(found)
    return found


def _put(speed: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    """Add rows, in place of those of the same contenders and arrays that were timed before."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["target"], row["contender"], row["direction"], *gpu_bars.key(row))

    new = {key(row) for row in rows}
    speed[:] = [row for row in speed if key(row) not in new] + rows


def _forget(found: dict[str, Any], name: str) -> None:
    """Drop what was measured of a target before."""
    found["targets"].pop(name, None)
    found["speed"] = [row for row in found["speed"] if row["target"] != name]
    old = [key for key in found["missing"] if key.partition(" ")[0] == name]
    for key in old:
        del found["missing"][key]


def main(arguments: list[str] | None = None) -> int:
    """Run it. Without a GPU, and unless --device is cpu, it measures nothing and says so."""
    parser = argparse.ArgumentParser(prog="python -m asv_benchmarks.gpu_report")
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
    print(gpu_bars.markdown(found))
    print(f"\nwritten to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
