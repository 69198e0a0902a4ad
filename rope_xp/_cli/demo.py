"""Rotate one attention layer of Llama-3-8B on every installed library, and compare the results.

Each library rotates the same q and k, at positions from 0 and from a million. Its time is set
beside that of copying the same arrays, its error beside that of the float32 formula in common use.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rope_xp._bench import targets
from rope_xp._cli import choice, compare, terminal
from rope_xp._cli.choice import Skipped
from rope_xp._cli.compare import Row
from rope_xp._contract.errors import RopeError

STARTS = (0, 1_000_000)
ERROR_BOUND = 2e-6
"""Times the largest component of q and k."""
ULP_BOUND = 2.0
_BIT_EQUAL = frozenset({"numpy:cpu", "torch:cpu", "dask:cpu"})


@dataclass(frozen=True)
class Outcome:
    """Everything that the demo found."""

    tokens: int
    rows: list[Row]
    skipped: list[Skipped]
    error_bound: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    choice.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo; return the exit status, 1 where something is not as promised."""
    outcome = measure(options.tokens, options.repeat, options.backend)
    wrong = problems(outcome)
    if options.json:
        print(json.dumps(_as_json(outcome, wrong), indent=2))
    else:
        _print(outcome, wrong)
    return 1 if wrong else 0


# --- measuring -----------------------------------------------------------------------------------


def measure(tokens: int, repeat: int, libraries: list[str] | None) -> Outcome:
    """Run every target that is there, or all of the libraries named."""
    chosen, skipped = choice.choose(libraries)
    arrays = compare.layer(tokens)
    rows: list[Row] = []
    with terminal.progress(len(chosen) * len(STARTS)) as advance:
        for start in STARTS:
            first = None
            for target in list(chosen):
                advance(f"{target.name} from position {start}")
                # A library may be installed and unable to run: its driver does not fit, its GPU
                # is full. That must not stop the others.
                try:
                    row, results = compare.run(target, arrays, start, repeat, first)
                except (RopeError, RuntimeError, MemoryError, ImportError) as error:
                    chosen.remove(target)
                    skipped.append(Skipped(target.name, str(error), expected=False))
                    continue
                rows.append(row)
                first = results if first is None else first
    rows.sort(key=lambda row: targets.NAMES.index(row.target))
    bound = ERROR_BOUND * max(float(np.max(np.abs(x))) for x in arrays)
    return Outcome(tokens, rows, skipped, bound)


# --- judging -------------------------------------------------------------------------------------


def problems(outcome: Outcome) -> list[str]:
    """Return what is not as promised, in words."""
    found = [f"{s.target} did not run: {s.reason}" for s in outcome.skipped if not s.expected]
    for row in outcome.rows:
        where = f"{row.target} from position {row.start}"
        first = outcome.rows[0].target
        # Written with "not", so that NaN is a problem.
        if not row.max_error <= outcome.error_bound:
            found.append(f"{where}: error {row.max_error:.1e} exceeds {outcome.error_bound:.1e}")
        if not row.ulp_from_first <= ULP_BOUND:
            found.append(f"{where}: {row.ulp_from_first:.3g} ulp from {first}, over {ULP_BOUND}")
        elif row.ulp_from_first > 0 and {first, row.target} <= _BIT_EQUAL:
            found.append(f"{where}: differs from {first}, whose bits it should have")
    return found


def agreement(rows: list[Row]) -> str:
    """Return one line on whether the libraries agree."""
    worst: dict[str, float] = {}
    for row in rows:
        worst[row.target] = float(np.maximum(worst.get(row.target, 0.0), row.ulp_from_first))
    if not worst:
        return "No library ran, so there is nothing to compare."
    first, *others = worst
    if not others:
        return (
            f"{first} is the only library that ran, and so it is compared with the plain formula "
            f"in float64: off by {max(row.max_error for row in rows):.1e} at most, the usual "
            f"formula in float32 by {max(row.usual_max_error for row in rows):.1e}."
        )
    agree = all(worst[name] <= ULP_BOUND for name in others)
    each = ", ".join(
        f"{name} {'equal in every bit' if worst[name] == 0 else f'within {worst[name]:.2g} ulp'}"
        for name in others
    )
    return f"{'All libraries agree' if agree else 'THE LIBRARIES DIFFER'}. To {first}: {each}."


# --- printing ------------------------------------------------------------------------------------


def _print(outcome: Outcome, wrong: list[str]) -> None:
    absent = [s for s in outcome.skipped if not s.expected]
    told = [f"{s.target}: {s.reason}" for s in outcome.skipped if s.expected]
    for line in (*told, *(f"PROBLEM: {problem}" for problem in wrong[: len(absent)])):
        print(terminal.folded("", line, 2))
    for missing in sorted({row.slower for row in outcome.rows if row.slower}):
        print(terminal.folded("", f"slower than it need be: {missing}", 2))
    if outcome.rows:
        _table(outcome)
    print(terminal.folded("", agreement(outcome.rows), 2))
    for problem in wrong[len(absent) :]:
        print(terminal.folded("", f"PROBLEM: {problem}", 2))


def _table(outcome: Outcome) -> None:
    q, k = (f"(1, {outcome.tokens}, {heads}, {compare.HEAD_DIM})" for heads in compare.HEADS)
    layout, base = compare.LAYOUT, compare.BASE
    print(f"q {q} and k {k}, float32,\nlayout {layout!r}, base {base:.0f}")
    columns = ("target", "path", "from", "time", "x a copy", "error", "usual")
    rows = [
        (
            row.target,
            row.path,
            str(row.start),
            f"{row.seconds * 1e3:.2f} ms",
            f"{row.times_copy:.2f}",
            f"{row.max_error:.1e}",
            f"{row.usual_max_error:.1e}",
        )
        for row in outcome.rows
    ]
    terminal.table(columns, rows, text_columns=2)
    print(
        "from:     the first position\n"
        "x a copy: times as fast as copying q and k in the same library\n"
        "error:    largest difference from float64\n"
        "usual:    error of the formula in common use, float32 position * inv_freq"
    )


def _as_json(outcome: Outcome, wrong: list[str]) -> dict[str, Any]:
    return {
        "tokens": outcome.tokens,
        "heads": dict(zip(("q", "k"), compare.HEADS, strict=True)),
        "head_dim": compare.HEAD_DIM,
        "dtype": "float32",
        "layout": compare.LAYOUT,
        "base": compare.BASE,
        "error_bound": outcome.error_bound,
        "ulp_bound": ULP_BOUND,
        "rows": [asdict(row) for row in outcome.rows],
        "skipped": [asdict(skipped) for skipped in outcome.skipped],
        "agreement": agreement(outcome.rows),
        "problems": wrong,
    }
