"""Report what a Hugging Face configuration says of its rotary embedding, and what is odd there.

The keys of the JSON object are always there. null stands for what is not known or does not apply:

- ``model_type``, ``checked`` (whether the table knows it), ``part`` (of the configuration)
- ``by_default``: sizes that the configuration leaves out, as the class of the model type has them
- ``layers``: for each type of layer ``layer_type``, ``count``, ``rotated``, ``rope_type``, ``rule``
  (``name``, ``fields``), ``base``, ``base_by_default`` (not in the file), ``layout``,
  ``head_dim``, ``rotary_dim``, ``rotary_offset``, ``pairs``, ``pairs_per_component`` (of a
  position: time, height, width, or row, column), ``original_context``, ``extended_context``,
  ``depends_on_length``, ``attention_factor``, ``softmax_scale``, ``wavelengths``, ``python`` (an
  assignment to paste, null for a rule that is none of rope_xp's)
- ``wavelengths``: ``length`` (null where it does not matter), ``fastest`` and ``slowest`` in tokens
  (null where it never turns), ``standing_pairs``, ``below_one_turn_in_original`` and
  ``below_one_turn_in_extended``, which count pairs; one entry, or one for each length shown
- ``layers_without_rotation``: numbers of layers
- ``notes`` (what is in order, and must be heeded) and ``suspicious``: sentences
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import arguments, config_report, config_words, plots
from rope_xp._cli.reading import Layers, Reading, read_config
from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE


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
        metavar="LAYOUT",
        help=f"how components pair up, for a model type that is not known: {', '.join(LAYOUTS)}",
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
    reading = read_config(options.config, options.layout)
    report = config_report.build_report(reading, options.length)
    if options.plot is not None:
        draw_config(options.plot, reading, options.length)
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        config_words.print_report(report)
    return 0


def draw_config(path: Path, reading: Reading, requested: int | None) -> None:
    """Draw the wavelengths of each layer type, for a context length if one was requested."""
    drawings = {}
    for layers in reading.layers:
        if layers.slice_rope is None or layers.rotated is None:
            continue
        title = f"{layers.label or 'all layers'}, {layers.rotated} rotated components"
        ropes = _collect_ropes(layers, layers.slice_rope, requested)
        drawings[title] = (ropes, layers.rotated, _name_contexts(layers))
    if not drawings:
        raise RopeError("there is nothing to draw, as head_dim is not known")
    plots.write_wavelengths(path, drawings)


def _collect_ropes(layers: Layers, rope: RoPE, requested: int | None) -> dict[str, RoPE]:
    ropes = {"without a rule": replace(rope, scaling=None)}
    name = type(rope.scaling).__name__
    for n in layers.list_lengths(requested):
        ropes[f"{name} at {n} tokens"] = rope.for_length(n)
    if rope.scaling is not None and not layers.depends_on_length:
        ropes[name] = rope
    return ropes


def _name_contexts(layers: Layers) -> dict[str, int]:
    contexts = dict(zip(("original context", "extended context"), layers.contexts, strict=True))
    known = {name: tokens for name, tokens in contexts.items() if tokens is not None}
    distinct = set(known.values())
    return {"context": distinct.pop()} if len(distinct) == 1 else known
