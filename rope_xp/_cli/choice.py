"""Options, the choice of libraries and the loop over jobs of the commands that time calls."""

import argparse
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rope_xp._bench import targets
from rope_xp._bench.inputs import BASE, HEAD_DIM, CannotMeasure
from rope_xp._cli import terminal
from rope_xp._core.errors import RopeError
from rope_xp._dispatch import find

Row = TypeVar("Row")
_OPTIONAL_PACKAGES = (
    ("triton", "the slower paths run", ("torch:gpu",)),
    ("ml_dtypes", "no bfloat16", ("numpy:cpu", "cupy:gpu", "dask:cpu")),
)
"""What is lost without a package, and on which targets."""


@dataclass(frozen=True)
class Skipped:
    target: str
    reason: str
    expected: bool  # no problem: the target is not installed, and --backend does not name it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=terminal.count, default=4096, help="default %(default)s")
    repeat_help = "timed calls; default 5"
    add("--repeat", type=terminal.count, default=5, help=repeat_help)
    names = list(dict.fromkeys(name.partition(":")[0] for name in targets.ALL_NAMES))
    backend_help = f"run only this library: {', '.join(names)}; may be repeated"
    add("--backend", action="append", choices=names, metavar="NAME", help=backend_help)
    add("--json", action="store_true", help="print one JSON object")


def choose_targets(libraries: list[str] | None) -> tuple[list[targets.Target], list[Skipped]]:
    """Return the targets to run on, by default all that are installed, and the skipped ones."""
    chosen, skipped = list[targets.Target](), list[Skipped]()
    for library in find.libraries:
        if libraries is not None and library.name not in libraries:
            continue
        names = [name for name in targets.ALL_NAMES if name.startswith(f"{library.name}:")]
        results = {name: targets.find(name) for name in names}
        installed = [target for target in results.values() if isinstance(target, targets.Target)]
        reasons = {name: why for name, why in results.items() if isinstance(why, str)}
        if reasons and not installed:  # one reason for all devices
            reasons = {library.name: next(iter(reasons.values()))}
        expected = bool(installed) or libraries is None
        chosen += installed
        skipped += [Skipped(name, why, expected) for name, why in reasons.items()]
    return chosen, skipped


def print_missing(chosen: list[targets.Target], skipped: list[Skipped]) -> None:
    """Print a line for each target that was skipped, and for each package that is missing."""
    lines = [f"{'' if s.expected else 'PROBLEM: '}{s.target}: {s.reason}" for s in skipped]
    for package, loss, affected in _OPTIONAL_PACKAGES:
        names = [target.name for target in chosen if target.name in affected]
        if names and importlib.util.find_spec(package) is None:
            hint = f"not installed (pip install {package}); {loss}"
            lines.append(f"{package}: {hint}: {', '.join(names)}")
    for line in lines:
        terminal.write_folded(line)


def run_jobs(jobs: Mapping[str, Callable[[], Row]]) -> tuple[list[Row], list[Skipped]]:
    """Run functions, each of which measures one row; return the rows and the jobs that failed."""
    rows, skipped = list[Row](), list[Skipped]()
    with terminal.progress(len(jobs)) as advance:
        for name, measure in jobs.items():
            advance(name)
            try:
                rows.append(measure())
            # A full GPU or an unfit driver must not stop the other targets.
            except (CannotMeasure, RopeError, RuntimeError, MemoryError, ImportError) as error:
                skipped.append(Skipped(name, str(error), isinstance(error, CannotMeasure)))
    return rows, skipped


def print_json(
    tokens: int, heads: tuple[int, int], rows: list[Row], skipped: list[Skipped], **facts: object
) -> None:
    """Print one JSON object: the inputs, the rows, the skipped targets and other facts."""
    names = {"tokens": tokens, "heads": dict(zip("qk", heads, strict=True)), "head_dim": HEAD_DIM}
    report = {**names, "layout": "half", "base": BASE, "rows": rows, "skipped": skipped, **facts}
    terminal.write_json(report, default=vars)
