"""Rotate one attention layer of Llama-3-8B on every installed library, and compare the results.

Each library rotates the same q and k, at positions from 0 and from a million. Its error and its
time are set beside those of the float32 formula in common use.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._bench import clock, formulas
from rope_xp._bench.inputs import BASE, HEAD_DIM, HEADS, case
from rope_xp._bench.targets import Target
from rope_xp._cli import choice, terminal
from rope_xp._cli.choice import Skipped
from rope_xp._core.typing import Array, Layout
from rope_xp._functions import apply, explain

STARTS = (0, 1_000_000)
LAYOUT: Layout = "half"
ERROR_BOUND = 2e-6
"""Times the largest component of q and k."""
ULP_BOUND = 2.0
_BIT_EQUAL = frozenset({"numpy:cpu", "torch:cpu", "dask:cpu"})
_CHUNK = 256
"""Tokens whose results are compared at once: all of them in float64 would take ten times the
memory of the arrays."""

Arrays = list[NDArray[np.float32]]


@dataclass(frozen=True)
class Row:
    """What one target did from one start position."""

    target: str
    start: int
    path: str
    seconds: float
    times_usual: float
    """How many times as fast as the formula in common use."""
    max_error: float
    usual_max_error: float
    """Of the float32 formula in common use, in the same library."""
    error_bound: float
    """What is promised for ``max_error``."""
    ulp_from_first: float
    """Largest difference from the first target, in ulp of the larger component of the pair."""
    slower: str | None = None
    """What is not installed that would make it faster, and how to install it."""


@dataclass(frozen=True)
class Outcome:
    """Everything that the demo measured."""

    tokens: int
    rows: list[Row]
    skipped: list[Skipped]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    choice.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo; return the exit status, 1 where something is not as promised."""
    outcome = measure(options.tokens, options.repeat, options.backend)
    problems = find_problems(outcome)
    if options.json:
        print(json.dumps(_as_json(outcome, problems), indent=2))
    else:
        _print(outcome, problems)
    return 1 if problems else 0


# --- measuring -----------------------------------------------------------------------------------


def measure(tokens: int, repeat: int, libraries: list[str] | None) -> Outcome:
    """Run every target that is there, or all of the libraries named."""
    chosen, skipped = choice.choose(libraries)
    first: dict[int, Arrays] = {}

    def job(target: Target, start: int) -> choice.Job[Row]:
        name = f"{target.name} from position {start}"
        return name, lambda: measure_target(target, tokens, start, repeat, first)

    jobs = [job(target, start) for target in chosen for start in STARTS]
    rows, failed = choice.run_each(jobs)
    return Outcome(tokens, rows, skipped + failed)


def measure_target(
    target: Target, tokens: int, start: int, repeat: int, first: dict[int, Arrays]
) -> Row:
    """Return the row of a target. ``first`` holds results of the first target, by start."""
    _, q, k, positions = case(target.name, tokens, start)
    usual = formulas.usual_formula(target, BASE)

    def rotate() -> tuple[Array, ...]:
        return apply(q, k, positions, layout=LAYOUT, base=BASE)

    seconds, usual_seconds = clock.best_seconds(
        target, repeat, rotate, lambda: usual(q, k, positions)
    )
    arrays, results, usual_results = (
        [target.fetch(x) for x in xs] for xs in ((q, k), rotate(), usual(q, k, positions))
    )
    explained = explain(q, k, positions, layout=LAYOUT, base=BASE)
    others = first.setdefault(start, results)
    error, usual_error, ulp = _compare(
        arrays, target.fetch(positions), results, usual_results, others
    )
    return Row(
        target=target.name,
        start=start,
        path=explained.path,
        seconds=seconds,
        times_usual=usual_seconds / seconds,
        max_error=error,
        usual_max_error=usual_error,
        error_bound=ERROR_BOUND * max(float(np.max(np.abs(x))) for x in arrays),
        ulp_from_first=ulp,
        slower=next((why for _, why in explained.declined if "not installed" in why), None),
    )


