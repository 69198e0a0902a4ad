"""Checks and arithmetic that the functions of :mod:`rope_xp.papers.attention` share."""

import math
from typing import Any, NamedTuple

from rope_xp._arguments import fields, messages
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Namespace
from rope_xp._dispatch.backend import Backend
from rope_xp.papers import _heads
from rope_xp.rope import RoPE


class CheckedArrays(NamedTuple):
    """Arrays that fit each other, in the dtype of the arithmetic."""

    backend: Backend
    q: Array
    k: Array
    v: Array
    """k again where a function takes no v."""


def check_arrays(*, same_tokens: bool = False, **arrays: Any) -> CheckedArrays:
    """Check q, k and optionally v, and convert them to the dtype of the arithmetic."""
    backend, dtypes = _heads.check_arrays(**arrays)
    _heads.check_queries(arrays["q"], arrays["k"])
    if same_tokens:
        shape = (*arrays["q"].shape[:-2], ..., ...)
        _heads.check_shape("k", arrays["k"], f"{_heads.AXES} with the tokens of q", shape)
    if "v" in arrays:
        axes = "(batch..., k tokens, k heads, v head_dim)"
        _heads.check_shape("v", arrays["v"], axes, (*arrays["k"].shape[:-1], ...))
    dtype = _heads.compute_dtype(backend.xp, dtypes)
    converted = [backend.xp.astype(x, dtype, copy=False) for x in arrays.values()]
    return CheckedArrays(backend, converted[0], converted[1], converted[-1])


def check_mask(arrays: CheckedArrays, mask: Any, shape: tuple[int, ...], axes: str) -> None:
    """Check that mask is boolean and broadcasts to a shape."""
    backend = arrays.backend
    _heads.check_library(backend, "q", arrays.q, "mask", mask)
    if backend.dtype_name(mask) != "bool":
        msg = (
            f"mask is {messages.describe(backend, mask)}; it must be boolean, True where there is "
            "something to attend to. Of a mask that is added to scores, take mask == 0"
        )
        raise TypeError(msg)
    if not _heads.can_broadcast(tuple(mask.shape), shape):
        msg = (
            f"mask has shape {tuple(mask.shape)}; it must broadcast to {axes} = {shape}. Give an "
            "axis that it lacks by None in an index"
        )
        raise RopeError(msg)


def rotate(
    rope: RoPE | None, q: Array, k: Array, positions: Any, k_positions: Any = None
) -> tuple[Array, Array]:
    """Rotate q and k, or return them unchanged without a rope."""
    if rope is not None:
        fields.check_rope(rope, RoPE)
        return rope.apply(q, k, positions, k_positions=k_positions)
    for argument, value in (("positions", positions), ("k_positions", k_positions)):
        if value is not None:
            msg = (
                f"{argument} came without a rope, and without one nothing is rotated; pass "
                f"rope=rope_xp.RoPE(), or leave {argument} away"
            )
            raise RopeError(msg)
    return q, k


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
