"""Make docs/scoreboard.md: what the rotations of other packages do, measured on a CPU.

python tests/engines/scoreboard.py            measure all, write the page, and fail if verdicts differ
python tests/engines/scoreboard.py NAME ...   measure some packages anew
python tests/engines/scoreboard.py --render   write the page from results.json
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parents[1] / "docs" / "scoreboard.md"
FILES = ("modules", "kernels", "arrays_of_jax", "graphs")
FINDINGS = {
    ("equinox", "second base"): "base_in_cache.py",
    ("litgpt", "YaRN"): "yarn_ramp.py",
    ("rotary-embedding-torch", "bfloat16"): "positions_in_bfloat16.py",
    ("rotary-embedding-torch", "module in bfloat16"): "positions_in_bfloat16.py",
    ("transformers", "module in bfloat16"): "module_in_bfloat16.py",
    ("x-transformers", "module in bfloat16"): "positions_of_frequencies.py",
}
"""The scripts that show wrong cells, by package and column. Their titles are the page's text."""
_PAGE = """\
<!-- Made by tests/engines/scoreboard.py from tests/engines/results.json. -->

# Scoreboard

This page lists what rotations of other packages compute on a CPU, against exact angles. Kernels of Triton run in their
interpreter. Each function is called with a second base, one token for each sequence, packed sequences, a partial
rotation, four scaling rules, bfloat16, and as a module cast to bfloat16, as far as it offers them. A result is right
within 5e-4 in float32, and 2e-2 in bfloat16, for inputs below 1. Differences by design are not wrong.

"Exact to" is the first position whose cosine or sine is off by more than 1e-2; tables are made for 131,072 positions.
Each wrong result links to a script that shows it. `tests/engines/results.json` has all results with their errors;
what it lacks is not offered, or was not tried. To measure again, install the versions of `constraints/engines.txt` as
`.ci/engines` does, and run `python tests/engines/scoreboard.py`. [Checks](check.md) measures your own function.

Measured on {dates}:

| function | version | layout | exact to | wrong |
| --- | --- | --- | --- | --- |
{rows}
## Wrong results

| package | what is wrong |
| --- | --- |
{faults}"""


def measure_file(file: str, names: list[str]) -> None:
    """Measure the engines of a file, and store each result."""
    os.environ |= {"TRITON_INTERPRET": "1", "KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu"}
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    import measure

    importlib.import_module(file)
    for engine in measure.ENGINES:
        if names and engine.package not in names:
            continue
        entry = {
            "package": engine.package,
            "name": engine.name,
            "version": importlib.metadata.version(engine.package),
            "date": time.strftime("%Y-%m-%d"),
            "note": engine.note,
            "cells": measure.measure(engine),
        }
        results = read_results() | {f"{engine.package}: {engine.name}": entry}
        text = json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True)
        RESULTS.write_text(text + "\n")


def read_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text())


def list_verdicts() -> set[tuple[str, str, str]]:
    rows = read_results().items()
    return {(key, c, cell["verdict"]) for key, row in rows for c, cell in row["cells"].items()}


def render() -> str:
    """Return the page; KeyError for a wrong cell that no finding describes."""
    rows = [row for _, row in sorted(read_results().items())]
    faults = set()
    for package, script in {
        (r["package"], FINDINGS[r["package"], c]) for r in rows for c in _list_wrong(r)
    }:
        # The first line of a script's docstring says what is wrong.
        title = (HERE / "faults" / script).read_text().split('"""')[1].partition("\n")[0]
        faults.add(f"| {package} | {title} |\n")
    return _PAGE.format(
        dates=", ".join(sorted({row["date"] for row in rows})),
        rows="".join(map(_show_row, rows)),
        faults="".join(sorted(faults)),
    )


def _list_wrong(row: dict[str, Any]) -> list[str]:
    return [column for column, cell in row["cells"].items() if cell["verdict"] != "right"]


def _show_row(row: dict[str, Any]) -> str:
    cells, note = row["cells"], f" ({row['note']})" if row["note"] else ""
    wrong = ", ".join(
        f"[{c}](../tests/engines/faults/{FINDINGS[row['package'], c]})" for c in _list_wrong(row)
    )
    layout = cells["layout"]["text"].replace("_", "\\_")
    position = cells.get("position", {"text": "–"})["text"]
    name = f"{row['package']} `{row['name']}`"
    return f"| {name} | {row['version']}{note} | {layout} | {position} | {wrong or '–'} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="packages to measure")
    parser.add_argument("--file", choices=FILES, help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    if options.file:
        measure_file(options.file, options.names)
        return
    before = list_verdicts()
    for file in () if options.render else FILES:
        # A process each, as packages of different libraries disturb each other.
        command = [sys.executable, __file__, *options.names, "--file", file]
        subprocess.run(command, check=True)
    changes = [f"was {x}" for x in sorted(before - list_verdicts())]
    changes += [f"is {x}" for x in sorted(list_verdicts() - before)]
    print(*changes, sep="\n")
    PAGE.write_text(render())
    sys.exit(bool(changes))


if __name__ == "__main__":
    main()
