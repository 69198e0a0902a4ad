"""Make docs/scoreboard.md: what the rotations of other packages do, measured on a CPU.

    python tests/engines/scoreboard.py            measure all that is installed, and write the page
    python tests/engines/scoreboard.py NAME ...   measure some packages anew
    python tests/engines/scoreboard.py --render   write the page from results.json
    python tests/engines/scoreboard.py --check    check that the page is that of results.json
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parents[1] / "docs" / "scoreboard.md"
FILES = ("modules", "kernels", "arrays_of_jax", "graphs")
_SECONDS = 300
os.environ |= {"TRITON_INTERPRET": "1", "KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu"}
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


def list_engines() -> list[tuple[str, int, str]]:
    """Return the file, index and key of each engine."""
    found = []
    for file in FILES:
        engines = importlib.import_module(file).ENGINES
        found += [(file, i, f"{e.package}: {e.name}") for i, e in enumerate(engines)]
    return found


def measure_alone(file: str, index: int) -> None:
    """Print the cells of one engine, in a process of its own, as packages change each other."""
    import measure

    engine = importlib.import_module(file).ENGINES[index]
    cells = {column: asdict(cell) for column, cell in measure.measure(engine).items()}
    version = importlib.metadata.version(engine.package)
    entry = {"package": engine.package, "name": engine.name, "version": version,
             "layout": engine.layout, "note": engine.note, "cells": cells}  # fmt: skip
    print("\n" + json.dumps(entry))


def measure_all(names: list[str], date: str) -> None:
    """Measure engines one after another, and store their results."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for file, index, key in list_engines():
        if names and not any(name == key.partition(":")[0] for name in names):
            continue
        command = [sys.executable, __file__, "--one", file, str(index)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode:
            print(f"{key}: {done.stderr.strip().splitlines()[-1]}")
            continue
        results[key] = json.loads(done.stdout.splitlines()[-1]) | {"date": date}
        shown = {c: x["verdict"] for c, x in results[key]["cells"].items()}
        print(key, {c: v for c, v in shown.items() if v != "right"})
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="packages to measure")
    parser.add_argument("--one", nargs=2, metavar=("FILE", "INDEX"), help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--date", default="2026-11-25")
    options = parser.parse_args()
    if options.one:
        measure_alone(options.one[0], int(options.one[1]))
        return
    if not (options.render or options.check):
        measure_all(options.names, options.date)
    from page import render

    page = render(json.loads(RESULTS.read_text()))
    if options.check:
        if page != PAGE.read_text():
            sys.exit("docs/scoreboard.md is not that of results.json: run with --render")
        return
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
