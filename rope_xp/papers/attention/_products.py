"""Arithmetic that the functions of :mod:`rope_xp.papers.attention` share, on checked arrays."""

import math

from rope_xp._core.typing import Array, Namespace
from rope_xp._dispatch.backend import Backend
from rope_xp.papers._heads import repeat_heads, swap_tokens_and_heads


def heads_first(xp: Namespace, x: Array, heads: int) -> Array:
    """Return (batch..., heads, tokens, d) of (batch..., tokens, fewer heads, d)."""
    return swap_tokens_and_heads(xp, repeat_heads(xp, x, heads))


def causal_mask(backend: Backend, x: Array, rows: int, columns: int) -> Array:
    """Return a (rows, columns) mask: True where the column comes no later than the row."""
    device = backend.device(x)
    return backend.arange(rows, device)[:, None] >= backend.arange(columns, device)[None, :]


def keep(xp: Namespace, mask: Array, x: Array, other: float) -> Array:
    """Return x where the mask is True, a number elsewhere."""
    # where itself takes a number only since 2024.12 of the standard.
    return xp.where(mask, x, xp.full_like(x, other))


def divide(xp: Namespace, x: Array, by: Array) -> Array:
    """Return x / by, and zero where by is zero."""
    # By infinity: a where of the quotient would leave gradients that are not numbers.
    return x / keep(xp, by != 0.0, by, math.inf)


def softmax(xp: Namespace, x: Array, axis: int) -> Array:
    """Return the softmax along an axis; zeros along lines that hold nothing but -inf."""
    if x.shape[axis] == 0:
        return x
    highest = xp.max(x, axis=axis, keepdims=True)
    # A line of -inf alone would give -inf - -inf, which is not a number.
    weights = xp.exp(x - keep(xp, xp.isfinite(highest), highest, 0.0))
    return divide(xp, weights, xp.sum(weights, axis=axis, keepdims=True))
