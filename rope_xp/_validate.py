"""Every check of arguments, and every message. A message says what came, what fits, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rope_xp import _fields, _lengths
from rope_xp._errors import RopeError
from rope_xp._typing import Array

if TYPE_CHECKING:
    from rope_xp._axes import Axes
    from rope_xp._contract import Backend

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
INTEGERS = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"},
)


def describe(backend: Backend, x: Array) -> str:
    """Return what an array is, for a message."""
    device = backend.device(x)
    dtype = backend.dtype_name(x) + ("" if device is None else f" on {device}")
    return f"{_a(backend)} array of shape {tuple(x.shape)} and dtype {dtype}"


def _a(backend: Backend) -> str:
    return f"{'an' if backend.name[0] in 'aeiou' else 'a'} {backend.name}"


# --- slices ---------------------------------------------------------------------------------------


def resolve_slice(
    head_dim: int, rotary_dim: int | None, rotary_offset: int, position_axes: tuple[int, ...] | None
) -> tuple[int, int]:
    """Return (r, offset) of the rotated slice in a head of head_dim components."""
    if head_dim is None:
        _lengths.check_known("the array to rotate", (head_dim,))
    r = head_dim if rotary_dim is None else rotary_dim
    if r % 2:
        _lengths.check_known("the array to rotate", (head_dim,))
        msg = (
            f"head_dim is {head_dim}, an odd number, and components turn in pairs; pass an even "
            "rotary_dim, the rest passes through"
        )
        raise RopeError(msg)
    offset = rotary_offset if rotary_offset >= 0 else head_dim + rotary_offset
    if offset < 0 or offset + r > head_dim:
        msg = (
            f"the rotated slice, rotary_dim={r} components from rotary_offset={rotary_offset}, "
            f"does not lie within head_dim={head_dim}"
        )
        raise RopeError(msg)
    if position_axes is not None and len(position_axes) != r // 2:
        msg = (
            f"position_axes has {len(position_axes)} entries; {r} rotated components have "
            f"{r // 2} pairs, each of which needs one"
        )
        raise RopeError(msg)
    return r, offset


def check_rope(rope: object, protocol: type, argument: str = "rope") -> None:
    """Check that rope is a RoPE."""
    if not isinstance(rope, protocol):
        msg = f"{argument} must be a rope_xp.RoPE; got {rope!r} ({type(rope).__name__})"
        raise TypeError(msg)


def rope_and_options(options: Sequence[str]) -> TypeError:
    """Return the error for a rope given together with its fields."""
    listed = ", ".join(options)
    return TypeError(
        f"got both rope and its fields ({listed}); pass one, or dataclasses.replace(rope, ...)"
    )


def unknown_options(options: Sequence[str], known: Sequence[str]) -> TypeError:
    """Return the error for options that are no fields of a RoPE."""
    return TypeError(f"unknown option {', '.join(options)}; a RoPE has {', '.join(known)}")


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


def no_array(argument: str, x: object) -> TypeError:
    """Return the error for something that no backend takes."""
    return TypeError(
        f"{argument} is {_kind(x)}, which is no array of numpy, torch, jax, cupy or another "
        "library of the Python array API standard; convert it, for example by numpy.asarray"
    )


def refused(argument: str, x: object, reason: str) -> TypeError:
    """Return the error for an array type that its backend refuses."""
    return TypeError(f"{argument} is {_kind(x)}: {reason}")


def _kind(x: object) -> str:
    cls = type(x)
    name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
    return f"a {name}"


def different_libraries(first: str, a: Backend, second: str, b: Backend) -> TypeError:
    """Return the error for arrays of two libraries."""
    return TypeError(f"{first} is {_a(a)} array and {second} {_a(b)} array; convert one of them")


def check_float(backend: Backend, argument: str, x: Array) -> str:
    """Check that x holds real floats; return the name of its dtype."""
    dtype = backend.dtype_name(x)
    if dtype not in FLOATS:
        msg = (
            f"{argument} is {describe(backend, x)}; a rotation takes {', '.join(sorted(FLOATS))}. "
            "Convert it first"
        )
        raise TypeError(msg)
    return dtype


def check_same_device(backend: Backend, first: str, x: Array, second: str, y: Array) -> None:
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
        if _lengths.same_length(in_q, in_k) or name == "h" or (name == "s" and own_positions):
            continue
        _lengths.check_known("q", (in_q,))
        _lengths.check_known("k", (in_k,))
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


def no_float64(backend: Backend) -> RopeError:
    """Return the error for float64 where the library gives float32 instead."""
    return RopeError(
        f"float64 angles are asked for, by dtype or by an array, and {backend.name} computes in "
        "float32 as it is configured; set jax_enable_x64, or convert to float32"
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
        n == 1 or _lengths.same_length(n, m) for n, m in zip(rest[::-1], full[::-1], strict=False)
    )
    if not fits:
        _lengths.check_known(argument, rest)
        _lengths.check_known("the array to rotate", full)
        lead = f"({components}, ...)" if components else "it"
        msg = (
            f"{argument} has shape {shape}; {lead} must broadcast to (batch..., tokens) = {full}, "
            "batch first whatever axes says. Is axes right?"
        )
        raise RopeError(msg)


# --- tables --------------------------------------------------------------------------------------


def unfit_block(x: tuple[int, ...], other: tuple[int, ...]) -> RopeError:
    """Return the error of blocks of unknown lengths that turn out not to fit."""
    return RopeError(
        f"a block of shape {x} meets a block of positions or tables of shape {other}, which does "
        "not fit; what was selected from one was not selected from the other"
    )


def check_tables(
    cos_shape: tuple[int, ...],
    sin_shape: tuple[int, ...],
    head_dim: int,
    batch: tuple[int, ...],
    tokens: int,
) -> None:
    """Check that cos and sin are (batch..., tokens, r/2)."""
    same = len(cos_shape) == len(sin_shape)
    if not same or not all(map(_lengths.same_length, cos_shape, sin_shape)):
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


# --- weights -------------------------------------------------------------------------------------


def check_weights(shape: tuple[int, ...], num_heads: object, to: object) -> None:
    """Check the arguments of permute_weights."""
    if to not in ("interleaved", "half"):
        msg = f"to must be 'interleaved' or 'half', the layout that the result is for; got {to!r}"
        raise RopeError(msg)
    if not _fields.is_int(num_heads) or num_heads <= 0:  # type: ignore[operator]  # an int by then
        msg = f"num_heads must be a positive integer; got {num_heads!r}"
        raise RopeError(msg)
    if not shape or shape[0] % (2 * num_heads):  # type: ignore[operator]  # an int, as checked
        msg = (
            f"w has shape {shape}; its first axis must be num_heads * head_dim with head_dim even, "
            f"and num_heads is {num_heads}. Grouped keys have fewer heads than queries"
        )
        raise RopeError(msg)


# --- moving cached keys --------------------------------------------------------------------------


def check_rerotation(rope: Any, to: Any, old: tuple[int, int], new: tuple[int, int]) -> None:
    """Check that two ropes rotate the same pairs."""
    written = [("interleaved" if r.layout == "interleaved" else "half") for r in (rope, to)]
    if old != new or written[0] != written[1]:
        msg = (
            "rerotate needs ropes that rotate the same pairs; got (rotary_dim, rotary_offset, "
            f"layout written) {(*old, written[0])} and to with {(*new, written[1])}"
        )
        raise RopeError(msg)
