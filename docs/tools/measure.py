"""Measure every figure that the pages state, and write docs/measurements.json.

    python docs/tools/measure.py [--only GROUP ...] [--check GROUP ...]

Nothing else may run on the machine meanwhile: some ten minutes on two cores. What is timed has
a process of its own. Then ``python docs/tools/remake.py`` writes the tables of the pages. --check
measures groups again and exits with 1 if a figure differs: this suits errors, which do not vary.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import accuracy_table
import measured_calls
from measured_group import Group, Rows

FILE = HERE.parent / "measurements.json"


def scores() -> Rows:
    """Return errors of attention scores."""
    import score_errors  # and with it torch, which no timed process is to hold

    return score_errors.rows()


GROUPS: dict[str, Group] = {
    **measured_calls.GROUPS,
    "accuracy": Group("", accuracy_table.rows, "the largest", is_alone=False),
    "scores": Group("", scores, "root mean square", is_alone=False),
}
PACKAGES = (
    *("numpy", "torch", "jax", "transformers", "rotary-embedding-torch"),
    *("onnxruntime", "mlx", "flax", "equinox", "keras"),
)
VECTORS = {"AVX-512": "avx512f", "AVX-512 BF16": "avx512_bf16"}


def describe_machine() -> str:
    """Return the processor, its widest vectors, the cores that may be used, and the system."""
    cpu = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").exists() else ""
    found = dict(re.findall(r"^(.+?)\s*: (.+)$", cpu, re.MULTILINE))
    parts = [found.get("model name", platform.processor())]
    parts += [f"{key} {found[key]}" for key in ("cpu family", "model") if key in found]
    parts += [name for name, flag in VECTORS.items() if flag in found.get("flags", "").split()]
    parts += [f"{len(os.sched_getaffinity(0))} cores", f"{platform.system()} {platform.machine()}"]
    return ", ".join(parts)


def find_versions() -> str:
    """Return the versions of Python and of what figures depend on."""
    installed = [name for name in PACKAGES if importlib.util.find_spec(name.replace("-", "_"))]
    found = [f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in installed]
    return ", ".join([f"Python {platform.python_version()}", *found])


def measure(name: str) -> Rows:
    """Return the rows of a group, of four digits."""
    rows = GROUPS[name].measure()
    return {
        row: {column: float(f"{figure:.4g}") for column, figure in figures.items()}
        for row, figures in rows.items()
    }


def measure_apart(name: str) -> Rows | BaseException:
    """Return the rows of a group from a process of its own, or what stopped it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        measured = pool.submit(measure, name)
        return measured.exception() or measured.result()


def record(name: str, rows: Rows) -> dict[str, Any]:
    """Return what the file is to hold of a group."""
    group = GROUPS[name]
    return {
        "unit": group.unit,
        "statistic": group.statistic,
        "command": f"python docs/tools/measure.py --only {name}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": describe_machine(),
        "versions": find_versions(),
        "rows": rows,
    }


def find_differences(name: str, rows: Rows, held: Rows) -> list[str]:
    """Return where rows differ from those of the file, in the two digits that pages show."""
    return [
        f"{name}, {row}, {column}: {figure:.1e}, in the file {held[row][column]:.1e}"
        for row, figures in rows.items()
        for column, figure in figures.items()
        if f"{figure:.1e}" != f"{held[row][column]:.1e}"
    ]


def read() -> dict[str, Any]:
    """Return the file, empty where there is none."""
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def print_json(held: dict[str, Any]) -> str:
    """Return the file's text, with a row on each line."""
    text = json.dumps(held, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda row: " ".join(row[0].split()), text) + "\n"


def main() -> int:
    """Measure and write, or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=[*GROUPS])
    parser.add_argument("--check", nargs="+", choices=GROUPS, default=[])
    options = parser.parse_args()
    if options.check:
        held = read()
        found = [
            difference
            for name in options.check
            for difference in find_differences(name, measure(name), held[name]["rows"])
        ]
        print(*found, sep="\n")
        return int(bool(found))
    failed = False
    for name in options.only:
        start = time.perf_counter()
        rows = measure_apart(name) if GROUPS[name].is_alone else measure(name)
        if isinstance(rows, BaseException):
            print(f"{name}, as the file has it: {rows!r}", flush=True)
            failed = True
            continue
        held = read()
        held[name] = record(name, rows)
        ordered = {known: held[known] for known in GROUPS if known in held}
        FILE.write_text(print_json(ordered), "utf-8")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
