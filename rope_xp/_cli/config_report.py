"""The numbers of ``python -m rope_xp inspect``, as what JSON can hold."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

from rope_xp._cli import layer_counts, python_text, suspicions
from rope_xp._cli.reading import (
    Layers,
    Reading,
    lengths_to_show,
    list_defaults,
    says_base,
    without_offset,
)
from rope_xp.rope import RoPE


def build_report(reading: Reading, requested: int | None = None) -> dict[str, Any]:
    """Return the report on a configuration, for the length that was requested, if any."""
    model_type = reading.part.get("model_type")
    return {
        "model_type": None if model_type is None else str(model_type),
        "checked": suspicions.is_checked(model_type),
        "part": reading.path or None,
        "layers": [_describe_layers(reading, layers, requested) for layers in reading.layers],
        "by_default": list_defaults(reading),
        "layers_without_rotation": layer_counts.list_unrotated(reading),
        "notes": suspicions.find_notes(reading, requested),
        "suspicious": suspicions.find_suspicions(reading),
    }


def _describe_layers(reading: Reading, layers: Layers, requested: int | None) -> dict[str, Any]:
    rope, rotated = layers.rope, layers.rotated
    pairs = None if rope is None or rotated is None else rotated // 2
    return {
        "layer_type": layers.label or None,
        "count": layer_counts.count_layers(reading, layers.label),
        "rotated": rope is not None,
        "rope_type": layers.parameters.get("rope_type"),
        "rule": None if rope is None else _describe_rule(rope),
        "base": None if rope is None else rope.base,
        "base_by_default": rope is not None and not says_base(reading, layers),
        "layout": None if rope is None else rope.layout,
        "head_dim": layers.head_dim,
        "rotary_dim": None if rope is None else rotated,
        "rotary_offset": None if rope is None else rope.rotary_offset,
        "pairs": pairs,
        "pairs_per_component": None if rope is None else _count_pairs(rope),
        "original_context": layers.trained,
        "extended_context": layers.extended,
        "depends_on_length": layers.depends_on_length,
        "attention_factor": None if rope is None else rope.attention_factor,
        "softmax_scale": None if rope is None else rope.softmax_scale,
        "wavelengths": [] if rope is None else _list_wavelengths(layers, rope, requested),
        "python": python_text.format_assignment(_variable_name(layers.label), rope),
    }


def _variable_name(label: str) -> str:
    return label if label.isidentifier() else "rope"


def _describe_rule(rope: RoPE) -> dict[str, Any] | None:
    rule = rope.scaling
    if rule is None:
        return None
    names: list[str] = [field.name for field in fields(rule)] if is_dataclass(rule) else []
    return {"name": type(rule).__name__, "fields": {name: getattr(rule, name) for name in names}}


def _count_pairs(rope: RoPE) -> list[int] | None:
    axes = rope.position_axes
    return None if axes is None else [axes.count(a) for a in range(max(axes) + 1)]


def _list_wavelengths(layers: Layers, rope: RoPE, requested: int | None) -> list[dict[str, Any]]:
    """Return the wavelengths, once for each length at which to look."""
    at = lengths_to_show(layers, requested)
    if not at:
        return [_measure_wavelengths(layers, rope, None)]
    return [_measure_wavelengths(layers, rope.for_length(n), n) for n in at]


def _measure_wavelengths(layers: Layers, rope: RoPE, length: int | None) -> dict[str, Any]:
    rotated = layers.rotated
    known = rotated is not None
    waves = without_offset(rope).wavelengths(rotated).tolist() if rotated is not None else []

    def slower(context: float | None) -> int | None:
        return sum(wave > context for wave in waves) if known and context is not None else None

    return {
        "length": length,
        "fastest": min(waves) if known else None,
        "slowest": finite_or_none(max(waves)) if known else None,
        "standing_pairs": waves.count(math.inf) if known else None,
        "below_one_turn_in_original": slower(layers.trained),
        "below_one_turn_in_extended": slower(layers.extended),
    }


def finite_or_none(value: float) -> float | None:
    """Return a number, None where it is infinite, which JSON has no word for.

    Examples
    --------
    >>> finite_or_none(6.5), finite_or_none(float("inf"))
    (6.5, None)
    """
    return value if math.isfinite(value) else None
