"""Draw the pictures of the pages.

Which components a pair has is found by rotating one-hot vectors, so that the pictures cannot differ
from the code. The colours are those of Okabe and Ito, which people with any common colour blindness
can distinguish; what a colour means is also written in every box.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import rope_xp
from rope_xp.papers import analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7")
GREY = "#80808066"
DARK = "#222222"  # words on a colour
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


def figure(height: float, width: float) -> tuple[Figure, Axes]:
    """Return a figure and its axes without frame, a unit on each axis equally long."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height))
    axes = drawing.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0.0, width)
    axes.set_ylim(0.0, height)
    return drawing, axes


def box(
    axes: Axes,
    left: float,
    bottom: float,
    width: float,
    height: float,
    colour: str,
    text: str = "",
    size: float = 10.5,
) -> None:
    """Draw one component, with a word in it."""
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((left, bottom), width, height, facecolor=colour, edgecolor=DARK, lw=0.8)
    )
    axes.text(
        left + width / 2, bottom + height / 2, text, ha="center", va="center", size=size, color=DARK
    )


def note(axes: Axes, x: float, y: float, text: str, **style: object) -> None:
    """Write a text."""
    axes.text(x, y, text, **({"size": 10.5, "color": INK, "va": "center"} | style))


def pairs(rope: rope_xp.RoPE, head_dim: int) -> tuple[list[str | None], list[str | None]]:
    """Return the name of each component as it is read and as it is written, None if untouched.

    A component's name is its pair and its place in it, such as "2b". A small turn of a one-hot
    vector leaves most of it on the component of the same name and some on its partner. The pair
    is known by the angle.
    """
    frequencies = rope.frequencies(head_dim)
    read: list[str | None] = [None] * head_dim
    written: list[str | None] = [None] * head_dim
    for c in range(head_dim):
        y = rope.rotate(np.eye(head_dim)[c : c + 1], [0.5])[0]
        if np.count_nonzero(y) == 1:
            continue
        (one, other) = np.flatnonzero(y)
        large, small = (one, other) if y[one] > abs(y[other]) else (other, one)
        angle = np.arctan2(abs(y[small]), y[large])
        pair = int(np.argmin(np.abs(0.5 * frequencies - angle)))
        name = f"{pair}{'a' if y[small] > 0 else 'b'}"  # the first turns towards the second
        read[c] = name
        written[large] = name
    return read, written


def layouts() -> Figure:
    """Draw eight components in each of the three layouts, as read and as written."""
    head_dim, side, left, gap = 8, 0.52, 1.05, 0.45
    names = ("interleaved", "half", "interleaved_to_half")
    width = left + head_dim * side + 0.1
    drawing, axes = figure(5.55, width)
    top = 5.15
    for i in range(head_dim):
        note(axes, left + (i + 0.5) * side, top + 0.2, str(i), ha="center")
    note(axes, left - 0.15, top + 0.2, "component", ha="right")
    y = top - 0.35
    for name in names:
        rows = pairs(rope_xp.RoPE(layout=name), head_dim)
        note(axes, left, y + 0.14, f'layout="{name}"', family="monospace")
        y -= side
        for label, row in zip(("reads", "writes"), rows, strict=True):
            note(axes, left - 0.15, y + side / 2, label, ha="right")
            for i, text in enumerate(row):
                box(axes, left + i * side, y, side, side, COLOURS[int(text[0])], text)
            y -= side
        y += side - gap
    note(
        axes,
        width / 2,
        0.25,
        "2a, 2b: first and second of pair 2, which\nturns by position x frequency 2",
        ha="center",
    )
    return drawing


def slices() -> Figure:
    """Draw which components of twelve are rotated, for some rotary_dim and rotary_offset."""
    head_dim, side, left = 12, 0.4, 1.05
    ropes = (
        ("rotary_dim=None", {}),
        ("rotary_dim=8", {"rotary_dim": 8}),
        ("rotary_dim=8, rotary_offset=2", {"rotary_dim": 8, "rotary_offset": 2}),
        ("rotary_dim=8, rotary_offset=-8", {"rotary_dim": 8, "rotary_offset": -8}),
    )
    drawing, axes = figure(4.1, left + head_dim * side + 0.1)
    y = 3.7
    for i in range(head_dim):
        note(axes, left + (i + 0.5) * side, y + 0.2, str(i), ha="center")
    note(axes, left - 0.15, y + 0.2, "component", ha="right")
    palette = (*COLOURS, "#F0E442", "#D55E00")
    for label, fields in ropes:
        read, _ = pairs(rope_xp.RoPE(layout="half", base=100.0, **fields), head_dim)
        y -= side + 0.22
        note(axes, left, y + side + 0.13, label, family="monospace", size=9.5)
        for i, text in enumerate(read):
            colour = GREY if text is None else palette[int(text[0])]
            box(axes, left + i * side, y, side, side, colour, text or "")
        y -= 0.12
    note(axes, left, 0.2, "grey: passes through untouched", ha="left")
    return drawing


