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
from rope_xp._cli import arguments, config_report, config_words, plots, terminal
from rope_xp._cli.reading import Layers, Reading, lengths_to_show, read_config, without_offset
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
    try:
        reading = read_config(options.config, options.layout)
        report = config_report.build_report(reading, options.length)
        if options.plot is not None:
            draw(options.plot, reading, options.length)
    except OSError as error:
        return terminal.fail("inspect", f"{error.filename}: {error.strerror}")
    except RopeError as error:
        return terminal.fail("inspect", str(error))
    if options.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        config_words.show(report)
    return 0


# --- drawing -------------------------------------------------------------------------------------


def draw(path: Path, reading: Reading, requested: int | None) -> None:
    """Draw the wavelengths of each type of layer, for the length that was asked for, if any."""
    drawings = {}
    for layers in reading.layers:
        if layers.rope is None or layers.rotated is None:
            continue
        title = f"{layers.label or 'all layers'}, {layers.rotated} rotated components"
        ropes = _ropes_to_compare(layers, without_offset(layers.rope), requested)
        drawings[title] = (ropes, layers.rotated, _list_contexts(layers))
    if not drawings:
        raise RopeError("there is nothing to draw, as head_dim is not known")
    plots.write_wavelengths(path, drawings)


def _ropes_to_compare(layers: Layers, rope: RoPE, requested: int | None) -> dict[str, RoPE]:
    plain = {"without a rule": replace(rope, scaling=None)}
    if rope.scaling is None:
        return plain
    name = type(rope.scaling).__name__
    at = lengths_to_show(layers, requested)
    if not at:
        return {**plain, name: rope}
    return {**plain, **{f"{name} at {n} tokens": rope.for_length(n) for n in at}}


def _list_contexts(layers: Layers) -> dict[str, int]:
    named = {"original context": layers.trained, "extended context": layers.extended}
    known = {name: tokens for name, tokens in named.items() if tokens is not None}
    distinct = set(known.values())
    return {"context": distinct.pop()} if len(distinct) == 1 else known