def _compare(
    arrays: Arrays, positions: NDArray[Any], results: Arrays, usual: Arrays, others: Arrays
) -> list[float]:
    """Return the largest errors of results and of the usual formula, and the difference in ulp.

    Errors are differences from the rotation in float64. The ulp is that of the larger component of
    a pair.
    """
    frequencies = BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    maxima = []
    for start in range(0, len(positions), _CHUNK):
        part = slice(start, start + _CHUNK)
        for i, whole in enumerate(arrays):
            x, y, approximate, other = (
                a[:, part] for a in (whole, results[i], usual[i], others[i])
            )
            exact = formulas.rotate_exact(x, positions[part], frequencies, LAYOUT)
            pairs = (*x.shape[:-1], 2, HEAD_DIM // 2)
            unit = np.spacing(np.max(np.abs(x.reshape(pairs)), axis=-2, keepdims=True))
            difference = np.abs(y.astype(np.float64) - other).reshape(pairs) / unit
            errors = (np.abs(y - exact), np.abs(approximate - exact), difference)
            maxima.append([np.max(e) for e in errors])
    # numpy's max carries NaN on; Python's may lose it.
    return [float(m) for m in np.max(maxima, axis=0)]


# --- judging -------------------------------------------------------------------------------------


def find_problems(outcome: Outcome) -> list[str]:
    """Return what is not as promised, in words."""
    found = [f"{s.target} did not run: {s.reason}" for s in outcome.skipped if not s.expected]
    for row in outcome.rows:
        name = f"{row.target} from position {row.start}"
        first = outcome.rows[0].target
        # Written with "not", so that NaN is a problem.
        if not row.max_error <= row.error_bound:
            found.append(f"{name}: error {row.max_error:.1e} exceeds {row.error_bound:.1e}")
        if not row.ulp_from_first <= ULP_BOUND:
            found.append(f"{name}: {row.ulp_from_first:.3g} ulp from {first}, over {ULP_BOUND}")
        elif row.ulp_from_first > 0 and {first, row.target} <= _BIT_EQUAL:
            found.append(f"{name}: differs from {first}, whose bits it should have")
    return found


def summarize_agreement(rows: list[Row]) -> str:
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


def _print(outcome: Outcome, problems: list[str]) -> None:
    for skipped in outcome.skipped:
        if skipped.expected:
            print(terminal.folded("", f"{skipped.target}: {skipped.reason}", 2))
    for missing in sorted({row.slower for row in outcome.rows if row.slower}):
        print(terminal.folded("", f"slower than it need be: {missing}", 2))
    if outcome.rows:
        _print_table(outcome)
    print(terminal.folded("", summarize_agreement(outcome.rows), 2))
    for problem in problems:
        print(terminal.folded("", f"PROBLEM: {problem}", 2))


def _print_table(outcome: Outcome) -> None:
    q, k = (f"(1, {outcome.tokens}, {heads}, {HEAD_DIM})" for heads in HEADS)
    print(f"q {q} and k {k}, float32,\nlayout {LAYOUT!r}, base {BASE:.0f}")
    columns = ("target", "path", "from", "error", "formula's", "time", "x the formula")
    rows = [
        (
            row.target,
            row.path,
            str(row.start),
            f"{row.max_error:.1e}",
            f"{row.usual_max_error:.1e}",
            f"{row.seconds * 1e3:.2f} ms",
            f"{row.times_usual:.2f}",
        )
        for row in outcome.rows
    ]
    terminal.table(columns, rows, text_columns=2)
    print(
        "from:          the first position\n"
        "error:         largest difference from float64\n"
        "formula's:     that of the formula in common use, float32 position * inv_freq\n"
        "x the formula: times as fast as that formula in the same library"
    )


def _as_json(outcome: Outcome, problems: list[str]) -> dict[str, Any]:
    return {
        "tokens": outcome.tokens,
        "heads": dict(zip(("q", "k"), HEADS, strict=True)),
        "head_dim": HEAD_DIM,
        "dtype": "float32",
        "layout": LAYOUT,
        "base": BASE,
        "ulp_bound": ULP_BOUND,
        "rows": [asdict(row) for row in outcome.rows],
        "skipped": [asdict(skipped) for skipped in outcome.skipped],
        "agreement": summarize_agreement(outcome.rows),
        "problems": problems,
    }
