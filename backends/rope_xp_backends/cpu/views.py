"""Views of numpy arrays with their axes as (batch, tokens, heads, head_dim)."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rope_xp._core.call import Axes
from rope_xp._core.memory import CollapsedDim, StridedLayout, collapse_dims

Arrays: TypeAlias = Sequence[np.ndarray]
Views: TypeAlias = tuple[list[np.ndarray], list[np.ndarray]]


def in_order(arrays: Arrays, angles: Arrays, axes: Axes) -> Iterator[Views]:
    """Yield views of arrays and angles: once if one batch stride and one token stride suffice.

    Parameters
    ----------
    arrays : sequence of array
        With ``axes``; yielded as (batch, tokens, heads, head_dim). No elements are copied.
    angles : sequence of array
        Positions or tables, broadcastable to (batch..., tokens, any); yielded as (batch or 1,
        tokens or 1, any). Without them the index in the second axis is the position.
    axes : Axes
        Where the axes of ``arrays`` lie.
    """
    if len(axes.batch) > 1:
        yield from _folded(arrays, angles, axes)
    else:
        yield [_ordered(x, axes) for x in arrays], [a[(None,) * (3 - a.ndim)] for a in angles]


def _ordered(x: np.ndarray, axes: Axes) -> np.ndarray:
    if axes.names == "bshd":
        return x
    heads = () if axes.heads is None else (axes.heads,)
    x = x.transpose((*axes.batch, axes.tokens, *heads, x.ndim - 1))
    if not heads:
        x = x[..., None, :]
    return x if axes.batch else x[None]


def _folded(arrays: Arrays, angles: Arrays, axes: Axes) -> Iterator[Views]:
    """Collapse batch axes into as few as strides allow, and yield a view for each outer index."""
    of_angles = [StridedLayout(a.shape[:-1], a.strides[:-1]) for a in angles]
    found = collapse_dims(
        axes.batch_tokens, [StridedLayout(x.shape, x.strides) for x in arrays], of_angles
    )
    alone = CollapsedDim(1, (0,) * (len(arrays) + max(len(angles), 1)))
    if not angles and not (found and found[-1].steps[-1]):
        found.append(alone)  # a single token, which is the last axis all the same
    found = [alone] * (2 - len(found)) + found
    if axes.heads is None:
        arrays = [x[..., None, :] for x in arrays]
    heads = -2 if axes.heads is None else axes.heads
    views = [_strided(x, found, i, (heads, -1)) for i, x in enumerate(arrays)]
    views += [
        _strided(a, found, len(arrays) + i, (-1,), broadcast=True) for i, a in enumerate(angles)
    ]
    for index in np.ndindex(tuple(row.length for row in found[:-2])):
        parts = [x[tuple(map(min, index, (n - 1 for n in x.shape)))] for x in views]
        yield parts[: len(arrays)], parts[len(arrays) :]


def _strided(
    x: np.ndarray,
    found: list[CollapsedDim],
    which: int,
    behind: Sequence[int],
    *,
    broadcast: bool = False,
) -> np.ndarray:
    """Return a view along collapsed axes, and behind them axes of x itself.

    With ``broadcast`` an axis of stride 0 has length 1.
    """
    steps = [row.steps[which] for row in found]
    lengths = [
        1 if broadcast and step == 0 else row.length for step, row in zip(steps, found, strict=True)
    ]
    lengths += [x.shape[axis] for axis in behind]
    steps += [x.strides[axis] for axis in behind]
    return as_strided(x, lengths, steps)
