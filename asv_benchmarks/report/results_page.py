"""Write the results of ``asv run`` as one page, which needs no network and no server.

    python -m asv_benchmarks.report.results_page [--results .asv/results] [--page .asv/results.html]

The page of ``asv publish`` takes its scripts from a network. This one has no scripts: a table for
each benchmark, with a drawing for each combination of parameters. Point at a mark for its commit.
"""

import argparse
import datetime as dt
import itertools
import json
import math
import sys
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Runs = list[dict[str, Any]]
WIDTH, HEIGHT, EDGE = 240, 40, 5
"""Pixels of a drawing, and of the edge around its marks."""
HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Results of asv</title>
<style>
:root { color-scheme: light dark; font: 16px/1.4 sans-serif; }
body { max-width: 60rem; margin: auto; padding: 1rem; }
h3 { overflow-wrap: anywhere; }
div { overflow-x: auto; }
table { border-collapse: collapse; min-width: 100%; }
th, td { text-align: right; padding: 0.1rem 0.4rem; border-bottom: 1px solid #8885; }
:is(th, td):first-child { text-align: left; }
td + td { white-space: nowrap; }
svg { display: block; margin-left: auto; width: min(15rem, 25vw); }
svg { fill: currentcolor; stroke: currentcolor; }
@media (max-width: 30rem) { table { font-size: 0.875rem; } }
</style>
<h1>Results of asv</h1>
<p>Each drawing has the commits from left to right, and goes from 0 to its largest value.</p>
"""


def read_runs(folder: Path) -> dict[str, Runs]:
    """Return the runs of each machine and environment, oldest commit first."""
    runs = defaultdict(list)
    for path in folder.glob("*/*.json"):
        run = json.loads(path.read_text("utf-8"))
        if "commit_hash" in run:
            runs[f"{run['params']['machine']}, {run['env_name']}"].append(run)
    return {name: sorted(runs[name], key=lambda run: run["date"]) for name in sorted(runs)}


def collect_series(runs: Runs, benchmark: str) -> dict[str, list[float]]:
    """Return the values over the runs by parameters, NaN where there are none."""
    series: dict[str, list[float]] = defaultdict(lambda: [math.nan] * len(runs))
    for i, run in enumerate(runs):
        values, lists, *_ = run["results"].get(benchmark, (None, []))
        for parameters, value in zip(itertools.product(*lists), values or [], strict=False):
            if value is not None and math.isfinite(value):
                series[", ".join(parameters).replace("'", "")][i] = value
    return series


def draw_series(values: list[float], commits: list[str]) -> str:
    """Return a line over the commits as SVG, with a mark for each."""
    top = max(v for v in values if not math.isnan(v)) or 1
    step = (WIDTH - 2 * EDGE) / max(len(values) - 1, 1)
    points = [
        (EDGE + i * step, EDGE + (HEIGHT - 2 * EDGE) * (1 - v / top), f"{commit}: {v:.3g}")
        for i, (v, commit) in enumerate(zip(values, commits, strict=True))
        if not math.isnan(v)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(text)}</title></circle>'
        for x, y, text in points
    )
    line = f'<polyline points="{line}" fill="none"/>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">{line}{marks}</svg>'


def format_benchmark(runs: Runs, benchmark: str, unit: str) -> str:
    """Return the table of a benchmark, nothing if it has no values."""
    commits = [run["commit_hash"][:8] for run in runs]
    unit = "" if unit == "unit" else f" ({unit})"  # what asv writes where a benchmark names none
    rows = []
    for parameters, values in collect_series(runs, benchmark).items():
        known = [v for v in values if not math.isnan(v)]
        cells = [draw_series(values, commits), f"{known[0]:.3g}", f"{known[-1]:.3g}"]
        rows.append("".join(f"<td>{cell}</td>" for cell in (escape(parameters), *cells)))
    if not rows:
        return ""
    head = "".join(f"<th>{word}</th>" for word in ("parameters", "by commit", "first", "last"))
    table = "".join(f"<tr>{row}</tr>\n" for row in (head, *rows))
    title = escape(benchmark + unit).replace("_", "_<wbr>").replace(".", ".<wbr>")
    return f"<h3>{title}</h3>\n<div><table>{table}</table></div>\n"


def write_page(results: Path, page: Path) -> None:
    """Write the page of a folder of results."""
    known = json.loads((results / "benchmarks.json").read_text("utf-8"))
    parts = [HEAD]
    for name, runs in read_runs(results).items():
        days = [dt.datetime.fromtimestamp(run["date"] / 1000, dt.UTC).date() for run in runs]
        ends = " to ".join(f"{runs[i]['commit_hash'][:8]} of {days[i]}" for i in (0, -1))
        parts.append(f"<h2>{escape(name)}</h2>\n<p>{len(runs)} commits, {ends}</p>\n")
        for benchmark in sorted({key for run in runs for key in run["results"]}):
            unit = known.get(benchmark, {}).get("unit", "")
            parts.append(format_benchmark(runs, benchmark, unit))
    page.write_text("".join(parts), "utf-8")


def main() -> int:
    """Write the page that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / ".asv" / "results")
    parser.add_argument("--page", type=Path, default=ROOT / ".asv" / "results.html")
    options = parser.parse_args()
    if not read_runs(options.results):
        print(f"no results in {options.results}: run asv first", file=sys.stderr)
        return 1
    write_page(options.results, options.page)
    print(options.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
