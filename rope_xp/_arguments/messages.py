"""Every check of arguments, and every message. A message says what came, what fits, what to do."""

from __future__ import annotations

from rope_xp._contract.call import Axes
from rope_xp._contract.dtypes import FLOATS
from rope_xp._contract.errors import RopeError
from rope_xp._contract.library import ArrayLibrary
from rope_xp._contract.numbers import check_known, same_length
from rope_xp._contract.typing import Array


def describe(backend: ArrayLibrary, x: Array) -> str:
    """Return what an array is, for a message."""
    device = backend.device(x)
    dtype = backend.dtype_name(x) + ("" if device is None else f" on {device}")
    return f"{_a(backend)} array of shape {tuple(x.shape)} and dtype {dtype}"


def _a(backend: ArrayLibrary) -> str:
    return f"{'an' if backend.name[0] in 'aeiou' else 'a'} {backend.name}"


# --- axes ----------------------------------------------------------------------------------------


def too_many_axes(argument: str, ndim: int) -> RopeError:
    """Return the error for an array with more axes than are named by default."""
    return RopeError(f"{argument} has {ndim} axes, too many to guess; name each with axes=")


def too_few_axes(argument: str, ndim: int) -> RopeError:
    """Return the error for an array without tokens and head_dim."""
    return RopeError(
        f"{argument} has {ndim} axes; it needs at least two, tokens and head_dim "
        f"(for one vector, {argument}[None, :])"
    )


def check_axes(axes: object) -> None:
    """Check the spelling of axis names."""
    example = "'bshd' (batch, tokens, heads, head_dim) or 'bhsd' (Hugging Face)"
    if not isinstance(axes, str):
        msg = f"axes must be a string of one letter an axis, such as {example}; got {axes!r}"
        raise TypeError(msg)
    problem = None
    if not (axes.isascii() and axes.isalpha() and axes.islower()):
        problem = "has characters that are not lower-case letters"
    elif len(set(axes)) != len(axes):
        problem = "names an axis twice"
    elif "s" not in axes:
        problem = "has no tokens axis 's'"
    elif "d" not in axes:
        problem = "has no head_dim axis 'd'"
    elif axes[-1] != "d":
        problem = "does not end in head_dim 'd'; move that axis to the end"
    if problem is not None:
        msg = f"axes={axes!r} {problem}; write for example {example}"
        raise RopeError(msg)


def axes_do_not_fit(axes: str, argument: str, ndim: int) -> RopeError:
    """Return the error for names of another number of axes."""
    return RopeError(
        f"axes={axes!r} names {len(axes)} axes; {argument} has {ndim}. Name each axis of {argument}"
    )


# --- arrays --------------------------------------------------------------------------------------


def different_libraries(first: str, a: ArrayLibrary, second: str, b: ArrayLibrary) -> TypeError:
    """Return the error for arrays of two libraries."""
    return TypeError(f"{first} is {_a(a)} array and {second} {_a(b)} array; convert one of them")


def check_float(backend: ArrayLibrary, argument: str, x: Array) -> str:
    """Check that x holds real floats; return the name of its dtype."""
    dtype = backend.dtype_name(x)
    if dtype not in FLOATS:
        msg = (
            f"{argument} is {describe(backend, x)}; a rotation takes {', '.join(sorted(FLOATS))}. "
            "Convert it first"
        )
        raise TypeError(msg)
    return dtype


def check_same_device(backend: ArrayLibrary, first: str, x: Array, second: str, y: Array) -> None:
    """Check that two arrays of a library lie on one device."""
    a = backend.device(x)
    if a is None:
        return
    b = backend.device(y)
    if b is not None and a != b:
        msg = f"{first} is on {a} and {second} on {b}; move one of them"
        raise RopeError(msg)


