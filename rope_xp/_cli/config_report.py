"""Build the report of ``python -m rope_xp inspect`` as what JSON can hold."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

from rope_xp._cli import layer_counts, python_text, suspicions
from rope_xp._cli.reading import Layers, Reading, has_base, list_defaults
from rope_xp.rope import RoPE


def build_report(reading: Reading, requested: int | None = None) -> dict[str, Any]:
    """Return the report on a configuration, for a context length if one was requested."""
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
    axes = None if rope is None else rope.position_axes
    variable = layers.label if layers.label.isidentifier() else "rope"
    return {
        "layer_type": layers.label or None,
        "count": layer_counts.count_layers(reading, layers.label),
        "rotated": rope is not None,
        "rope_type": layers.parameters.get("rope_type"),
        "rule": None if rope is None else _describe_scaling(rope),
        "base": None if rope is None else rope.base,
        "base_by_default": rope is not None and not has_base(reading, layers),
        "layout": None if rope is None else rope.layout,
        "head_dim": layers.head_dim,
        "rotary_dim": None if rope is None else rotated,
        "rotary_offset": None if rope is None else rope.rotary_offset,
        "pairs": None if rope is None or rotated is None else rotated // 2,
        "pairs_per_component": axes and [axes.count(a) for a in range(max(axes) + 1)],
        "original_context": layers.contexts[0],
        "extended_context": layers.contexts[1],
        "depends_on_length": layers.depends_on_length,
        "attention_factor": None if rope is None else rope.attention_factor,
        "softmax_scale": None if rope is None else rope.softmax_scale,
        "wavelengths": _list_wavelengths(layers, requested),
        "python": python_text.format_assignment(variable, rope),
    }


def _describe_scaling(rope: RoPE) -> dict[str, Any] | None:
    scaling = rope.scaling
    if scaling is None:
        return None
    names: list[str] = [field.name for field in fields(scaling)] if is_dataclass(scaling) else []
    values = {name: getattr(scaling, name) for name in names}
    return {"name": type(scaling).__name__, "fields": values}


def _list_wavelengths(layers: Layers, requested: int | None) -> list[dict[str, Any]]:
    """Return the wavelengths at each length to report."""
    rope = layers.slice_rope
    if rope is None:
        return []
    lengths: tuple[int | None, ...] = layers.list_lengths(requested) or (None,)
    return [_measure_wavelengths(layers, rope, length) for length in lengths]


def _measure_wavelengths(layers: Layers, rope: RoPE, length: int | None) -> dict[str, Any]:
    rope = rope if length is None else rope.for_length(length)
    dim = layers.rotated
    waves: list[float] | None = None if dim is None else rope.wavelengths(dim).tolist()
    slowest = None if waves is None else max(waves)

    def count_slower(context: float | None) -> int | None:
        return None if waves is None or context is None else sum(w > context for w in waves)

    return {
        "length": length,
        "fastest": None if waves is None else min(waves),
        "slowest": None if slowest == math.inf else slowest,  # JSON has no infinity
        "standing_pairs": None if waves is None else waves.count(math.inf),
        "below_one_turn_in_original": count_slower(layers.contexts[0]),
        "below_one_turn_in_extended": count_slower(layers.contexts[1]),
    }
