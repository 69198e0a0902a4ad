"""Draw scores over distance, wavelengths of pairs, or the error of cos and sin over position.

- ``decay``: RoFormer's bound on the score over distance
- ``score``: the score of two vectors of ones, and the distance where it is first negative
- ``wavelengths``: how many tokens a turn of each pair takes
- ``accuracy``: the largest error of cos and sin over position, also of the usual float32 formula
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import numpy as xp
from numpy.typing import NDArray

from rope_xp._bench import formulas
from rope_xp._cli import plots, terminal
from rope_xp._core.errors import RopeError, rewording
from rope_xp.papers import analysis
from rope_xp.rope import RoPE

_POINTS = 300
"""Of a curve, at most. Up to some forty tokens each is one distance, and there is no band."""
_BAND = "line: mean of distances nearby; band: all of them"
_DISTANCE = "distance of query and key, tokens"
_BLOCKS, _BLOCK = 60, 64
_EXACT_BELOW = 10_000_000
"""Positions below which float64 is exact enough as a reference; see _bench.formulas."""


def draw_decay(axes: Any, ropes: dict[str, RoPE], head_dim: int, distance: int) -> None:
    for i, (name, rope) in enumerate(ropes.items()):
        bound = analysis.decay_bound(rope, head_dim, np.arange(1, distance + 1))
        _draw_curve(axes, bound, name, i, len(ropes))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bound on the score, mean of $|S_j|$")
    _finish(axes, distance, _DISTANCE, _BAND)


def draw_score(axes: Any, ropes: dict[str, RoPE], head_dim: int, distance: int) -> None:
    for i, (name, rope) in enumerate(ropes.items()):
        first = analysis.max_distance(rope, head_dim, limit=distance)
        sign = "not negative" if first is None else f"first negative at {first:,}"
        score = analysis.score_curve(rope, head_dim, np.arange(1, distance + 1)) / head_dim
        colour = _draw_curve(axes, score, f"{name}; {sign}", i, len(ropes))
        if first is not None:
            axes.plot([first], [0], "v", color=colour, markeredgecolor=plots.INK, zorder=3)
    axes.axhline(0, color=plots.INK, linewidth=0.8)
    axes.set_ylabel("score of all-ones vectors,\nshare of that at distance 0")
    _finish(axes, distance, _DISTANCE, f"{_BAND}; triangle: first negative")


def _draw_curve(axes: Any, values: NDArray[Any], label: str, i: int, curves: int) -> str:
    """Draw values at distances from 1, which waver, as their mean and a band; return the colour."""
    edges = np.unique(np.geomspace(1, len(values) + 1, _POINTS).round().astype(np.int64)) - 1
    starts, counts = edges[:-1], np.diff(edges)
    distances = np.arange(1, len(values) + 1)
    middle, mean = (np.add.reduceat(numbers, starts) / counts for numbers in (distances, values))
    low, high = (reduce.reduceat(values, starts) for reduce in (np.minimum, np.maximum))
    colour, _ = plots.choose_style(i, curves)
    axes.fill_between(middle, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(middle, mean, color=colour, linestyle=plots.DASHES[i], linewidth=1.4, label=label)
    return colour


def _finish(axes: Any, distance: int, label: str, title: str | None = None) -> None:
    """Scale and name the x axis, and put the legend below it, where it hides no curve."""
    axes.set_xscale("log")
    axes.set_xlim(1, max(distance, 2))
    axes.set_xlabel(label)
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 2}
    axes.get_figure().legend(fontsize=8, title=title, title_fontsize=8, **place)


def draw_accuracy(axes: Any, ropes: dict[str, RoPE], head_dim: int, distance: int) -> None:
    if distance > _EXACT_BELOW:
        raise RopeError(f"float64 measures accuracy up to position {_EXACT_BELOW}; got {distance}")
    if below := [name for name, rope in ropes.items() if rope.base < 1]:
        raise RopeError(f"accuracy needs frequencies of at most 1, bases from 1; got {below[0]}")
    stops = np.unique(np.geomspace(1, distance, _BLOCKS).round().astype(np.int64))
    errors = [
        np.array([_measure_errors(rope, head_dim, int(stop)) for stop in stops])
        for rope in ropes.values()
    ]
    for column, (method, line) in enumerate((("float32 product", "--"), ("rope_xp", "-"))):
        for i, name in enumerate(ropes):
            look = {"color": plots.choose_style(i, len(ropes))[0], "linewidth": 1.2}
            axes.plot(stops, errors[i][:, column], line, label=f"{method}, {name}", **look)
    axes.set_yscale("log")
    axes.set_ylabel("largest error of cos and sin,\nabsolute")
    _finish(axes, distance, "position, tokens")


def _measure_errors(rope: RoPE, head_dim: int, stop: int) -> tuple[float, ...]:
    """Return the errors of the usual formula and of rope_xp in the block of positions at an end."""
    positions = np.arange(max(1, stop - _BLOCK + 1), stop + 1)
    exact = formulas.turns(positions, rope.base ** (-np.arange(0, head_dim, 2) / head_dim))
    usual_tables = formulas.usual_cos_sin(xp, positions, head_dim, rope.base)
    usual = [table[:, : head_dim // 2] for table in usual_tables]
    return tuple(
        float(max(np.abs(cos - exact.real).max(), np.abs(sin - exact.imag).max()))
        for cos, sin in (usual, rope.cos_sin(positions, head_dim))
    )


_KINDS: dict[str, tuple[Callable[[Any, dict[str, RoPE], int, int], None], int]] = {
    "decay": (draw_decay, 4096),
    "wavelengths": (
        lambda axes, ropes, dim, n: plots.draw_wavelengths(axes, ropes, dim, {"context": n}),
        4096,
    ),
    "score": (draw_score, 32768),
    "accuracy": (draw_accuracy, 10_000_000),
}
"""The function that draws each kind, and its default distance."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # argparse would name the options first; --base would then take the kind for another base.
    parser.usage = (
        f"{parser.prog} [-h] {{{','.join(_KINDS)}}}\n"
        "    [--base B [B ...]] [--head-dim N] [--distance N] [-o FILE.png]"
    )
    add = parser.add_argument
    add("kind", choices=_KINDS, help="what to draw")
    base_help = "bases to compare in one picture, up to five; default 10000"
    add("--base", type=terminal.positive, nargs="+", default=[1e4], metavar="B", help=base_help)
    add("--head-dim", type=terminal.count, default=128, metavar="N", help="default %(default)s")
    defaults = ", ".join(f"{kind} {distance}" for kind, (_, distance) in _KINDS.items())
    distance_help = f"largest distance, context or position, in tokens; default: {defaults}"
    add("--distance", type=terminal.count, metavar="N", help=distance_help)
    add("-o", "--out", type=Path, metavar="FILE.png", help="the picture; default: KIND.png")


def run(options: argparse.Namespace) -> int:
    draw, distance = _KINDS[options.kind]
    path = options.out or Path(options.kind)
    if not path.name:
        raise RopeError(f"--out {path} names no file; pass a name such as {options.kind}.png")
    path = path if path.suffix else path.with_suffix(".png")
    ropes = {f"base {base:,.10g}": RoPE(base=base) for base in options.base}
    limit = len(plots.STYLES)
    if len(ropes) > limit:
        raise RopeError(f"--base takes at most {limit} values; got {len(ropes)}")
    too_far = f"--distance {options.distance} is too far: "
    with rewording(MemoryError, too_far), plots.picture(path) as (axes,):
        axes.set_title(f"head of {options.head_dim} components")
        draw(axes, ropes, options.head_dim, options.distance or distance)
    terminal.write(str(path))
    return 0
