"""Draw a report of gpu_report: times as fast as a copy, by size, a line for each contender.

    python -m asv_benchmarks.gpu_picture gpu_report.json gpu_report.svg

matplotlib draws it, without a background: words and lines are of tones that can be read on white
and on black. Rows of one head, and of a clock that did not hide the host, are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from . import gpu_bars
from .gpu_bars import BOTH, COPY, FLAT_COPY, LARGE

INK = "#767676"
"""A grey of contrast 4.5 with white and with black."""
OURS = ("#0072B2", "#3E8FC4", "#6F8FD0", "#2A86A8")
THEIRS = ("#D55E00", "#009E73", "#B5628F", "#A67C00", "#8A63C7", "#5F8A3A", "#C0504D", "#7A7A50")
DASHES = ("-", "--", "-.", ":")


def series(found: dict[str, Any], target: str, direction: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return bytes, share, least and largest share of each contender, by size."""
    lines: dict[str, list[tuple[Any, ...]]] = {}
    for row in gpu_bars.rows(found, target, None, direction):
        timed_well = row["host_hidden"] >= 0.5 or not gpu_bars.is_gpu(row)
        if row["contender"] not in (COPY, FLAT_COPY) and len(row["heads"]) > 1 and timed_well:
            point = (row["bytes"], *row["share_of_copy"])
            lines.setdefault(row["contender"], []).append(point)
    return {name: sorted(points) for name, points in lines.items()}


def draw(found: dict[str, Any], path: Path) -> None:
    """Write the picture, a panel for each target and direction that was measured."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = [
        (target, direction, lines)
        for target in found["targets"]
        for direction in ("forward", BOTH)
        if (lines := series(found, target, direction))
    ]
    style = {
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), INK),
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "rope_xp",
    }
    with rc_context(style):
        figure = Figure(figsize=(8.0, 3.6 * len(panels)), layout="constrained")
        figure.patch.set_alpha(0.0)
        grid = figure.subplots(len(panels), 1, squeeze=False)
        for axes, (target, direction, lines) in zip(grid[:, 0], panels, strict=True):
            _panel(axes, lines)
            axes.set_title(f"{target}, {direction}", size=10)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def _panel(axes: Any, lines: dict[str, list[tuple[Any, ...]]]) -> None:
    ours = [name for name in lines if name.startswith(gpu_bars.US)]
    theirs = [name for name in lines if name not in ours]
    for names, colours, width, marker in ((ours, OURS, 2.0, "o"), (theirs, THEIRS, 1.0, "s")):
        for i, name in enumerate(names):
            sizes, shares, least, most = zip(*lines[name], strict=True)
            dash = DASHES[(i if names is ours else i // len(colours)) % len(DASHES)]
            plotted = {"color": colours[i % len(colours)], "linestyle": dash, "linewidth": width}
            axes.plot(sizes, shares, label=name, marker=marker, markersize=4, **plotted)
            axes.vlines(sizes, least, most, color=plotted["color"], linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    axes.axvline(LARGE, color=INK, linewidth=0.8, linestyle=":")
    axes.annotate("64 MiB", (LARGE, 0.02), xycoords=("data", "axes fraction"), size=8, color=INK)
    axes.xaxis.set_major_formatter(lambda x, _: _words(x))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("bytes of q and k", size=9)
    axes.set_ylabel("times as fast as a copy (larger is faster)", size=9)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _words(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
