"""Heads and tokens as the axes of a matrix product, for the functions of the papers."""

from __future__ import annotations

from rope_xp._typing import Array, Namespace


def swap_tokens_and_heads(xp: Namespace, x: Array) -> Array:
    """Exchange the second and third axis from the end."""
    # moveaxis came only with 2023.12 of the standard.
    n = x.ndim
    return xp.permute_dims(x, (*range(n - 3), n - 2, n - 3, n - 1))


def repeat_heads(xp: Namespace, x: Array, heads: int) -> Array:
    """Return (batch..., tokens, heads, d) of (batch..., tokens, fewer heads, d).

    Each head of x is repeated for a run of heads that follow each other, as torch and jax have it.
    """
    *lead, fewer, d = x.shape
    if fewer == heads:
        return x
    runs = xp.broadcast_to(x[..., None, :], (*lead, fewer, heads // fewer, d))
    return xp.reshape(runs, (*lead, heads, d))
