"""Check the configuration of a model, and its weights if requested."""

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


def check_folder(options: argparse.Namespace) -> int:
    """Print the findings; return the exit status."""
    findings = [*_check_config(options), *(_check_weights(options) if options.weights else ())]
    if options.plot is not None:
        reading = read_config(options.target, options.layout)
        inspect_config.draw_config(options.plot, reading, None)
    if options.json:
        print(json.dumps({"target": options.target, "findings": findings}, indent=2))
    else:
        _print_findings(findings, _summarize(options))
    return int(any(options.strict or row["severity"] == "error" for row in findings))


def _check_config(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the findings of the configuration alone."""
    try:
        sentences = suspicions.find_suspicions(read_config(options.target, options.layout))
        severity = "warning"
    except RopeConfigError as error:
        sentences, severity = [str(error)], "error"
    row = {"severity": severity, "module": _CONFIG, "kind": "configuration"}
    rest = {"effect": None, "mend": "Correct the file"}
    return [{**row, "what": sentence, **rest} for sentence in sentences]


def _check_weights(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the findings of the model as transformers loads it."""
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
    for finding in check(model):
        effect = None if finding.effect is None else dict(finding.effect)
        yield {**vars(finding), "effect": effect}


def _summarize(options: argparse.Namespace) -> str:
    """Return a sentence on what was compared with what."""
    scope = f"The rotary keys of {options.target} were read as transformers reads them"
    if not options.weights:
        return f"{scope}. --weights loads the model too, and asks it for angles"
    return (
        f"{scope}, and of the loaded model buffers of frequencies, angles up to position 131071 "
        "and functions that rotate were compared with them"
    )


def _print_findings(findings: list[dict[str, Any]], summary: str) -> None:
    if not findings:
        print(terminal.folded("", f"Nothing is wrong. {summary}.", 0))
        return
    rows = []
    for row in findings:
        effect = row["effect"] or {}
        errors = ", ".join(f"{error:.2g} at {position}" for position, error in effect.items())
        rows.append((row["severity"], row["module"], row["kind"], errors))
    terminal.table(("severity", "module", "kind", "cos and sin are off by"), rows, text_columns=4)
    for row in findings:
        print(f"\n{row['module']}: {row['what']}. {row['mend']}.")
    print(terminal.folded("\n", f"{summary}.", 0))
