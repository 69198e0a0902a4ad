"""Draw speed.svg from the first table of docs/speed.md."""

from __future__ import annotations

import re
from pathlib import Path

from rope_xp._cli import plots

PAGE = Path(__file__).parents[1] / "speed.md"
ROW = re.compile(r"^\| (\w+ \w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
COLOURS = {"rope_xp": "#0072B2", "usual formula": "#E69F00"}


def write(folder: Path) -> None:
    """Write the picture to a folder."""
    rows = ROW.findall(PAGE.read_text("utf-8"))
    with plots.picture(folder / "speed.svg") as (axes,):
        for i, (_, *values) in enumerate(rows):
            ours, formula, ratio = map(float, values)
            for (label, colour), time, shift in zip(
                COLOURS.items(), (ours, formula), (-0.2, 0.2), strict=True
            ):
                axes.barh(i + shift, time, 0.38, color=colour, label=label if i == 0 else None)
            axes.text(formula * 1.05, i + 0.2, f"{ratio:g} x", va="center", size=9)
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(1, 1000)
        axes.set_xlabel("milliseconds, 4096 tokens")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
