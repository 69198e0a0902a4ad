"""What demo and bench share: options, the loop over libraries, and how its outcome is printed."""

import argparse
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from rope_xp._bench import targets
from rope_xp._bench.inputs import BASE, HEAD_DIM, HEADS, CannotMeasure
from rope_xp._bench.targets import Target
from rope_xp._cli import terminal
from rope_xp._core.errors import RopeError

REPEAT = 5  # timed calls
_LIBRARIES = tuple(dict.fromkeys(name.partition(":")[0] for name in targets.ALL_NAMES))
Row = TypeVar("Row")


class Outcome(NamedTuple, Generic[Row]):
    rows: list[Row]
    missing: dict[str, str]  # why targets, or rows of them, were skipped
    problems: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=terminal.count, default=4096, help="default %(default)s")
    backend_help = f"run only this library: {', '.join(_LIBRARIES)}; may be repeated"
    add("--backend", action="append", choices=_LIBRARIES, metavar="NAME", help=backend_help)
    add("--json", action="store_true", help="print one JSON object")


def measure_rows(
    libraries: list[str] | None, variants: Sequence[Any], measure: Callable[[Target, Any], Row]
) -> Outcome[Row]:
    """Return a row for each variant on each device of the libraries, by default of all."""
    outcome = Outcome[Row]([], {}, [])
    for library in libraries or _LIBRARIES:
        names = [name for name in targets.ALL_NAMES if name.startswith(f"{library}:")]
        results = {name: targets.find(name) for name in names}
        found = [target for target in results.values() if isinstance(target, Target)]
        if not found:  # one reason for all devices
            results = {library: results[names[0]]}
        outcome.missing.update({name: why for name, why in results.items() if isinstance(why, str)})
        if libraries and not found:
            outcome.problems.append(f"{library} did not run")
        for target, variant in itertools.product(found, variants):
            try:
                outcome.rows.append(measure(target, variant))
            except CannotMeasure as error:
                outcome.missing[f"{target.name} {variant}"] = str(error)
            # A full GPU or an unfit driver must not stop the other targets.
            except (RopeError, RuntimeError, MemoryError, ImportError) as error:
                outcome.problems.append(f"{target.name} {variant} did not run: {error}")
    return outcome


def print_outcome(
    options: argparse.Namespace, outcome: Outcome[Row], write_rows: Callable[[], None]
) -> int:
    """Print rows, problems and what is missing; return the exit status, 1 for problems."""
    shapes = {name: (1, options.tokens, n, HEAD_DIM) for name, n in zip("qk", HEADS, strict=True)}
    if options.json:
        facts = {**shapes, "layout": "half", "base": BASE}
        terminal.write_json(facts | outcome._asdict(), default=vars)
    else:
        if outcome.rows:
            terminal.write(f"q {shapes['q']} and k {shapes['k']}, layout 'half', base {BASE:.0f}")
            write_rows()
        terminal.write(*(f"PROBLEM: {problem}" for problem in outcome.problems))
        terminal.write(*(f"{name}: {reason}" for name, reason in outcome.missing.items()))
    return int(bool(outcome.problems))
