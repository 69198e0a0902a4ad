"""Checks of the fields of a RoPE."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rope_xp._contract.errors import RopeError
from rope_xp._contract.numbers import held_by, is_int

T = TypeVar("T")

LAYOUTS = ("interleaved", "half", "interleaved_to_half")


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
        held = held_by(value).values()
    return type(value).__hash__ is None or any(map(_may_be_unhashable, held))


def check_components(scaling: object, position_axes: object) -> None:
    """Check that a rule of several components of a position knows which pair reads which."""
    components = getattr(scaling, "axes", 1)
    if position_axes is None and is_int(components) and components > 1:
        msg = (
            f"scaling has frequencies for {components} components of a position, and position_axes "
            f"is None, so that all pairs would read one; got {scaling!r}. Write "
            "RoPE.axial(sections), which makes both, or give position_axes"
        )
        raise RopeError(msg)


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


def check_rope(rope: object, protocol: type, argument: str = "rope") -> None:
    """Check that rope is a RoPE."""
    if isinstance(rope, protocol):
        return
    kind, shape = type(rope).__name__, getattr(rope, "shape", None)
    if shape is None:
        msg = f"{argument} must be a rope_xp.RoPE; got {rope!r} ({kind})"
    else:
        msg = (
            f"{argument} must be a rope_xp.RoPE; got an array, {kind} of shape {tuple(shape)}. "
            "rope_xp.apply_tables(x, cos, sin, layout=...) rotates by tables"
        )
    raise TypeError(msg)


def keyword_only(cls: type[T]) -> type[T]:
    """Have a dataclass answer wrong names, and values without any, with the right ones."""
    known = dict.fromkeys(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]  # it is one
    generated = cls.__init__

    @functools.wraps(generated)
    def init(self: T, *nameless: object, **fields: object) -> None:
        if nameless or not fields.keys() <= known.keys():
            raise _wrong_fields(cls.__name__, [*known], nameless, fields)
        generated(self, **fields)

    cls.__init__ = init  # type: ignore[assignment]  # which takes what the generated one takes
    return cls


def _wrong_fields(
    name: str, known: Sequence[str], nameless: tuple[object, ...], fields: Iterable[str]
) -> TypeError:
    if nameless:
        value = nameless[0]
        return TypeError(
            f"{name} takes its fields by name; got {', '.join(map(repr, nameless))}. Write "
            f"{name}(rotary_dim={value!r}) for the rotated components, or {name}(base={value!r}) "
            "for the base, often called theta"
        )
    unknown = [field for field in fields if field not in known]
    from rope_xp._arguments.names import hints  # a list that only this message needs

    has = f"a {name} has {', '.join(known)}"
    return TypeError(f"unknown option {', '.join(unknown)}; {has}{hints(unknown)}")
