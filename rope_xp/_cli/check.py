"""Tell which RoPE a function is, or what is wrong with a model's, and exit with status 1 if so.

TARGET is ``package.module:function``, called as ``function(q, k, positions)`` or ``function(x,
positions)``; or a folder with a config.json, or that file. Of a folder the configuration is read,
and with --weights the weights: from safetensors only, without code that comes with them.

The JSON object of a function has its ``rope``, the ``error`` by position (null where positions are
rejected), ``notes``, ``faults``, and ``differences`` from ``--config``; if it is none, only
``faults``. The JSON object of a model has ``findings``.
"""

import argparse
import importlib
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import inspect_config, plots, suspicions, terminal
from rope_xp._cli.reading import read_config
from rope_xp._core.errors import BROKEN, RopeConfigError, RopeError
from rope_xp.hf import _files, from_hf_config
from rope_xp.rope import RoPE
from rope_xp.testing import Identified, Measured, identify
from rope_xp.testing._box import LIBRARIES, CallError
from rope_xp.testing._compare import list_differences

_TABLES_ADVICE = (
    "It takes cos and sin: give --tables package.module:function, which makes them from positions"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("target", metavar="TARGET", help="package.module:function, or a folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    plot_help = "draw frequencies, and those of the nearest scaling"
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help=plot_help)
    default, function = "default %(default)s", "package.module:function"
    add = parser.add_argument_group("of a function").add_argument
    add("--head-dim", type=terminal.count, default=128, metavar="N", help=default)
    add("--axes", default="bhsd", help=f"names of the axes of its arrays; {default}")
    add("--heads", type=terminal.count, default=2, metavar="N", help=default)
    add("--components", type=terminal.count, metavar="N", help="of a position; default: tried")
    tables_help = "from positions to cos and sin, which it then takes in their place"
    add("--tables", metavar=function, help=tables_help)
    add("--library", choices=LIBRARIES, help="default: tried")
    add("--config", metavar="CONFIG", help="a config.json whose RoPE it must be")
    add = parser.add_argument_group("of a model").add_argument
    weights_help = "load the model by transformers, from safetensors"
    add("--weights", action="store_true", help=weights_help)
    layout_help = f"how components pair up, for a type that is not known: {', '.join(LAYOUTS)}"
    add("--layout", choices=LAYOUTS, metavar="LAYOUT", help=layout_help)
    add("--strict", action="store_true", help="exit with 1 for warnings too")


def run(options: argparse.Namespace) -> int:
    """Print what is wrong; return the exit status, 1 where something is."""
    return _check_model(options) if Path(options.target).exists() else _check_function(options)


def _check_function(options: argparse.Namespace) -> int:
    function = _import_target(options.target)
    tables = None if options.tables is None else _import_target(options.tables)
    like = None
    if options.library is not None:
        xp = importlib.import_module({"jax": "jax.numpy"}.get(options.library, options.library))
        like = xp.zeros(1, dtype=xp.float32)
    expected = None
    if options.config is not None:
        expected = from_hf_config(options.config, layout=options.layout)
        if not isinstance(expected, RoPE):
            labels = f"{options.config} has a RoPE for each of {', '.join(expected)}"
            raise RopeError(f"{labels}; a function is compared with one")
    shape = {name: getattr(options, name) for name in ("axes", "heads", "components")}
    try:
        result = identify(function, options.head_dim, tables=tables, like=like, **shape)
    except RopeError as error:
        fault = str(error)
        if isinstance(error, CallError):
            takes_tables = re.search(r"'(cos|sin|freqs\w*)'", error.summary)
            needs_tables = takes_tables and options.tables is None
            advice = _TABLES_ADVICE if needs_tables else "Try --head-dim, --axes or --tables"
            fault = f"{error.summary}. {advice}"
        if not options.json:
            return terminal.fail("check", fault)
        print(json.dumps({"target": options.target, "faults": [fault]}, indent=2))
        return 1
    mismatches = []
    if isinstance(expected, RoPE):
        mismatches = list_differences(result.rope, expected, options.head_dim)
    if options.plot is not None:
        dim = result.rope.rotary_dim or options.head_dim
        nearest = replace(result.rope.for_length(1), rotary_dim=dim, rotary_offset=0)
        measured = replace(nearest, scaling=Measured(result.frequencies))
        ropes = {"nearest rule": nearest, "as measured": measured}
        plots.write_wavelengths(options.plot, {f"{dim} rotated components": (ropes, dim, {})})
    if options.json:
        rule = result.rope.scaling
        name = {"name": type(rule).__name__}
        report = {
            "target": options.target,
            "rope": vars(result.rope) | {"scaling": rule and name | vars(rule)},
            "error": {str(p): e if math.isfinite(e) else None for p, e in result.error.items()},
            "passes": result.passes,
            "frequencies": list(result.frequencies),
            "notes": result.notes,
            "faults": result.faults,
            "differences": mismatches,
        }
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print_result(options, result, mismatches)
    return int(bool(result.faults or mismatches))


def _import_target(target: str) -> Callable[..., Any]:
    """Return the function at package.module:function."""
    module, colon, name = target.partition(":")
    advice = _files.download_advice(target)
    if advice is not None:
        raise RopeError(advice)
    if not colon:
        raise RopeError(f"{target} is no file, and not package.module:function")
    sys.path.insert(0, str(Path.cwd()))  # as python -m does; a script does not
    try:
        value: Any = importlib.import_module(module)
        for attribute in name.split("."):
            value = getattr(value, attribute)
    except BROKEN as error:
        raise RopeError(f"{target}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(value):
        raise RopeError(f"{target}: function must be callable; got {type(value).__name__}")
    return value  # type: ignore[no-any-return]  # any callable


def _print_result(options: argparse.Namespace, result: Identified, mismatches: list[str]) -> None:
    print(terminal.plain_pairs([(name, str(value)) for name, value in vars(result.rope).items()]))
    print()
    errors = {p: f"{e:.1e}" if math.isfinite(e) else "rejected" for p, e in result.error.items()}
    rows = [(f"below {position}", error) for position, error in errors.items()]
    terminal.table(("positions", "largest error of cos and sin"), rows, text_columns=1)
    sections = {"notes": result.notes, "faults": result.faults}
    for title, sentences in {**sections, "unlike the configuration": mismatches}.items():
        if sentences:
            terminal.print_list(title, sentences)
    outcome = "nothing is wrong"
    if result.faults or mismatches:
        outcome = "see above"
    elif result.passes is not None:
        outcome = (
            "no fault, but cos and sin are off by more than 1e-2 from position "
            f"{result.passes} on, as any angle is that is a product in float32"
        )
    reference = "exact angles" + ("" if options.config is None else f" and {options.config}")
    scope = f"Pairs, frequencies and angles were compared with {reference}, at positions below "
    print(terminal.folded("\n", f"{scope}{max(result.error)}: {outcome}.", 0))


def _check_model(options: argparse.Namespace) -> int:
    try:
        sentences = suspicions.find_suspicions(read_config(options.target, options.layout))
        severity = "warning"
    except RopeConfigError as error:
        sentences, severity = [str(error)], "error"
    row = {"severity": severity, "module": "config.json", "kind": "configuration"}
    rest = {"effect": None, "fix": "Correct the file"}
    findings = [{**row, "what": sentence, **rest} for sentence in sentences]
    findings += _check_weights(options) if options.weights else ()
    if options.plot is not None:
        reading = read_config(options.target, options.layout)
        inspect_config.draw_config(options.plot, reading, None)
    if options.json:
        print(json.dumps({"target": options.target, "findings": findings}, indent=2))
    else:
        _print_findings(options, findings)
    return int(any(options.strict or row["severity"] == "error" for row in findings))


def _check_weights(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the findings of the model as transformers loads it."""
    missing = [n for n in ("torch", "transformers") if importlib.util.find_spec(n) is None]
    if missing:
        names = " and ".join(missing)
        raise RopeError(f"--weights needs {names} (pip install 'rope-xp[torch,transformers]')")
    folder = Path(options.target)
    folder = folder if folder.is_dir() else folder.parent
    if not list(folder.glob("*.safetensors")):
        raise RopeError(f"{folder} has no *.safetensors, and other files of weights are not read")
    transformers = importlib.import_module("transformers")
    check = importlib.import_module("rope_xp.integrations.transformers").check
    try:
        model = transformers.AutoModel.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False, local_files_only=True
        )
    except (ValueError, KeyError, RuntimeError) as error:
        raise RopeError(f"{folder}: transformers cannot load it: {error}") from error
    for finding in check(model):
        effect = None if finding.effect is None else dict(finding.effect)
        yield {**vars(finding), "effect": effect}


def _print_findings(options: argparse.Namespace, findings: list[dict[str, Any]]) -> None:
    summary = f"The rotary keys of {options.target} were read as transformers reads them"
    if options.weights:
        summary += (
            ", and of the loaded model buffers of frequencies, angles up to position 131071 and "
            "functions that rotate were compared with them."
        )
    else:
        summary += ". --weights loads the model too, and asks it for angles."
    if not findings:
        print(terminal.folded("", f"Nothing is wrong. {summary}", 0))
        return
    rows = []
    for row in findings:
        errors = (row["effect"] or {}).items()
        texts = [f"{error:.2g} at {position}" for position, error in errors]
        rows.append((row["severity"], row["module"], row["kind"], ", ".join(texts)))
    terminal.table(("severity", "module", "kind", "cos and sin are off by"), rows, text_columns=4)
    for row in findings:
        print(f"\n{row['module']}: {row['what']}. {row['fix']}.")
    print(terminal.folded("\n", summary, 0))