def sections() -> Figure:
    """Draw which position component each of 64 frequencies reads, for two M-RoPE models."""
    rows = (
        ("contiguous: sections 16, 24, 24 (Qwen2-VL)", CONTIGUOUS),
        ("interleaved: sections 24, 20, 20 (Qwen3-VL)", INTERLEAVED),
    )
    left, side, half = 0.15, 5.0 / 32, 32
    drawing, axes = figure(3.45, 2 * left + half * side)
    y = 3.28
    for name, position_axes in rows:
        note(axes, left, y, name, size=9.5)
        for start in (0, half):
            y -= 0.45
            for i, component in enumerate(position_axes[start : start + half]):
                box(axes, left + i * side, y, side, 0.25, COLOURS[component], str(component), 8)
                if i % 8 == 0 or start + i == 63:
                    note(
                        axes, left + (i + 0.5) * side, y - 0.11, str(start + i), ha="center", size=8
                    )
        y -= 0.38
    note(axes, left, y + 0.08, "below the boxes: the frequency", size=9)
    for component, text in enumerate(("0: time", "1: height", "2: width")):
        x = left + 0.2 + component * 1.7
        box(axes, x, 0.12, 0.22, 0.22, COLOURS[component])
        note(axes, x + 0.3, 0.23, text)
    return drawing


def chart() -> tuple[Figure, Axes]:
    """Return a figure with axes that pages of any colour can show."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(LOOK):
        drawing = Figure(figsize=SIZE, layout="constrained")
        return drawing, drawing.add_subplot()


def decay() -> Figure:
    """Draw Figure 2 of the paper for several bases."""
    drawing, axes = chart()
    at = np.arange(251)
    for base, colour, line in zip((1e4, 5e5, 1e6), COLOURS, ("-", "--", ":"), strict=False):
        bound = analysis.decay_bound(rope_xp.RoPE(base=base), 128, at)
        axes.plot(at, bound, color=colour, linestyle=line, lw=1.4, label=f"base {base:,.0f}")
    axes.set(xlim=(0, 250), xlabel="distance of query and key, tokens")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bound on the score, mean of $|S_j|$")
    axes.legend(fontsize=8)
    return drawing


CONTIGUOUS = (0,) * 16 + (1,) * 24 + (2,) * 24
INTERLEAVED = tuple(i % 3 if i < 60 else 0 for i in range(64))


def accuracy() -> Figure:
    """Draw the largest error of cos and sin by position: of a float32 product, and of rope_xp.

    The product is rounded to float32, its cos and sin are not: so the picture is the same on every
    machine, whatever its cos.
    """
    ends = np.unique(np.geomspace(16, 1e7, 60).round().astype(np.int64))
    rope = rope_xp.RoPE()
    frequencies = rope.frequencies(128)
    errors = []
    for end in ends:
        positions = np.arange(max(0, end - 256), end)
        exact = np.exp(1j * np.outer(positions, frequencies))
        product = np.outer(positions.astype(np.float32), frequencies.astype(np.float32))
        cos, sin = rope.cos_sin(positions, 128)
        ways = np.exp(1j * product.astype(np.float64)), cos + 1j * sin.astype(np.float64)
        errors.append(
            [max(abs(e.real).max(), abs(e.imag).max()) for e in (w - exact for w in ways)]
        )
    drawing, axes = chart()
    names = ("float32 position * inv_freq", "rope_xp")
    colours = ("#D55E00", "#0072B2")
    for name, column, colour in zip(names, np.array(errors).T, colours, strict=True):
        axes.plot(ends, column, color=colour, lw=2)
        axes.annotate(name, (ends[-1], column[-1]), xytext=(-4, 6), textcoords="offset points",
                      ha="right", color=colour)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="position, tokens", ylim=(1e-8, 10))
    axes.set_ylabel("largest error of cos, sin")
    axes.grid(alpha=0.3)
    return drawing


PICTURES = {
    "accuracy": accuracy,
    "layouts": layouts,
    "slices": slices,
    "sections": sections,
    "paper_decay": decay,
}


def write(folder: Path) -> None:
    """Write every picture to a folder, without a background and a date."""
    import matplotlib as mpl

    empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    for name, draw in PICTURES.items():
        svg = io.StringIO()
        with mpl.rc_context(LOOK):
            draw().savefig(svg, format="svg", transparent=True, metadata=empty)
        # Machines differ below a hundredth of a point, which no screen shows.
        text = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", svg.getvalue())
        lines = "\n".join(line.rstrip() for line in text.splitlines())
        (folder / f"{name}.svg").write_text(f"{lines}\n", "utf-8")
