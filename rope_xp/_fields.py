"""Checks of the numbers in a RoPE and in scaling rules."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._errors import RopeError

LAYOUTS = ("interleaved", "half", "interleaved_to_half")


def is_int(value: object) -> bool:
    """Return whether value is an integer and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_layout(layout: object) -> None:
    """Check that layout is one of the three."""
    if layout not in LAYOUTS:
        msg = (
            f"layout must be one of {', '.join(map(repr, LAYOUTS))}; got {layout!r}. Weights "
            "of Hugging Face and GPT-NeoX use 'half', the paper and Meta's own Llama 'interleaved'"
        )
        raise RopeError(msg)


def check_rotary_dim(rotary_dim: object) -> None:
    """Check that rotary_dim is None or an even positive integer."""
    if rotary_dim is None:
        return
    if not is_int(rotary_dim):
        msg = f"rotary_dim must be an even integer or None; got {rotary_dim!r}"
        raise TypeError(msg)
    if rotary_dim <= 0 or rotary_dim % 2:  # type: ignore[operator]  # an int, as checked above
        msg = f"rotary_dim must be even and positive, as components turn in pairs; got {rotary_dim}"
        raise RopeError(msg)


def check_rotary_offset(rotary_offset: object) -> None:
    """Check that rotary_offset is an integer."""
    if not is_int(rotary_offset):
        msg = f"rotary_offset must be an integer; got {rotary_offset!r}"
        raise TypeError(msg)


def check_position_axes(position_axes: object, rotary_dim: int | None) -> None:
    """Check that position_axes is None or a tuple of component numbers."""
    if position_axes is None:
        return
    if not isinstance(position_axes, tuple):
        msg = (
            "position_axes must be a tuple of integers, so that a RoPE is hashable; got "
            f"{position_axes!r}. Write tuple(...) around it"
        )
        raise TypeError(msg)
    if not position_axes or not all(is_int(a) and a >= 0 for a in position_axes):
        msg = f"position_axes must hold integers >= 0, one a pair; got {position_axes!r}"
        raise RopeError(msg)
    if rotary_dim is not None and len(position_axes) != rotary_dim // 2:
        msg = (
            f"position_axes has {len(position_axes)} entries; rotary_dim={rotary_dim} has "
            f"{rotary_dim // 2} pairs, each of which needs one"
        )
        raise RopeError(msg)


def check_scaling(scaling: object, protocol: Any) -> None:
    """Check that scaling is None or a rule."""
    if scaling is not None and (isinstance(scaling, type) or not isinstance(scaling, protocol)):
        msg = (
            f"scaling must be a rule such as rope_xp.scaling.Linear(factor=4.0) or None; got "
            f"{scaling!r}"
        )
        raise TypeError(msg)
    if _may_be_unhashable(scaling):
        try:
            hash(scaling)
        except TypeError as error:
            msg = f"scaling must be hashable, as tables are kept for it: {error} in {scaling!r}"
            raise TypeError(msg) from error


def _may_be_unhashable(value: object) -> bool:
    """Return whether hash must be asked, which torch.compile (seen in torch 2.11) cannot trace.

    It need not raise then: a dataclass may leave a field out of its hash, or have one of its own.
    """
    held: Any = value if isinstance(value, tuple) else ()
    if dataclasses.is_dataclass(value):
        held = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return type(value).__hash__ is None or any(map(_may_be_unhashable, held))


def check_frequencies(scaling: object, frequencies: NDArray[np.float64], pairs: int) -> None:
    """Check what a scaling rule returned."""
    if frequencies.shape != (pairs,) or not np.isfinite(frequencies).all():
        msg = (
            f"scaling {scaling!r} must return {pairs} finite frequencies, one a pair; got shape "
            f"{frequencies.shape}: {frequencies}"
        )
        raise RopeError(msg)


