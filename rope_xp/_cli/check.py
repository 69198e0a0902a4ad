"""Run a function to identify its RoPE, or read a configuration. Exit with 1 if something is wrong.

TARGET is ``package.module:function``, called as ``function(q, k, positions)`` or ``function(x,
positions)``; or a folder with a config.json, or that file. The status is 2 where nothing could be
checked. ``rope_xp.integrations.transformers.check`` checks a loaded model.

The JSON object for a function has its ``rope``, the ``error`` by position (null where positions are
rejected), ``notes``, ``faults``, and ``differences`` from ``--config``. If the function is no RoPE,
it has only ``faults``. The object for a model has ``findings``.
"""

import argparse
import math
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rope_xp._arguments.fields import LAYOUTS
from rope_xp._cli import suspicions, terminal
from rope_xp._cli.reading import read_config
from rope_xp._core.errors import BROKEN, RopeConfigError, RopeError
from rope_xp.hf import _files, from_hf_config
from rope_xp.hf._layer_plan import describe
from rope_xp.rope import RoPE
from rope_xp.testing import Identified, _compare, _open, identify

_FUNCTION_OPTIONS = ("head_dim", "axes", "tables", "config")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target_help = "package.module:function, whose module is imported from here or where packages "
    target_help += "are, and which is called; or a folder with a config.json, or that file"
    parser.add_argument("target", metavar="TARGET", help=target_help)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add = parser.add_argument_group("options for a function").add_argument
    add("--head-dim", type=terminal.count, metavar="N", help="default 128")
    add("--axes", help="names of the axes of q and k; default bhsd")
    tables_help = "computes cos and sin, which TARGET takes in place of positions"
    add("--tables", metavar="package.module:function", help=tables_help)
    add("--config", metavar="CONFIG", help="a config.json with the RoPE that is expected")
    add = parser.add_argument_group("options for a model").add_argument
    add("--layout", choices=LAYOUTS, help="of an unknown model type, also that of --config")
    add("--strict", action="store_true", help="exit with 1 for warnings, too")


def run(options: argparse.Namespace) -> int:
    """Print what is wrong; return the exit status: 1 where something is, 2 if that is unknown."""
    kinds = ("function", "model")
    is_model = Path(options.target).exists()
    of_model = ("strict",) if options.config else ("strict", "layout")
    foreign = [n for n in (_FUNCTION_OPTIONS if is_model else of_model) if getattr(options, n)]
    if foreign:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        kind, other = kinds[is_model], kinds[not is_model]
        raise RopeError(f"{given}: for a {other}; {options.target} is a {kind}")
    return _check_model(options) if is_model else _check_function(options)


def _check_function(options: argparse.Namespace) -> int:
    function = _import_target(options.target)
    tables = None if options.tables is None else _import_target(options.tables)
    expected = None
    if options.config is not None:
        expected = from_hf_config(options.config, layout=options.layout)
        if not isinstance(expected, RoPE):
            labels = f"{options.config} has a RoPE for each of {', '.join(expected)}"
            raise RopeError(f"{labels}; a function can be compared with only one")
    head_dim = options.head_dim or 128
    try:
        result = identify(function, head_dim, tables=tables, axes=options.axes or "bhsd")
    except RopeError as error:
        fault, status = str(error), 1
        if isinstance(error, _open.CallError):
            advice, status = "Try --head-dim, --axes or --tables", 2
            if options.tables is None and re.search(r"'(cos|sin|freqs\w*)'", error.summary):
                advice = "It takes cos and sin: pass --tables package.module:function, which "
                advice += "returns them for positions"
            fault = f"{error.summary}. {advice}"
        if not options.json:
            return terminal.fail("check", fault, status)
        terminal.write_json({"target": options.target, "faults": [fault]})
        return status
    mismatches = []
    if isinstance(expected, RoPE):
        mismatches = _compare.list_differences(result.rope, expected, head_dim)
    if options.json:
        report = {
            "target": options.target,
            **vars(result),
            "rope": describe(result.rope),
            "error": {str(p): e if math.isfinite(e) else None for p, e in result.error.items()},
            "differences": mismatches,
        }
        terminal.write_json(report, allow_nan=False)
    else:
        _print_result(options, result, mismatches)
    return int(bool(result.faults or mismatches))


def _import_target(target: str) -> Callable[..., Any]:
    if advice := _files.download_advice(target):
        raise RopeError(advice)
    if ".py:" in target:
        raise RopeError(f"{target!r} names a file; name its module: {target.replace('.py:', ':')}")
    if ":" not in target:
        raise RopeError(f"{target!r} is neither a file nor package.module:function")
    sys.path.insert(0, str(Path.cwd()))  # as python -m does; a script does not
    try:
        value = pkgutil.resolve_name(target)
    except BROKEN as error:
        raise RopeError(f"{target}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(value):
        raise RopeError(f"{target}: function must be callable; got {type(value).__name__}")
    return value  # type: ignore[no-any-return]  # any callable


def _print_result(options: argparse.Namespace, result: Identified, mismatches: list[str]) -> None:
    terminal.write(f"{options.target} rotates by {result.rope!r}")
    title = "largest error of cos and sin" + ", apart from faults" * bool(result.faults)
    errors = [
        f"{error:.1e} below position {position}" if math.isfinite(error) else f"{position} rejected"
        for position, error in result.error.items()
    ]
    lists = {title: errors, "notes": result.notes, "faults": result.faults}
    for title, sentences in {**lists, f"differences from {options.config}": mismatches}.items():
        terminal.write_list(title, sentences)
    outcome = "nothing is wrong"
    if result.faults or mismatches:
        outcome = "wrong; the lists above say why"
    elif result.passes is not None:
        outcome = "no fault, but cos and sin are off by more than 1e-2 from position "
        outcome += f"{result.passes} on, as they are wherever angles are float32 products"
    scope = f"cos and sin at positions below {max(result.error)}, against exact angles of this RoPE"
    if options.config is not None:
        scope += f"; layout, slice, base, scaling and attention factor, against {options.config}"
    _print_outcome(scope, "gradients, dtypes other than float32", outcome)


def _print_outcome(checked: str, not_checked: str, result: str) -> None:
    terminal.write("", f"checked: {checked}", f"not checked: {not_checked}", f"result: {result}")


def _check_model(options: argparse.Namespace) -> int:
    try:
        sentences = suspicions.find_suspicions(read_config(options.target, options.layout))
        severity = "warning"
    except RopeConfigError as error:
        sentences, severity = [str(error)], "error"
    if options.json:
        findings = [{"severity": severity, "what": sentence} for sentence in sentences]
        terminal.write_json({"target": options.target, "findings": findings})
    else:
        checked = f"the rotary keys of {options.target}, read as transformers reads them"
        skipped = "the model; rope_xp.integrations.transformers.check(model) checks it"
        outcome = f"{len(sentences)} {severity}(s)" if sentences else "nothing is wrong"
        terminal.write_list(f"{severity}s", sentences)
        _print_outcome(checked, skipped, outcome)
    return int(bool(sentences) and (options.strict or severity == "error"))
