"""Tell which RoPE a function is, or what is wrong with a model's, and exit with status 1 if so.

TARGET is ``package.module:function``, called as ``function(q, k, positions)`` or ``function(x,
positions)``; or a folder with a config.json, or that file. Of a folder the configuration is read,
and the weights if asked for: from safetensors alone, without code that comes with them.

The keys of the JSON object of a function are ``target``, ``rope`` (its fields), ``error`` (by
position, null where positions are refused), ``passes``, ``frequencies``, ``notes``, ``faults`` and
``differences`` (from ``--config``); where it is none, ``target`` and ``faults``. Those of a model
are ``target`` and ``findings``, each with ``severity``, ``module``, ``kind``, ``what``, ``effect``
and ``mend``.
"""

import argparse
import importlib
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import arguments, check_model, plots, terminal
from rope_xp._core.errors import BROKEN, RopeError
from rope_xp.hf import _files, from_hf_config
from rope_xp.rope import RoPE
from rope_xp.testing import Identified, Measured, identify
from rope_xp.testing._box import LIBRARIES, CallError
from rope_xp.testing._compare import list_differences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("target", metavar="TARGET", help="package.module:function, or a folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw frequencies beside the nearest rule's"
    )
    of_function = parser.add_argument_group("of a function")
    of_function.add_argument(
        "--head-dim",
        type=arguments.count,
        default=128,
        metavar="N",
        help="default %(default)s",
    )
    of_function.add_argument(
        "--axes", default="bhsd", help="names of the axes of its arrays; default %(default)s"
    )
    of_function.add_argument(
        "--heads", type=arguments.count, default=2, metavar="N", help="default %(default)s"
    )
    of_function.add_argument(
        "--components",
        type=arguments.count,
        metavar="N",
        help="of a position; default: tried",
    )
    of_function.add_argument(
        "--tables",
        metavar="package.module:function",
        help="from positions to cos and sin, which it then takes in their place",
    )
    of_function.add_argument("--library", choices=LIBRARIES, help="default: tried")
    of_function.add_argument(
        "--config", metavar="CONFIG", help="a config.json whose RoPE it must be"
    )
    of_model = parser.add_argument_group("of a model")
    of_model.add_argument(
        "--weights", action="store_true", help="load the model by transformers, from safetensors"
    )
    of_model.add_argument(
        "--layout",
        choices=LAYOUTS,
        metavar="LAYOUT",
        help=f"how components pair up, for a type that is not known: {', '.join(LAYOUTS)}",
    )
    of_model.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")


def run(options: argparse.Namespace) -> int:
    """Print what is wrong; return the exit status, 1 where something is."""
    check_target = check_model.check_folder if Path(options.target).exists() else _check_function
    return check_target(options)


def _check_function(options: argparse.Namespace) -> int:
    function = _import_target(options.target)
    tables = None if options.tables is None else _import_target(options.tables)
    like = None if options.library is None else _build_example(options.library)
    expected = None if options.config is None else _read_rope(options.config, options.layout)
    try:
        result = identify(
            function,
            options.head_dim,
            axes=options.axes,
            tables=tables,
            like=like,
            heads=options.heads,
            components=options.components,
        )
    except RopeError as error:
        fault = _explain_failure(options, error) if isinstance(error, CallError) else str(error)
        if not options.json:
            return terminal.fail("check", fault)
        print(json.dumps({"target": options.target, "faults": [fault]}, indent=2))
        return 1
    mismatches = []
    if expected is not None:
        mismatches = list_differences(result.rope, expected, options.head_dim)
    if options.plot is not None:
        _draw_result(options.plot, result, options.head_dim)
    if options.json:
        report = _build_report(options.target, result, mismatches)
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print_result(result, mismatches)
        print(terminal.folded("\n", _summarize(options, result, mismatches), 0))
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


def _build_example(library: str) -> Any:
    xp = importlib.import_module({"jax": "jax.numpy"}.get(library, library))
    return xp.zeros(1, dtype=xp.float32)


def _read_rope(config: str, layout: Any) -> RoPE:
    ropes = from_hf_config(config, layout=layout)
    if isinstance(ropes, RoPE):
        return ropes
    labels = ", ".join(ropes)
    raise RopeError(f"{config} has a RoPE for each of {labels}; a function is compared with one")


# --- output --------------------------------------------------------------------------------------


def _build_report(target: str, result: Identified, mismatches: list[str]) -> dict[str, Any]:
    fields = dict(vars(result.rope))
    scaling = result.rope.scaling
    if is_dataclass(scaling) and not isinstance(scaling, type):
        fields["scaling"] = {"name": type(scaling).__name__, **asdict(scaling)}
    return {
        "target": target,
        "rope": fields,
        "error": {str(p): e if math.isfinite(e) else None for p, e in result.error.items()},
        "passes": result.passes,
        "frequencies": list(result.frequencies),
        "notes": list(result.notes),
        "faults": list(result.faults),
        "differences": mismatches,
    }


def _print_result(result: Identified, mismatches: list[str]) -> None:
    print(terminal.plain_pairs([(name, str(value)) for name, value in vars(result.rope).items()]))
    print()
    rows = [
        (f"below {p}", f"{e:.1e}" if math.isfinite(e) else "refused")
        for p, e in result.error.items()
    ]
    terminal.table(("positions", "largest error of cos and sin"), rows, text_columns=1)
    for title, sentences in (
        ("notes", result.notes),
        ("faults", result.faults),
        ("unlike the configuration", mismatches),
    ):
        if sentences:
            terminal.print_list(title, sentences)


def _summarize(options: argparse.Namespace, result: Identified, mismatches: list[str]) -> str:
    """Return a sentence on what was compared with what, and the outcome."""
    reference = "exact angles" + ("" if options.config is None else f" and {options.config}")
    scope = f"Pairs, frequencies and angles were compared with {reference}, at positions below "
    scope += f"{max(result.error)}: "
    if result.faults or mismatches:
        return f"{scope}see above."
    if result.passes is None:
        return f"{scope}nothing is wrong."
    return (
        f"{scope}no fault, but cos and sin are off by more than 1e-2 from position {result.passes} "
        "on, as any angle is that is a product in float32."
    )


def _explain_failure(options: argparse.Namespace, error: CallError) -> str:
    advice = "Try --head-dim, --axes or --tables"
    if options.tables is None and re.search(r"'(cos|sin|freqs\w*)'", error.summary):
        advice = (
            "It takes cos and sin: give --tables package.module:function, which makes them from "
            "positions"
        )
    return f"{error.summary}. {advice}"


def _draw_result(path: Path, result: Identified, head_dim: int) -> None:
    dim = result.rope.rotary_dim or head_dim
    nearest = replace(result.rope.for_length(1), rotary_dim=dim, rotary_offset=0)
    measured = replace(nearest, scaling=Measured(result.frequencies))
    ropes = {"nearest rule": nearest, "as measured": measured}
    plots.write_wavelengths(path, {f"{dim} rotated components": (ropes, dim, {})})
