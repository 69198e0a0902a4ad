"""Checks and arithmetic of arrays with heads, for attention and encodings."""

import math
from typing import Any, NamedTuple

from rope_xp._arguments import checks, fields
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, ArrayT, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.rope import RoPE

AXES = "(batch..., tokens, heads, head_dim)"


def check_floats(**arrays: Any) -> tuple[Backend, list[Array]]:
    """Check that arrays are floats of one library and device.

    Return their backend, and them in the dtype of the arithmetic: float64 if one is, else float32.
    """
    first, x = next(iter(arrays.items()))
    backend = find.require_backend(x, first)
    for name, y in arrays.items():
        checks.check_library(backend, first, x, name, y)
    dtypes = {checks.check_float(backend, name, y) for name, y in arrays.items()}
    dtype = backend.xp.float64 if "float64" in dtypes else backend.xp.float32
    return backend, [backend.xp.astype(y, dtype, copy=False) for y in arrays.values()]


def check_shape(name: str, x: Array, axes: str, *shapes: tuple[Any, ...]) -> None:
    """Check that x has one of the shapes: None stands for any length but 0, ... for any."""
    shape = tuple(x.shape)
    if not any(_matches(shape, expected) for expected in shapes):
        fits = " or ".join(map(str, shapes)).replace("None", "any but 0").replace("Ellipsis", "any")
        hint = f". If there is one head without an axis, pass {name}[..., None, :]"
        msg = f"{name} has shape {shape}; it must be {axes}, here {fits}"
        raise RopeError(msg + hint * (axes == AXES and len(shape) < 3))


def _matches(shape: tuple[int, ...], expected: tuple[Any, ...]) -> bool:
    return len(shape) == len(expected) and all(
        m in (n, ...) or (m is None and n > 0) for n, m in zip(shape, expected, strict=True)
    )


def check_queries(q: Array, k: Array) -> None:
    """Check that q and k have tokens, heads and head_dim, and differ in tokens and heads alone."""
    check_shape("q", q, AXES, (*q.shape[:-3], ..., ..., None))
    check_shape("k", k, AXES, (*q.shape[:-3], ..., ..., q.shape[-1]))
    check_heads("q", q.shape[-2], "k", k.shape[-2])


def check_heads(first: str, heads: int, second: str, fewer: int) -> None:
    """Check that each head of one array serves as many of the other."""
    if fewer == 0 or heads % fewer:
        raise RopeError(
            f"{first} has {heads} heads and {second} {fewer}; {first} must have a multiple, "
            f"for groups of equal size. Axes of q, k and v are {AXES}"
        )


class CheckedArrays(NamedTuple):
    """Arrays that fit each other, in the dtype of the arithmetic."""

    backend: Backend
    q: Array
    k: Array
    v: Array  # k again where a function takes no v


def check_arrays(*, same_tokens: bool = False, **arrays: Any) -> CheckedArrays:
    """Check q, k and optionally v, and convert them to the dtype of the arithmetic."""
    backend, (q, k, *v) = check_floats(**arrays)
    check_queries(q, k)
    if same_tokens:
        check_shape("k", k, f"{AXES} with the tokens of q", (*q.shape[:-2], ..., ...))
    if v:
        axes = "(batch..., k tokens, k heads, v head_dim)"
        check_shape("v", v[0], axes, (*k.shape[:-1], ...))
    return CheckedArrays(backend, q, k, *(v or [k]))


def check_mask(arrays: CheckedArrays, mask: Any, shape: tuple[int, ...], axes: str) -> None:
    """Check that mask is boolean and broadcasts to a shape."""
    backend = arrays.backend
    checks.check_library(backend, "q", arrays.q, "mask", mask)
    if backend.dtype_name(mask) != "bool":
        raise TypeError(
            f"mask is {checks.describe(backend, mask)}; it must be boolean, True for tokens to "
            "attend to. For a mask that is added to scores, pass mask == 0"
        )
    if not numbers.can_broadcast(tuple(mask.shape), shape):
        raise RopeError(
            f"mask has shape {tuple(mask.shape)}; it must broadcast to {axes} = {shape}. Add a "
            "missing axis with None in an index"
        )


def rotate(
    rope: RoPE | None, q: Array, k: Array, positions: Any, k_positions: Any = None
) -> tuple[Array, Array]:
    """Rotate q and k, or return them unchanged without a rope."""
    if rope is not None:
        fields.check_rope(rope, RoPE)
        return rope.apply(q, k, positions, k_positions=k_positions)
    if positions is not None or k_positions is not None:
        raise RopeError(
            "positions and k_positions need a rope, as nothing is rotated without one; pass "
            "rope=rope_xp.RoPE(), or omit them"
        )
    return q, k


def cast_like(xp: Namespace, x: Array, like: ArrayT) -> ArrayT:
    """Return a result in the dtype of the array that the caller passed."""
    dtype = like.dtype  # type: ignore[attr-defined]  # an array
    return xp.astype(x, dtype, copy=False)  # type: ignore[no-any-return]  # of the same library


def swap_tokens_and_heads(xp: Namespace, x: Array) -> Array:
    """Exchange the second and third axis from the end."""
    # moveaxis came only with 2023.12 of the standard.
    n = x.ndim
    return xp.permute_dims(x, (*range(n - 3), n - 2, n - 3, n - 1))


def repeat_heads(xp: Namespace, x: Array, heads: int) -> Array:
    """Return (batch..., tokens, heads, d) of fewer heads, each repeated for a run of heads."""
    *lead, fewer, d = x.shape
    if fewer == heads:
        return x
    runs = xp.broadcast_to(x[..., None, :], (*lead, fewer, heads // fewer, d))
    return xp.reshape(runs, (*lead, heads, d))


def multiply_heads(xp: Namespace, q: Array, k: Array) -> Array:
    """Return q . k, (batch..., heads, q tokens, k tokens)."""
    k = swap_tokens_and_heads(xp, repeat_heads(xp, k, q.shape[-2]))
    return xp.matmul(swap_tokens_and_heads(xp, q), xp.matrix_transpose(k))


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
