"""What the code of a model type fixes and its configuration does not say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rope_xp._core.typing import Layout

Parameters = Mapping[str, Any]

FLAT = ""
"""The label of parameters that are for all layers."""


@dataclass(frozen=True)
class Model:
    """What models of one type have in common."""

    layout: Layout = "half"
    base: float = 10000.0
    partial: float = 1.0
    trailing: bool = False
    """Whether the rotated slice lies at the end of the head."""
    sections: tuple[int, ...] = ()
    """mrope_section, where the configuration has none: how many pairs read each component."""
    section_order: Literal["contiguous", "interleaved", "ernie", "across", "rows and columns"] = (
        "contiguous"
    )
    axial: str = ""
    """Order of :class:`rope_xp.scaling.Axial`; empty for models that read one position."""
    components: tuple[int, ...] = (0, 1)
    """The components of a position in the order in which an axial rule takes them."""
    width: tuple[str, ...] = ("hidden_size", "num_attention_heads")
    """Keys that give head_dim where it is not there: the first divided by the others."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of head_dim, if it does not follow from the width, and other keys that may be missing."""
    layers: Mapping[str, Parameters | None] = field(default_factory=dict)
    """Parameters of each layer type where the configuration has none."""
    base_keys: Mapping[str, str] = field(default_factory=dict)
    """Top-level key of the base of a layer type, where it is not rope_theta."""
    unrotated: tuple[str, ...] = ()
    """Layer types that the code does not rotate, though the configuration does not say so."""
    rotated_without_window: bool = False
    """Whether those are rotated after all where sliding_window is null."""
    unrotated_every: int | None = None
    """Which layer of each so many the code does not rotate, if no list says so: the last."""
    rotary_dim: int | None = None
    """Rotated components where the configuration gives neither a number nor a share."""
    rotary_if: tuple[str, Any] | None = None
    """A key and the value without which the model does not rotate at all."""
    scaled: tuple[str, ...] = ()
    """Layer types that a flat dictionary of parameters is for."""
