"""Print how far the figures of one commit lie apart over several runs, as in docs/benchmarks.md.

    python -m asv_benchmarks.report.noise --runs 10 --bench 'apply|rivals'

Each run is one of asv, with a process for every combination. What differs is noise: a threshold for
a change has to lie above it.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from .history import DEFAULT, EXPECTED, ROOT, git


def run_once(bench: str) -> dict[str, float]:
    """Return the figure of every benchmark and combination that is not skipped."""
    from asv.util import load_json  # absent where asv runs the benchmarks, and imports this file

    settings = load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    with tempfile.TemporaryDirectory() as folder:
        results, config = Path(folder) / "results", Path(folder) / "asv.conf.json"
        settings |= {
            "repo": str(ROOT),
            "benchmark_dir": str(ROOT / "asv_benchmarks"),
            "results_dir": str(results),
        }
        config.write_text(json.dumps(settings), "utf-8")
        command = [
            *(sys.executable, "-m", "asv", "run", "--config", str(config), "--bench", bench),
            *("-E", f"existing:{sys.executable}"),
            *("--set-commit-hash", git("rev-parse", "HEAD").decode().strip()),
        ]
        done = subprocess.run(  # noqa: S603  # asv
            command, cwd=ROOT, check=False, capture_output=True, text=True
        )
        if done.returncode not in EXPECTED:
            raise RuntimeError(done.stdout + done.stderr)
        (found,) = results.glob("*/*-*.json")
        return figures(json.loads(found.read_text("utf-8"))["results"])


def figures(results: dict[str, list]) -> dict[str, float]:
    """Return what asv stored, by benchmark and combination."""
    return {
        f"{name}({', '.join(values)})": float(figure)
        for name, (stored, lists, *_) in results.items()
        for values, figure in zip(itertools.product(*lists), stored or [], strict=True)
        if figure is not None and figure == figure  # noqa: PLR0124  # NaN is what was skipped
    }


def table(runs: list[dict[str, float]]) -> str:
    """Return the spread of each figure as Markdown, the largest first."""
    lines = ["| | min | median | max | max / min |", "|---|---|---|---|---|"]
    rows = [(name, [run[name] for run in runs if name in run]) for name in runs[0]]
    rows.sort(key=lambda row: -max(row[1]) / min(row[1]))
    for name, found in rows:
        low, middle, high = min(found), statistics.median(found), max(found)
        lines.append(f"| `{name}` | {low:.3g} | {middle:.3g} | {high:.3g} | {high / low:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--bench", default=DEFAULT, help="a regular expression, as asv takes it")
    options = parser.parse_args()
    print(table([run_once(options.bench) for _ in range(options.runs)]))


if __name__ == "__main__":
    main()
