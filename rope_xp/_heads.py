"""Arrays with heads, for both :mod:`rope_xp.attention` and :mod:`rope_xp.encodings`."""

from typing import Any

from rope_xp._arguments import messages
from rope_xp._contract import numbers
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

AXES = "(batch..., tokens, heads, head_dim)"


def check_array(backend: Backend, first: str, like: Array, argument: str, x: Any) -> str:
    """Check that x is a float array of the library and device of ``like``; return its dtype."""
    check_library(backend, first, like, argument, x)
    return messages.check_float(backend, argument, x)


def check_library(backend: Backend, first: str, like: Array, argument: str, x: Any) -> None:
    """Check that x is of the library and on the device of ``like``, known as ``first``."""
    other = find.backend_of(x, argument)
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


def check_fit(q: tuple[int, ...], k: tuple[int, ...]) -> None:
    """Check that q and k of these shapes differ in tokens and heads alone."""
    fix = None
    if len(q) != len(k) or q[:-3] != k[:-3]:
        fix = f"batch axes of {AXES}; broadcast one of them"
    elif q[-1] != k[-1]:
        fix = "head_dim, the last axis, whose products are summed; project both to one size"
    if fix is not None:
        msg = f"q of shape {q} and k of shape {k} must have equal {fix}"
        raise RopeError(msg)
    check_head_dim("q", q)
    if k[-2] == 0 or q[-2] % k[-2]:
        msg = (
            f"q has {q[-2]} heads and k {k[-2]}; those of q must be a multiple, as each head of k "
            f"serves as many of q. The axes are {AXES}; move heads behind tokens if they are not"
        )
        raise RopeError(msg)


def check_head_dim(argument: str, shape: tuple[int, ...]) -> None:
    """Check that there are components."""
    if shape[-1] == 0:
        msg = f"{argument} has shape {shape}; its last axis, head_dim, must not be empty"
        raise RopeError(msg)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether an array of one shape broadcasts to another, which stays as it is."""
    return len(shape) <= len(to) and all(
        n in {1, m} for n, m in zip(shape[::-1], to[::-1], strict=False)
    )


def check_scale(scale: float) -> float:
    """Check what products are multiplied by; return it as Python's, as array-api-strict needs."""
    return float(numbers.check_positive("scale", scale))


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
