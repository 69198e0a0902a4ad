"""Write vectors for ports: inputs and expected results of every kind of layer of a model."""

import argparse
from pathlib import Path

import rope_xp
from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import terminal
from rope_xp._cli.isolation import isolate
from rope_xp.testing import vectors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a config.json, or the folder that has it")
    add("-o", "--out", type=Path, required=True, metavar="FILE.safetensors")
    add("--layout", choices=LAYOUTS, help="of a model type that rope_xp does not know")


def run(options: argparse.Namespace) -> int:
    with isolate():
        layers = rope_xp.plan(options.config, layout=options.layout)
    made = vectors(layers)
    made.save(options.out)
    kinds = dict.fromkeys(name.partition("/")[0] for name in made.tensors)
    terminal.write(f"{options.out}: {len(made.tensors)} tensors of {', '.join(kinds)}")
    return 0
