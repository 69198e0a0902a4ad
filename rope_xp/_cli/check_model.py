"""What ``check`` does with a model: its configuration, and its weights if asked for."""

import argparse
import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rope_xp._cli import inspect_config, suspicions, terminal
from rope_xp._cli.reading import read_config
from rope_xp._core.errors import RopeConfigError, RopeError

_CONFIG = "config.json"


def run(options: argparse.Namespace) -> int:
    """Print what is found; return the exit status."""
    findings = [*_check_config(options), *(_check_weights(options) if options.weights else ())]
    if options.plot is not None:
        inspect_config.draw(options.plot, read_config(options.target, options.layout), None)
    if options.json:
        print(json.dumps({"target": options.target, "findings": findings}, indent=2))
    else:
        _print(findings, _summarise(options))
    return int(any(options.strict or each["severity"] == "error" for each in findings))


def _check_config(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what is odd about the configuration alone."""
    try:
        reading = read_config(options.target, options.layout)
    except RopeConfigError as error:
        yield _finding("error", _CONFIG, "configuration", str(error))
        return
    for sentence in suspicions.find_suspicions(reading):
        yield _finding("warning", _CONFIG, "configuration", sentence)


def _finding(severity: str, module: str, kind: str, what: str) -> dict[str, Any]:
    return {
        "severity": severity,
        "module": module,
        "kind": kind,
        "what": what,
        "effect": None,
        "mend": "Correct the file",
    }


def _check_weights(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what is wrong with the model as transformers loads it."""
    missing = [n for n in ("torch", "transformers") if importlib.util.find_spec(n) is None]
    if missing:
        raise RopeError(
            f"--weights needs {' and '.join(missing)} (pip install 'rope-xp[torch,transformers]')"
        )
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
    for each in check(model):
        yield {**vars(each), "effect": None if each.effect is None else dict(each.effect)}


def _summarise(options: argparse.Namespace) -> str:
    """Say what was compared with what."""
    what = f"The rotary keys of {options.target} were read as transformers reads them"
    if not options.weights:
        return f"{what}. --weights loads the model too, and asks it for angles"
    return (
        f"{what}, and of the loaded model buffers of frequencies, angles up to position 131071 and "
        "functions that rotate were compared with them"
    )


def _print(findings: list[dict[str, Any]], summary: str) -> None:
    if not findings:
        print(terminal.folded("", f"Nothing is wrong. {summary}.", 0))
        return
    rows = []
    for each in findings:
        effect = each["effect"] or {}
        errors = ", ".join(f"{off:.2g} at {p}" for p, off in effect.items())
        rows.append((each["severity"], each["module"], each["kind"], errors))
    terminal.table(("severity", "module", "kind", "cos and sin are off by"), rows, text_columns=4)
    for each in findings:
        print(f"\n{each['module']}: {each['what']}. {each['mend']}.")
    print(terminal.folded("\n", f"{summary}.", 0))
