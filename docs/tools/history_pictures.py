"""Draw the history that docs/benchmarks keeps: what a call took at each landmark."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import plots
from matplotlib import ticker

KEPT = Path(__file__).resolve().parents[1] / "benchmarks"
NUMPY, TORCH, JAX = ("numpy:cpu", "float32"), ("torch:cpu", "float32"), ("jax:cpu", "float32")
LIBRARIES = {"numpy": NUMPY, "torch": TORCH, "jax": JAX}
PANELS = (
    (
        "4096 tokens",
        "times as fast as copying q and k\ninto new arrays",
        "apply.Prefill.track_time_over_copy",
        LIBRARIES,
    ),
    (
        "4096 tokens",
        "times as fast as the usual formula",
        "rivals.Usual.track_time_over",
        LIBRARIES,
    ),
    (
        "one token",
        "microseconds of a call",
        "apply.Decode.track_apply",
        {name: parameters[:1] for name, parameters in LIBRARIES.items()},
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
    """Return a figure at each landmark; of a time over another, how many times as fast it is."""
    found = results()
    by_landmark = (
        next((r for commit, r in found.items() if commit.startswith(mark)), {})
        for mark in landmarks()
    )
    found_at = [value(measured, benchmark, parameters) for measured in by_landmark]
    return [1 / x for x in found_at] if "time_over" in benchmark else found_at


def table() -> str:
    """Return the landmarks, and every figure of the picture at each, as two tables in Markdown."""
    names = landmarks().items()
    lines = ["| | commit | what it brought |", "|---|---|---|"]
    lines += [f"| {i} | `{commit}` | {words} |" for i, (commit, words) in enumerate(names, 1)]
    lines += ["", "| | " + " | ".join(str(i) for i in range(1, len(names) + 1)) + " |"]
    lines += ["|---|" + "---|" * len(names)]
    for title, unit, benchmark, libraries in PANELS:
        for name, parameters in libraries.items():
            told = " | ".join(_told(x) for x in series(benchmark, parameters))
            lines.append(f"| {title}, {name}: {' '.join(unit.split())} | {told} |")
    return "\n".join(lines) + "\n"


def _told(figure: float) -> str:
    if math.isnan(figure):
        return "-"
    return f"{figure:.0f}" if figure >= 10 else f"{figure:.2g}"


def draw(path: Path) -> None:
    """Write the picture."""
    count = len(landmarks())
    with plots.picture(path, len(PANELS)) as grid:
        for axes, (title, unit, benchmark, lines) in zip(grid, PANELS, strict=True):
            for i, (name, parameters) in enumerate(lines.items()):
                style = {"color": plots.STYLES[i + 1][0], "marker": _MARKERS[i]}
                at = range(1, count + 1)
                axes.plot(at, series(benchmark, parameters), label=name, linewidth=1, **style)
            axes.set_yscale("log")
            axes.set_title(title, size=10)
            axes.set_ylabel(unit, size=9)
            axes.tick_params(labelsize=8)
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(ticker.NullLocator())
            axes.grid(axis="y", linewidth=0.3)
            axes.legend(fontsize=8)
            axes.set_xticks(range(1, count + 1))
        grid[-1].set_xlabel("landmark, as numbered below")
