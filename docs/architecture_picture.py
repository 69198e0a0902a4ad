"""Draw architecture.svg: the packages that a call passes through."""

from __future__ import annotations

from pathlib import Path

import pictures

from rope_xp._cli import plots

BOXES = {
    "rope_xp": (0.1, 0.8, "public names:\nRoPE, Angles, apply"),
    "_arguments": (2.8, 0.8, "checks arguments,\nbuilds a Call"),
    "_dispatch": (5.5, 0.8, "caches calls, finds\nbackend and path"),
    "_rotation": (8.2, 1.55, "portable path:\nthe specification"),
    "rope_xp_backends": (8.2, 0.05, "glue and kernels\nof each library"),
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
    drawing, axes = pictures.figure(2.8, width=10.5)
    for package, (left, bottom, purpose) in BOXES.items():
        text = f"{package}\n{purpose}"
        pictures.box(axes, left, bottom, WIDTH, HEIGHT, COLOURS[package], text)
    for start, end in ARROWS:
        tail, tip = (BOXES[name] for name in (start, end))
        axes.annotate(
            "",
            (tip[0], tip[1] + HEIGHT / 2),
            (tail[0] + WIDTH, tail[1] + HEIGHT / 2),
            arrowprops={"arrowstyle": "->", "color": plots.INK},
        )
    plots.save(drawing, folder / "architecture.svg")
