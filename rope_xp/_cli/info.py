"""Print what rope_xp finds here: versions, libraries, devices, paths, and the choice in force."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
from typing import Any

import numpy as np

import rope_xp
from rope_xp._arguments import parse
from rope_xp._bench import targets
from rope_xp._cli import terminal
from rope_xp._core import caches
from rope_xp._core.errors import BROKEN
from rope_xp._core.path import Path
from rope_xp._dispatch import call_cache, find
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import Library
from rope_xp._rotation import portable

_VARIABLE = "ROPE_XP_PATH"
_STRICT = "array-api-strict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the report; return the exit status."""
    report = collect()
    print(json.dumps(report, indent=2) if options.json else terminal.plain_pairs(_lines(report)))
    return 0


def collect() -> dict[str, Any]:
    """Return everything as what JSON can hold. Keys do not depend on what is installed."""
    return {
        "rope_xp": rope_xp.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "array_api_compat": importlib.metadata.version("array-api-compat"),
        "libraries": {library.name: _describe_library(library) for library in find.libraries}
        | {_STRICT: _describe_strict()},
        "third_party": {
            entry.name: _describe_entry_point(entry)
            for entry in importlib.metadata.entry_points(group=find.ENTRY_POINTS)
        },
        "choice": _describe_choice(),
        "cached": {
            "tables_bytes": caches.cached_bytes(),
            "pinned_tables": len(caches.PINNED),
            "calls": len(call_cache.CALLS),
        },
    }


def _describe_library(library: Library) -> dict[str, Any]:
    """Describe one row of the dispatch table."""
    backend = targets.load(library)
    if isinstance(backend, str):
        return _library_report(problem=backend)
    version = importlib.import_module(library.name).__version__
    devices = targets.devices(library)
    if isinstance(devices, str):
        return _library_report(version=version, problem=devices)
    paths = {path.name: _decline_reason(library, path) for path in backend.paths}
    for name in library.paths:
        paths.setdefault(name, f"the {library.name} backend did not load it")
    return _library_report(version=version, devices=devices, paths={**paths, portable.NAME: None})


def _describe_strict() -> dict[str, Any]:
    """Describe array-api-strict, which the standard's own path serves without a row."""
    if importlib.util.find_spec("array_api_strict") is None:
        return _library_report(problem=f"not installed (pip install {_STRICT})")
    try:
        version = importlib.import_module("array_api_strict").__version__
    except ImportError as error:
        return _library_report(problem=f"broken: {error}")
    return _library_report(version=version, devices=["cpu"], paths={portable.NAME: None})


def _library_report(
    version: str | None = None,
    problem: str | None = None,
    devices: list[str] | None = None,
    paths: dict[str, str | None] | None = None,
) -> dict[str, Any]:
    return {"version": version, "problem": problem, "devices": devices or [], "paths": paths or {}}


def _decline_reason(library: Library, path: Path) -> str | None:
    """Return why a path declines a small, plain call on every device, None if one takes it."""
    reasons = []
    host = np.ones((1, 4, 2, 64), np.float32)
    for name in targets.NAMES:
        if name.partition(":")[0] != library.name:
            continue
        target = targets.find(name)
        if isinstance(target, str):
            continue
        x = target.put(host)
        call = parse.apply(rope_xp.RoPE(), x, x, None, None, None, None)
        reason = path.decline_reason(call, forced=True)
        if reason is None:
            return None
        reasons.append(reason)
    return "; ".join(dict.fromkeys(reasons))


def _describe_entry_point(entry: importlib.metadata.EntryPoint) -> dict[str, Any]:
    try:
        backend: Backend = entry.load()
    except BROKEN as error:
        return {"object": entry.value, "problem": f"broken: {error}", "paths": []}
    names = [*(path.name for path in backend.paths), portable.NAME]
    return {"object": entry.value, "problem": None, "paths": names}


def _describe_choice() -> dict[str, str | None]:
    name = os.environ.get(_VARIABLE) or None
    problem = None
    try:
        with rope_xp.use_path(name):
            pass
    except (rope_xp.RopeError, rope_xp.MissingBackendError) as error:
        problem = str(error)
    return {"variable": _VARIABLE, "path": name, "problem": problem}


def _lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("rope_xp", report["rope_xp"]),
        ("Python", report["python"]),
        ("platform", report["platform"]),
        ("array-api-compat", report["array_api_compat"]),
    ]
    libraries = report["libraries"]
    lines += [(name, row["problem"]) for name, row in libraries.items() if row["version"] is None]
    for name, row in libraries.items():
        if row["version"] is None:
            continue
        problem = f", {row['problem']}" if row["problem"] else ""
        lines.append((name, row["version"] + problem))
        if row["devices"]:
            lines.append((f"  {name} devices", ", ".join(row["devices"])))
        for path, reason in row["paths"].items():
            lines.append((f"  {name} path {path}", "available" if reason is None else reason))
    for name, row in report["third_party"].items():
        what = row["problem"] or f"paths {', '.join(row['paths'])}"
        lines.append((f"third-party {name}", f"{row['object']}: {what}"))
    if not report["third_party"]:
        lines.append(("third-party", "none registered"))
    cached = report["cached"]
    tables = f"tables of {cached['tables_bytes'] / 2**20:.1f} MiB, {cached['calls']} calls"
    lines.append(("cached by this report", f"{tables}; rope_xp.clear_caches() frees them"))
    choice = report["choice"]
    lines.append((_VARIABLE, choice["path"] or "not set"))
    lines.append(("choice", choice["problem"] or choice["path"] or "automatic: the fastest path"))
    return lines
