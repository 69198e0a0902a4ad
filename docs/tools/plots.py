"""Draw rotary embeddings; importing this module does not import matplotlib."""

import importlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rope_xp._core.errors import rewording
from rope_xp.rope import RoPE

# Of Okabe and Ito, distinct under common colour blindness; grey is for the reference.
STYLES = (("#7F7F7F", "o"), ("#0072B2", "."), ("#D55E00", "x"), ("#009E73", "+"), ("#CC79A7", "d"))
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
"""A line for each colour of STYLES, distinct in black and white."""
INK = "#767676"  # colour of words and lines: visible on white and on dark pages
SIZE = (5.2, 3.5)  # inches of one drawing: its words can be read on the page of a phone
LOOK = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "grid.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.facecolor": "none",
    "legend.frameon": False,
    # Keep words of an SVG as text, and its ids the same in every run.
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "rope_xp",
}


def choose_style(i: int, curves: int) -> tuple[str, str]:
    """Return colour and marker of curve i: grey for the first of several."""
    return STYLES[(i if curves > 1 else 1) % len(STYLES)]


def draw_wavelengths(
    axes: Any, ropes: dict[str, RoPE], head_dim: int, contexts: dict[str, int]
) -> None:
    """Draw how many tokens a turn of each pair takes: pairs above a context make less than one."""
    axes.set_yscale("log")
    for i, (label, rope) in enumerate(ropes.items()):
        wavelengths = rope.wavelengths(head_dim)
        pairs, turning = np.arange(len(wavelengths)), np.isfinite(wavelengths)
        standing = pairs[~turning]
        note = f";\n{standing.size} of {len(pairs)} pairs do not turn (triangles)"
        colour, marker = choose_style(i, len(ropes))
        look = {"color": colour, "markersize": 4, "label": label + note * bool(standing.size)}
        look["markerfacecolor"] = "none" if marker == "o" else colour
        axes.plot(pairs[turning], wavelengths[turning], marker, **look)
        if standing.size:
            edge = axes.get_xaxis_transform()  # x in pairs, y as a share of the height
            axes.plot(standing, 0.97 + 0 * standing, "^", c=colour, ms=4, transform=edge)
    for i, (name, tokens) in enumerate(sorted(contexts.items(), key=lambda item: item[1])):
        axes.axhline(tokens, color=INK, linestyle="--", linewidth=0.8)
        axes.annotate(
            f"{name}, {tokens} tokens",
            (0.01, tokens),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 3 if i else -3),  # the lowest one below its line, clear of the next
            textcoords="offset points",
            va="bottom" if i else "top",
            size=8,
            color=INK,
        )
    axes.set_xlabel("pair")
    axes.set_ylabel("tokens of a full turn")
    axes.legend(loc="lower right", fontsize=8)


def write_wavelengths(
    path: Path, drawings: dict[str, tuple[dict[str, RoPE], int, dict[str, int]]]
) -> None:
    """Write a picture with axes for each title: the ropes, head_dim and contexts to draw there."""
    with picture(path, len(drawings)) as grid:
        for axes, (title, drawing) in zip(grid, drawings.items(), strict=True):
            axes.set_title(title, parse_math=False)
            draw_wavelengths(axes, *drawing)


@contextmanager
def picture(path: Path, drawings: int = 1) -> Iterator[list[Any]]:
    """Yield axes to draw on, one below the other; then write the picture.

    Raise RopeError if matplotlib is missing or does not have the format of the suffix, and OSError
    if the file cannot be written.
    """
    with rewording(ImportError, "plots need matplotlib (pip install matplotlib): "):
        matplotlib = importlib.import_module("matplotlib")
        figures = importlib.import_module("matplotlib.figure")
    size = (SIZE[0], SIZE[1] * drawings)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a matplotlibrc of the current folder may have had TeX run
        matplotlib.rcParams.update(LOOK)
        figure = figures.Figure(figsize=size, dpi=220, layout="constrained")
        yield list(figure.subplots(drawings, squeeze=False).ravel())
        save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a picture; raise as :func:`picture`. An SVG has no background and no date."""
    matplotlib = importlib.import_module("matplotlib")
    if path.suffix.lower() != ".svg":
        with rewording(ValueError, f"{path}: "):  # raised for an unknown suffix
            figure.savefig(path)
        return
    svg = io.StringIO()
    with matplotlib.rc_context(LOOK):
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", transparent=True, metadata=no_metadata)
    # Machines differ below a hundredth of a point, which no screen shows.
    text = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", svg.getvalue())
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
