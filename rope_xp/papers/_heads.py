"""Arrays with heads: what :mod:`rope_xp.papers.attention` and ``encodings`` share."""

from collections.abc import Iterable
from typing import Any

from rope_xp._arguments import messages
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, ArrayT, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

AXES = "(batch..., tokens, heads, head_dim)"


def check_array(backend: Backend, first: str, like: Array, argument: str, x: Any) -> str:
    """Check that x is a float array of the library and device of ``like``; return its dtype."""
    check_library(backend, first, like, argument, x)
    return messages.check_float(backend, argument, x)


def check_library(backend: Backend, first: str, like: Array, argument: str, x: Any) -> None:
    """Check that x is of the library and on the device of ``like``, known as ``first``."""
    other = find.require_backend(x, argument)
    if other is not backend:
        raise messages.different_libraries(first, backend, argument, other)
    messages.check_same_device(backend, first, like, argument, x)


def check_axes(argument: str, x: Array) -> None:
    """Check that x has tokens, heads and head_dim."""
    if len(x.shape) < 3:
        msg = (
            f"{argument} has shape {tuple(x.shape)}; it needs {AXES}. Where there is one head "
            f"and no axis for it, {argument}[..., None, :]"
        )
        raise RopeError(msg)


def check_shapes(q: Array, k: Array) -> None:
    """Check that q and k have tokens, heads and head_dim, and differ in tokens and heads alone."""
    check_axes("q", q)
    check_axes("k", k)
    q_shape, k_shape = tuple(q.shape), tuple(k.shape)
    if q_shape[:-3] != k_shape[:-3] or q_shape[-1] != k_shape[-1]:
        fix = f"batch axes of {AXES}; broadcast one of them"
        if q_shape[:-3] == k_shape[:-3]:
            fix = "head_dim, the last axis, whose products are summed; project both to one size"
        msg = f"q of shape {q_shape} and k of shape {k_shape} must have equal {fix}"
        raise RopeError(msg)
    check_head_dim("q", q)
    q_heads, k_heads = q_shape[-2], k_shape[-2]
    if k_heads == 0 or q_heads % k_heads:
        msg = (
            f"q has {q_heads} heads and k {k_heads}; those of q must be a multiple, as each head "
            f"of k serves as many of q. The axes are {AXES}; move heads behind tokens if they are "
            "not"
        )
        raise RopeError(msg)


def check_head_dim(argument: str, x: Array) -> None:
    """Check that there are components."""
    if x.shape[-1] == 0:
        msg = f"{argument} has shape {tuple(x.shape)}; its last axis, head_dim, must not be empty"
        raise RopeError(msg)


def check_scale(scale: float) -> float:
    """Check what products are multiplied by; return it as Python's, as array-api-strict needs."""
    return float(numbers.check_positive("scale", scale))


def can_broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether an array of one shape broadcasts to another, which does not change."""
    return len(shape) <= len(to) and all(
        n in {1, m} for n, m in zip(shape[::-1], to[::-1], strict=False)
    )


def compute_dtype(xp: Namespace, dtypes: Iterable[str]) -> Any:
    """Return the dtype of the arithmetic: float64 if one array is float64, else float32."""
    return xp.float64 if "float64" in dtypes else xp.float32


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
    """Return (batch..., tokens, heads, d) of (batch..., tokens, fewer heads, d).

    Each head of x is repeated for a run of heads that follow each other, as torch and jax have it.
    """
    *lead, fewer, d = x.shape
    if fewer == heads:
        return x
    runs = xp.broadcast_to(x[..., None, :], (*lead, fewer, heads // fewer, d))
    return xp.reshape(runs, (*lead, heads, d))
