"""Draw moved_keys.svg: which keys of a cache turn, and by how much, when tokens are dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pictures
import plots

import rope_xp

SIDE, LEFT = 0.36, 1.15
COUNT, DROPPED, PAIRS = 12, (2, 6), (0, 8, 16)


def write(folder: Path) -> None:
    """Draw the cache before and after, and the turns of three pairs of a head of 64 components."""
    still, turned, *_ = pictures.COLOURS
    start, stop = DROPPED
    is_kept = [i for i in range(COUNT) if not start <= i < stop]
    drawing, axes = pictures.figure(3.2, LEFT + COUNT * SIDE + 0.1)

    def row(y: float, name: str, texts: list[str], places: list[int], colours: list[str]) -> None:
        pictures.note(axes, LEFT - 0.12, y + SIDE / 2, name, ha="right", size=8)
        for text, place, colour in zip(texts, places, colours, strict=True):
            pictures.box(axes, LEFT + place * SIDE, y, SIDE, SIDE, colour, text, 7.5)

    colour = [still if i < start else pictures.GREY if i < stop else turned for i in range(COUNT)]
    row(2.7, "position before", [*map(str, range(COUNT))], [*range(COUNT)], colour)
    new = np.arange(len(is_kept))
    kept_colours = [colour[i] for i in is_kept]
    row(2.1, "position after", [*map(str, new)], [*new], kept_colours)
    degrees = np.degrees(rope_xp.RoPE(layout="half").frequencies(64))
    for line, pair in enumerate(PAIRS):
        turns = (new - is_kept) * degrees[pair]
        texts = ["0" if not turn else f"{turn:.3g}" for turn in turns]
        row(1.3 - line * 0.45, f"pair {pair}", texts, [*new], kept_colours)
    pictures.note(axes, LEFT, 1.3 + SIDE + 0.14, "turn of the key, degrees", size=8)
    plots.save(drawing, folder / "moved_keys.svg")
