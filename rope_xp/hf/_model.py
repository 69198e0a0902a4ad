"""Properties that the code of a model type fixes, and its configuration leaves out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rope_xp._core.typing import Layout

Parameters = Mapping[str, Any]

FLAT = ""
"""The label of parameters for all layers."""


@dataclass(frozen=True)
class Model:
    """The row of a model type."""

    layout: Layout = "half"
    base: float = 10000.0
    partial: float = 1.0
    trailing: bool = False
    """Whether the rotated slice lies at the end of the head."""
    sections: tuple[int, ...] = ()
    """The default of mrope_section: how many pairs read each component."""
    section_order: Literal["contiguous", "interleaved", "ernie", "across", "rows and columns"] = (
        "contiguous"
    )
    axial: str = ""
    """Order of :class:`rope_xp.scaling.Axial`; empty for other models."""
    components: tuple[int, ...] = (0, 1)
    """The components of a position in the order of the axes of an axial scaling."""
    width: tuple[str, ...] = ("hidden_size", "num_attention_heads")
    """Keys that determine a missing head_dim: the first divided by the others."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Defaults of head_dim, if it does not follow from the width, and of other sizes."""
    layers: Mapping[str, Parameters | None] = field(default_factory=dict)
    """Default parameters of each layer type."""
    base_keys: Mapping[str, str] = field(default_factory=dict)
    """Top-level key of the base of a layer type."""
    unrotated: tuple[str, ...] = ()
    """Layer types that the code does not rotate."""
    rotated_without_window: bool = False
    """Whether it rotates them if sliding_window is null."""
    unrotated_every: int | None = None
    """The code does not rotate the last of each so many layers, unless a list says otherwise."""
    rotary_dim: int | None = None
    """Default number of rotated components."""
    rotary_if: tuple[str, Any] | None = None
    """A key, and the value without which the model does not rotate."""
    scaled: tuple[str, ...] = ()
    """Layer types that flat parameters are for."""
