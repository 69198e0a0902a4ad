"""Rotate one attention layer of Llama-3-8B on every installed library, and compare the results.

Each library rotates the same q and k, at positions from 0 and from a million. Its error and its
time are compared with those of the float32 formula in common use.
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
"""Tokens compared at once: float64 copies of whole arrays would take ten times their memory."""

Arrays = list[NDArray[np.float32]]


@dataclass(frozen=True)
class DemoRow:
    """The figures of one target from one start position."""

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
    """The promised bound of ``max_error``."""
    ulp_from_first: float
    """Largest difference from the first target, in ulp of the larger component of the pair."""
    slower: str | None = None
    """A package that is not installed and would make it faster, and how to install it."""


@dataclass(frozen=True)
class Outcome:
    """All figures of the demo."""

    tokens: int
    rows: list[DemoRow]
    skipped: list[Skipped]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    choice.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo; return the exit status, 1 where a promise is broken."""
    outcome = measure(options.tokens, options.repeat, options.backend)
    problems = find_problems(outcome)
    if options.json:
        print(json.dumps(_build_report(outcome, problems), indent=2))
    else:
        _print_outcome(outcome, problems)
    return 1 if problems else 0


# --- measuring -----------------------------------------------------------------------------------


def measure(tokens: int, repeat: int, libraries: list[str] | None) -> Outcome:
    """Run every target that is installed, or all of the named libraries."""
    chosen, skipped = choice.choose_targets(libraries)
    first: dict[int, Arrays] = {}

    def build_job(target: Target, start: int) -> choice.Job[DemoRow]:
        name = f"{target.name} from position {start}"
        return name, lambda: measure_target(target, tokens, start, repeat, first)

    jobs = [build_job(target, start) for target in chosen for start in STARTS]
    rows, failed = choice.run_jobs(jobs)
    return Outcome(tokens, rows, skipped + failed)


def measure_target(
    target: Target, tokens: int, start: int, repeat: int, first: dict[int, Arrays]
) -> DemoRow:
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
    return DemoRow(
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
    """Return the maximum errors of results and of the usual formula, and the difference in ulp."""
    frequencies = BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    maxima = []
    for start in range(0, len(positions), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        for tensors in zip(arrays, results, usual, others, strict=True):
            x, y, approximate, other = (tensor[:, chunk] for tensor in tensors)
            exact = formulas.rotate_exact(x, positions[chunk], frequencies, LAYOUT)
            pairs = (*x.shape[:-1], 2, HEAD_DIM // 2)
            ulp = np.spacing(np.max(np.abs(x.reshape(pairs)), axis=-2, keepdims=True))
            difference = np.abs(y.astype(np.float64) - other).reshape(pairs) / ulp
            errors = (np.abs(y - exact), np.abs(approximate - exact), difference)
            maxima.append([np.max(e) for e in errors])
    # numpy's max propagates NaN, and Python's may not.
    return [float(m) for m in np.max(maxima, axis=0)]


# --- judging -------------------------------------------------------------------------------------


def find_problems(outcome: Outcome) -> list[str]:
    """Return the broken promises as sentences."""
    problems = [f"{s.target} did not run: {s.reason}" for s in outcome.skipped if not s.expected]
    for row in outcome.rows:
        name = f"{row.target} from position {row.start}"
        first = outcome.rows[0].target
        # "not <=" holds for NaN too.
        if not row.max_error <= row.error_bound:
            problems.append(f"{name}: error {row.max_error:.1e} exceeds {row.error_bound:.1e}")
        if not row.ulp_from_first <= ULP_BOUND:
            problems.append(f"{name}: {row.ulp_from_first:.3g} ulp from {first}, over {ULP_BOUND}")
        elif row.ulp_from_first > 0 and {first, row.target} <= _BIT_EQUAL:
            problems.append(f"{name}: differs from {first}, whose bits it should have")
    return problems


def summarize_agreement(rows: list[DemoRow]) -> str:
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
    distances = ", ".join(
        f"{name} {'equal in every bit' if worst[name] == 0 else f'within {worst[name]:.2g} ulp'}"
        for name in others
    )
    return f"{'All libraries agree' if agree else 'THE LIBRARIES DIFFER'}. To {first}: {distances}."


# --- printing ------------------------------------------------------------------------------------


def _print_outcome(outcome: Outcome, problems: list[str]) -> None:
    lines = [f"{s.target}: {s.reason}" for s in outcome.skipped if s.expected]
    missing = sorted({row.slower for row in outcome.rows if row.slower})
    lines += [f"slower than it need be: {reason}" for reason in missing]
    for line in lines:
        print(terminal.folded("", line, 2))
    if outcome.rows:
        _print_table(outcome)
    for line in [summarize_agreement(outcome.rows), *(f"PROBLEM: {text}" for text in problems)]:
        print(terminal.folded("", line, 2))


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


def _build_report(outcome: Outcome, problems: list[str]) -> dict[str, Any]:
    return {
        **asdict(outcome),
        "heads": dict(zip(("q", "k"), HEADS, strict=True)),
        "head_dim": HEAD_DIM,
        "dtype": "float32",
        "layout": LAYOUT,
        "base": BASE,
        "ulp_bound": ULP_BOUND,
        "agreement": summarize_agreement(outcome.rows),
        "problems": problems,
    }
