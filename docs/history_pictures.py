"""Draw the history that docs/benchmarks keeps: what a call took at each landmark."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

from matplotlib import ticker

from rope_xp._cli import plots

HERE = Path(__file__).resolve().parent
KEPT = HERE / "benchmarks"
NUMPY, TORCH, JAX = ("numpy:cpu", "float32"), ("torch:cpu", "float32"), ("jax:cpu", "float32")
PANELS = (
    (
        "4096 tokens",
        "time of copying q and k\ninto new arrays (1 is a copy)",
        "apply.Prefill.track_time_over_copy",
        {"numpy": NUMPY, "torch": TORCH, "jax": JAX},
    ),
    (
        "4096 tokens",
        "time of the formula in common use\n(below 1 is faster)",
        "rivals.Usual.track_time_over",
        {"numpy": NUMPY, "torch": TORCH, "jax": JAX},
    ),
    (
        "one token",
        "microseconds of a call",
        "apply.Decode.track_apply",
        {"numpy": NUMPY[:1], "torch": TORCH[:1], "jax": JAX[:1]},
    ),
)
_MARKERS = ("o", "x", "+")


def results() -> dict[str, dict[str, Any]]:
    """Return what asv measured at each commit, by its full hash."""
    files = (KEPT / "results").glob("*/*-*.json")
    found = (json.loads(path.read_text("utf-8")) for path in files)
    return {one["commit_hash"]: one["results"] for one in found}


def landmarks() -> dict[str, str]:
    """Return the commits that the history names, oldest first, and what each brought."""
    lines = (KEPT / "landmarks.txt").read_text("utf-8").splitlines()
    return {commit: words for commit, _, words in (line.partition(" ") for line in lines)}


def value(measured: dict[str, Any], benchmark: str, parameters: tuple[str, ...]) -> float:
    """Return one figure, NaN where it was not measured."""
    values, lists, *_ = measured.get(benchmark, (None, []))
    if values is None:
        return math.nan
    wanted = tuple(map(repr, parameters))
    combinations = list(itertools.product(*lists))
    found = values[combinations.index(wanted)] if wanted in combinations else None
    return math.nan if found is None else float(found)


def series(benchmark: str, parameters: tuple[str, ...]) -> list[float]:
    """Return a figure at each landmark."""
    found = results()
    by_landmark = (
        next((r for commit, r in found.items() if commit.startswith(mark)), {})
        for mark in landmarks()
    )
    return [value(measured, benchmark, parameters) for measured in by_landmark]


def draw(path: Path) -> None:
    """Write the picture."""
    words = [f"{words}\n{commit}" for commit, words in landmarks().items()]
    with plots.picture(path, len(PANELS)) as grid:
        for axes, (title, unit, benchmark, lines) in zip(grid, PANELS, strict=True):
            for i, (name, parameters) in enumerate(lines.items()):
                style = {"color": plots.STYLES[i + 1][0], "marker": _MARKERS[i]}
                axes.plot(series(benchmark, parameters), label=name, linewidth=1, **style)
            axes.set_yscale("log")
            axes.set_title(title, size=10)
            axes.set_ylabel(unit, size=8)
            axes.tick_params(labelsize=7)
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(ticker.NullLocator())
            axes.grid(axis="y", linewidth=0.3)
            axes.legend(fontsize=8)
            axes.set_xticks(range(len(words)), [""] * len(words))
        grid[-1].set_xticks(range(len(words)), words, rotation=45, ha="right", size=7)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
