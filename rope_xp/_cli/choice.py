"""Options, the choice of libraries and a loop over jobs, for the commands that time calls."""

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
    """Whether nothing is amiss: it is not here, and nobody asked for it by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that times calls on libraries."""
    parser.add_argument("--tokens", type=arguments.count, default=4096, help="default %(default)s")
    parser.add_argument(
        "--repeat",
        type=arguments.count,
        default=5,
        help="timed calls, the best of which counts; default 5",
    )
    here = {name.partition(":")[0] for name in targets.NAMES}  # ndonnx makes graphs, for elsewhere
    names = [library.name for library in find.libraries if library.name in here]
    parser.add_argument(
        "--backend",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"only this library, {', '.join(names)}; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def choose(libraries: list[str] | None) -> tuple[list[Target], list[Skipped]]:
    """Return the targets to run on, all that are here unless libraries are named, and the rest."""
    chosen: list[Target] = []
    skipped: list[Skipped] = []
    for library in find.libraries:
        if libraries is not None and library.name not in libraries:
            continue
        names = [name for name in targets.NAMES if name.startswith(f"{library.name}:")]
        found = {name: targets.find(name) for name in names}
        here = [target for target in found.values() if isinstance(target, Target)]
        reasons = {name: why for name, why in found.items() if isinstance(why, str)}
        if here:
            chosen += here
            skipped += [Skipped(name, why, expected=True) for name, why in reasons.items()]
        elif reasons:
            why = next(iter(reasons.values()))
            skipped.append(Skipped(library.name, why, expected=libraries is None))
    return chosen, skipped


def run_each(jobs: Sequence[Job[Row]]) -> tuple[list[Row], list[Skipped]]:
    """Run jobs, and return their rows and the jobs that failed."""
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with terminal.progress(len(jobs)) as advance:
        for name, run in jobs:
            advance(name)
            try:
                rows.append(run())
            except Absent as error:
                skipped.append(Skipped(name, str(error), expected=True))
            # A GPU may be full, or a driver not fit. That must not stop the others.
            except (RopeError, RuntimeError, MemoryError, ImportError) as error:
                skipped.append(Skipped(name, str(error), expected=False))
    return rows, skipped
