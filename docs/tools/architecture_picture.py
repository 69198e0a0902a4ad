"""Draw architecture.svg: the packages that a call passes through."""

from __future__ import annotations

from pathlib import Path

import pictures
import plots

BOXES = {
    "rope_xp": (0.05, 2.95, "public names:\nRoPE, Angles, apply"),
    "_arguments": (0.05, 1.5, "checks arguments,\nbuilds a Call"),
    "_dispatch": (0.05, 0.05, "caches calls, finds\nbackend and path"),
    "_rotation": (2.95, 1.5, "portable path:\nthe specification"),
    "rope_xp_backends": (2.95, 0.05, "glue and kernels\nof each library"),
}
"""Package, its place in inches, and what it does."""
ARROWS = (
    ("rope_xp", "_arguments"),
    ("_arguments", "_dispatch"),
    ("_dispatch", "_rotation"),
    ("_dispatch", "rope_xp_backends"),
)
COLOURS = dict(zip(BOXES, ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#CC79A7"), strict=True))
WIDTH, HEIGHT = 2.2, 1.1


def write(folder: Path) -> None:
    """Write the picture to a folder."""
    drawing, axes = pictures.figure(4.1, 5.2)
    for package, (left, bottom, purpose) in BOXES.items():
        text = f"{package}\n{purpose}"
        pictures.box(axes, left, bottom, WIDTH, HEIGHT, COLOURS[package], text)
    for start, end in ARROWS:
        (x, y, _), (x_end, y_end, _) = BOXES[start], BOXES[end]
        down = x == x_end
        axes.annotate(
            "",
            (x_end + WIDTH / 2, y_end + HEIGHT) if down else (x_end, y_end + HEIGHT / 2),
            (x + WIDTH / 2, y) if down else (x + WIDTH, y + HEIGHT / 2),
            arrowprops={"arrowstyle": "->", "color": plots.INK},
        )
    plots.save(drawing, folder / "architecture.svg")
