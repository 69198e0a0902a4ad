"""Rotate q and k of one Llama-3-8B layer on every installed library, and compare the results."""

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._bench import clock, formulas
from rope_xp._bench.inputs import BASE, HEAD_DIM, case
from rope_xp._bench.targets import Target
from rope_xp._cli import terminal, timed
from rope_xp._core.typing import Layout
from rope_xp._functions import apply, explain

STARTS = (0, 1_000_000)
LAYOUT: Layout = "half"
ERROR_BOUND = 2e-6  # times the largest component of q and k
ULP_BOUND = 2.0
_BIT_EQUAL = frozenset({"numpy:cpu", "torch:cpu", "dask:cpu"})
_CHUNK = 256
"""Tokens compared at once: float64 copies of whole arrays would take ten times their memory."""
_COLUMNS = ("target", "path", "from position", "error", "usual error", "ms", "times as fast")
Arrays = list[NDArray[np.float32]]


@dataclass(frozen=True)
class DemoRow:
    """The figures of one target from one start position, and of the usual formula in float32."""

    target: str
    start: int
    path: str
    milliseconds: float
    times_usual: float
    max_error: float
    usual_max_error: float
    error_bound: float
    ulp_from_first: float  # the difference from the first target, of the pair's larger component


add_arguments = timed.add_arguments


def run(options: argparse.Namespace) -> int:
    """Run the demo; return the exit status, 1 where a promise is broken."""
    measure = partial(measure_target, tokens=options.tokens, first={})
    outcome = timed.measure_rows(options.backend, STARTS, measure)
    outcome.problems.extend(find_problems(outcome.rows))
    return timed.print_outcome(options, outcome, partial(_write_rows, outcome.rows))


def measure_target(target: Target, start: int, tokens: int, first: dict[int, Arrays]) -> DemoRow:
    """Return the row of a target. ``first`` holds results of the first target, by start."""
    _, q, k, positions = case(target.name, tokens, start)
    rotate = partial(apply, q, k, positions, layout=LAYOUT, base=BASE)
    rotate_usual = partial(formulas.usual_formula(target, BASE), q, k, positions)
    seconds, usual_seconds = clock.best_seconds(target, timed.REPEAT, rotate, rotate_usual)
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
        milliseconds=1e3 * seconds,
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


def find_problems(rows: list[DemoRow]) -> list[str]:
    problems = []
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


def _write_rows(rows: list[DemoRow]) -> None:
    terminal.write("error: the largest difference from float64; usual error: of the usual formula")
    terminal.write("times as fast: as the usual formula, in the same library and float32")
    cells = [
        (
            *(row.target, row.path, str(row.start)),
            *(f"{row.max_error:.1e}", f"{row.usual_max_error:.1e}"),
            *(f"{row.milliseconds:.2f}", clock.digits(row.times_usual)),
        )
        for row in rows
    ]
    terminal.table(_COLUMNS, cells, text_columns=2)
    ulps: dict[str, float] = {}
    for row in rows:
        ulps[row.target] = float(np.maximum(ulps.get(row.target, 0.0), row.ulp_from_first))
    first, *others = (
        n + (f" within {u:.2g} ulp" if u else " in every bit") for n, u in ulps.items()
    )
    if others:
        terminal.write(f"Equal to {first.split()[0]}: {', '.join(others)}.")
