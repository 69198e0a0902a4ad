"""Drawings of what happens to scores, and to accuracy, over distance and position."""

from typing import Any

import numpy as np
from array_api_compat import numpy as xp
from numpy.typing import NDArray

from rope_xp._bench import formulas
from rope_xp._cli.plots import INK, style
from rope_xp._core.errors import RopeError
from rope_xp.papers import analysis
from rope_xp.rope import RoPE

DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
"""A line for each colour of STYLES, to be told apart in black and white."""
_POINTS = 300
"""Of a curve, at most. Up to some forty tokens each is one distance, and there is no band."""
_BAND = "line: mean of distances nearby; band: all of them"
_BLOCKS, _BLOCK = 60, 64
_EXACT_BELOW = 10_000_000
"""Up to where rounding does not reach the float64 that accuracy is measured against."""


def draw_decay(axes: Any, ropes: dict[str, RoPE], head_dim: int, distance: int) -> None:
    """Draw RoFormer's bound over distance, in grey for the first of several."""
    at = np.arange(1, distance + 1)
    for i, (name, rope) in enumerate(ropes.items()):
        _curve(axes, (i, len(ropes)), at, analysis.decay_bound(rope, head_dim, at), name)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bound on the score, mean of $|S_j|$")
    _finish_distances(axes, distance, _BAND)


def draw_score(axes: Any, ropes: dict[str, RoPE], head_dim: int, distance: int) -> None:
    """Draw the score of two vectors of ones over distance, and where it is first negative."""
    at = np.arange(1, distance + 1)
    for i, (name, rope) in enumerate(ropes.items()):
        first = analysis.max_distance(rope, head_dim, limit=distance)
        told = "not negative" if first is None else f"first negative at {first:,}"
        score = analysis.score_curve(rope, head_dim, at) / head_dim
        _curve(axes, (i, len(ropes)), at, score, f"{name}; {told}")
        if first is not None:
            axes.plot(
                [first], [0], "v", color=style(i, len(ropes))[0], markeredgecolor=INK, zorder=3
            )
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_ylabel("score of all-ones vectors,\nshare of that at distance 0")
    _finish_distances(axes, distance, f"{_BAND}; triangle: first negative")


def _curve(
    axes: Any, which: tuple[int, int], at: NDArray[Any], values: NDArray[Any], label: str
) -> None:
    """Draw a curve that wavers faster than a page can show: its mean, and the band it fills."""
    edges = np.unique(np.geomspace(1, len(at) + 1, _POINTS).round().astype(np.int64)) - 1
    starts, counts = edges[:-1], np.diff(edges)
    middle, mean = (np.add.reduceat(numbers, starts) / counts for numbers in (at, values))
    low, high = (reduce.reduceat(values, starts) for reduce in (np.minimum, np.maximum))
    colour, _ = style(*which)
    axes.fill_between(middle, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(middle, mean, color=colour, linestyle=DASHES[which[0]], linewidth=1.4, label=label)


def _finish_distances(axes: Any, distance: int, title: str) -> None:
    axes.set_xscale("log")
    axes.set_xlim(1, max(distance, 2))
    axes.set_xlabel("distance of query and key, tokens")
    _legend(axes, title)


def _legend(axes: Any, title: str | None = None) -> None:
    """Name the curves below the axes, where no curve can be hidden, whatever is compared."""
    where = {"loc": "outside lower center", "ncols": 2}
    axes.get_figure().legend(fontsize=8, title=title, title_fontsize=8, **where)


def draw_accuracy(axes: Any, ropes: dict[str, RoPE], head_dim: int, distance: int) -> None:
    """Draw the largest error of cos and sin over position, of rope_xp and of the usual formula.

    Raises
    ------
    RopeError
        If float64 is not exact enough that far.
    """
    if distance > _EXACT_BELOW:
        msg = f"accuracy is measured against float64, up to position {_EXACT_BELOW}; got {distance}"
        raise RopeError(msg)
    for name, rope in ropes.items():
        if rope.base < 1:
            msg = f"accuracy is measured where no frequency exceeds 1, for bases from 1; got {name}"
            raise RopeError(msg)
    ends = np.unique(np.geomspace(1, distance, _BLOCKS).round().astype(np.int64))
    errors = {
        name: np.array([_errors(rope, head_dim, int(end)) for end in ends]).T
        for name, rope in ropes.items()
    }
    for row, (method, line) in enumerate((("float32 product", "--"), ("rope_xp", "-"))):
        for i, (name, both) in enumerate(errors.items()):
            colour, _ = style(i, len(errors))
            label = f"{method}, {name}"
            axes.plot(ends, both[row], line, color=colour, linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, max(distance, 2))
    axes.set_xlabel("position, tokens")
    axes.set_ylabel("largest error of cos and sin,\nabsolute")
    _legend(axes)


def _errors(rope: RoPE, head_dim: int, end: int) -> tuple[float, float]:
    """Return the errors of the usual formula and of rope_xp among the positions up to an end."""
    positions = np.arange(max(1, end - _BLOCK + 1), end + 1)
    frequencies = rope.base ** (-np.arange(0, head_dim, 2) / head_dim)
    exact = formulas.turns(positions, frequencies)
    half = head_dim // 2
    usual = formulas.usual_cos_sin(xp, positions, head_dim, rope.base)
    cos, sin = (table[:, :half] for table in usual)
    return _error(cos, sin, exact), _error(*rope.cos_sin(positions, head_dim), exact)


def _error(cos: NDArray[Any], sin: NDArray[Any], exact: NDArray[np.complex128]) -> float:
    return float(max(np.abs(cos - exact.real).max(), np.abs(sin - exact.imag).max()))
