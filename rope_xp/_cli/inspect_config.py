"""Describe the rotary embedding of a Hugging Face configuration, and list suspicious keys.

The JSON object always has the same keys. null means unknown or not applicable: ``python`` for a
scaling that is not rope_xp's, ``slowest`` where a pair never turns. ``fastest`` and ``slowest`` are
in tokens; ``by_default`` has the sizes that the configuration leaves out, and
``pairs_per_component`` the pairs of time, height and width, or of row and column. ``plan`` has
equal layers together, and ``no_plan`` says why there is none.
"""

import argparse
import math
import pprint
import textwrap
from dataclasses import fields, is_dataclass, replace
from typing import Any

from rope_xp import scaling
from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import suspicions, terminal
from rope_xp._cli.isolation import isolate
from rope_xp._cli.reading import Layers, Reading, count_layers, read_config
from rope_xp._core.errors import RopeError
from rope_xp.hf import _models
from rope_xp.hf._layer_plan import describe
from rope_xp.hf._plan import build_plan, group_layers, list_unrotated
from rope_xp.rope import RoPE

_LEGEND = {
    "length": "tokens of the context, if frequencies depend on it",
    "fastest": "tokens that the fastest pair takes for one turn",
    "slowest": "tokens that the slowest pair takes for one turn",
    "original": "pairs that turn less than once in the original context",
    "extended": "pairs that turn less than once in the extended context",
}
_ELSEWHERE = ("layer_type", "count", "rotated", "wavelengths", "python")
"""Keys that the title and the table show."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a config.json, or the folder that has it")
    add("--json", action="store_true", help="print one JSON object")
    layout_help = "layout of a model type that rope_xp does not know: "
    add("--layout", choices=LAYOUTS, metavar="LAYOUT", help=layout_help + ", ".join(LAYOUTS))
    length_help = "tokens of the context, for scaling that depends on it; default: the trained one"
    add("--length", type=terminal.count, metavar="N", help=f"{length_help} and a longer one")


def run(options: argparse.Namespace) -> int:
    reading = read_config(options.config, options.layout)
    facts = build_report(reading, options.length)
    if options.json:
        terminal.write_json(facts, allow_nan=False)
    else:
        print_report(facts)
    return 0


def build_report(reading: Reading, requested: int | None = None) -> dict[str, Any]:
    part, model = reading.part, reading.model
    model_type = part.get("model_type")
    return {
        "model_type": None if model_type is None else str(model_type),
        "checked": _models.get_row(model_type) is not None,
        "part": reading.path or None,
        "layers": [_describe_layers(layers, requested) for layers in reading.layers],
        "by_default": reading.list_defaults(),
        "layers_without_rotation": list_unrotated(part, model, count_layers(part, model, "")),
        **_describe_plan(reading),
        "notes": suspicions.find_notes(reading, requested),
        "suspicious": suspicions.find_suspicions(reading),
    }


def _describe_plan(reading: Reading) -> dict[str, Any]:
    """Return the layers of a model by what they do, or why there is no plan."""
    try:
        with isolate():
            groups = group_layers(build_plan(reading.part, reading.layout))
    except RopeError as error:
        return {"plan": None, "no_plan": str(error)}
    plan = [{"layers": members, **describe(layer)} for layer, members in groups.values()]
    return {"plan": plan, "no_plan": None}


def _describe_layers(layers: Layers, requested: int | None) -> dict[str, Any]:
    rope, rotated = layers.rope, layers.rotated
    axes = getattr(rope, "position_axes", None)
    lengths: tuple[int | None, ...] = layers.list_lengths(requested) or (None,)
    waves = [] if rope is None else [_measure_wavelengths(layers, rope, n) for n in lengths]
    rule = getattr(rope, "scaling", None)
    values = {f.name: getattr(rule, f.name) for f in fields(rule)} if is_dataclass(rule) else {}
    return {
        "layer_type": layers.label or None,
        "count": count_layers(layers.source.config, layers.source.model, layers.label),
        "rotated": rope is not None,
        "rope_type": layers.source.parameters.get("rope_type"),
        "scaling": rule and {"name": type(rule).__name__, "fields": values},
        "base": getattr(rope, "base", None),
        "base_by_default": rope is not None and not layers.has_base(),
        "layout": getattr(rope, "layout", None),
        "head_dim": layers.head_dim,
        "rotary_dim": None if rope is None else rotated,
        "rotary_offset": getattr(rope, "rotary_offset", None),
        "pairs": None if rope is None or rotated is None else rotated // 2,
        "pairs_per_component": axes and [axes.count(a) for a in range(max(axes) + 1)],
        "original_context": layers.contexts[0],
        "extended_context": layers.contexts[1],
        "depends_on_length": layers.depends_on_length,
        "attention_factor": getattr(rope, "attention_factor", None),
        "softmax_scale": getattr(rope, "softmax_scale", None),
        "wavelengths": waves,
        "python": format_assignment(layers.label if layers.label.isidentifier() else "rope", rope),
    }


def _measure_wavelengths(layers: Layers, rope: RoPE, length: int | None) -> dict[str, Any]:
    # The offset of the rotated slice does not change its frequencies.
    rope = replace(rope.for_length(length or 1), rotary_offset=0)
    waves = [] if layers.rotated is None else rope.wavelengths(layers.rotated).tolist()
    slower = [sum(w > n for w in waves) if waves and n else None for n in layers.contexts]
    return {
        "length": length,
        "fastest": min((w for w in waves if w < math.inf), default=None),
        "slowest": None if math.inf in waves else max(waves, default=None),  # JSON has no infinity
        "standing_pairs": waves.count(math.inf) if waves else None,
        "below_one_turn_in_original": slower[0],
        "below_one_turn_in_extended": slower[1],
    }


def print_report(report: dict[str, Any]) -> None:
    """Print a report; facts have the names of their JSON keys."""
    sizes = ", ".join(f"{key} = {size}" for key, size in report["by_default"].items())
    exempt = report["layers_without_rotation"]
    facts = [
        ("model type", f"{report['model_type']}{'' if report['checked'] else ' (unknown)'}"),
        ("part", report["part"]),
        ("by default", sizes and f"{sizes} (not in the file)"),
        ("not rotated", exempt and f"{len(exempt)} layers: {', '.join(map(str, exempt))}"),
    ]
    terminal.write_pairs([(name, text) for name, text in facts if text])
    for layers in report["layers"]:
        _print_layers(layers)
    rows = [_format_waves(layers, x) for layers in report["layers"] for x in layers["wavelengths"]]
    if rows:
        terminal.write("")
        terminal.table(("layers", *_LEGEND), rows, text_columns=1)
        terminal.write("")
        terminal.write_pairs([*_LEGEND.items()])
    terminal.write_list("plan", [*map(_format_layers, report["plan"] or [])])
    terminal.write_list("no plan", [report["no_plan"]] if report["no_plan"] else [])
    for title in ("notes", "suspicious"):
        terminal.write_list(title, report[title])
    if not report["suspicious"]:
        terminal.write("", "suspicious: nothing; all rotary keys are used and consistent")
    if texts := [layers["python"] for layers in report["layers"] if layers["python"]]:
        lines = "\n".join(texts).split("\n")
        terminal.write("", "in Python:", "", "import rope_xp", "", *lines)


def _print_layers(layers: dict[str, Any]) -> None:
    number = "" if layers["count"] is None else f" ({layers['count']})"
    end = "" if layers["rotated"] else ": no positions"
    terminal.write("", f"{layers['layer_type'] or 'all layers'}{number}{end}")
    if layers["rotated"]:
        shown = [
            (f"  {key.replace('_', ' ')}", _format_fact(value))
            for key, value in layers.items()
            if key not in _ELSEWHERE and value is not None and value is not False
        ]
        terminal.write_pairs(shown)


def _format_waves(layers: dict[str, Any], waves: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of the table of wavelengths."""
    fastest, slowest = (
        "unknown" if n is None else f"{n:.{2 if n < 100 else 0}f}"
        for n in (waves["fastest"], waves["slowest"])
    )
    counts = [waves[f"below_one_turn_in_{context}"] for context in ("original", "extended")]
    return (
        *(layers["layer_type"] or "all layers", str(waves["length"] or "any"), fastest),
        "never turns" if waves["standing_pairs"] else slowest,
        *("unknown" if n is None else f"{n} of {layers['pairs']}" for n in counts),
    )


