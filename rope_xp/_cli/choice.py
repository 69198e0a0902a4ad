"""Options, the choice of libraries and the loop over jobs of the commands that time calls."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from rope_xp._bench import targets
from rope_xp._bench.inputs import Absent
from rope_xp._bench.targets import Target
from rope_xp._cli import arguments, terminal
from rope_xp._core.errors import RopeError
from rope_xp._dispatch import find

Row = TypeVar("Row")
Job: TypeAlias = tuple[str, Callable[[], Row]]
"""A name, and a function that measures one row."""


@dataclass(frozen=True)
class Skipped:
    """A target that did not run."""

    target: str
    reason: str
    expected: bool
    """Whether this is no problem: the target is not installed, and --backend does not name it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that times calls on libraries."""
    parser.add_argument("--tokens", type=arguments.count, default=4096, help="default %(default)s")
    repeat_help = "timed calls, the best of which counts; default 5"
    parser.add_argument("--repeat", type=arguments.count, default=5, help=repeat_help)
    timed = {name.partition(":")[0] for name in targets.NAMES}  # ndonnx only makes graphs
    names = [library.name for library in find.libraries if library.name in timed]
    parser.add_argument(
        "--backend",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"only this library, {', '.join(names)}; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def choose_targets(libraries: list[str] | None) -> tuple[list[Target], list[Skipped]]:
    """Return the targets to run on, by default all that are installed, and the skipped ones."""
    chosen: list[Target] = []
    skipped: list[Skipped] = []
    for library in find.libraries:
        if libraries is not None and library.name not in libraries:
            continue
        names = [name for name in targets.NAMES if name.startswith(f"{library.name}:")]
        results = {name: targets.find(name) for name in names}
        installed = [target for target in results.values() if isinstance(target, Target)]
        reasons = {name: why for name, why in results.items() if isinstance(why, str)}
        chosen += installed
        if installed:
            skipped += [Skipped(name, why, expected=True) for name, why in reasons.items()]
        elif reasons:
            reason = next(iter(reasons.values()))
            skipped.append(Skipped(library.name, reason, expected=libraries is None))
    return chosen, skipped


def run_jobs(jobs: Sequence[Job[Row]]) -> tuple[list[Row], list[Skipped]]:
    """Run jobs; return their rows and the jobs that failed."""
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with terminal.progress(len(jobs)) as advance:
        for name, measure in jobs:
            advance(name)
            try:
                rows.append(measure())
            except Absent as error:
                skipped.append(Skipped(name, str(error), expected=True))
            # A full GPU or an unfit driver must not stop the other targets.
            except (RopeError, RuntimeError, MemoryError, ImportError) as error:
                skipped.append(Skipped(name, str(error), expected=False))
    return rows, skipped
