"""Draw speed.svg: milliseconds of 4096 tokens, of rope_xp and of the usual formula."""

from __future__ import annotations

from pathlib import Path

import plots
from figure_tables import cell, prefill

COLOURS = {"rope_xp": "#0072B2", "usual formula": "#E69F00"}
KEYS = {"rope_xp": "new", "usual formula": "formula"}


def write(folder: Path) -> None:
    """Write the picture to a folder."""
    # The formula in numpy's float16 takes so long that no other bar could be seen.
    shown = {name: held for name, held in prefill().items() if "float16" not in name.split()}
    with plots.picture(folder / "speed.svg") as (axes,):
        for i, held in enumerate(shown.values()):
            for (label, colour), shift in zip(COLOURS.items(), (-0.2, 0.2), strict=True):
                time = held[KEYS[label]]
                axes.barh(i + shift, time, 0.38, color=colour, label=label if i == 0 else None)
            text = f" {cell(held, 'formula / new')} times as long"
            axes.text(held["formula"], i + 0.2, text, va="center", size=9)
        axes.set_yticks(range(len(shown)), list(shown))
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_xlabel("milliseconds, 4096 tokens")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
