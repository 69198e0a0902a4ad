"""Draw a report: times as fast as a copy, by size, a line for each contender.

    python -m asv_benchmarks.gpu.picture gpu_report.json gpu_report.svg

Words and lines are of a grey that can be read on white and on black. Rows of one head, and of a
clock that did not hide the host, are left out.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from .bars import LARGE, is_gpu, rows
from .measure import BOTH, COPY, FLAT_COPY, FORWARD, OURS

INK = "#767676"
"""A grey of contrast 4.5 with white and with black."""


def series(found: dict[str, Any], target: str, direction: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return bytes, share, least and largest share of each contender, by size."""
    lines: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows(found, target, direction):
        timed_well = row["hidden"] >= 0.5 or not is_gpu(row)
        if row["contender"] not in (COPY, FLAT_COPY) and row["arrays"] > 1 and timed_well:
            lines.setdefault(row["contender"], []).append((row["bytes"], *row["of_copy"]))
    return {name: sorted(points) for name, points in lines.items()}


def draw(found: dict[str, Any], path: Path) -> None:
    """Write the picture, a panel for each target and direction that was measured."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = [
        (f"{target}, {direction}", lines)
        for target, direction in itertools.product(found["targets"], (FORWARD, BOTH))
        if (lines := series(found, target, direction))
    ]
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = dict.fromkeys(inks, INK) | {"svg.fonttype": "none", "svg.hashsalt": "rope_xp"}
    with rc_context(style):
        figure = Figure(figsize=(8.0, 3.6 * len(panels)), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False)
        for axes, (title, lines) in zip(grid[:, 0], panels, strict=True):
            _panel(axes, lines)
            axes.set_title(title, size=10)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def _panel(axes: Any, lines: dict[str, list[tuple[Any, ...]]]) -> None:
    for i, (name, points) in enumerate(lines.items()):
        sizes, shares, least, most = zip(*points, strict=True)
        style = {"color": f"C{i % 10}", "linewidth": 2.0 if name in OURS else 1.0}
        dash = ("-", "--")[i // 10 % 2]
        axes.plot(sizes, shares, dash, label=name, marker="o" if name in OURS else "s", **style)
        axes.vlines(sizes, least, most, color=style["color"], linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.axhline(1.0, color=INK, linestyle=":")
    axes.axvline(LARGE, color=INK, linestyle=":")
    axes.annotate("64 MiB", (LARGE, 0.02), xycoords=("data", "axes fraction"), color=INK)
    axes.xaxis.set_major_formatter(lambda size, _: f"{size / 2**20:g} MiB")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("bytes of q and k")
    axes.set_ylabel("times as fast as a copy (larger is faster)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