def check_pair(
    axes: Axes, q_shape: tuple[int, ...], k_shape: tuple[int, ...], own_positions: bool
) -> None:
    """Check that q and k differ only where they may."""
    h = axes.heads
    if q_shape == k_shape or (
        h is not None and q_shape[:h] == k_shape[:h] and q_shape[h + 1 :] == k_shape[h + 1 :]
    ):
        return
    for name, in_q, in_k in zip(axes.names, q_shape, k_shape, strict=True):
        if same_length(in_q, in_k) or name == "h" or (name == "s" and own_positions):
            continue
        check_known("q", (in_q,))
        check_known("k", (in_k,))
        if name == "s":
            fix = "Give k_positions for the tokens of k"
        elif name == "d":
            fix = "Rotate them one by one with RoPE.rotate if that is meant"
        else:
            fix = f"They may differ in heads alone; is axes={axes.names!r} right?"
        what = {"s": "tokens", "d": "head_dim"}.get(name, f"batch axis {name!r}")
        msg = (
            f"q of shape {tuple(q_shape)} and k of shape {tuple(k_shape)} differ in {what} "
            f"(axes={axes.names!r}): {in_q} and {in_k}. {fix}"
        )
        raise RopeError(msg)


# --- positions -----------------------------------------------------------------------------------


def not_positions(argument: str, dtype: str) -> TypeError:
    """Return the error for positions that are no numbers."""
    return TypeError(f"{argument} must hold integers or real floats (tokens); got {dtype}")


def positions_out_of_range(argument: str, lowest: float, highest: float, limit: int) -> RopeError:
    """Return the error for positions that no digit table holds."""
    return RopeError(
        f"{argument} must be finite and of modulus below {limit}; got {lowest} to {highest}"
    )


def check_components(argument: str, shape: tuple[int, ...], components: int) -> None:
    """Check that positions have the leading axis that position_axes asks for."""
    if not shape or shape[0] != components:
        msg = (
            f"{argument} has shape {shape}; position_axes names {components} components, so it "
            f"needs a leading axis of {components}: ({components}, batch..., tokens)"
        )
        raise RopeError(msg)


def check_positions_shape(
    argument: str, shape: tuple[int, ...], components: int, batch: tuple[int, ...], tokens: int
) -> None:
    """Check that positions broadcast to (components, batch..., tokens)."""
    rest = shape
    if components:
        check_components(argument, shape, components)
        rest = shape[1:]
    if not rest:
        if tokens == 1:
            return
        n = "n" if tokens is None else tokens
        msg = (
            f"{argument} is one number for {n} tokens; write {argument} = offset + arange({n}) "
            "for consecutive tokens from an offset"
        )
        raise RopeError(msg)
    full = (*batch, tokens)
    fits = len(rest) <= len(full) and all(
        n == 1 or same_length(n, m) for n, m in zip(rest[::-1], full[::-1], strict=False)
    )
    if not fits:
        check_known(argument, rest)
        check_known("the array to rotate", full)
        lead = f"({components}, ...)" if components else "it"
        msg = (
            f"{argument} has shape {shape}; {lead} must broadcast to (batch..., tokens) = {full}, "
            "batch first whatever axes says. Is axes right?"
        )
        raise RopeError(msg)


# --- tables --------------------------------------------------------------------------------------


def check_tables(
    cos_shape: tuple[int, ...],
    sin_shape: tuple[int, ...],
    head_dim: int,
    batch: tuple[int, ...],
    tokens: int,
) -> None:
    """Check that cos and sin are (batch..., tokens, r/2)."""
    same = len(cos_shape) == len(sin_shape)
    if not same or not all(map(same_length, cos_shape, sin_shape)):
        msg = f"cos has shape {cos_shape} and sin {sin_shape}; they must be equal"
        raise RopeError(msg)
    if len(cos_shape) < 2:
        msg = f"cos has shape {cos_shape}; it needs two axes at least, (tokens, r/2)"
        raise RopeError(msg)
    if cos_shape[-1] == 0 or 2 * cos_shape[-1] > head_dim:
        twice = cos_shape[-1] == head_dim
        hint = (
            ". Tables that repeat each angle for both of a pair, as Hugging Face makes them, need "
            "only their first half: cos[..., : head_dim // 2]"
        )
        msg = (
            f"cos has {cos_shape[-1]} columns, one for each rotated pair; head_dim={head_dim} has "
            f"room for 1 to {head_dim // 2}{hint if twice else ''}"
        )
        raise RopeError(msg)
    check_positions_shape("cos[..., 0]", cos_shape[:-1], 0, batch, tokens)
