"""What commands that time calls have in common: their options, and which libraries they run on."""

import argparse
from dataclasses import dataclass

from rope_xp._bench import targets
from rope_xp._bench.targets import Target
from rope_xp._cli import arguments
from rope_xp._dispatch import find


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
    found_here: list[Target] = []
    skipped: list[Skipped] = []
    for library in find.libraries:
        if libraries is not None and library.name not in libraries:
            continue
        names = [name for name in targets.NAMES if name.startswith(f"{library.name}:")]
        found = {name: targets.find(name) for name in names}
        here = [target for target in found.values() if isinstance(target, Target)]
        found_here += here
        reasons = {name: why for name, why in found.items() if isinstance(why, str)}
        if here:
            skipped += [Skipped(name, why, expected=True) for name, why in reasons.items()]
        elif reasons:
            why = next(iter(reasons.values()))
            skipped.append(Skipped(library.name, why, expected=libraries is None))
    return found_here, skipped
