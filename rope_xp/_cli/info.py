"""Print what rope_xp finds here: versions, libraries, devices, paths, and the choice in force."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np

import rope_xp
from rope_xp._arguments import parse
from rope_xp._bench import targets
from rope_xp._bench.targets import Target
from rope_xp._cli import terminal
from rope_xp._core import caches, versions
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
    report = build_report()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print(terminal.plain_pairs(list(_format_report(report))))
    return 0


def build_report() -> dict[str, Any]:
    """Return everything as what JSON can hold. Keys do not depend on what is installed."""
    libraries = {library.name: _describe_library(library) for library in find.libraries}
    return {
        "rope_xp": rope_xp.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "array_api_compat": importlib.metadata.version("array-api-compat"),
        "libraries": {**libraries, _STRICT: _describe_strict()},
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
        return _build_row(problem=backend)
    version = versions.find_version(library.name)
    devices = targets.devices(library)
    if isinstance(devices, str):
        return _build_row(version=version, problem=devices)
    missing = f"the {library.name} backend did not load it"
    paths: dict[str, str | None] = {
        **{path.name: _find_decline_reason(library, path) for path in backend.paths},
        portable.NAME: None,
    }
    lowest = versions.LOWEST[library.name]
    row = _build_row(version, None, devices, {**dict.fromkeys(library.paths, missing), **paths})
    return {**row, "lowest": lowest}


def _describe_strict() -> dict[str, Any]:
    """Describe array-api-strict, which the portable path serves without a row."""
    if importlib.util.find_spec("array_api_strict") is None:
        return _build_row(problem=f"not installed (pip install {_STRICT})")
    try:
        version = importlib.import_module("array_api_strict").__version__
    except ImportError as error:
        return _build_row(problem=f"broken: {error}")
    return _build_row(version, None, ["cpu"], {portable.NAME: None})


def _build_row(
    version: str | None = None,
    problem: str | None = None,
    devices: list[str] | None = None,
    paths: dict[str, str | None] | None = None,
) -> dict[str, Any]:
    return {"version": version, "problem": problem, "devices": devices or [], "paths": paths or {}}


def _find_decline_reason(library: Library, path: Path) -> str | None:
    """Return why a path declines a small, plain call on every device, None if one takes it."""
    reasons = []
    host = np.ones((1, 4, 2, 64), np.float32)
    for name in targets.NAMES:
        target = targets.find(name) if name.startswith(f"{library.name}:") else None
        if not isinstance(target, Target):
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


def _format_report(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("rope_xp", "python", "platform", "array_api_compat"):
        yield name, report[name]
    # Missing libraries come first.
    libraries = sorted(report["libraries"].items(), key=lambda row: row[1]["version"] is not None)
    for name, row in libraries:
        lowest = row.get("lowest") and f"{row['lowest']} or later is supported"
        yield name, ", ".join(filter(None, (row["version"], lowest, row["problem"])))
        if row["devices"]:
            yield f"  {name} devices", ", ".join(row["devices"])
        for path, reason in row["paths"].items():
            yield f"  {name} path {path}", "available" if reason is None else reason
    for name, row in report["third_party"].items():
        outcome = row["problem"] or f"paths {', '.join(row['paths'])}"
        yield f"third-party {name}", f"{row['object']}: {outcome}"
    if not report["third_party"]:
        yield "third-party", "none registered"
    cached = report["cached"]
    tables = f"tables of {cached['tables_bytes'] / 2**20:.1f} MiB, {cached['calls']} calls"
    yield "cached by this report", f"{tables}; rope_xp.clear_caches() frees them"
    choice = report["choice"]
    yield _VARIABLE, choice["path"] or "not set"
    yield "choice", choice["problem"] or choice["path"] or "automatic: the fastest path"
