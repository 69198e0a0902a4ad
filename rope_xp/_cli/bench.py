"""Time a rotation on every installed library, and compare with a copy and the usual formula.

A rotation reads and writes as much as a copy does, so a ratio of 1 means as fast as memory allows.
It can be higher: results of rope_xp lie in pages of 2 MB, and those of torch's allocator do not.
"""

import argparse
from functools import partial
from typing import Any

import rope_xp
from rope_xp._bench import clock, formulas
from rope_xp._bench.inputs import BASE, DTYPES, case
from rope_xp._bench.targets import Target
from rope_xp._cli import terminal, timed

_COLUMNS = ("target", "dtype", "path", "ms", "x a copy", "x the formula", "one token, us")


add_arguments = timed.add_arguments


def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit status, 1 where a requested target did not run."""
    measure = partial(measure_target, tokens=options.tokens)
    outcome = timed.measure_rows(options.backend, DTYPES, measure)
    return timed.print_outcome(options, outcome, partial(_write_rows, outcome.rows))


def measure_target(target: Target, dtype: str, tokens: int) -> dict[str, Any]:
    """Return the shortest times of a target, and how many times as fast as others it is."""
    rope = rope_xp.RoPE(base=BASE, layout="half")
    _, q, k, positions = case(target.name, tokens, dtype=dtype)
    formula = formulas.usual_formula(target, BASE)
    rotate, rotate_usual = (partial(f, q, k, positions) for f in (rope.apply, formula))
    copy = lambda: (target.copy(q), target.copy(k))  # noqa: E731  # an action, as the others are
    seconds, copying, usual = clock.best_seconds(target, timed.REPEAT, rotate, copy, rotate_usual)
    rotate_one = partial(rope.apply, *case(target.name, 1, dtype=dtype)[1:])
    microseconds = clock.rounds_of_microseconds(target, rotate_one, 200, timed.REPEAT)
    return {
        "target": target.name,
        "dtype": dtype,
        "path": rope_xp.explain(q, k, positions, rope).path,
        "milliseconds": 1e3 * seconds,
        "times_copy": copying / seconds,
        "times_usual": usual / seconds,
        "token_microseconds": min(microseconds),
    }


def _write_rows(rows: list[dict[str, Any]]) -> None:
    terminal.write("x a copy: time to copy q and k to new arrays in this library / time to rotate")
    terminal.write("x the formula: time of Hugging Face's Llama formula (jax: jitted) / the same")
    cells = [[x if isinstance(x, str) else clock.digits(x) for x in row.values()] for row in rows]
    terminal.table(_COLUMNS, cells, text_columns=3)