def _format_layers(plan: dict[str, Any]) -> str:
    plan = dict(plan)
    members = dict.fromkeys(plan.pop("layers"))
    ends = ([i for i in members if i + step not in members] for step in (-1, 1))
    spans = [f"{a}-{b}" if a < b else str(a) for a, b in zip(*ends, strict=True)]
    positions = "" if plan.pop("rope") or plan["heads"] is None else "without positions, "
    line = f"layers {', '.join(spans)}: {plan.pop('kind')}, {positions}{_join_facts(plan)}"
    return line.removesuffix(", ")


def _join_facts(facts: dict[str, Any]) -> str:
    texts = []
    for key, value in facts.items():
        if isinstance(value, dict):
            texts.append(f"{key} ({_join_facts(value)})")
        elif value not in (None, False, 0.0, []):
            text = _format_fact(value)
            if isinstance(value, list):
                text = (" and " if len(value) < 3 else ", ").join(map(str, value))
            texts.append(f"{key.replace('_', ' ')} {text}")
    return ", ".join(texts)


def _format_fact(value: Any) -> str:
    if isinstance(value, dict):  # a scaling
        values = {name: v for name, v in value["fields"].items() if v is not None}
        texts = [
            f"{name}=({len(v)} numbers from {min(v):g} to {max(v):g})"
            if isinstance(v, tuple)
            else f"{name}={v!r}"
            for name, v in values.items()
        ]
        return f"{value['name']}({', '.join(texts)})"
    if value is True:
        return "yes"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def format_assignment(name: str, rope: RoPE | None) -> str | None:
    """Return the lines ``name = rope_xp.RoPE(...)``, None if its scaling is not rope_xp's."""
    rule = None if rope is None else rope.scaling
    if rule is not None and getattr(scaling, type(rule).__name__, None) is not type(rule):
        return None
    return f"{name} = {_format_value(rope)}"


def _format_value(value: Any) -> str:
    """Return the text of a value; a dataclass without the fields that have their default."""
    if isinstance(value, str):
        return f'"{value}"'
    if not is_dataclass(value):
        return pprint.pformat(value, width=60, compact=True)
    is_rope = isinstance(value, RoPE)
    lines = [
        textwrap.indent(f"{field.name}={_format_value(getattr(value, field.name))},", " " * 4)
        for field in fields(value)
        if getattr(value, field.name) != field.default
        or (is_rope and field.name in ("base", "layout"))
    ]
    name = "rope_xp.RoPE" if is_rope else f"rope_xp.scaling.{type(value).__name__}"
    return "\n".join([f"{name}(", *lines, ")"])
