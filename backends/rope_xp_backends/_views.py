"""Views of numpy arrays with axes in one order, which is all that kernels know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from rope_xp._axes import Axes

Arrays: TypeAlias = Sequence[np.ndarray]


def in_order(
    arrays: Arrays, positions: Arrays, tables: Arrays, axes: Axes
) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Yield (arrays, angles), once for each index of the batch axes beyond one.

    Parameters
    ----------
    arrays : sequence of array
        With ``axes``; yielded as (batch, tokens, heads, head_dim). No elements are copied.
    positions, tables : sequence of array
        (batch..., tokens) and (batch..., tokens, r/2), as far as they have these axes; yielded as
        (batch or 1, tokens or 1) and (batch or 1, tokens or 1, r/2), the positions first.
    axes : Axes
        Where the axes of ``arrays`` lie.
    """
    outer = max(len(axes.batch) - 1, 0)
    views = [_ordered(x, axes) for x in arrays]
    angles = [_padded(p, outer + 2) for p in positions] + [_padded(t, outer + 3) for t in tables]
    if outer == 0:
        yield views, angles
        return
    for index in np.ndindex(views[0].shape[:outer]):
        yield (
            [x[index] for x in views],
            [a[tuple(min(i, n - 1) for i, n in zip(index, a.shape, strict=False))] for a in angles],
        )


def _ordered(x: np.ndarray, axes: Axes) -> np.ndarray:
    if axes.names == "bshd":
        return x
    heads = () if axes.heads is None else (axes.heads,)
    x = x.transpose((*axes.batch, axes.tokens, *heads, x.ndim - 1))
    if not heads:
        x = x[..., None, :]
    return x if axes.batch else x[None]


def _padded(angles: np.ndarray, ndim: int) -> np.ndarray:
    missing = ndim - angles.ndim
    return angles[(None,) * missing] if missing else angles
