"""Tell and draw what train_tiny.py found.

python docs/examples/tiny_results.py RESULTS.json [FILE.png]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tiny_shared import COMBINATIONS

from rope_xp._cli import terminal

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from plots import DASHES, STYLES, picture  # of the pages' tools

LABELS = {"none": "none", "sinusoidal": "sinusoidal", "shaw": "Shaw", "rope": "RoPE"}
UNIT = "loss: nats per character; mean over seeds, and least to largest"


def summary(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table, a row for each combination."""

    def told(losses: Sequence[float]) -> str:
        spread = f" ({min(losses):.3f} to {max(losses):.3f})" if len(losses) > 1 else ""
        return f"{np.mean(losses):.3f}{spread}"

    context = results["context"]
    columns = ["attention", "positions", f"loss at {context}", f"loss at {2 * context}"]
    rows = []
    for attention, encoding in COMBINATIONS:
        same = [
            r for r in results["runs"] if (r["attention"], r["encoding"]) == (attention, encoding)
        ]
        if same:
            losses = [told([run[kind] for run in same]) for kind in ("loss", "loss_twice")]
            rows.append([attention, LABELS[encoding], *losses])
    return columns, rows


def markdown(results: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    columns, rows = summary(results)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the losses of all runs over steps, axes for each attention: means and bands of seeds."""
    runs = results["runs"]
    attentions = list(dict.fromkeys(run["attention"] for run in runs))
    lowest = min(min(run["losses"]) for run in runs)
    highest = max(run["losses"][2] for run in runs if len(run["losses"]) > 2)
    with picture(path, len(attentions)) as grid:
        for axes, attention in zip(grid, attentions, strict=True):
            _draw_attention(axes, [run for run in runs if run["attention"] == attention])
            axes.set_ylim(lowest - 0.05, highest + 0.05)  # the same on all
            axes.set_title(f"{attention} attention")
            axes.set_xlabel(f"steps of {results['characters of a step']:,} characters")
            axes.set_ylabel("loss on text held out,\nnats per character")


def _draw_attention(axes: Any, runs: list[dict[str, Any]]) -> None:
    for (encoding, label), (colour, _), dashes in zip(LABELS.items(), STYLES, DASHES, strict=False):
        same = [run for run in runs if run["encoding"] == encoding]
        if not same:
            continue
        at, losses = same[0]["steps"], np.array([run["losses"] for run in same])
        band = {"color": colour, "alpha": 0.25, "linewidth": 0}
        axes.fill_between(at, losses.min(axis=0), losses.max(axis=0), **band)
        style = {"color": colour, "linestyle": dashes, "linewidth": 1.4}
        axes.plot(at, losses.mean(axis=0), label=label, **style)
    axes.set_xlim(0, max(run["steps"][-1] for run in runs))
    seeds = sorted({run["seed"] for run in runs})
    told = f"line: mean of seeds {', '.join(map(str, seeds))}; band: all of them"
    axes.legend(fontsize=8, title=told if len(seeds) > 1 else f"seed {seeds[0]}", title_fontsize=8)


if __name__ == "__main__":
    given = Path(sys.argv[1])
    found = json.loads(given.read_text("utf-8"))
    print(UNIT)
    terminal.table(*summary(found), text_columns=2)
    to = Path(sys.argv[2]) if len(sys.argv) > 2 else given.with_suffix(".png")
    draw(found, to)
    print(to)
