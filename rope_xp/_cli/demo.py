"""Rotate q and k of one Llama-3-8B layer on every installed library, and compare the results."""

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._bench import clock, formulas, targets
from rope_xp._bench.inputs import BASE, HEAD_DIM, HEADS, case
from rope_xp._cli import choice, terminal
from rope_xp._core.typing import Layout
from rope_xp._functions import apply, explain

STARTS = (0, 1_000_000)
LAYOUT: Layout = "half"
ERROR_BOUND = 2e-6  # times the largest component of q and k
ULP_BOUND = 2.0
_BIT_EQUAL = frozenset({"numpy:cpu", "torch:cpu", "dask:cpu"})
_CHUNK = 256
"""Tokens compared at once: float64 copies of whole arrays would take ten times their memory."""
_COLUMNS = ("target", "path", "from position", "error", "usual error", "ms", "x usual")
Arrays = list[NDArray[np.float32]]


@dataclass(frozen=True)
class DemoRow:
    """The figures of one target from one start position, and of the usual formula in float32."""

    target: str
    start: int
    path: str
    seconds: float
    times_usual: float
    max_error: float
    usual_max_error: float
    error_bound: float
    ulp_from_first: float  # the difference from the first target, of the pair's larger component


add_arguments = choice.add_arguments


def run(options: argparse.Namespace) -> int:
    """Run the demo; return the exit status, 1 where a promise is broken."""
    chosen, missing = choice.choose_targets(options.backend)
    first: dict[int, Arrays] = {}
    jobs = {
        f"{target.name} from position {start}": partial(
            measure_target, target, options.tokens, start, options.repeat, first
        )
        for target in chosen
        for start in STARTS
    }
    rows, failed = choice.run_jobs(jobs)
    skipped = missing + failed
    agreement, problems = summarize_agreement(rows), find_problems(rows, skipped)
    if options.json:
        facts = {"dtype": "float32", "ulp_bound": ULP_BOUND}
        facts |= {"agreement": agreement, "problems": problems}
        choice.print_json(options.tokens, HEADS, rows, skipped, **facts)
    else:
        if rows:
            _print_rows(options.tokens, rows)
        for line in (agreement, *(f"PROBLEM: {text}" for text in problems)):
            terminal.write_folded(line)
        choice.print_missing(chosen, [s for s in skipped if s.expected])
    return int(bool(problems))


def measure_target(
    target: targets.Target, tokens: int, start: int, repeat: int, first: dict[int, Arrays]
) -> DemoRow:
    """Return the row of a target. ``first`` holds results of the first target, by start."""
    _, q, k, positions = case(target.name, tokens, start)
    rotate = partial(apply, q, k, positions, layout=LAYOUT, base=BASE)
    rotate_usual = partial(formulas.usual_formula(target, BASE), q, k, positions)
    seconds, usual_seconds = clock.best_seconds(target, repeat, rotate, rotate_usual)
    arrays, results, usual_results = (
        [target.fetch(x) for x in xs] for xs in ((q, k), rotate(), rotate_usual())
    )
    error, usual_error, ulp = _compare(
        target.fetch(positions), arrays, results, usual_results, first.setdefault(start, results)
    )
    return DemoRow(
        target=target.name,
        start=start,
        path=explain(q, k, positions, layout=LAYOUT, base=BASE).path,
        seconds=seconds,
        times_usual=usual_seconds / seconds,
        max_error=error,
        usual_max_error=usual_error,
        error_bound=ERROR_BOUND * max(float(np.max(np.abs(x))) for x in arrays),
        ulp_from_first=ulp,
    )


def _compare(positions: NDArray[Any], *tensors: Arrays) -> list[float]:
    """Return the maximum errors of results and of the usual formula, and the difference in ulp."""
    # The tensors are arrays, results, those of the usual formula and those of the first target.
    frequencies = BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    maxima = []
    for start in range(0, len(positions), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        for whole in zip(*tensors, strict=True):
            x, y, approximate, other = (tensor[:, chunk] for tensor in whole)
            exact = formulas.rotate_exact(x, positions[chunk], frequencies, LAYOUT)
            pairs = (*x.shape[:-1], 2, HEAD_DIM // 2)
            ulp = np.spacing(np.max(np.abs(x.reshape(pairs)), axis=-2, keepdims=True))
            difference = np.abs(y.astype(np.float64) - other).reshape(pairs) / ulp
            errors = (np.abs(y - exact), np.abs(approximate - exact), difference)
            maxima.append([np.max(e) for e in errors])
    # numpy's max propagates NaN, and Python's may not.
    return [float(m) for m in np.max(maxima, axis=0)]


def find_problems(rows: list[DemoRow], skipped: list[choice.Skipped]) -> list[str]:
    problems = [f"{s.target} did not run: {s.reason}" for s in skipped if not s.expected]
    for row in rows:
        name = f"{row.target} from position {row.start}"
        first = rows[0].target
        # "not <=" holds for NaN too.
        if not row.max_error <= row.error_bound:
            problems.append(f"{name}: error {row.max_error:.1e} exceeds {row.error_bound:.1e}")
        if not row.ulp_from_first <= ULP_BOUND:
            problems.append(f"{name}: {row.ulp_from_first:.3g} ulp from {first}, over {ULP_BOUND}")
        elif row.ulp_from_first > 0 and {first, row.target} <= _BIT_EQUAL:
            problems.append(f"{name}: differs from {first}, whose bits it should have")
    return problems


def summarize_agreement(rows: list[DemoRow]) -> str:
    ulps: dict[str, float] = {}
    for row in rows:
        ulps[row.target] = float(np.maximum(ulps.get(row.target, 0.0), row.ulp_from_first))
    if len(ulps) < 2:
        return f"{rows[0].target} is the only library that ran." if rows else "No library ran."
    texts = [n + (f" within {u:.2g} ulp" if u else " equal in every bit") for n, u in ulps.items()]
    agree = all(ulp <= ULP_BOUND for ulp in ulps.values())
    verdict = "All libraries agree" if agree else "THE LIBRARIES DIFFER"
    return f"{verdict}. To {rows[0].target}: {', '.join(texts[1:])}."


def _print_rows(tokens: int, rows: list[DemoRow]) -> None:
    title = "Compared with the library's usual float32 formula, from position"
    terminal.write(f"{title} {STARTS[-1]}:")
    for row in rows:
        if row.start == STARTS[-1]:
            errors = [f"{e:.0e}".replace("e-0", "e-") for e in (row.max_error, row.usual_max_error)]
            ratio = float(f"{row.usual_max_error / max(row.max_error, 1e-12):.1g}")
            fast = f"{clock.digits(row.times_usual)} times as fast"
            exact = f"error {errors[0]}, usual {errors[1]}: {ratio:,.0f} times smaller"
            terminal.write(f"{row.target}: {exact}; {fast}")
    q, k = (f"(1, {tokens}, {heads}, {HEAD_DIM})" for heads in HEADS)
    terminal.write("", f"q {q} and k {k}, float32, layout {LAYOUT!r},")
    terminal.write(f"base {BASE:.0f}; errors are the largest differences from float64")
    cells = [
        (
            *(row.target, row.path, str(row.start)),
            *(f"{row.max_error:.1e}", f"{row.usual_max_error:.1e}"),
            *(f"{row.seconds * 1e3:.2f}", f"{row.times_usual:.2f}"),
        )
        for row in rows
    ]
    terminal.table(_COLUMNS, cells, text_columns=2)