def check_head_dim(head_dim: object) -> None:
    """Check that head_dim is a positive integer."""
    if not is_int(head_dim):
        msg = f"head_dim must be an integer; got {head_dim!r} ({type(head_dim).__name__})"
        raise TypeError(msg)
    if head_dim <= 0:  # type: ignore[operator]  # an int, as checked above
        msg = f"head_dim must be positive; got {head_dim}"
        raise RopeError(msg)


def check_positive(name: str, value: object) -> None:
    """Check that value is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        msg = f"{name} must be a number; got {value!r} ({type(value).__name__})"
        raise TypeError(msg)
    # Spelled without math.isfinite, which torch.compile cannot trace for a symbol.
    if not 0 < value <= sys.float_info.max:
        msg = f"{name} must be positive and finite; got {value!r}"
        raise RopeError(msg)


def check_positive_int(name: str, value: object) -> None:
    """Check that value is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be an integer; got {value!r} ({type(value).__name__})"
        raise TypeError(msg)
    check_positive(name, value)


def check_not_negative(name: str, value: object) -> None:
    """Check that value is a finite number from 0."""
    if value != 0 or isinstance(value, bool):
        check_positive(name, value)


def check_share(name: str, value: object) -> None:
    """Check that value is a number above 0, and 1 at most."""
    check_positive(name, value)
    if value > 1:  # type: ignore[operator]  # a number, as was just checked
        msg = f"{name} must be a share, above 0 and at most 1; got {value!r}"
        raise RopeError(msg)


def check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Check that value is one of a few words."""
    if value not in known:
        msg = f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}"
        raise RopeError(msg)


def check_divides(name: str, parts: int, rotary_dim: int) -> None:
    """Check that the pairs can be shared out evenly."""
    if rotary_dim % (2 * parts):
        msg = f"{name} = {parts} does not divide the {rotary_dim // 2} rotated pairs evenly"
        raise RopeError(msg)


def check_greater(
    name: str, value: float, than: str, bound: float, *, or_equal: bool = False
) -> None:
    """Check that a field exceeds another, or a number that has no name."""
    if value > bound or (or_equal and value == bound):
        return
    relation = "not be below" if or_equal else "exceed"
    other = f"{than} = {bound!r}" if than else repr(bound)
    msg = f"{name} must {relation} {other}; got {value!r}"
    raise RopeError(msg)


def check_entries(name: str, entries: int, rotary_dim: int) -> None:
    """Check that a list has one entry for each pair."""
    if entries != rotary_dim // 2:
        msg = (
            f"{name} has {entries} entries; {rotary_dim} rotated components have "
            f"{rotary_dim // 2} pairs. Set RoPE.rotary_dim if only a part of head_dim is rotated"
        )
        raise RopeError(msg)


def no_length(rule: str) -> RopeError:
    """Return the error of a rule whose frequencies depend on the length of the context."""
    return RopeError(
        f"the frequencies of {rule} depend on the length of the context; fix it first, by "
        "rope = rope.for_length(n). All keys of one attention need the same"
    )


def no_longrope_factor() -> RopeError:
    """Return the error of a LongRoPE whose attention factor cannot be computed."""
    return RopeError(
        "LongRoPE needs factor, max_position_embeddings or attention_factor to know by how much "
        "the context was extended"
    )


def no_series(rule: str) -> RopeError:
    """Return the error of a rule that divides by the logarithm of the base."""
    return RopeError(f"base must not be 1 with {rule}, as all pairs then turn alike")


def too_few_pairs(rule: str, rotary_dim: int) -> RopeError:
    """Return the error of a rule that leaves the first pair and slows the last."""
    return RopeError(f"{rule} needs two pairs or more; {rotary_dim} components are rotated")


def check_length(n: object) -> None:
    """Check that n is a positive number of tokens."""
    if not is_int(n):
        msg = f"n must be an integer number of tokens; got {n!r}"
        raise TypeError(msg)
    if n <= 0:  # type: ignore[operator]  # an int, as checked above
        msg = f"n must be a positive number of tokens; got {n}"
        raise RopeError(msg)
