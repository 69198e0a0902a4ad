"""Drawings of rotary embeddings. matplotlib is imported when something is drawn."""

import importlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE

# Of Okabe and Ito, told apart with any common colour blindness; grey for what is compared with.
STYLES = (("#7F7F7F", "o"), ("#0072B2", "."), ("#D55E00", "x"), ("#009E73", "+"), ("#CC79A7", "d"))
INK = "#767676"
"""For words and lines: told from white, and from the black of a page in dark colours."""
_SIZE = (5.2, 3.5)
"""Inches of one drawing: no wider, so that its words can be read on a page of a phone."""
_LOOK = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "grid.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.facecolor": "none",
    "legend.frameon": False,
    # Of an SVG: words stay words, and names of its parts are the same each time.
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "rope_xp",
}


def style(i: int, of: int) -> tuple[str, str]:
    """Return colour and marker of a curve among others: grey for the first, unless it is alone."""
    return STYLES[(i if of > 1 else 1) % len(STYLES)]


def draw_wavelengths(
    axes: Any, ropes: dict[str, RoPE], head_dim: int, contexts: dict[str, int]
) -> None:
    """Draw how many tokens a turn of each pair takes.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Where to draw.
    ropes : dict of str to RoPE
        What to compare, by the name in the legend. The first of several is drawn in grey. Lengths
        are fixed.
    head_dim : int
        Components of a head.
    contexts : dict of str to int
        Lengths in tokens, by name, each drawn as a horizontal line. A pair above it does not come
        to a full turn within that length.

    Notes
    -----
    Pairs of frequency zero have no wavelength. They are triangles at the upper edge, and the legend
    counts them.
    """
    axes.set_yscale("log")
    for i, (name, rope) in enumerate(ropes.items()):
        _draw_one(axes, name, rope.wavelengths(head_dim), *style(i, len(ropes)))
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


def _draw_one(axes: Any, name: str, wavelengths: Any, colour: str, marker: str) -> None:
    pairs = np.arange(len(wavelengths))
    turns = np.isfinite(wavelengths)
    standing = int(np.count_nonzero(~turns))
    label = (
        f"{name};\n{standing} of {len(pairs)} pairs do not turn (triangles)" if standing else name
    )
    style = {
        "color": colour,
        "markersize": 4,
        "markerfacecolor": "none" if marker == "o" else colour,
    }
    axes.plot(pairs[turns], wavelengths[turns], marker, label=label, **style)
    if standing:
        edge = axes.get_xaxis_transform()  # pairs across, shares of the height up
        above = np.full(standing, 0.97)
        axes.plot(pairs[~turns], above, "^", color=colour, markersize=4, transform=edge)


def write_wavelengths(
    path: Path, drawings: dict[str, tuple[dict[str, RoPE], int, dict[str, int]]]
) -> None:
    """Write a picture with axes for each title: the ropes, head_dim and contexts to draw there.

    Raises
    ------
    RopeError, OSError
        As :func:`picture`.
    """
    with picture(path, len(drawings)) as grid:
        for axes, (title, (ropes, head_dim, contexts)) in zip(grid, drawings.items(), strict=True):
            axes.set_title(title)
            draw_wavelengths(axes, ropes, head_dim, contexts)


@contextmanager
def picture(path: Path, drawings: int = 1) -> Iterator[list[Any]]:
    """Yield axes to draw on, one below the other; then write the picture.

    Raises
    ------
    RopeError
        If matplotlib is missing, or does not know the format that the name ends with.
    OSError
        If the file cannot be written.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
        figures = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        msg = f"drawing needs matplotlib (pip install 'rope-xp[plot]'): {error}"
        raise RopeError(msg) from error
    size = (_SIZE[0], _SIZE[1] * drawings)
    with matplotlib.rc_context(_LOOK):
        figure = figures.Figure(figsize=size, dpi=220, layout="constrained")
        yield list(figure.subplots(drawings, squeeze=False).ravel())
        save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a picture. An SVG has no background, and is the same each time.

    Raises
    ------
    RopeError
        If matplotlib does not know the format that the name ends with.
    OSError
        If the file cannot be written.
    """
    matplotlib = importlib.import_module("matplotlib")
    if path.suffix.lower() != ".svg":
        try:
            figure.savefig(path)
        except ValueError as error:  # matplotlib's word for a suffix that it does not know
            raise RopeError(f"{path}: {error}") from error
        return
    written = io.StringIO()
    with matplotlib.rc_context(_LOOK):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    # A hundredth of a point is as fine as a screen; what differs between machines is finer.
    text = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", written.getvalue())
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
