"""Draw how scores decay with distance, how long pairs take to turn, or how exact cos and sin are.

- ``decay``: RoFormer's bound on the score over distance
- ``score``: the score of two vectors of ones, and the distance where it is first negative
- ``wavelengths``: how many tokens a turn of each pair takes
- ``accuracy``: the largest error of cos and sin over position, beside the float32 formula in use
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from rope_xp._cli import arguments, curves, plots
from rope_xp._core.errors import RopeError
from rope_xp.papers import analysis
from rope_xp.rope import RoPE


def _draw_wavelengths(axes: Any, ropes: dict[str, RoPE], head_dim: int, distance: int) -> None:
    labelled = {}
    for name, rope in ropes.items():
        turning = analysis.turns(rope, head_dim, distance) >= 1
        count = f"{np.count_nonzero(turning)} of {len(turning)} pairs turn within the context"
        labelled[f"{name}; {count}"] = rope
    plots.draw_wavelengths(axes, labelled, head_dim, {"context": distance})


_KINDS = {
    "decay": (curves.draw_decay, 4096),
    "wavelengths": (_draw_wavelengths, 4096),
    "score": (curves.draw_score, 32768),
    "accuracy": (curves.draw_accuracy, 10_000_000),
}
"""The function that draws each kind, and its default distance."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    # argparse would name the options first; --base would then take the kind for another base.
    parser.usage = (
        f"{parser.prog} [-h] {{{','.join(_KINDS)}}}\n"
        "    [--base B [B ...]] [--head-dim N] [--distance N] [--out FILE.png]"
    )
    parser.add_argument("kind", choices=_KINDS, help="what to draw")
    parser.add_argument(
        "--base",
        type=arguments.positive,
        nargs="+",
        default=[10_000.0],
        metavar="B",
        help="bases to compare in one picture, up to five; default 10000",
    )
    parser.add_argument(
        "--head-dim",
        type=arguments.count,
        default=128,
        metavar="N",
        help="default %(default)s",
    )
    defaults = ", ".join(f"{kind} {distance}" for kind, (_, distance) in _KINDS.items())
    parser.add_argument(
        "--distance",
        type=arguments.count,
        metavar="N",
        help=f"tokens up to which to draw, for wavelengths the context; default: {defaults}",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.png", help="where to write; default: KIND.png"
    )


def run(options: argparse.Namespace) -> int:
    """Write the picture and print its path; return the exit status."""
    draw, distance = _KINDS[options.kind]
    path = options.out or Path(options.kind)
    if not path.name:
        raise RopeError(f"--out {path} names no file; give a name such as {options.kind}.png")
    path = path if path.suffix else path.with_suffix(".png")
    ropes = {f"base {base:,.10g}": RoPE(base=base) for base in options.base}
    most = len(plots.STYLES)
    if len(ropes) > most:
        raise RopeError(f"{most} bases at most can be told apart in one picture; got {len(ropes)}")
    try:
        with plots.picture(path) as (axes,):
            axes.set_title(f"head of {options.head_dim} components")
            draw(axes, ropes, options.head_dim, options.distance or distance)
    except MemoryError as error:
        raise RopeError(f"--distance {options.distance} is too far: {error}") from error
    print(path)
    return 0
