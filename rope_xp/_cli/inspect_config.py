"""Report what a Hugging Face configuration says of its rotary embedding, and what is odd there.

The keys of the JSON object are always there. null stands for what is not known or does not apply:

- ``model_type``, ``checked`` (whether the table knows it), ``part`` (of the configuration)
- ``layers``: for each type of layer ``layer_type``, ``count``, ``rotated``, ``rope_type``, ``rule``
  (``name``, ``fields``), ``base``, ``layout``, ``head_dim``, ``rotary_dim``, ``rotary_offset``,
  ``pairs``, ``pairs_per_component`` (of a position: time, height, width, or row, column),
  ``original_context``, ``extended_context``, ``depends_on_length``, ``attention_factor``,
  ``softmax_scale``, ``wavelengths``
- ``wavelengths``: ``length`` (null where it does not matter), ``fastest`` and ``slowest`` in tokens
  (null where it never turns), ``standing_pairs``, ``below_one_turn_in_original`` and
  ``below_one_turn_in_extended``, which count pairs; one entry, or one for each length shown
- ``layers_without_rotation``: numbers of layers
- ``suspicious``: sentences
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import arguments, config_report, plots, terminal
from rope_xp._cli.reading import Layers, Reading, lengths, read, without_offset
from rope_xp._contract.errors import RopeError
from rope_xp.rope import RoPE

_COMPONENTS = {2: ("row", "column"), 3: ("time", "height", "width")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="a config.json, or its directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the wavelengths of all pairs"
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="how components pair up, for a model type that is not known",
    )
    parser.add_argument(
        "--length",
        type=arguments.count,
        metavar="N",
        help="tokens of the context, for rules that depend on it; default: the trained context "
        "and a longer one",
    )


def run(options: argparse.Namespace) -> int:
    """Print the report; return the exit status, 1 where there is nothing to report on."""
    try:
        reading = read(options.config, options.layout)
        found = config_report.collect(reading, options.length)
        if options.plot is not None:
            draw(options.plot, reading, options.length)
    except OSError as error:
        return terminal.fail("inspect", f"{error.filename}: {error.strerror}")
    except RopeError as error:
        return terminal.fail("inspect", str(error))
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        _print(found)
    return 0


# --- drawing -------------------------------------------------------------------------------------


def draw(path: Path, reading: Reading, asked: int | None) -> None:
    """Draw the wavelengths of each type of layer, for the length that was asked for, if any."""
    drawings = {}
    for layers in reading.layers:
        if layers.rope is None or layers.rotated is None:
            continue
        title = f"{layers.label or 'all layers'}, {layers.rotated} rotated components"
        ropes = _compared(layers, without_offset(layers.rope), asked)
        drawings[title] = (ropes, layers.rotated, _contexts(layers))
    if not drawings:
        raise RopeError("there is nothing to draw, as head_dim is not known")
    plots.write_wavelengths(path, drawings)


def _compared(layers: Layers, rope: RoPE, asked: int | None) -> dict[str, RoPE]:
    plain = {"without a rule": replace(rope, scaling=None)}
    if rope.scaling is None:
        return plain
    name = type(rope.scaling).__name__
    at = lengths(layers, asked)
    if not at:
        return {**plain, name: rope}
    return {**plain, **{f"{name} at {n} tokens": rope.for_length(n) for n in at}}


def _contexts(layers: Layers) -> dict[str, int]:
    named = {"original context": layers.trained, "extended context": layers.extended}
    known = {name: tokens for name, tokens in named.items() if tokens is not None}
    distinct = set(known.values())
    return {"context": distinct.pop()} if len(distinct) == 1 else known


# --- printing ------------------------------------------------------------------------------------


def _print(found: dict[str, Any]) -> None:
    checked = "" if found["checked"] else " (not checked)"
    lines = [("model type", f"{found['model_type']}{checked}")]
    if found["part"]:
        lines.append(("part", found["part"]))
    if found["layers_without_rotation"]:
        numbers = ", ".join(map(str, found["layers_without_rotation"]))
        lines.append(("layers without rotation", numbers))
    print(terminal.plain_pairs(lines))
    for layers in found["layers"]:
        print()
        print(_title(layers))
        if layers["rotated"]:
            print(terminal.plain_pairs([(f"  {name}", text) for name, text in _lines(layers)]))
    rows = [_row(layers, one) for layers in found["layers"] for one in layers["wavelengths"]]
    if rows:
        print()
        columns = ("layers", "at length", "fastest turn, tokens", "slowest turn, tokens")
        below = ("below one turn in original", "in extended context")
        terminal.table((*columns, *below), rows, text_columns=1)
    print()
    print("suspicious:" if found["suspicious"] else "suspicious: nothing")
    for sentence in found["suspicious"]:
        print(f"- {sentence}")


def _title(layers: dict[str, Any]) -> str:
    name = layers["layer_type"] or "all layers"
    count = "" if layers["count"] is None else f" ({layers['count']})"
    return f"{name}{count}{'' if layers['rotated'] else ': no positions'}"


def _lines(layers: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("rule", _rule(layers["rule"])),
        ("base", f"{layers['base']:.10g}"),
        ("layout", layers["layout"]),
        ("rotated", _slice(layers)),
        ("position", _position(layers["pairs_per_component"])),
        ("context", _context(layers["original_context"], layers["extended_context"])),
        ("attention factor", f"{layers['attention_factor']:.6g}"),
        ("softmax scale", f"{layers['softmax_scale']:.6g}"),
    ]


def _rule(rule: dict[str, Any] | None) -> str:
    if rule is None:
        return "none"
    texts = []
    for name, value in rule["fields"].items():
        if isinstance(value, tuple):
            text = f"{len(value)} numbers from {min(value):g} to {max(value):g}"
            texts.append(f"{name}=({text})")
        elif value is not None:
            texts.append(f"{name}={value!r}")
    return f"{rule['name']}({', '.join(texts)})"


def _slice(layers: dict[str, Any]) -> str:
    rotated, head, offset = (layers[key] for key in ("rotary_dim", "head_dim", "rotary_offset"))
    if rotated is None:
        return "all components of a head of unknown size"
    of = f"{rotated} of {head or 'unknown'} components"
    where = "" if rotated == head else ", the first" if offset == 0 else ", the last"
    return f"{of}{where}; {layers['pairs']} pairs"


def _position(counts: list[int] | None) -> str:
    if counts is None:
        return "one number"
    names = _COMPONENTS.get(len(counts), tuple(f"component {i}" for i in range(len(counts))))
    each = ", ".join(f"{name} {n}" for name, n in zip(names, counts, strict=True))
    return f"{len(counts)} numbers; pairs that read each: {each}"


def _context(original: int | None, extended: int | None) -> str:
    if original is None:
        return "unknown" if extended is None else f"{extended} tokens; the original is not known"
    same = original == extended
    return (
        f"{original} tokens" if same else f"{original} tokens, extended to {extended or 'unknown'}"
    )


def _row(layers: dict[str, Any], one: dict[str, Any]) -> tuple[str, ...]:
    slowest = "never turns" if one["standing_pairs"] else _number(one["slowest"])
    below = (one["below_one_turn_in_original"], one["below_one_turn_in_extended"])
    return (
        layers["layer_type"] or "all layers",
        "any" if one["length"] is None else str(one["length"]),
        _number(one["fastest"]),
        slowest,
        *("unknown" if n is None else f"{n} of {layers['pairs']} pairs" for n in below),
    )


def _number(tokens: float | None) -> str:
    return "unknown" if tokens is None else f"{tokens:.{2 if tokens < 100 else 0}f}"
