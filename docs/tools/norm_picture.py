"""Draw qk_norm.svg: bytes of memory that a component of q or k takes, normalized and rotated."""

from __future__ import annotations

from pathlib import Path

import plots

EAGER = {
    "to float32": (2, 4),
    "square": (4, 4),
    "mean": (4, 0),
    "times factor": (4, 4),
    "to bfloat16": (4, 2),
    "times weight": (2, 2),
    "times cos": (2, 2),
    "rotate_half": (3, 3),
    "times sin": (2, 2),
    "add": (4, 2),
}
"""Bytes read and written for a component of bfloat16, operation by operation. rotate_half negates
one half, then concatenates both."""
WAYS = {
    "one operation after another": EAGER,
    "a norm kernel, then a rotation": {"norm": (2, 2), "rotation": (2, 2)},
    "norm= of rope_xp": {"both": (2, 2)},
}
COLOURS = ("#56B4E9", "#E69F00")


def write(folder: Path) -> None:
    """Write the picture to a folder."""
    with plots.picture(folder / "qk_norm.svg") as (axes,):
        for i, operations in enumerate(WAYS.values()):
            left = 0
            for read, written in operations.values():
                for amount, colour in zip((read, written), COLOURS, strict=True):
                    axes.barh(i, amount, 0.5, left=left, color=colour)
                    axes.plot([left, left], [i - 0.25, i + 0.25], color=plots.INK, linewidth=0.5)
                    left += amount
            axes.text(left + 0.6, i, f"{left} bytes", va="center", size=9)
        for label, colour in zip(("read", "written"), COLOURS, strict=True):
            axes.barh(0, 0, color=colour, label=label)
        axes.set_yticks(range(len(WAYS)), list(WAYS))
        axes.invert_yaxis()
        axes.set_xlim(0, 72)
        axes.set_xlabel("bytes per bfloat16 component of q, k")
        axes.legend(frameon=False, loc="lower right")
