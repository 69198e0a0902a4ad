"""Describe the rotary embedding of a Hugging Face configuration, and list suspicious keys.

The JSON object always has the same keys. null means unknown or not applicable: ``rope`` for layers
without positions, ``slowest`` where a pair never turns. ``fastest`` and ``slowest`` are in tokens.
``plan`` has equal layers together, and ``no_plan`` says why there is none.
"""

import argparse
import math
import textwrap
from dataclasses import replace
from typing import Any

from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import suspicions, terminal
from rope_xp._cli.isolation import isolate
from rope_xp._cli.reading import Layers, Reading, read_config
from rope_xp._core.errors import RopeError
from rope_xp.hf import _models
from rope_xp.hf._layer_plan import describe
from rope_xp.hf._plan import build_plan, group_layers
from rope_xp.rope import RoPE

_ELSEWHERE = ("layer_type", "rope", "wavelengths", "python")
"""Keys that are printed otherwise than as a line of their own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a config.json, or the folder that has it")
    add("--json", action="store_true", help="print one JSON object")
    add("--layout", choices=LAYOUTS, help="of a model type that rope_xp does not know")


def run(options: argparse.Namespace) -> int:
    report = build_report(read_config(options.config, options.layout))
    if options.json:
        terminal.write_json(report, allow_nan=False)
    else:
        print_report(report)
    return 0


def build_report(reading: Reading) -> dict[str, Any]:
    model_type, plan, no_plan = reading.part.get("model_type"), None, None
    try:
        with isolate():
            groups = group_layers(build_plan(reading.part, reading.layout))
        plan = [{"layers": members, **describe(layer)} for layer, members in groups.values()]
    except RopeError as error:
        no_plan = str(error)
    return {
        "model_type": None if model_type is None else str(model_type),
        "checked": _models.get_row(model_type) is not None,
        "layers": [_describe_layers(layers) for layers in reading.layers],
        "plan": plan,
        "no_plan": no_plan,
        "notes": suspicions.find_notes(reading),
        "suspicious": suspicions.find_suspicions(reading),
    }


def _describe_layers(layers: Layers) -> dict[str, Any]:
    rope, label = layers.rope, layers.label
    code = f"{label if label.isidentifier() else 'rope'} = {rope!r}"
    waves = [] if rope is None else [_measure_waves(layers, rope, n) for n in layers.lengths or [0]]
    return {
        "layer_type": label or None,
        "rope": describe(rope),
        "head_dim": layers.head_dim,
        "original_context": layers.contexts[0],
        "extended_context": layers.contexts[1],
        "attention_factor": getattr(rope, "attention_factor", None),
        "softmax_scale": getattr(rope, "softmax_scale", None),
        "wavelengths": waves,
        "python": textwrap.fill(code, 100, subsequent_indent=" " * 4, break_on_hyphens=False),
    }


def _measure_waves(layers: Layers, rope: RoPE, length: int) -> dict[str, Any]:
    # The offset of the rotated slice does not change its frequencies.
    rope = replace(rope.for_length(length or 1), rotary_offset=0)
    waves = [] if layers.rotated is None else rope.wavelengths(layers.rotated).tolist()
    slower = [sum(w > n for w in waves) if waves and n else None for n in layers.contexts]
    return {
        "length": length or None,
        "fastest": min((w for w in waves if w < math.inf), default=None),
        "slowest": None if math.inf in waves else max(waves, default=None),  # JSON has no infinity
        "pairs": len(waves) or None,
        "standing_pairs": waves.count(math.inf) if waves else None,
        "below_one_turn_in_original": slower[0],
        "below_one_turn_in_extended": slower[1],
    }


def print_report(report: dict[str, Any]) -> None:
    terminal.write(f"model type: {report['model_type']}{'' if report['checked'] else ' (unknown)'}")
    ropes = [layers["rope"] for layers in report["layers"] if layers["rope"]]
    rules = sorted({rope["scaling"]["name"] for rope in ropes if rope["scaling"]})
    terminal.write("", "from rope_xp import RoPE")
    terminal.write(*(f"from rope_xp.scaling import {name}" for name in rules))
    for layers in report["layers"]:
        terminal.write("", f"# {layers['layer_type'] or 'all layers'}")
        terminal.write(*layers["python"].split("\n"))
        facts = [] if layers["rope"] is None else [*layers.items()]
        terminal.write(
            *(
                f"#   {key.replace('_', ' ')}: {value}"
                for key, value in facts
                if key not in _ELSEWHERE and value is not None
            ),
            *(f"#   {_format_waves(layers, waves)}" for waves in layers["wavelengths"]),
        )
    terminal.write_list("plan", [*map(_format_plan, report["plan"] or [])])
    terminal.write_list("no plan", [report["no_plan"]] if report["no_plan"] else [])
    for title in ("notes", "suspicious"):
        terminal.write_list(title, report[title])
    if not report["suspicious"]:
        terminal.write("", "suspicious: nothing; all rotary keys are used and consistent")


def _format_waves(layers: dict[str, Any], waves: dict[str, Any]) -> str:
    """Return how fast pairs turn, and how many do not see all angles within a context."""
    if not waves["pairs"]:
        return "pairs: unknown"
    ends = (math.inf if waves[end] is None else waves[end] for end in ("fastest", "slowest"))
    fastest, slowest = (f"{n:.{2 if n < 100 else 0}f}" for n in ends)
    text = f"at {waves['length']} tokens, " * bool(waves["length"])
    text += f"{waves['pairs']} pairs turn once in {fastest} to {slowest} tokens"
    contexts = ("original", "extended")
    slower = {layers[f"{c}_context"]: waves[f"below_one_turn_in_{c}"] for c in contexts}
    text += "".join(f"; {n} less than once in {length}" for length, n in slower.items() if length)
    return text + f"; {waves['standing_pairs']} never" * bool(waves["standing_pairs"])


def _format_plan(plan: dict[str, Any]) -> str:
    members = dict.fromkeys(plan["layers"])
    ends = ([i for i in members if i + step not in members] for step in (-1, 1))
    spans = [f"{a}-{b}" if a < b else str(a) for a, b in zip(*ends, strict=True)]
    facts = [plan["kind"], *["without positions"] * (plan["rope"] is None and bool(plan["heads"]))]
    for key, value in plan.items():
        if key not in ("layers", "kind", "rope") and value is not None:
            facts.append(f"{key.replace('_', ' ')} {value}")
    return f"layers {', '.join(spans)}: {', '.join(facts)}"
