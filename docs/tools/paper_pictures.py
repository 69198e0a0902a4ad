"""Draw the pictures of the page that runs the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from plots import DASHES, INK, STYLES, picture

from rope_xp import RoPE
from rope_xp.papers import analysis, attention

HEAD_DIM = 128
ROPES = {f"base {base:,}": RoPE(base=float(base)) for base in (10_000, 500_000, 1_000_000)}
NEAR, FAR = 250, 2**16
POINTS = 300
"""Of a curve, at most. Up to some forty tokens each is one distance, and there is no band."""
TOKENS, HEADS = 512, 16


def decay(folder: Path) -> None:
    """Draw Figure 2 for several bases, as the paper has it and over longer distances."""
    with picture(folder / "paper_decay_near.svg") as (axes,):
        at = np.arange(NEAR + 1)  # each of them: a linear axis has room
        for (name, rope), (colour, _), dashes in zip(ROPES.items(), STYLES, DASHES, strict=False):
            bound = analysis.decay_bound(rope, HEAD_DIM, at)
            axes.plot(at, bound, color=colour, linestyle=dashes, linewidth=1.4, label=name)
        axes.set_xlim(0, NEAR)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("distance of query and key, tokens")
        axes.set_ylabel("bound on the score, mean of $|S_j|$")
        axes.set_title(f"Figure 2 of the paper, {HEAD_DIM} components")
        axes.legend(fontsize=8)
    with picture(folder / "paper_decay_far.svg") as (axes,):
        for i, (name, rope) in enumerate(ROPES.items()):
            bound = analysis.decay_bound(rope, HEAD_DIM, np.arange(1, FAR + 1))
            _draw_band(axes, bound, name, STYLES[i][0], DASHES[i])
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bound on the score, mean of $|S_j|$")
        axes.set_xscale("log")
        axes.set_xlim(1, FAR)
        axes.set_xlabel("distance of query and key, tokens")
        title = "line: mean of distances nearby; band: all of them"
        place = {"loc": "outside lower center", "ncols": 2, "title_fontsize": 8}
        axes.get_figure().legend(fontsize=8, title=title, **place)
        axes.set_title(f"the same up to {FAR:,} tokens")


def _draw_band(axes: Any, values: np.ndarray, label: str, colour: str, dashes: Any) -> None:
    """Draw values at distances from 1, which waver, as their mean and a band."""
    edges = np.unique(np.geomspace(1, len(values) + 1, POINTS).round().astype(np.int64)) - 1
    starts, counts = edges[:-1], np.diff(edges)
    distances = np.arange(1, len(values) + 1)
    middle, mean = (np.add.reduceat(numbers, starts) / counts for numbers in (distances, values))
    low, high = (reduce.reduceat(values, starts) for reduce in (np.minimum, np.maximum))
    axes.fill_between(middle, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(middle, mean, color=colour, linestyle=dashes, linewidth=1.4, label=label)


def linear_weights(rope: RoPE | None) -> np.ndarray:
    """Return what the last token gives each other in linear attention, times the tokens.

    Shape (heads, tokens), by distance. q and k are random, and v is one-hot so that it shows the
    weights. The heads are a batch, so that they share it.
    """
    q, k = np.random.default_rng(0).standard_normal((2, HEADS, TOKENS, 1, HEAD_DIM))
    v = np.broadcast_to(np.eye(TOKENS)[:, None], (HEADS, TOKENS, 1, TOKENS))
    weights = attention.linear_attention(q, k, v, rope=rope)[:, -1, 0]
    return TOKENS * weights[:, ::-1]


def linear(folder: Path) -> None:
    """Draw the weights of linear attention with and without rotation."""
    at = np.arange(TOKENS)
    with picture(folder / "paper_linear.svg") as (axes,):
        for (name, rope), (colour, _), dashes in zip(
            {"without RoPE": None, "with RoPE": RoPE()}.items(), STYLES, DASHES, strict=False
        ):
            weights = linear_weights(rope)
            low, high = weights.min(axis=0), weights.max(axis=0)
            axes.fill_between(at, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(at, weights.mean(axis=0), dashes, color=colour, linewidth=1.4, label=name)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xlim(0, TOKENS - 1)
        axes.set_xlabel("distance of query and key, tokens")
        axes.set_ylabel("weight, times the number of tokens")
        title = f"line: mean of {HEADS} random heads; band: all of them"
        where = {"loc": "outside lower center", "ncols": 2}  # the bands leave no room inside
        axes.get_figure().legend(title=title, fontsize=8, title_fontsize=8, **where)


def write(folder: Path) -> None:
    """Write every picture to a folder."""
    decay(folder)
    linear(folder)
