"""Check that arrays have the same library, device and shape, where they must."""

from typing import Any

from rope_xp._core.call import Axes
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import check_known, same_length
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend


def describe(backend: Backend, x: Array) -> str:
    """Return library, shape, dtype and device of an array, for a message."""
    device = backend.device(x)
    dtype = backend.dtype_name(x) + ("" if device is None else f" on {device}")
    return f"{_a(backend)} array of shape {tuple(x.shape)} and dtype {dtype}"


def _a(backend: Backend) -> str:
    return f"{'an' if backend.name[0] in 'aeiou' else 'a'} {backend.name}"


def different_libraries(first: str, a: Backend, second: str, b: Backend) -> TypeError:
    return TypeError(f"{first} is {_a(a)} array and {second} {_a(b)} array; convert one of them")


def check_float(backend: Backend, argument: str, x: Array) -> str:
    """Check that x holds real floats; return the name of its dtype."""
    dtype = backend.dtype_name(x)
    if dtype not in FLOATS:
        check_readable(backend, argument, x)
        dtypes = ", ".join(sorted(FLOATS))
        small = ". 8 bits are not supported" if dtype.startswith("float8") else ""
        given = describe(backend, x)
        raise TypeError(f"{argument} is {given}; convert it to one of {dtypes}{small}")
    return dtype


def check_readable(backend: Backend, argument: str, x: Array) -> None:
    """Check that the elements of x can be read, whatever their dtype."""
    reason = backend.unreadable_reason(x)
    if reason is not None:
        raise RopeError(f"{argument} is {reason}")


def check_same_device(backend: Backend, first: str, x: Array, second: str, y: Array) -> None:
    a = backend.device(x)
    b = None if a is None else backend.device(y)
    if b is not None and a != b:
        raise RopeError(f"{first} is on {a} and {second} on {b}; move one of them")


def check_library(backend: Backend, first: str, like: Array, argument: str, x: Any) -> None:
    """Check that x is of the library and on the device of ``like``, known as ``first``."""
    other = find.require_backend(x, argument)
    if other is not backend:
        raise different_libraries(first, backend, argument, other)
    check_same_device(backend, first, like, argument, x)


def check_same_library_and_device(
    backend: Backend, first: str, x: Array, owner: Backend, second: str, y: Array
) -> bool:
    """Return whether y, of ``owner``, has the library and device of x; False in host memory.

    Anything else raises.
    """
    if owner is backend or owner is backend.compatible_backend:
        check_same_device(backend, first, x, second, y)
        return True
    if not owner.host:
        raise different_libraries(first, backend, second, owner)
    return False


def _suggest_axes(axes: Axes) -> str:
    """Return the advice to name heads before tokens where they stand behind them."""
    if axes.heads != axes.tokens + 1:
        return ""
    names = axes.names.replace("sh", "hs")
    return f"If heads come before tokens, as in Hugging Face and torch, pass axes={names!r}. "


def check_heads(argument: str, heads: int, axes: Axes, operands: dict[str, Array]) -> None:
    """Check that heads of angles are those of k, or 1, or divide those of a single array."""
    counts = {name: x.shape[axes.heads] for name, x in operands.items()}
    check_known(argument, (heads, *counts.values()))
    fits = not any(count % heads if heads else count for count in counts.values())
    if not fits or (len(counts) == 2 and heads not in (1, counts["k"])):
        listed = " and ".join(f"{name} {count}" for name, count in counts.items())
        raise RopeError(
            f"{argument} has {heads} heads, {listed}; pass {argument} with the heads of k, of "
            "which q may have a multiple: a query must turn like its key"
        )


def check_pair_shapes(
    axes: Axes, q_shape: tuple[int, ...], k_shape: tuple[int, ...], has_k_positions: bool
) -> None:
    """Check that q and k differ only where they may."""
    if q_shape == k_shape:
        return
    for name, in_q, in_k in zip(axes.names, q_shape, k_shape, strict=True):
        if same_length(in_q, in_k) or name == "h" or (name == "s" and has_k_positions):
            continue
        check_known("q", (in_q,))
        check_known("k", (in_k,))
        axis = {"s": "tokens", "d": "head_dim"}.get(name, f"batch axis {name!r}")
        hint = {
            "s": _suggest_axes(axes) + "If k really has other tokens, pass k_positions",
            "d": "If that is intended, rotate each with RoPE.rotate",
        }.get(name, f"They may differ only in heads; is axes={axes.names!r} right?")
        raise RopeError(
            f"q of shape {tuple(q_shape)} and k of shape {tuple(k_shape)} differ in {axis} "
            f"(axes={axes.names!r}): {in_q} and {in_k}. {hint}"
        )
