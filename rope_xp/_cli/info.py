"""List the array libraries, devices and paths that rope_xp finds on this machine."""

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np

import rope_xp
from rope_xp._arguments import parse
from rope_xp._bench import targets
from rope_xp._cli import terminal
from rope_xp._core import versions
from rope_xp._core.errors import BROKEN
from rope_xp._core.path import Path
from rope_xp._dispatch import find
from rope_xp._dispatch.choose import VARIABLE
from rope_xp._rotation import portable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    report = build_report()
    if options.json:
        terminal.write_json(report)
    else:
        terminal.write(*_format_report(report))
    return 0


def build_report() -> dict[str, Any]:
    """Return everything as what JSON can hold. Keys do not depend on what is installed."""
    entries = importlib.metadata.entry_points(group=find.ENTRY_POINTS)
    path, problem = os.environ.get(VARIABLE) or None, None
    try:
        with rope_xp.use_path(path):
            pass
    except (rope_xp.RopeError, rope_xp.MissingBackendError) as error:
        problem = str(error)
    return {
        "rope_xp": rope_xp.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "array_api_compat": importlib.metadata.version("array-api-compat"),
        "libraries": {library.name: _describe_library(library) for library in find.libraries},
        "third_party": {entry.name: _describe_entry_point(entry) for entry in entries},
        "choice": {"variable": VARIABLE, "path": path, "problem": problem},
    }


def _describe_library(library: find.Library) -> dict[str, Any]:
    row: dict[str, Any] = {"version": None, "problem": None, "devices": [], "paths": {}}
    backend = targets.load(library)
    if isinstance(backend, str):
        return {**row, "problem": backend}
    row["version"] = versions.find_version(library.name)
    devices = targets.list_devices(library)
    if isinstance(devices, str):
        return {**row, "problem": devices}
    row["paths"] = {
        **dict.fromkeys(library.paths, f"the {library.name} backend did not load it"),
        **{path.name: _find_decline_reason(library, path) for path in backend.paths},
        portable.NAME: None,
    }
    return {**row, "devices": devices, "lowest": versions.LOWEST[library.name]}


def _find_decline_reason(library: find.Library, path: Path) -> str | None:
    """Return why a path declines a small, plain call on every device, None if one takes it."""
    reasons: list[str | None] = []
    names = [name for name in targets.ALL_NAMES if name.startswith(f"{library.name}:")]
    for target in map(targets.find, names):
        if isinstance(target, targets.Target):
            x = target.put(np.ones((1, 4, 2, 64), np.float32))
            call = parse.rotate(rope_xp.RoPE(), (x, x), None, None, None)
            reasons.append(path.decline_reason(call, forced=True))
    declined = [reason for reason in reasons if reason is not None]
    return "; ".join(dict.fromkeys(declined)) if len(declined) == len(reasons) else None


def _describe_entry_point(entry: importlib.metadata.EntryPoint) -> dict[str, Any]:
    problem, names = None, []
    try:
        names = [*(path.name for path in entry.load().paths), portable.NAME]
    except BROKEN as error:
        problem = f"broken: {error}"
    return {"object": entry.value, "problem": problem, "paths": names}


def _format_report(report: dict[str, Any]) -> Iterator[str]:
    for name in ("rope_xp", "python", "platform", "array_api_compat"):
        yield f"{name}: {report[name]}"
    # Missing libraries come first.
    libraries = sorted(report["libraries"].items(), key=lambda row: row[1]["version"] is not None)
    for name, row in libraries:
        lowest = row.get("lowest") and f"lowest supported: {row['lowest']}"
        yield f"{name}: {', '.join(filter(None, (row['version'], lowest, row['problem'])))}"
        if row["devices"]:
            yield f"  devices: {', '.join(row['devices'])}"
        for path, reason in row["paths"].items():
            yield f"  path {path}: {'not available: ' + reason if reason else 'available'}"
    for name, row in report["third_party"].items():
        outcome = row["problem"] or f"paths {', '.join(row['paths'])}"
        yield f"third-party {name}: {row['object']}: {outcome}"
    choice = report["choice"]
    yield f"{VARIABLE}: {choice['problem'] or choice['path'] or 'not set; the fastest path runs'}"
