"""Checks of the fields of a RoPE, and the slice of head_dim that they name."""

import dataclasses
import functools
from typing import TypeVar

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.slices import check_axis_count

T = TypeVar("T")

LAYOUTS = ("interleaved", "half", "interleaved_to_half")

_SLICE = "rotary_dim, if only part of a head is rotated; head_dim is read from the arrays"
_START = "part of positions: apply(q, k, offset + arange(tokens))"
_TABLES = "a table: use rope_xp.apply_tables(x, cos, sin, layout=...)"
_LENGTH = "not needed: there is no table, and all positions below 2**31 are exact"
FOREIGN = {
    "theta": "base",
    "rope_theta": "base",
    "dim": _SLICE,
    "head_dim": _SLICE,
    "partial_rotary_factor": "rotary_dim, the number of components: that share of head_dim",
    "interleaved": "layout='interleaved', or layout='half'",
    "is_neox_style": "layout='half' if true, else layout='interleaved'",
    "offset": _START,
    "seqlen_offset": _START,
    "position_ids": "positions, the third argument of apply",
    "max_position_embeddings": _LENGTH,
    "seq_len": _LENGTH,
    "cos": _TABLES,
    "sin": _TABLES,
    "freqs_cis": _TABLES,
    "inv_freq": "computed from base and scaling; for your own use rope_xp.apply_frequencies",
    "rope_scaling": "scaling, a class of rope_xp.scaling; rope_xp.from_hf_config(config) reads it",
    "factor": "a field of scaling: scaling=rope_xp.scaling.Linear(factor), YaRN(factor, ...)",
    "unsqueeze_dim": "axes, one letter per axis: apply(q, k, positions, axes='bhsd')",
    "cu_seqlens": "positions=rope_xp.positions.packed(cu_seqlens)",
}
"""Names of other libraries, and what replaces them."""


def check_layout(layout: object) -> None:
    if layout not in LAYOUTS:
        raise RopeError(
            f"layout must be one of {', '.join(map(repr, LAYOUTS))}; got {layout!r}. Weights "
            "of Hugging Face and GPT-NeoX use 'half', the paper and Meta's own Llama 'interleaved'"
        )


def check_position_axes(position_axes: object, rotary_dim: int | None) -> tuple[int, ...]:
    """Check that position_axes is a tuple of component numbers; return these as Python's."""
    if not isinstance(position_axes, tuple):
        raise TypeError(
            "position_axes must be a tuple of integers, so that a RoPE is hashable; got "
            f"{position_axes!r}. Pass tuple(...) of it"
        )
    if not position_axes or not all(numbers.is_int(a) and a >= 0 for a in position_axes):
        raise RopeError(f"position_axes must be integers >= 0, one per pair; got {position_axes!r}")
    if rotary_dim is not None:
        check_axis_count(position_axes, rotary_dim)
    return tuple([numbers.plain(axis) for axis in position_axes])


def check_rope(rope: object, protocol: type, argument: str = "rope") -> None:
    if isinstance(rope, protocol):
        return
    kind, shape = type(rope).__name__, getattr(rope, "shape", None)
    got = f"{rope!r} ({kind})"
    if shape is not None:
        hint = "To rotate by tables, use rope_xp.apply_tables(x, cos, sin, layout=...)"
        got = f"an array, {kind} of shape {tuple(shape)}. {hint}"
    raise TypeError(f"{argument} must be a rope_xp.RoPE; got {got}")


def keyword_only(cls: type[T]) -> type[T]:
    """Make a dataclass reject unknown names and positional values, with a hint."""
    name = cls.__name__
    known = dict.fromkeys(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]  # it is one
    generated = cls.__init__

    @functools.wraps(generated)
    def init(self: T, *nameless: object, **fields: object) -> None:
        if nameless:
            value = nameless[0]
            raise TypeError(
                f"{name} takes its fields by name; got {', '.join(map(repr, nameless))}. Write "
                f"{name}(rotary_dim={value!r}) for the rotated components, or "
                f"{name}(base={value!r}) for the base, often called theta"
            )
        if not fields.keys() <= known.keys():
            unknown = [field for field in fields if field not in known]
            hints = [f"; {field} is {FOREIGN[field]}" for field in unknown if field in FOREIGN]
            msg = f"unknown option {', '.join(unknown)}; a {name} has {', '.join(known)}"
            raise TypeError(msg + "".join(hints))
        generated(self, **fields)

    cls.__init__ = init  # type: ignore[assignment]  # which takes what the generated one takes
    return cls
