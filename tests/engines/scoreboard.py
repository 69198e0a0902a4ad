"""Make docs/scoreboard.md: what the rotations of other packages do, measured on a CPU.

python tests/engines/scoreboard.py            measure all that is installed, and write the page
python tests/engines/scoreboard.py NAME ...   measure some packages anew
python tests/engines/scoreboard.py --render   write the page from results.json
python tests/engines/scoreboard.py --check    check that the page is that of results.json
python tests/engines/scoreboard.py --compare FILE   check that verdicts are those of FILE
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = Path(os.environ.get("SCOREBOARD_RESULTS", HERE / "results.json"))
PAGE = HERE.parents[1] / "docs" / "scoreboard.md"
FILES = ("modules", "kernels", "arrays_of_jax", "graphs")
os.environ |= {"TRITON_INTERPRET": "1", "KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu"}
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


def measure_file(file: str, names: list[str], date: str) -> None:
    """Measure the engines of a file, and store each result."""
    import measure

    importlib.import_module(file)
    for engine in measure.ENGINES:
        if names and engine.package not in names:
            continue
        cells = {column: asdict(cell) for column, cell in measure.measure(engine).items()}
        version = importlib.metadata.version(engine.package)
        entry = {"package": engine.package, "name": engine.name, "version": version, "date": date,
                 "note": engine.note, "cells": cells}  # fmt: skip
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[f"{engine.package}: {engine.name}"] = entry
        text = json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True)
        RESULTS.write_text(text + "\n")
        shown = {column: x["verdict"] for column, x in cells.items() if x["verdict"] != "right"}
        print(engine.package, engine.name, shown, flush=True)


def list_verdicts(path: Path) -> set[tuple[str, str, str]]:
    rows = json.loads(path.read_text()).items()
    return {(key, c, cell["verdict"]) for key, row in rows for c, cell in row["cells"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="packages to measure")
    parser.add_argument("--file", choices=FILES, help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    options = parser.parse_args()
    if options.file:
        measure_file(options.file, options.names, options.date)
        return
    if options.compare:
        before, after = map(list_verdicts, (options.compare, RESULTS))
        lines = [f"was {x}" for x in sorted(before - after)]
        sys.exit("\n".join([*lines, *(f"is {x}" for x in sorted(after - before))]) or None)
    if not (options.render or options.check):
        for file in FILES:  # a process each, as packages of different libraries disturb each other
            command = [sys.executable, __file__, *options.names, "--file", file]
            subprocess.run([*command, "--date", options.date], check=True)
    from page import render

    page = render(json.loads(RESULTS.read_text()))
    if not options.check:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        sys.exit("docs/scoreboard.md is not that of results.json: run with --render")


if __name__ == "__main__":
    main()
