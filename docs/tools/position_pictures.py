"""Draw what the builders of ``rope_xp.positions`` return."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pictures
import plots

from rope_xp import positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE, LEFT = 0.36, 1.05


def row(axes: Axes, y: float, name: str, numbers: np.ndarray, colours: list[str]) -> float:
    """Draw a line of tokens, a box each; return where the next line goes."""
    pictures.note(axes, LEFT - 0.12, y + SIDE / 2, name, ha="right", family="monospace", size=8)
    for i, (number, colour) in enumerate(zip(numbers, colours, strict=True)):
        pictures.box(axes, LEFT + i * SIDE, y, SIDE, SIDE, colour, str(number), 8.5)
    return y - SIDE


def title(axes: Axes, y: float, text: str) -> None:
    pictures.note(axes, 0.1, y + SIDE + 0.14, text, size=9)


def write(folder: Path) -> None:
    """Draw all builders in one picture."""
    first, second, third, _ = pictures.COLOURS
    drawing, axes = pictures.figure(6.6, LEFT + 12 * SIDE + 0.1)
    y = 5.85
    title(axes, y, "packed([0, 3, 7]): two sequences along one axis")
    row(axes, y, "positions", positions.packed([0, 3, 7]), [first] * 3 + [second] * 4)
    y -= 0.95
    title(axes, y, "offsets([17, 4], new_tokens=2): a sequence a row, behind its cache")
    for i, new in enumerate(positions.offsets([17, 4], new_tokens=2)):
        y = row(axes, y, f"sequence {i}", new, [pictures.COLOURS[i]] * 2)
    y -= 0.6
    title(axes, y, "zigzag(16, 2): a device a row, equal work under a causal mask")
    for i, held in enumerate(positions.zigzag(16, 2)):
        y = row(axes, y, f"device {i}", held, [first] * 4 + [second] * 4)
    y -= 0.6
    title(axes, y, "grid(2, 4): patches of a picture, row by row")
    for name, component in zip(("row", "column"), positions.grid(2, 4), strict=True):
        y = row(axes, y, name, component, [first] * 4 + [second] * 4)
    y -= 0.6
    title(axes, y, "mrope([3, (1, 2, 3), 3]): text, an image of 2 x 3 patches, text")
    colours = [first] * 3 + [second] * 6 + [third] * 3
    for name, component in zip(
        ("time", "height", "width"), positions.mrope([3, (1, 2, 3), 3]), strict=True
    ):
        y = row(axes, y, name, component, colours)
    plots.save(drawing, folder / "positions.svg")
