"""The numbers of ``python -m rope_xp inspect``, as what JSON can hold."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

from rope_xp._cli import layer_counts, python_text, suspicions
from rope_xp._cli.reading import Layers, Reading, by_default, lengths, says_base, without_offset
from rope_xp.rope import RoPE


def collect(reading: Reading, asked: int | None = None) -> dict[str, Any]:
    """Return the report on a configuration. ``asked`` is the length of the context, if given."""
    model_type = reading.part.get("model_type")
    return {
        "model_type": None if model_type is None else str(model_type),
        "checked": suspicions.is_checked(model_type),
        "part": reading.path or None,
        "layers": [_layers(reading, layers, asked) for layers in reading.layers],
        "by_default": by_default(reading),
        "layers_without_rotation": layer_counts.without_rotation(reading),
        "notes": suspicions.notes(reading, asked),
        "suspicious": suspicions.find(reading),
    }


def _layers(reading: Reading, layers: Layers, asked: int | None) -> dict[str, Any]:
    rope, rotated = layers.rope, layers.rotated
    pairs = None if rope is None or rotated is None else rotated // 2
    return {
        "layer_type": layers.label or None,
        "count": layer_counts.count(reading, layers.label),
        "rotated": rope is not None,
        "rope_type": layers.parameters.get("rope_type"),
        "rule": None if rope is None else _rule(rope),
        "base": None if rope is None else rope.base,
        "base_by_default": rope is not None and not says_base(reading, layers),
        "layout": None if rope is None else rope.layout,
        "head_dim": layers.head_dim,
        "rotary_dim": None if rope is None else rotated,
        "rotary_offset": None if rope is None else rope.rotary_offset,
        "pairs": pairs,
        "pairs_per_component": None if rope is None else _components(rope),
        "original_context": layers.trained,
        "extended_context": layers.extended,
        "depends_on_length": layers.depends_on_length,
        "attention_factor": None if rope is None else rope.attention_factor,
        "softmax_scale": None if rope is None else rope.softmax_scale,
        "wavelengths": [] if rope is None else _regimes(layers, rope, asked),
        "python": python_text.assignment(_name(layers.label), rope),
    }


def _name(label: str) -> str:
    return label if label.isidentifier() else "rope"


def _rule(rope: RoPE) -> dict[str, Any] | None:
    rule = rope.scaling
    if rule is None:
        return None
    names: list[str] = [field.name for field in fields(rule)] if is_dataclass(rule) else []
    return {"name": type(rule).__name__, "fields": {name: getattr(rule, name) for name in names}}


def _components(rope: RoPE) -> list[int] | None:
    axes = rope.position_axes
    return None if axes is None else [axes.count(a) for a in range(max(axes) + 1)]


def _regimes(layers: Layers, rope: RoPE, asked: int | None) -> list[dict[str, Any]]:
    """Return the wavelengths, once for each length at which to look."""
    at = lengths(layers, asked)
    if not at:
        return [_wavelengths(layers, rope, None)]
    return [_wavelengths(layers, rope.for_length(n), n) for n in at]


def _wavelengths(layers: Layers, rope: RoPE, length: int | None) -> dict[str, Any]:
    rotated = layers.rotated
    known = rotated is not None
    waves = without_offset(rope).wavelengths(rotated).tolist() if rotated is not None else []

    def slower(context: float | None) -> int | None:
        return sum(wave > context for wave in waves) if known and context is not None else None

    return {
        "length": length,
        "fastest": min(waves) if known else None,
        "slowest": finite(max(waves)) if known else None,
        "standing_pairs": waves.count(math.inf) if known else None,
        "below_one_turn_in_original": slower(layers.trained),
        "below_one_turn_in_extended": slower(layers.extended),
    }


def finite(value: float) -> float | None:
    """Return a number, None where it is infinite, which JSON has no word for.

    Examples
    --------
    >>> finite(6.5), finite(float("inf"))
    (6.5, None)
    """
    return value if math.isfinite(value) else None
